"""Credit and advantages of single denoising steps."""

from typing import NamedTuple

import torch
from torch import Tensor

from dare_objectives._errors import expect, expect_range
from dare_objectives._order import dense_rank, largest
from dare_objectives.advantages import group_normalize
from dare_objectives.objective import Advantage

__all__ = ["StepEstimate", "gae_steps", "mdpo_credit", "mdpo_steps", "steps_by_importance"]


def mdpo_credit(rewards: Tensor) -> Tensor:
    """What a step gained plus what followed: s_k = (r_k - r_{k-1} + 1) + mean_{j > k} r_j (MDPO, arXiv 2508.13148).

    r_{-1} = 0, and what follows the last step is its own reward.

    Args:
        rewards: `[B, T]`, reward of each step's complete prediction.

    Returns:
        `[B, T]`.

    >>> mdpo_credit(torch.tensor([[0.0, 1.0, 1.0]]))
    tensor([[2., 3., 2.]])
    """
    expect("rewards", rewards, "B T", {}, dtype=(torch.float32, torch.float64))
    steps = rewards.shape[1]
    if not steps:
        return rewards
    before = torch.nn.functional.pad(rewards[:, :-1], (1, 0))
    from_here = rewards.flip(1).cumsum(1).flip(1)
    left = torch.arange(steps - 1, 0, -1, device=rewards.device)
    return rewards - before + 1 + torch.cat([from_here[:, 1:] / left, rewards[:, -1:]], 1)


def mdpo_steps(rewards: Tensor, group: Tensor, *, advantage: Advantage = group_normalize) -> Tensor:
    """Group advantage of each step's credit, step by step (MDPO, arXiv 2508.13148).

    Args:
        rewards: `[B, T]`, reward of each step's complete prediction.
        group: int64 `[B]`.
        advantage: (numbers `[B]`, group) -> advantages `[B]`.

    Returns:
        `[B, T]`; with one step it is the advantage of the rewards.
    """
    credit = mdpo_credit(rewards)
    columns = [advantage(step, group) for step in credit.unbind(1)]
    return torch.stack(columns, 1) if columns else credit


def steps_by_importance(advantage: Tensor) -> Tensor:
    """Steps in falling order of sum_b |A_bk|; the earlier one of two equals first (MDPO, arXiv 2508.13148).

    Sums that agree to float32 count as equal, so that the order of the rows does not matter.

    Args:
        advantage: `[B, T]`, of the whole batch.

    Returns:
        int64 `[T]`.
    """
    importance = advantage.double().abs().sort(0).values.sum(0).float()
    return importance.argsort(descending=True, stable=True)


class StepEstimate(NamedTuple):
    """Advantages `[B, S]` and returns `[B, S]`, 0 where no step is."""

    advantage: Tensor
    ret: Tensor


def gae_steps(reward: Tensor, value: Tensor, step_map: Tensor, *, gamma: float = 1.0, lam: float = 1.0) -> StepEstimate:
    """Generalised advantage estimation over denoising steps (TraceRL, arXiv 2509.06949).

    With V_k the mean value of the tokens of step k, r_k the outcome reward at the last step and 0 before:
    A_k = r_k - V_k + gamma V_{k+1} + gamma lam A_{k+1}, R_k = r_k + gamma R_{k+1}; a token i of step k has the
    advantage A_k + V_k - V_i and the return R_k. For gamma = lam = 1 these are r - V_i and r.

    Args:
        reward: `[B]`, outcome rewards.
        value: `[B, S]`, values at the tokens.
        step_map: integers `[B, S]`, step of each token, -1 = none; steps count by their order.
        gamma: discount from step to step.
        lam: weight of the later steps.

    Returns:
        `StepEstimate`.
    """
    expect("reward", reward, "B", sizes := {}, dtype=(torch.float32, torch.float64))
    expect("value", value, "B S", sizes, dtype=(torch.float32, torch.float64))
    expect("step_map", step_map, "B S", sizes)
    expect_range("gamma", gamma, 0.0, 1.0)
    expect_range("lam", lam, 0.0, 1.0)
    on = step_map >= 0
    rank = dense_rank(step_map, on)
    place, steps = rank.clamp(min=0), int(largest(rank)) + 1
    value = torch.where(on, value, 0.0)
    size = value.new_zeros(len(value), steps).scatter_add(1, place, on.to(value.dtype))
    mean = torch.zeros_like(size).scatter_add(1, place, value) / size.clamp(min=1)
    advantage, ret = _backwards(reward.to(value.dtype), mean, size > 0, gamma, lam)
    there = advantage + mean
    by_token = torch.where(on, there.gather(1, place) - value, 0.0)
    return StepEstimate(by_token, torch.where(on, ret.gather(1, place), 0.0))


def _backwards(reward: Tensor, mean: Tensor, there: Tensor, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """A_k and R_k `[B, T]`, from the last step of each row to its first."""
    advantages: list[Tensor] = []
    returns: list[Tensor] = []
    value = advantage = ret = torch.zeros_like(reward)
    last = there.sum(1) - 1
    for step in reversed(range(mean.shape[1])):
        outcome = torch.where(last == step, reward, 0.0)
        here = there[:, step]
        advantage = torch.where(here, outcome - mean[:, step] + gamma * value + gamma * lam * advantage, 0.0)
        ret = torch.where(here, outcome + gamma * ret, 0.0)
        value = torch.where(here, mean[:, step], 0.0)
        advantages.insert(0, advantage)
        returns.insert(0, ret)
    return torch.stack(advantages, 1), torch.stack(returns, 1)
