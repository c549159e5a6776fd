"""Selectors: which slots to commit. Ties go to the lowest position."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from dare_samplers.parts import Slots

__all__ = ["Threshold", "TopK", "rank"]


def rank(score: Tensor, open: Tensor) -> Tensor:
    """Rank of every slot, 0 for the best: open ones first, then by score, then by position.

    Args:
        score: `[b, N]`, -inf allowed.
        open: bool `[b, N]`.

    Returns:
        int64 `[b, N]`, a permutation of 0..N-1 in each row.
    """
    by_score = score.argsort(dim=-1, descending=True, stable=True)
    order = by_score.gather(-1, (~open).gather(-1, by_score).int().argsort(dim=-1, stable=True))
    return order.argsort(dim=-1)


@dataclass(frozen=True)
class TopK:
    """The `quota` slots of highest score."""

    uses_quota: ClassVar[bool] = True

    def select(self, score: Tensor, slots: Slots, quota: Tensor) -> Tensor:
        """bool `[b, N]` with min(quota, open slots) True per row."""
        return (rank(score, slots.open) < quota.unsqueeze(-1)) & slots.open


@dataclass(frozen=True)
class Threshold:
    """Every slot with score >= tau (Fast-dLLM, arXiv:2505.22618); the loop commits the best one where none reaches it.

    Args:
        tau: at most 0 commits a block in one step, above 1 one token per step.
    """

    tau: float = 0.9
    uses_quota: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse a tau that is no number."""
        if math.isnan(self.tau):
            raise ValueError("`tau`: expected a number, got nan; 0.9 is the published value")

    def select(self, score: Tensor, slots: Slots, quota: Tensor) -> Tensor:
        """bool `[b, N]`."""
        return (score >= self.tau) & slots.open
