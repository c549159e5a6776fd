"""What the token policy gradients share: group advantages, the clipped loss and the KL to a reference."""

from collections.abc import Mapping
from functools import partial
from typing import Final, Literal

import torch
from torch import Tensor

from dare_objectives._errors import expect, expect_range, suggest
from dare_objectives.advantages import center, group_normalize, leave_one_out
from dare_objectives.batch import Batch
from dare_objectives.estimators import weighted_token_logp
from dare_objectives.losses.kl import kl_k3
from dare_objectives.losses.ppo import check_clips, ppo_token
from dare_objectives.metrics import Max, Mean, Metrics, masked_mean
from dare_objectives.objective import Advantage, Coefficients, Objective, Planner, at_least_one
from dare_objectives.plan import Plan
from dare_objectives.score import Scored, logp_of, reference_logp

__all__ = ["AdvantageName", "advantage_named", "clipped_loss", "group_coefficients", "token_policy"]

AdvantageName = Literal["center", "group_normalize", "leave_one_out", "population_normalize"]
"""The group advantages an option can name."""

_ADVANTAGES: Final[Mapping[str, Advantage]] = {
    "center": center,
    "group_normalize": group_normalize,
    "leave_one_out": leave_one_out,
    "population_normalize": partial(group_normalize, correction=0, eps=1e-12),
}


def advantage_named(name: str) -> Advantage:
    """The advantage function of that name."""
    if name not in _ADVANTAGES:
        raise ValueError(suggest("advantage", name, _ADVANTAGES))
    return _ADVANTAGES[name]


def token_policy(
    name: str,
    plan: Planner,
    advantage: Advantage,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    beta: float,
) -> Objective:
    """A PPO objective on the weighted token scores of a plan.

    Args:
        name: the objective's name.
        plan: batch -> plan.
        advantage: (rewards, group) -> advantages.
        clip_low: see `ppo_token`.
        clip_high: see `ppo_token`.
        dual_clip: see `ppo_token`.
        beta: weight of the k3 divergence from the reference; above 0 the objective needs `ref`.

    Returns:
        Objective that needs `old` (or the on-policy shortcut) and, with beta, `ref`.
    """
    check_clips(clip_low, clip_high, dual_clip)
    expect_range("beta", beta, 0.0, torch.inf)
    return Objective(
        name=name,
        plan=plan,
        estimator=weighted_token_logp,
        advantage=advantage,
        prepare=partial(group_coefficients, advantage=advantage, every_row=beta > 0),
        loss=partial(clipped_loss, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip, beta=beta),
        needs=frozenset({"old", "ref"} if beta else {"old"}),
    )


def group_coefficients(
    batch: Batch,
    plan: Plan,
    rewards: Tensor | None = None,
    detached: Tensor | None = None,
    *,
    advantage: Advantage,
    every_row: bool = True,
) -> Coefficients:
    """Group advantages, and the number of scored tokens of the whole batch as normaliser.

    Without `every_row` the rows of advantage 0 get weight 0, which tells the trainer to leave out their forwards: all
    that the loss has for them is a multiple of the advantage.
    """
    if rewards is None:
        raise ValueError("`rewards`: expected one number per row, got None; this objective compares samples by reward")
    expect("rewards", rewards, "B", {"B": len(batch)})
    if len(bad := (~rewards.isfinite()).nonzero()):
        row = int(bad[0])
        raise ValueError(f"`rewards`: expected finite numbers, got {float(rewards[row])} in row {row}; mend the reward")
    rewards = rewards.to(torch.promote_types(rewards.dtype, torch.float32))
    value = advantage(rewards, batch.group)
    return Coefficients(
        advantage=value,
        row_weight=torch.ones_like(value) if every_row else (value != 0).to(value.dtype),
        normaliser=at_least_one(plan.scored.sum()),
        metrics=_reward_metrics(rewards, value, batch.group),
    )


def _reward_metrics(rewards: Tensor, advantage: Tensor, group: Tensor) -> dict[str, Mean | Max]:
    alone = (group[:, None] == group).sum(1) == 1
    return {
        "reward": Mean(rewards.sum(), len(rewards)),
        "zero_advantage": Mean((advantage == 0).sum(), len(rewards)),
        "group_of_one": Mean(alone.sum(), len(rewards)),
    }


def clipped_loss(
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
) -> tuple[Tensor, Metrics]:
    """PPO on token scores, plus beta times k3 to the reference, over the same tokens and the same normaliser."""
    score = weighted_token_logp(logp_of(scored), plan)
    before = score.detach() if old is None else weighted_token_logp(logp_of(old), plan)
    weight = plan.scored * coefficients.row_weight[:, None]
    loss, metrics = ppo_token(
        score,
        before,
        coefficients.advantage[:, None],
        weight,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        normaliser=coefficients.normaliser,
    )
    if not beta:
        return loss, metrics
    divergence = kl_k3(score, weighted_token_logp(reference_logp(ref, beta), plan))
    metrics["kl_ref"] = masked_mean(divergence, plan.scored)
    return loss + beta * (weight * divergence).sum() / coefficients.normaliser, metrics
