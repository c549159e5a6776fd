"""What the policy gradients on sequence likelihoods share: coefficients per sequence, the clipped loss and the KL."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import torch
from torch import Tensor

from dare_objectives._errors import expect_count, expect_range, suggest
from dare_objectives.batch import Batch
from dare_objectives.estimators import elbo_seq
from dare_objectives.losses.kl import kl_abs, kl_k1, kl_k1_corrected, kl_k2, kl_k3
from dare_objectives.losses.ppo import check_clips
from dare_objectives.losses.ppo_seq import ppo_seq
from dare_objectives.metrics import Metrics, masked_mean
from dare_objectives.objective import Advantage, Coefficients, Objective, Planner, at_least_one
from dare_objectives.objectives.token_policy import group_coefficients
from dare_objectives.plan import Plan
from dare_objectives.plans import count_stratified, per_block_count
from dare_objectives.score import Scored, logp_of, reference_logp

__all__ = [
    "CountName",
    "DivergenceName",
    "SequenceCoefficients",
    "counts_named",
    "divergence_named",
    "lengths_of",
    "raw_scores",
    "sequence_coefficients",
    "sequence_loss",
    "sequence_policy",
    "valid_lengths",
]

CountName = Literal["sequence", "block"]
"""Where the mask counts are drawn: one per sequence, or one per block (of a block-diffusion model)."""

DivergenceName = Literal["k1", "k1_corrected", "k2", "k3", "abs"]
"""The divergences from a reference that an option can name."""

Divergence = Callable[[Tensor, Tensor], Tensor]
"""From scores of the policy and of the reference to a divergence, same shape."""

_DIVERGENCES: Final[Mapping[str, Divergence]] = {
    "k1": kl_k1,
    "k1_corrected": kl_k1_corrected,
    "k2": kl_k2,
    "k3": kl_k3,
    "abs": kl_abs,
}


@dataclass(frozen=True, eq=False, kw_only=True)
class SequenceCoefficients(Coefficients):
    """Coefficients of an objective whose score is divided by a length.

    Args:
        length: `[B]`, at least 1; divides the scores of a row, so on policy the gradient of a row is
            -advantage row_weight d(estimate) / (length normaliser).
    """

    length: Tensor


def divergence_named(name: str) -> Divergence:
    """The divergence of that name."""
    if name not in _DIVERGENCES:
        raise ValueError(suggest("divergence", name, _DIVERGENCES))
    return _DIVERGENCES[name]


def counts_named(name: str, draws: int) -> Planner:
    """The plan of `draws` streams with counts per sequence or per block."""
    expect_count("draws", draws)
    plans = {"sequence": count_stratified, "block": per_block_count}
    if name not in plans:
        raise ValueError(suggest("kind of counts", name, plans))
    return partial(plans[name], draws=draws)


def valid_lengths(batch: Batch) -> Tensor:
    """`[B]`: number of maskable tokens, at least 1; what the padded response length is no stand-in for."""
    return batch.lengths.clamp(min=1)


def raw_scores(batch: Batch) -> Tensor:
    """`[B]`: ones, for scores that are not divided."""
    return torch.ones_like(batch.lengths)


def lengths_of(coefficients: Coefficients) -> Tensor:
    """The length of each row, from the coefficients of `sequence_coefficients`."""
    if not isinstance(coefficients, SequenceCoefficients):
        kind = type(coefficients).__name__
        raise TypeError(
            f"`coefficients`: expected SequenceCoefficients, got {kind}; use this objective's own `prepare`"
        )
    return coefficients.length


def sequence_policy(
    name: str,
    plan: Planner,
    advantage: Advantage,
    *,
    length: Callable[[Batch], Tensor],
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    beta: float,
    divergence: Divergence,
) -> Objective:
    """A PPO objective on the mean evidence lower bound of each sequence.

    loss = sum_b [PPO(exp((s_b - s_b^old) / L_b), A_b) + beta KL(s_b, s_b^ref) / L_b] / number of sequences.

    Args:
        name: the objective's name.
        plan: batch -> plan.
        advantage: (rewards, group) -> advantages.
        length: batch -> `[B]`, what divides the scores: `valid_lengths` or `raw_scores`.
        clip_low: see `ppo_seq`.
        clip_high: see `ppo_seq`.
        dual_clip: see `ppo_seq`.
        beta: weight of the divergence from the reference; above 0 the objective needs `ref`.
        divergence: on the undivided scores.

    Returns:
        Objective that needs `old` (or the on-policy shortcut) and, with beta, `ref`.
    """
    check_clips(clip_low, clip_high, dual_clip)
    expect_range("beta", beta, 0.0, torch.inf)
    clips = {"clip_low": clip_low, "clip_high": clip_high, "dual_clip": dual_clip}
    return Objective(
        name=name,
        plan=plan,
        estimator=elbo_seq,
        advantage=advantage,
        prepare=partial(sequence_coefficients, advantage=advantage, length=length, every_row=beta > 0),
        loss=partial(sequence_loss, **clips, beta=beta, divergence=divergence),
        needs=frozenset({"old", "ref"} if beta else {"old"}),
    )


def sequence_coefficients(
    batch: Batch,
    plan: Plan,
    rewards: Tensor | None = None,
    detached: Tensor | None = None,
    *,
    advantage: Advantage,
    length: Callable[[Batch], Tensor],
    every_row: bool,
) -> SequenceCoefficients:
    """Group advantages, and the number of sequences with something to score as normaliser.

    Rows without maskable tokens get weight 0, and so do rows of advantage 0 unless `every_row`.
    """
    base = group_coefficients(batch, plan, rewards, detached, advantage=advantage, every_row=every_row)
    filled = batch.lengths > 0
    return SequenceCoefficients(
        advantage=base.advantage,
        row_weight=base.row_weight * filled,
        normaliser=at_least_one(filled.sum()),
        metrics=base.metrics,
        length=length(batch),
    )


def sequence_loss(
    scored: Tensor | Scored,
    plan: Plan,
    coefficients: Coefficients,
    *,
    old: Tensor | Scored | None = None,
    ref: Tensor | Scored | None = None,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    beta: float,
    divergence: Divergence,
) -> tuple[Tensor, Metrics]:
    """PPO on sequence scores, plus beta times a divergence from the reference on the same scores and lengths."""
    score, length = elbo_seq(logp_of(scored), plan), lengths_of(coefficients)
    weight = coefficients.row_weight
    loss, metrics = ppo_seq(
        score,
        score.detach() if old is None else elbo_seq(logp_of(old), plan),
        coefficients.advantage,
        weight,
        length=length,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        normaliser=coefficients.normaliser,
    )
    metrics["nll"] = masked_mean(-score / length, weight != 0)
    if not beta:
        return loss, metrics
    distance = divergence(score, elbo_seq(reference_logp(ref, beta), plan)) / length
    metrics["kl_ref"] = masked_mean(distance, weight != 0)
    return loss + beta * (weight * distance).sum() / coefficients.normaliser, metrics
