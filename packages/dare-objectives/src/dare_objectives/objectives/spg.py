"""SPG (arXiv 2510.09541): the sandwiched policy gradient."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Literal, Protocol

import torch
from torch import Tensor

from dare_objectives._errors import expect_count, expect_range, suggest
from dare_objectives.advantages import group_normalize
from dare_objectives.batch import Batch
from dare_objectives.estimators import elbo_mean, eubo_mean
from dare_objectives.losses.spg import spg_loss
from dare_objectives.metrics import Metrics
from dare_objectives.objective import Advantage, Coefficients, Objective, Planner, at_least_one
from dare_objectives.objectives.token_policy import AdvantageName, advantage_named, group_coefficients
from dare_objectives.plan import Plan
from dare_objectives.plans.block_suffix import block_suffix
from dare_objectives.score import Scored, logp_of

__all__ = ["spg", "spg_dare_compat"]


def spg(
    *,
    draws: int = 2,
    beta: float = 1.5,
    mix: float = 0.5,
    negatives: Literal["bound", "none"] = "bound",
    context: float = 0.15,
    min_t: float = 0.0,
    max_t: float = 1.0,
    weighting: Literal["sequence", "length"] = "sequence",
    advantage: AdvantageName = "center",
) -> Objective:
    """Maximise a lower bound where A > 0, minimise a mixture of an upper and the lower one where A < 0.

    loss = -1/B sum_b A_b s_b, s = e for A > 0, omega u + (1 - omega) e for A < 0 (SPG, arXiv 2510.09541), with
    e = mean over draws and masked tokens of l, and u = mean over tokens of 1/beta log mean_j [p_ij^beta L/|M_j|].
    Masks: `block_suffix`. No ratio, no old policy, no reference, no clip. With one draw u is e plus a constant for each
    token, so omega then changes the value of the loss and not its gradient. Published: 2 draws, omega 1/2, beta 1.5
    (sudoku 1; countdown omega 1, beta 2), 4 updates per rollout, rows weighted by length.

    Args:
        draws: n, masks per sequence; 2 or more for the upper bound to have an effect.
        beta: power of the upper bound, at least 1.
        mix: omega in [0, 1]; 0 is the lower bound for all samples.
        negatives: `"bound"`, or `"none"`: samples with A < 0 have no loss (and need no forward).
        context: rate at which tokens before the block are masked, prompt included.
        min_t: least masked share of the block.
        max_t: largest masked share of the block.
        weighting: `"sequence"`: mean over sequences; `"length"`: weighted by L_b, over all tokens of the batch.
        advantage: `"center"`, `"group_normalize"` or `"leave_one_out"`.

    Returns:
        Objective without needs; n forwards per update, in memory of one with `replay_backward` (which adds n without a
        graph). On policy the gradient is that of REINFORCE only with mix 0.

    >>> spg(weighting="length").needs
    frozenset()
    """
    expect_count("draws", draws)
    expect_range("context", context, 0.0, 1.0)
    expect_range("min_t", min_t, 0.0, max_t)
    expect_range("max_t", max_t, min_t, 1.0)
    return _spg(
        "spg",
        partial(block_suffix, draws=draws, context=context, min_t=min_t, max_t=max_t),
        advantage_named(advantage),
        beta=beta,
        mix=mix,
        negatives=negatives,
        weighting=weighting,
    )


def spg_dare_compat() -> Objective:
    """SPG with the numbers of the DARE reference: one draw, z-score (a group of one keeps its reward), length weights.

    With one draw its mixture has no effect on the gradient, here as there. Its mistakes are not reproduced: powers of
    probabilities, whose underflow drops tokens, a mean per micro-batch and the training of filler after the end token.

    Returns:
        Objective.
    """
    return _spg(
        "spg_dare_compat",
        partial(block_suffix, draws=1),
        partial(group_normalize, singleton="raw"),
        beta=1.5,
        mix=0.5,
        negatives="bound",
        weighting="length",
    )


def _spg(
    name: str,
    plan: Planner,
    advantage: Advantage,
    *,
    beta: float,
    mix: float,
    negatives: str,
    weighting: str,
) -> Objective:
    expect_range("beta", beta, 1.0, torch.inf)
    expect_range("mix", mix, 0.0, 1.0)
    if negatives not in _LEAST:
        raise ValueError(suggest("treatment of negatives", negatives, _LEAST))
    if weighting not in _WEIGHTINGS:
        raise ValueError(suggest("weighting", weighting, _WEIGHTINGS))
    prepare = partial(_prepare, advantage=advantage, least=_LEAST[negatives], weigh=_WEIGHTINGS[weighting])
    return Objective(
        name=name,
        plan=plan,
        estimator=elbo_mean,
        advantage=advantage,
        prepare=prepare,
        loss=partial(_loss, beta=beta, mix=mix),
    )


class _Weigh(Protocol):
    def __call__(self, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """(weight of each row, normaliser)."""
        ...


def _per_sequence(lengths: Tensor) -> tuple[Tensor, Tensor]:
    filled = lengths > 0
    return filled, at_least_one(filled.sum())


def _per_length(lengths: Tensor) -> tuple[Tensor, Tensor]:
    return lengths, at_least_one(lengths.sum())


_WEIGHTINGS: Final[Mapping[str, _Weigh]] = {"sequence": _per_sequence, "length": _per_length}
_LEAST: Final[Mapping[str, float]] = {"bound": -torch.inf, "none": 0.0}


def _prepare(
    batch: Batch,
    plan: Plan,
    rewards: Tensor | None = None,
    detached: Tensor | None = None,
    *,
    advantage: Advantage,
    least: float,
    weigh: _Weigh,
) -> Coefficients:
    """Group advantages; rows of advantage 0, below `least` or without maskable tokens get weight 0."""
    base = group_coefficients(batch, plan, rewards, detached, advantage=advantage, every_row=False)
    weight, normaliser = weigh(batch.lengths)
    return replace(base, row_weight=base.row_weight * weight * (base.advantage >= least), normaliser=normaliser)


def _loss(
    scored: Tensor | Scored,
    plan: Plan,
    coefficients: Coefficients,
    *,
    old: Tensor | Scored | None = None,
    ref: Tensor | Scored | None = None,
    beta: float,
    mix: float,
) -> tuple[Tensor, Metrics]:
    """The loss of some rows; `old` and `ref` play no part."""
    logp = logp_of(scored)
    return spg_loss(
        elbo_mean(logp, plan),
        eubo_mean(logp, plan, beta),
        coefficients.advantage,
        coefficients.row_weight,
        mix=mix,
        normaliser=coefficients.normaliser,
    )
