"""TraceRL (arXiv 2509.06949): the sampled trace in merged steps, without a critic or with one."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from dare_objectives._errors import expect_range, suggest
from dare_objectives._order import dense_rank
from dare_objectives.advantages import group_normalize
from dare_objectives.batch import Batch
from dare_objectives.estimators import token_logp, weighted_token_logp
from dare_objectives.losses.value import value_loss
from dare_objectives.metrics import Metrics
from dare_objectives.objective import Coefficients, Objective
from dare_objectives.objectives.sequence_policy import DivergenceName, divergence_named
from dare_objectives.objectives.trajectory_policy import (
    Anchor,
    Normaliser,
    Weights,
    broadcast,
    equal_rounds,
    equal_tokens,
    per_padded_round,
    per_round,
    per_token,
    trajectory_coefficients,
    trajectory_policy,
)
from dare_objectives.plan import Plan
from dare_objectives.plans.trajectory import shrink_steps, trajectory
from dare_objectives.records import values_of
from dare_objectives.score import Scored, logp_of
from dare_objectives.steps import StepEstimate, gae_steps

__all__ = ["NormaliserName", "ValueCoefficients", "tracerl", "tracerl_critic", "tracerl_value"]

NormaliserName = Literal["token", "padded", "round"]
"""What divides the loss: scored tokens, longest response x rounds, or the tokens of each round and then the rounds."""


class _Reduction(NamedTuple):
    weights: Weights
    normaliser: Normaliser


_REDUCTIONS: Final[Mapping[str, _Reduction]] = {
    "token": _Reduction(equal_tokens, per_token),
    "padded": _Reduction(equal_tokens, per_padded_round),
    "round": _Reduction(equal_rounds, per_round),
}


def _reduction(name: str) -> _Reduction:
    if name not in _REDUCTIONS:
        raise ValueError(suggest("normaliser", name, _REDUCTIONS))
    return _REDUCTIONS[name]


def tracerl(
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    beta: float = 0.01,
    divergence: DivergenceName = "k3",
    anchor: Anchor = "old",
    shrink: int = 1,
    per: Literal["sequence", "block"] = "sequence",
    parallel_blocks: bool = False,
    normaliser: NormaliserName = "token",
) -> Objective:
    """PPO on log p(y_i | what stood before its round) over the rounds of the trace, plus beta times a KL.

    loss = sum_bki w [PPO(rho_bki, A_b) + beta KL(p || p_old)_bki] / N, A = (r - mean_G) / population std_G (TraceRL,
    arXiv 2509.06949). The divergence is from the old policy, as published, and averaged like the policy term (the
    published code for full attention sums it). A round merges `shrink` consecutive steps. Published: `shrink` 8 per
    sequence for full attention; all blocks in parallel for block models; normaliser `"padded"` for block models and
    `"round"` for full attention.

    Args:
        clip_low: see `ppo_token`.
        clip_high: see `ppo_token`.
        dual_clip: see `ppo_token`.
        beta: weight of the divergence.
        divergence: `"k3"`, `"k1"`, `"k1_corrected"`, `"k2"` or `"abs"`.
        anchor: what the divergence is from: `"old"`, or `"ref"` for a frozen reference, which then is needed.
        shrink: steps per round.
        per: whether `shrink` counts the steps of a sequence or of each block.
        parallel_blocks: for block-causal models: one forward for the same round of all blocks.
        normaliser: `"token"`: scored tokens; `"padded"`: longest response x rounds of all rows; `"round"`: mean over
            the tokens of each round, then over all rounds.

    Returns:
        Objective that needs `step_map`; as many forwards per update as there are rounds.
    """
    reduction = _reduction(normaliser)
    return trajectory_policy(
        "tracerl",
        partial(trajectory, shrink=shrink, per=per, parallel_blocks=parallel_blocks),
        partial(group_normalize, correction=0, eps=0.0),
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        beta=beta,
        weights=reduction.weights,
        normaliser=reduction.normaliser,
        divergence=divergence_named(divergence),
        anchor=anchor,
        needs=frozenset({"step_map"}),
        sums_over_streams=True,
    )


def outcome(rewards: Tensor, group: Tensor) -> Tensor:
    """The reward itself: a critic takes the place of a group."""
    return rewards


def tracerl_value(
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    beta: float = 0.01,
    divergence: DivergenceName = "k3",
    anchor: Anchor = "old",
    shrink: int = 1,
    per: Literal["sequence", "block"] = "sequence",
    parallel_blocks: bool = False,
    normaliser: NormaliserName = "token",
    gamma: float = 1.0,
    lam: float = 1.0,
) -> Objective:
    """TraceRL with a diffusion value model: `tracerl` with the advantages of `gae_steps` in place of the group's.

    Each token has its own advantage, A_i = A_k + V_k - V_i for a token of step k (arXiv 2509.06949). Steps are those of
    the merged step map.

    Args:
        clip_low: see `ppo_token`.
        clip_high: see `ppo_token`.
        dual_clip: see `ppo_token`.
        beta: see `tracerl`.
        divergence: see `tracerl`.
        anchor: see `tracerl`.
        shrink: see `tracerl`.
        per: see `tracerl`.
        parallel_blocks: see `tracerl`.
        normaliser: see `tracerl`.
        gamma: discount from step to step.
        lam: weight of the later steps in the advantage.

    Returns:
        Objective that needs `step_map` and `value`, the critic's `Values` before the update.
    """
    reduction, trace = _reduction(normaliser), _Trace(shrink, per, parallel_blocks, gamma, lam)
    return trajectory_policy(
        "tracerl_value",
        trace.plan,
        outcome,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        beta=beta,
        weights=reduction.weights,
        divergence=divergence_named(divergence),
        anchor=anchor,
        needs=frozenset({"step_map", "value"}),
        prepare=partial(_policy_coefficients, trace=trace, normaliser=reduction.normaliser),
        sums_over_streams=True,
    )


def tracerl_critic(
    *,
    clip: float | None = 0.2,
    shrink: int = 1,
    per: Literal["sequence", "block"] = "sequence",
    parallel_blocks: bool = False,
    normaliser: NormaliserName = "token",
    gamma: float = 1.0,
) -> Objective:
    """The regression of TraceRL's value model (arXiv 2509.06949): `value_loss` to the returns of `gae_steps`.

    What it scores is a critic, not a policy: the `scored` of its loss are values `[B, K, S]` at the plan's targets, in
    the place of log-probs. The plan is that of `tracerl_value`.

    Args:
        clip: see `value_loss`.
        shrink: see `tracerl`.
        per: see `tracerl`.
        parallel_blocks: see `tracerl`.
        normaliser: see `tracerl`.
        gamma: discount from step to step.

    Returns:
        Objective that needs `step_map` and `value`, the critic's `Values` before the update.
    """
    if clip is not None:
        expect_range("clip", clip, 0.0, torch.inf)
    reduction, trace = _reduction(normaliser), _Trace(shrink, per, parallel_blocks, gamma, 1.0)
    return Objective(
        name="tracerl_critic",
        sums_over_streams=True,
        plan=trace.plan,
        estimator=weighted_token_logp,
        advantage=outcome,
        prepare=partial(_critic_coefficients, trace=trace, normaliser=reduction.normaliser),
        loss=partial(_critic_loss, clip=clip, weights=reduction.weights),
        needs=frozenset({"step_map", "value"}),
    )


@dataclass(frozen=True)
class _Trace:
    """How the steps of a trace are merged and discounted."""

    shrink: int
    per: Literal["sequence", "block"]
    parallel_blocks: bool
    gamma: float
    lam: float

    def __post_init__(self) -> None:
        expect_range("gamma", self.gamma, 0.0, 1.0)
        expect_range("lam", self.lam, 0.0, 1.0)

    def plan(self, batch: Batch) -> Plan:
        """The rounds of the trace."""
        return trajectory(batch, shrink=self.shrink, per=self.per, parallel_blocks=self.parallel_blocks)

    def steps(self, batch: Batch, plan: Plan) -> Tensor:
        """The merged step of each token that the plan scores, -1 elsewhere."""
        assert batch.step_map is not None  # the plan has refused it
        by_block = self.per == "block" or self.parallel_blocks
        block = dense_rank(batch.blocks, batch.valid).clamp(min=0) if by_block else None
        merged = shrink_steps(batch.step_map, batch.valid & (batch.step_map >= 0), self.shrink, block)
        return torch.where(plan.scored, merged, -1)

    def estimate(self, batch: Batch, plan: Plan, rewards: Tensor) -> StepEstimate:
        """Advantages and returns in the precision of the critic or of the rewards, whichever is better."""
        value = values_of(batch).value
        value = value.to(torch.promote_types(value.dtype, rewards.dtype))
        return gae_steps(rewards, value, self.steps(batch, plan), gamma=self.gamma, lam=self.lam)


def _policy_coefficients(
    batch: Batch,
    plan: Plan,
    rewards: Tensor | None = None,
    detached: Tensor | None = None,
    *,
    trace: _Trace,
    normaliser: Normaliser,
    every_row: bool,
) -> Coefficients:
    base = trajectory_coefficients(batch, plan, rewards, detached, advantage=outcome, normaliser=normaliser)
    advantage = trace.estimate(batch, plan, base.advantage).advantage
    earns = torch.ones_like(base.row_weight) if every_row else (advantage != 0).any(1).to(base.row_weight.dtype)
    return replace(base, advantage=advantage[:, None], row_weight=base.row_weight * earns)


@dataclass(frozen=True, eq=False, kw_only=True)
class ValueCoefficients(Coefficients):
    """Coefficients of a critic's regression.

    Args:
        old: `[B, S]`, values before the update.
        ret: `[B, S]`, returns.
    """

    old: Tensor
    ret: Tensor


def _critic_coefficients(
    batch: Batch,
    plan: Plan,
    rewards: Tensor | None = None,
    detached: Tensor | None = None,
    *,
    trace: _Trace,
    normaliser: Normaliser,
) -> ValueCoefficients:
    base = trajectory_coefficients(batch, plan, rewards, detached, advantage=outcome, normaliser=normaliser)
    return ValueCoefficients(
        advantage=base.advantage,
        row_weight=base.row_weight,
        normaliser=base.normaliser,
        metrics=base.metrics,
        old=values_of(batch).value,
        ret=trace.estimate(batch, plan, base.advantage).ret,
    )


def _critic_loss(
    scored: Tensor | Scored,
    plan: Plan,
    coefficients: Coefficients,
    *,
    old: Tensor | Scored | None = None,
    ref: Tensor | Scored | None = None,
    clip: float | None,
    weights: Weights,
) -> tuple[Tensor, Metrics]:
    """The regression; the values before the update come with the coefficients, `old` and `ref` play no part."""
    if not isinstance(coefficients, ValueCoefficients):
        kind = type(coefficients).__name__
        raise TypeError(f"`coefficients`: expected ValueCoefficients, got {kind}; use this objective's own `prepare`")
    value = token_logp(logp_of(scored), plan)
    return value_loss(
        value,
        coefficients.old[:, None].expand_as(value).to(value.dtype),
        coefficients.ret[:, None].expand_as(value).to(value.dtype),
        weights(plan, value.dtype) * broadcast(coefficients.row_weight, value),
        clip=clip,
        normaliser=coefficients.normaliser,
    )
