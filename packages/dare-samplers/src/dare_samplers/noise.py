"""Schedules that follow a noise level t, which falls from 1 to eps in s equal steps."""

from dataclasses import dataclass

import torch
from torch import Tensor

from dare_samplers.parts import Slots
from dare_samplers.tables import next_step

__all__ = ["Bernoulli", "DreamFloor"]

_REVEAL = 2
"""Sets the numbers of `Bernoulli` apart from those of `RandomScore`."""


@dataclass(frozen=True)
class DreamFloor:
    """q_i = floor(m_i (1 - t_{i+1} / t_i)), t from 1 to eps in s equal steps, the last step all (arXiv:2508.15487).

    m_i is what is left of each row; Dream takes the mean of the batch.

    Args:
        eps: last noise level.
        empty_steps: True runs a forward for steps of quota 0 as well, as Dream does: the first one where steps are as
            many as slots. False skips them.
    """

    eps: float = 1e-3
    empty_steps: bool = False

    def __post_init__(self) -> None:
        """Refuse an eps out of range."""
        _check_eps(self.eps)

    def quota(self, slots: Slots) -> Tensor:
        """int64 `[b]`; 0 only with `empty_steps`."""
        return next_step(self._table(slots), slots, self.empty_steps)[0]

    def elapsed(self, slots: Slots) -> Tensor:
        """int64 `[b]`."""
        return next_step(self._table(slots), slots, self.empty_steps)[1]

    def _table(self, slots: Slots) -> Tensor | None:
        if slots.steps is None:
            return None
        t = torch.linspace(1, self.eps, slots.steps + 1, device=slots.open.device, dtype=torch.float32)
        left = slots.remaining.unsqueeze(-1)
        table = (left * (1 - t[1:] / t[:-1])).floor().long()
        return torch.cat([table[:, :-1], left], -1)


@dataclass(frozen=True)
class Bernoulli:
    """Every open slot with probability 1 - t_{i+1} / t_i, t from 1 to eps in s equal steps, the last step all.

    The reverse process of MDLM (arXiv:2406.07524) and Dream's `origin`. Score with `RandomScore`, select with `TopK`.
    A slot comes up at the first step j with t_{j+1} < (1 - u) t_i, u uniform, which is the same law. So the first step
    with a slot is known, steps without one need no forward, and slots that come up later are drawn anew, since the law
    has no memory.

    Args:
        eps: last noise level.
    """

    eps: float = 1e-3

    def __post_init__(self) -> None:
        """Refuse an eps out of range."""
        _check_eps(self.eps)

    def quota(self, slots: Slots) -> Tensor:
        """int64 `[b]`."""
        if slots.steps is None:
            return torch.ones_like(slots.step)
        step = self._step(slots, slots.steps)
        return ((step == step.amin(-1, keepdim=True)) & slots.open).sum(-1)

    def elapsed(self, slots: Slots) -> Tensor:
        """int64 `[b]`."""
        if slots.steps is None:
            return torch.ones_like(slots.step)
        first = self._step(slots, slots.steps).amin(-1)
        return (first - slots.clock + 1).clamp(min=1)

    def _step(self, slots: Slots, steps: int) -> Tensor:
        """int64 `[b, N]`, the step at which each open slot comes up; the last one for the others."""
        u = slots.uniform("order", torch.float32, _REVEAL)
        size = (1 - self.eps) / steps
        now = slots.clock.clamp(max=steps - 1).unsqueeze(-1)
        # t_{j+1} < (1 - u) t_i, with t_j = 1 - size j, is j > i - 1 + u t_i / size
        ahead = (u * (1 - size * now) / size).floor().long()
        return torch.where(slots.open, (now + ahead).clamp(max=steps - 1), steps - 1)


def _check_eps(eps: float) -> None:
    if not 0 <= eps < 1:
        raise ValueError(f"`eps`: expected a number in [0, 1), got {eps!r}; 1e-3 is the published value")
