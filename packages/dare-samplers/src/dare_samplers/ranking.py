"""The order of slots."""

import math

import torch
from torch import Tensor

__all__ = ["check_number", "rank"]


def rank(score: Tensor, open: Tensor) -> Tensor:
    """Rank of every slot, 0 for the best: open ones first, then by score, then by position.

    Args:
        score: `[b, N]`, -inf allowed.
        open: bool `[b, N]`.

    Returns:
        int64 `[b, N]`, a permutation of 0..N-1 in each row.
    """
    by_score = score.argsort(dim=-1, descending=True, stable=True)
    order = by_score.gather(-1, (~open).gather(-1, by_score).to(torch.uint8).argsort(dim=-1, stable=True))
    places = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def check_number(name: str, value: float, advice: str) -> None:
    """Refuse nan."""
    if math.isnan(value):
        raise ValueError(f"`{name}`: expected a number, got nan; {advice}")
