"""What revisers need to know about places: the weakest of a set, and slots among all response positions."""

import torch
from torch import Tensor

from dare_samplers.parts import Slots
from dare_samplers.selectors import rank

__all__ = ["spread", "weakest"]


def weakest(score: Tensor, among: Tensor, count: Tensor) -> Tensor:
    """The `count` lowest scores of each row; among equals the lowest positions are spared.

    Args:
        score: `[b, N]`; NaN only outside `among`.
        among: bool `[b, N]`.
        count: int64 `[b]`; more than there are takes all.

    Returns:
        bool `[b, N]`.

    >>> weakest(torch.tensor([[0.5, 0.2, 0.5]]), torch.tensor([[True, True, True]]), torch.tensor([2])).tolist()
    [[False, True, True]]
    """
    spared = (among.sum(-1) - count).unsqueeze(-1)
    return among & (rank(torch.where(among, score, 0.0), among) >= spared)


def spread(flags: Tensor, slots: Slots, length: int) -> Tensor:
    """The same flags over all response positions.

    Args:
        flags: bool `[b, N]`, False on filler.
        slots: where they are.
        length: G.

    Returns:
        bool `[b, G]`.
    """
    count = torch.zeros(len(flags), length, dtype=torch.int64, device=flags.device)
    return count.scatter_add(-1, slots.index.clamp(0, length - 1), flags.long()) > 0
