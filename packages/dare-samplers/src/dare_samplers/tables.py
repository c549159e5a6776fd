"""How a schedule's table of quotas is read."""

import torch
from torch import Tensor

from dare_samplers.parts import Slots

__all__ = ["next_step"]


def next_step(table: Tensor | None, slots: Slots, empty: bool = False) -> tuple[Tensor, Tensor]:
    """Quota and elapsed steps of the first step >= clock that commits, or of the next one; the last is for the rest.

    Args:
        table: int64 `[b, s]`, what each step would commit of what is left now; None for one slot per step.
        slots: where.
        empty: take the next step even if it commits nothing.
    """
    if table is None:
        return torch.ones_like(slots.clock), torch.ones_like(slots.clock)
    last = table.shape[-1] - 1
    now = slots.clock.clamp(max=last)
    if not empty:
        step = torch.arange(table.shape[-1], device=table.device)
        ready = (step >= now.unsqueeze(-1)) & (table > 0)
        now = torch.where(ready, step, last).amin(-1)
    quota = torch.minimum(table.gather(-1, now.unsqueeze(-1)).squeeze(-1), slots.remaining)
    return quota, (now - slots.clock + 1).clamp(min=1)
