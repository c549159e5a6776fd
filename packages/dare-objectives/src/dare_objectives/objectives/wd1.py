"""wd1 (arXiv 2507.08838): weighted likelihood instead of a ratio of policies."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Literal

import torch
from torch import Tensor

from dare_objectives._errors import expect_range, suggest
from dare_objectives.advantages import center
from dare_objectives.batch import Batch
from dare_objectives.estimators import seq_sum
from dare_objectives.losses.weighted_likelihood import likelihood_weights, weighted_likelihood
from dare_objectives.metrics import Metrics
from dare_objectives.objective import Coefficients, Objective, at_least_one
from dare_objectives.objectives.token_policy import group_coefficients
from dare_objectives.plan import Plan
from dare_objectives.plans.full_response import full_response
from dare_objectives.score import Scored, logp_of

__all__ = ["wd1"]


def wd1(
    *,
    temperature: float = 1.0,
    prompt_mask: float = 0.15,
    normaliser: Literal["group", "sequence", "one"] = "group",
) -> Objective:
    """Likelihood of the whole masked response, weighted by w = softmax_G(A / T) - softmax_G(-A / T), A = r - mean_G r.

    loss = -1/groups sum_b w_b sum_i log p(y_i | prompt with 15 % masked, response all masked) (wd1, arXiv 2507.08838).
    No ratio, no old policy, no reference, no clip. For small advantages w is about 2 A / (G T), so the gradient is that
    of REINFORCE. The weights are made of whole groups in `prepare`, whatever the micro-batches are. Published: 12
    updates per rollout, each with masks of its own (give the batch keys of the iteration).

    Args:
        temperature: T of the softmax.
        prompt_mask: rate of masked prompt tokens.
        normaliser: `"group"`: sum inside a group, mean over groups; `"sequence"`: mean over sequences; `"one"`: sum.

    Returns:
        Objective without needs; one forward per update. `Coefficients.advantage` holds w.
    """
    expect_range("temperature", temperature, 1e-12, torch.inf)
    expect_range("prompt_mask", prompt_mask, 0.0, 1.0)
    if normaliser not in _NORMALISERS:
        raise ValueError(suggest("normaliser", normaliser, _NORMALISERS))
    advantage = partial(_weights, temperature=temperature)
    return Objective(
        name="wd1",
        plan=partial(full_response, prompt_mask=prompt_mask),
        estimator=seq_sum,
        advantage=advantage,
        prepare=partial(_prepare, advantage=advantage, count=_NORMALISERS[normaliser]),
        loss=_loss,
    )


def _weights(rewards: Tensor, group: Tensor, *, temperature: float) -> Tensor:
    return likelihood_weights(center(rewards, group), group, temperature=temperature)


def _groups(batch: Batch) -> Tensor:
    """How many groups have a row with something to score."""
    filled = batch.lengths > 0
    same = (batch.group[:, None] == batch.group) & filled
    earlier = same.tril(-1).any(1)
    return (filled & ~earlier).sum()


def _sequences(batch: Batch) -> Tensor:
    return (batch.lengths > 0).sum()


def _one(batch: Batch) -> Tensor:
    return batch.lengths.new_ones(())


_NORMALISERS: Final[Mapping[str, Callable[[Batch], Tensor]]] = {"group": _groups, "sequence": _sequences, "one": _one}


def _prepare(
    batch: Batch,
    plan: Plan,
    rewards: Tensor | None = None,
    detached: Tensor | None = None,
    *,
    advantage: Callable[[Tensor, Tensor], Tensor],
    count: Callable[[Batch], Tensor],
) -> Coefficients:
    base = group_coefficients(batch, plan, rewards, detached, advantage=advantage, every_row=False)
    weight = base.row_weight * (batch.lengths > 0)
    return replace(base, row_weight=weight, normaliser=at_least_one(count(batch)))


def _loss(
    scored: Tensor | Scored,
    plan: Plan,
    coefficients: Coefficients,
    *,
    old: Tensor | Scored | None = None,
    ref: Tensor | Scored | None = None,
) -> tuple[Tensor, Metrics]:
    """The loss of some rows; `old` and `ref` play no part."""
    weight = coefficients.advantage * coefficients.row_weight
    return weighted_likelihood(seq_sum(logp_of(scored), plan), weight, normaliser=coefficients.normaliser)
