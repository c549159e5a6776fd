"""Advantages of the samples of a group: pure functions of rewards and group numbers.

A constant group gives exactly 0. A group of one has nothing to compare with: its advantage is 0, or the raw reward
with `singleton="raw"`, as published implementations have it.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dare_objectives._errors import expect

__all__ = ["Singleton", "center", "group_normalize", "leave_one_out"]

Singleton = Literal["zero", "raw"]
"""What a group of one gets."""


class _Groups(NamedTuple):
    rewards: Tensor  # [B, B], row i holds the rewards of i's group, 0 elsewhere
    same: Tensor  # bool [B, B]
    size: Tensor  # [B]
    mean: Tensor  # [B]
    constant: Tensor  # bool [B]


def _groups(rewards: Tensor, group: Tensor) -> _Groups:
    expect("rewards", rewards, "B", sizes := {}, dtype=(torch.float32, torch.float64))
    expect("group", group, "B", sizes, dtype=torch.int64)
    same = group[:, None] == group
    size = same.sum(1).to(rewards.dtype)
    table = torch.where(same, rewards, 0.0)
    constant = (~same | (rewards == rewards[:, None])).all(1)
    return _Groups(table, same, size, table.sum(1) / size, constant)


def _settle(value: Tensor, rewards: Tensor, of: _Groups, singleton: Singleton) -> Tensor:
    value = torch.where(of.constant, 0.0, value)
    return torch.where(of.size == 1, rewards, value) if singleton == "raw" else value


def center(rewards: Tensor, group: Tensor, *, singleton: Singleton = "zero") -> Tensor:
    """Reward minus group mean, A_i = r_i - mean_G r (Dr.GRPO, arXiv 2503.20783).

    Args:
        rewards: `[B]`.
        group: int64 `[B]`.
        singleton: `"zero"`, or `"raw"` for the reward itself.

    Returns:
        `[B]`, the sum over each group is 0.

    >>> center(torch.tensor([1.0, 0.0, 7.0]), torch.tensor([0, 0, 1]))
    tensor([ 0.5000, -0.5000,  0.0000])
    """
    of = _groups(rewards, group)
    return _settle(rewards - of.mean, rewards, of, singleton)


def group_normalize(
    rewards: Tensor, group: Tensor, *, eps: float = 1e-6, correction: int = 1, singleton: Singleton = "zero"
) -> Tensor:
    """Group z-score, A_i = (r_i - mean_G r) / (std_G r + eps) (GRPO, arXiv 2402.03300).

    Args:
        rewards: `[B]`.
        group: int64 `[B]`.
        eps: added to the standard deviation.
        correction: 1 for Bessel's correction, 0 for the population's.
        singleton: `"zero"`, or `"raw"` for the reward itself over 1 + eps.

    Returns:
        `[B]`.
    """
    of = _groups(rewards, group)
    square = torch.where(of.same, (of.rewards - of.mean[:, None]) ** 2, 0.0).sum(1)
    std = (square / (of.size - correction).clamp(min=1)).sqrt()
    return _settle((rewards - of.mean) / (std + eps), rewards / (1 + eps), of, singleton)


def leave_one_out(rewards: Tensor, group: Tensor, *, singleton: Singleton = "zero") -> Tensor:
    """Reward minus the mean of the others, A_i = r_i - mean_{j != i} r_j (RLOO, arXiv 2402.14740).

    Args:
        rewards: `[B]`.
        group: int64 `[B]`.
        singleton: `"zero"`, or `"raw"` for the reward itself.

    Returns:
        `[B]`; equals G / (G - 1) times `center`.
    """
    of = _groups(rewards, group)
    scale = of.size / (of.size - 1).clamp(min=1)
    return _settle((rewards - of.mean) * scale, rewards, of, singleton)
