"""Schedules: how many slots a step commits."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dare_samplers.parts import Slots

__all__ = ["LinearFront"]


@dataclass(frozen=True)
class LinearFront:
    """Equal shares, the larger ones first: q_i = floor(m / s) + [i < m mod s] (LLaDA, arXiv:2502.09992).

    Computed from what is left, q = ceil(left / steps left), which is the same table and closed under resumption.
    Where steps outnumber the slots the surplus is dropped.
    """

    def quota(self, slots: Slots) -> Tensor:
        """int64 `[b]`; 1 where no number of steps is set."""
        if slots.steps is None:
            return torch.ones_like(slots.left)
        steps_left = (slots.steps - slots.block_step).clamp(min=1)
        return ((slots.left + steps_left - 1) // steps_left).clamp(min=1)
