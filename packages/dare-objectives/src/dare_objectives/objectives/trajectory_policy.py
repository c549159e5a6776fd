"""What the policies on denoising steps share: one ratio per token and step, and a choice of weights and normalisers."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from dare_objectives._errors import expect_range, suggest
from dare_objectives.batch import Batch
from dare_objectives.estimators import token_logp, transition_weights
from dare_objectives.losses.kl import kl_k3
from dare_objectives.losses.ppo import check_clips, ppo_token
from dare_objectives.metrics import Metrics, masked_mean
from dare_objectives.objective import Advantage, Coefficients, Objective, Planner, at_least_one
from dare_objectives.objectives.sequence_policy import Divergence
from dare_objectives.objectives.token_policy import group_coefficients
from dare_objectives.plan import Plan
from dare_objectives.score import Scored, logp_of, reference_logp

__all__ = [
    "Anchor",
    "Normaliser",
    "Weights",
    "broadcast",
    "equal_rounds",
    "equal_tokens",
    "equal_transitions",
    "per_padded_round",
    "per_round",
    "per_sequence",
    "per_token",
    "trajectory_coefficients",
    "trajectory_loss",
    "trajectory_policy",
    "weighted_terms",
]

Anchor = Literal["old", "ref"]
"""The policy that a divergence is taken from."""

Weights = Callable[[Plan, torch.dtype], Tensor]
"""From a plan to the weight `[B, K, S]` of each target in its row."""

Normaliser = Callable[[Batch, Plan, Tensor], Tensor]
"""From the whole batch, its plan and its advantages to the number that divides the loss."""


def equal_tokens(plan: Plan, dtype: torch.dtype) -> Tensor:
    """The plan's own weights: 1 for each token."""
    return plan.weight.to(dtype)


def equal_rounds(plan: Plan, dtype: torch.dtype) -> Tensor:
    """1 / number of the stream's targets, so that each round of a row counts alike."""
    size = plan.target.sum(2, keepdim=True).clamp(min=1)
    return torch.where(plan.target, 1 / size.to(dtype), 0.0)


def equal_transitions(plan: Plan, dtype: torch.dtype, *, per: Literal["sequence", "block"]) -> Tensor:
    """`transition_weights`: the weights of a row add up to 1."""
    return transition_weights(plan, per=per, dtype=dtype)


def per_token(batch: Batch, plan: Plan, advantage: Tensor) -> Tensor:
    """Number of scored tokens."""
    return at_least_one(plan.target.sum())


def per_sequence(batch: Batch, plan: Plan, advantage: Tensor) -> Tensor:
    """Number of sequences with something to score."""
    return at_least_one(plan.target.any((1, 2)).sum())


def per_round(batch: Batch, plan: Plan, advantage: Tensor) -> Tensor:
    """Number of rounds of all rows."""
    return at_least_one(plan.target.any(2).sum())


def per_padded_round(batch: Batch, plan: Plan, advantage: Tensor) -> Tensor:
    """Length of the longest response times the number of rounds of all rows."""
    return per_round(batch, plan, advantage) * at_least_one(longest(batch))


def longest(batch: Batch) -> Tensor:
    """Maskable tokens of the longest row."""
    return torch.cat([batch.lengths, batch.lengths.new_zeros(1)]).amax()


def trajectory_policy(
    name: str,
    plan: Planner,
    advantage: Advantage,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    beta: float,
    weights: Weights = equal_tokens,
    normaliser: Normaliser = per_token,
    divergence: Divergence = kl_k3,
    anchor: Anchor = "ref",
    needs: frozenset[str] = frozenset(),
    prepare: Callable[..., Coefficients] | None = None,
    sums_over_streams: bool = False,
) -> Objective:
    """A PPO objective on the log-prob of each token in its own state.

    loss = sum_bki w_bki [PPO(rho_bki, A_b) + beta KL_bki] / normaliser, rho_bki = p_bki / p_bki^old.

    Args:
        name: the objective's name.
        plan: batch -> plan.
        advantage: (rewards, group) -> advantages.
        clip_low: see `ppo_token`.
        clip_high: see `ppo_token`.
        dual_clip: see `ppo_token`.
        beta: weight of the divergence.
        weights: plan -> weights of the targets.
        normaliser: (batch, plan, advantage) -> divisor.
        divergence: of the policy from the anchor, per token.
        anchor: the old policy or the reference; the latter is needed if beta is above 0.
        needs: what else the objective needs.
        prepare: instead of `trajectory_coefficients`.
        sums_over_streams: see `Objective`.

    Returns:
        Objective that needs `old` (or the on-policy shortcut).
    """
    check_clips(clip_low, clip_high, dual_clip)
    expect_range("beta", beta, 0.0, torch.inf)
    if anchor not in ("old", "ref"):
        raise ValueError(suggest("anchor", anchor, ("old", "ref")))
    options = {"clip_low": clip_low, "clip_high": clip_high, "dual_clip": dual_clip, "beta": beta}
    prepare = prepare or partial(trajectory_coefficients, advantage=advantage, normaliser=normaliser)
    return Objective(
        name=name,
        sums_over_streams=sums_over_streams,
        plan=plan,
        estimator=partial(weighted_terms, weights=weights),
        advantage=advantage,
        prepare=partial(prepare, every_row=beta > 0),
        loss=partial(trajectory_loss, **options, weights=weights, divergence=divergence, anchor=anchor),
        needs=needs | {"old"} | ({anchor} if beta else set()),
    )


def weighted_terms(logp: Tensor, plan: Plan, *, weights: Weights = equal_tokens) -> Tensor:
    """w_ki l_ki `[B, K, S]`, whose gradient is that of the loss on policy but for -A / normaliser."""
    return weights(plan, logp.dtype) * token_logp(logp, plan)


def trajectory_coefficients(
    batch: Batch,
    plan: Plan,
    rewards: Tensor | None = None,
    detached: Tensor | None = None,
    *,
    advantage: Advantage,
    normaliser: Normaliser,
    every_row: bool = True,
) -> Coefficients:
    """Group advantages and a normaliser; rows without targets get weight 0, as those of advantage 0 may."""
    base = group_coefficients(batch, plan, rewards, detached, advantage=advantage, every_row=every_row)
    return replace(
        base,
        row_weight=base.row_weight * plan.target.any((1, 2)),
        normaliser=normaliser(batch, plan, base.advantage),
    )


def broadcast(x: Tensor, like: Tensor) -> Tensor:
    """`[B]` or `[B, ...]` with ones behind, to stand against the log-probs."""
    return x[(...,) + (None,) * (like.ndim - x.ndim)]


def trajectory_loss(
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
    weights: Weights,
    divergence: Divergence,
    anchor: Anchor,
) -> tuple[Tensor, Metrics]:
    """PPO on each token in its state, plus beta times a divergence, with the same weights and normaliser."""
    logp = token_logp(logp_of(scored), plan)
    before = logp.detach() if old is None else token_logp(logp_of(old), plan)
    weight = weights(plan, logp.dtype) * broadcast(coefficients.row_weight, logp)
    if coefficients.token_weight is not None:
        weight = weight * coefficients.token_weight
    loss, metrics = ppo_token(
        logp,
        before,
        broadcast(coefficients.advantage, logp),
        weight,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        normaliser=coefficients.normaliser,
    )
    if not beta:
        return loss, metrics
    distance = divergence(logp, anchored(before, ref, plan, beta, anchor))
    metrics[f"kl_{anchor}"] = masked_mean(distance, weight != 0)
    return loss + beta * (weight * distance).sum() / coefficients.normaliser, metrics


def anchored(before: Tensor, ref: Tensor | Scored | None, plan: Plan, beta: float, anchor: Anchor) -> Tensor:
    """Log-probs of the policy that the divergence is taken from, as constants."""
    if anchor == "old":
        return before.detach()
    return token_logp(reference_logp(ref, beta), plan)
