"""Values and advantages of the nodes of a tree of samples (d-TreeRPO, arXiv 2512.09675)."""

import torch
from torch import Tensor

from dare_objectives._errors import expect
from dare_objectives.advantages import Singleton

__all__ = ["sibling_advantage", "tree_backup"]


def tree_backup(reward: Tensor, parent: Tensor) -> Tensor:
    """Value of each node: V = reward at a leaf, the mean over the children elsewhere.

    In a balanced tree the root's value is the mean reward of the leaves.

    Args:
        reward: `[B, N]`, rewards of the leaves; elsewhere ignored.
        parent: int64 `[B, N]`, number of an earlier node, -1 = root, -2 = no node.

    Returns:
        `[B, N]`, 0 where there is no node.

    >>> tree_backup(torch.tensor([[0.0, 1.0, 3.0]]), torch.tensor([[-1, 0, 0]]))
    tensor([[2., 1., 3.]])
    """
    _check(reward, parent)
    total, count = torch.zeros_like(reward), torch.zeros_like(parent)
    value = torch.zeros_like(reward)
    for node in reversed(range(parent.shape[1])):
        own, above = slice(node, node + 1), parent[:, node : node + 1]
        mean = total[:, own] / count[:, own].clamp(min=1)
        mean = torch.where(count[:, own] > 0, mean, reward[:, own])
        value[:, own] = torch.where(above >= -1, mean, 0.0)
        total.scatter_add_(1, above.clamp(min=0), torch.where(above >= 0, value[:, own], 0.0))
        count.scatter_add_(1, above.clamp(min=0), (above >= 0).long())
    return value


def sibling_advantage(value: Tensor, parent: Tensor, *, singleton: Singleton = "zero") -> Tensor:
    """Value minus the mean value of the other children of the same parent, A_c = V_c - mean_{s != c} V_s.

    Args:
        value: `[B, N]`.
        parent: int64 `[B, N]`, see `tree_backup`.
        singleton: what an only child gets, which has nothing to compare with: `"zero"`, or `"raw"` for its value, as
            published.

    Returns:
        `[B, N]`, 0 at roots and where there is no node; siblings of one value get exactly 0, and those of one parent
        add up to 0.
    """
    _check(value, parent)
    same = (parent[:, :, None] == parent[:, None]) & (parent >= 0)[:, None]
    size = same.sum(2).to(value.dtype)
    mean = torch.where(same, value[:, None], 0.0).sum(2) / size.clamp(min=1)
    constant = (~same | (value[:, None] == value[:, :, None])).all(2)
    advantage = torch.where(constant, 0.0, (value - mean) * size / (size - 1).clamp(min=1))
    if singleton == "raw":
        advantage = torch.where(size == 1, value, advantage)
    return torch.where(parent >= 0, advantage, 0.0)


def _check(number: Tensor, parent: Tensor) -> None:
    expect("value", number, "B N", sizes := {}, dtype=(torch.float32, torch.float64))
    expect("parent", parent, "B N", sizes, dtype=torch.int64)
