"""Schedules: how many slots a step commits.

All count the block's schedule steps from 0, i = `clock`, to s - 1, s = `steps`. Where the config sets no number of
steps they commit one slot per step. None lets a forward commit nothing, unless asked to: steps that would commit
nothing are skipped or commit one slot. To reveal one slot at a time in random order (first-hitting sampling,
arXiv:2409.02908), set no steps and score with `RandomScore`.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dare_samplers.noise import Bernoulli, DreamFloor
from dare_samplers.parts import Slots
from dare_samplers.tables import next_step

__all__ = [
    "Ascending",
    "Bernoulli",
    "DreamBudget",
    "DreamFloor",
    "LinearFront",
    "LinearRound",
    "MaskGit",
]

_GAMMA_MIN = 1e-6


@dataclass(frozen=True)
class LinearFront:
    """Equal shares, the larger ones first: q_i = floor(m / s) + [i < m mod s] (LLaDA, arXiv:2502.09992).

    Args:
        of: `left` computes it from what is left, q = ceil(left / steps left), which is the same table where every step
            commits its quota, and closed under resumption. `block` keeps to the table of all slots of the block, for
            selectors that may commit more, as SDAR and LLaDA2.0 do (arXiv:2510.06303).

    Where steps outnumber the slots the surplus is dropped.
    """

    of: Literal["left", "block"] = "left"

    def __post_init__(self) -> None:
        """Refuse other words."""
        if self.of not in ("left", "block"):
            raise ValueError(f'`of`: expected "left" or "block", got {self.of!r}')

    def quota(self, slots: Slots) -> Tensor:
        """int64 `[b]`."""
        left = slots.remaining
        if slots.steps is None:
            return torch.ones_like(left)
        if self.of == "block":
            return torch.minimum(_share(slots.size, slots.steps, slots.clock).clamp(min=1), left)
        steps_left = (slots.steps - slots.clock).clamp(min=1)
        return ((left + steps_left - 1) // steps_left).clamp(min=1)


@dataclass(frozen=True)
class LinearRound:
    """q_i = round(m_i (1 - (1 - alpha(t_{i+1})) / (1 - alpha(t_i)))), the schedule of the dllm library.

    t_i = 1 - i / s, and m_i is what is left. Halves are rounded to even, and the ratio is computed in float32, as in
    the library. Empty steps are skipped.

    Args:
        alpha: `linear`, 1 - t, or `cosine`, 1 - cos(pi (1 - t) / 2).
    """

    alpha: Literal["linear", "cosine"] = "linear"

    def __post_init__(self) -> None:
        """Refuse other words."""
        if self.alpha not in ("linear", "cosine"):
            raise ValueError(f'`alpha`: expected "linear" or "cosine", got {self.alpha!r}')

    def quota(self, slots: Slots) -> Tensor:
        """int64 `[b]`."""
        return next_step(self._table(slots), slots)[0]

    def elapsed(self, slots: Slots) -> Tensor:
        """int64 `[b]`."""
        return next_step(self._table(slots), slots)[1]

    def _table(self, slots: Slots) -> Tensor | None:
        if slots.steps is None:
            return None
        t = torch.arange(slots.steps, -1, -1, device=slots.open.device).float() / slots.steps
        masked = 1 - ((1 - t) if self.alpha == "linear" else 1 - torch.cos(math.pi / 2 * (1 - t)))
        return (slots.remaining.unsqueeze(-1) * (1 - masked[1:] / masked[:-1])).round().long()


@dataclass(frozen=True)
class DreamBudget:
    """The shares of `LinearFront` and all that earlier steps left over, for `BudgetThreshold` (arXiv:2505.22618).

    After s steps it goes on with everything that is left.
    """

    def quota(self, slots: Slots) -> Tensor:
        """int64 `[b]`."""
        left = slots.remaining
        if slots.steps is None:
            return torch.ones_like(left)
        i = (slots.clock + 1).clamp(max=slots.steps)
        due = slots.size // slots.steps * i + torch.minimum(i, slots.size % slots.steps)
        return torch.minimum((due - (slots.size - left)).clamp(min=1), left)


@dataclass(frozen=True)
class MaskGit:
    """After step i, floor(m gamma((i + 1) / s)) slots stay masked, m all of the block (MaskGIT, arXiv:2202.04200).

    gamma is kept in [1e-6, 1], so that the first step commits at least one slot, and 0 slots are left after the last.

    Args:
        gamma: `linear` 1 - r, `cosine` cos(pi r / 2), `pow2` 1 - r^2 (or another exponent), `log` -log2(r) / log2(m),
            or `exp` 1 - 2^(-log2(m) (1 - r)).
        empty_steps: True runs a forward for steps of quota 0 as well, as published. False skips them.
    """

    gamma: str = "cosine"
    empty_steps: bool = False

    def __post_init__(self) -> None:
        """Refuse an unknown gamma."""
        if self.gamma not in ("linear", "cosine", "log", "exp") and not self._power > 0:
            raise ValueError(
                f'`gamma`: expected "linear", "cosine", "log", "exp" or "pow" and a number > 0, got {self.gamma!r}'
            )

    @property
    def _power(self) -> float:
        """Exponent of `pow…`, nan for other words."""
        head, _, exponent = self.gamma.partition("pow")
        try:
            return math.nan if head else float(exponent)
        except ValueError:
            return math.nan

    def quota(self, slots: Slots) -> Tensor:
        """int64 `[b]`; 0 only with `empty_steps`."""
        return next_step(self._table(slots), slots, self.empty_steps)[0]

    def elapsed(self, slots: Slots) -> Tensor:
        """int64 `[b]`."""
        return next_step(self._table(slots), slots, self.empty_steps)[1]

    def masked_after(self, slots: Slots) -> Tensor:
        """int64 `[b]`, slots of the block that are masked after this step: 0 after the last, or without `steps`."""
        if slots.steps is None:
            return torch.zeros_like(slots.clock)
        step = slots.clock + self.elapsed(slots) - 1
        return self._masked(slots, slots.steps).gather(-1, step.clamp(max=slots.steps - 1).unsqueeze(-1)).squeeze(-1)

    def _table(self, slots: Slots) -> Tensor | None:
        if slots.steps is None:
            return None
        return (slots.remaining.unsqueeze(-1) - self._masked(slots, slots.steps)).clamp(min=0)

    def _masked(self, slots: Slots, steps: int) -> Tensor:
        """int64 `[b, s]`."""
        wide = torch.float32 if slots.open.device.type == "mps" else torch.float64
        r = torch.arange(1, steps + 1, device=slots.open.device, dtype=wide) / steps
        m = slots.size.unsqueeze(-1).to(wide)
        gamma = self._gamma(r, m).nan_to_num(nan=0.0).clamp(_GAMMA_MIN, 1)
        masked = (m * gamma).floor().long()
        return torch.cat([masked[:, :-1], torch.zeros_like(masked[:, :1])], -1)

    def _gamma(self, r: Tensor, m: Tensor) -> Tensor:
        match self.gamma:
            case "linear":
                return 1 - r
            case "cosine":
                return torch.cos(math.pi / 2 * r)
            case "log":
                return -r.log2() / m.log2()
            case "exp":
                return 1 - (-m.log2() * (1 - r)).exp2()
            case _:
                return 1 - r**self._power


@dataclass(frozen=True)
class Ascending:
    """2^i slots at step i of the response, all that is left of the block from step `steps` - 1 on (arXiv:2509.23924).

    With the block sizes of the paper, for example (15, 16, 32, 65), every later block takes one step.

    Args:
        steps: S, floor(log2(gen_length)) in the paper.
    """

    steps: int

    def __post_init__(self) -> None:
        """Refuse less than one step."""
        if self.steps < 1:
            raise ValueError(
                f"`steps`: expected at least 1, got {self.steps!r}; the paper takes floor(log2(gen_length))"
            )

    def quota(self, slots: Slots) -> Tensor:
        """int64 `[b]`."""
        doubled = torch.ones_like(slots.step) << slots.step.clamp(max=62)
        share = torch.minimum(doubled, slots.remaining)
        return torch.where(slots.step >= self.steps - 1, slots.remaining, share)


def _share(m: Tensor, steps: int, i: Tensor) -> Tensor:
    """int64 `[b]`, the i-th of `steps` shares of m, larger ones first."""
    return m // steps + (i < m % steps).long()
