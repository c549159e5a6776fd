"""Insertions and deletions in a row of slots."""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Splice", "splice"]


class Splice(NamedTuple):
    """Where the slots' contents come from.

    Attributes:
        filled: bool `[b, N]`, slots that hold something that was there before; the other active ones are new masks.
        source: int64 `[b, N]`, the column it was in; the own one where there is none.
    """

    filled: Tensor
    source: Tensor


def splice(drop: Tensor, insert: Tensor, active: Tensor) -> Splice:
    """Drop some slots and put a mask before others; the tail is cut or padded with masks to the old length.

    Args:
        drop: bool `[b, N]`, slots whose content goes; what follows moves left.
        insert: bool `[b, N]`, slots whose content x becomes (mask, x); what follows moves right.
        active: bool `[b, N]`, the slots of the block; no content enters or leaves the others.

    >>> no = torch.zeros(1, 4, dtype=torch.bool)
    >>> first, third = (torch.arange(4) == 0)[None], (torch.arange(4) == 2)[None]
    >>> splice(drop=first, insert=third, active=~no)
    Splice(filled=tensor([[ True, False,  True,  True]]), source=tensor([[1, 1, 2, 3]]))
    """
    width = active.shape[-1]
    own = torch.arange(width, device=active.device).expand_as(active)
    place = torch.where(active, (~drop).long() + (insert & ~drop).long(), 0).cumsum(-1) - 1
    stays = active & ~drop & (place < active.sum(-1, keepdim=True))
    # column `width` takes what is dropped, cut off or not active
    origin = torch.full_like(own[:, :1], -1).repeat(1, width + 1)
    origin = origin.scatter(-1, torch.where(stays, place, width), own)[:, :width]
    source = origin.gather(-1, (active.cumsum(-1) - 1).clamp(min=0))
    filled = active & (source >= 0)
    return Splice(filled, torch.where(filled, source, own))
