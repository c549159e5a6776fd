"""Selectors that look at all scores of a row to tell how many slots may be committed together."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_samplers.parts import Slots
from dare_samplers.ranking import check_number, rank

__all__ = ["EntropyBudget", "Factor", "SegmentMax"]


@dataclass(frozen=True)
class Factor:
    """The longest run of best slots of which the n-th has probability >= 1 - factor / (n + 1), for all n > 1.

    Greedy decoding in parallel equals that one by one while (n + 1)(1 - p) <= 1 for the least p of n tokens
    (Fast-dLLM, arXiv:2505.22618).

    Args:
        factor: 0 commits one slot per step.
    """

    factor: float = 1.0
    uses_quota: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse a negative factor."""
        if not self.factor >= 0:
            raise ValueError(f"`factor`: expected a number >= 0, got {self.factor!r}; 0 commits one slot per step")

    def select(self, score: Tensor, slots: Slots, quota: Tensor) -> Tensor:
        """bool `[b, N]`."""
        place = rank(score, slots.open)
        bar = 1 - self.factor / (place + 2).to(score.dtype)
        passes = (place == 0) | ((score >= bar) & (bar < 1))
        failed = place.masked_fill(passes, place.shape[-1]).amin(-1, keepdim=True)
        return (place < failed) & slots.open


@dataclass(frozen=True)
class EntropyBudget:
    """The most certain slots while the sum of their entropies stays within gamma (EB-Sampler, arXiv:2505.24857).

    For the scorer `NegEntropy`: H = -score. At least one slot.

    Args:
        gamma: in nats; 0 commits one slot per step.
        bound: `cumulative` takes a slot while the sum with it is < gamma (JetEngine, gamma 0.35), `previous` while the
            sum before it is <= gamma (sglang, gamma 0.15).
    """

    gamma: float = 0.35
    bound: Literal["cumulative", "previous"] = "cumulative"
    uses_quota: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check gamma and the word."""
        if not self.gamma >= 0:
            raise ValueError(f"`gamma`: expected a number >= 0, got {self.gamma!r}; 0 commits one slot per step")
        if self.bound not in ("cumulative", "previous"):
            raise ValueError(f'`bound`: expected "cumulative" or "previous", got {self.bound!r}')

    def select(self, score: Tensor, slots: Slots, quota: Tensor) -> Tensor:
        """bool `[b, N]`."""
        place = rank(score, slots.open)
        entropy = torch.where(slots.open, -score, 0).clamp(min=0)
        total = torch.empty_like(entropy).scatter_(-1, place, entropy).cumsum(-1)
        if self.bound == "cumulative":
            within = total < self.gamma
        else:
            within = (pad(total, (1, -1)) <= self.gamma) & (self.gamma > 0)
        return ((place == 0) | within.gather(-1, place)) & slots.open


@dataclass(frozen=True)
class SegmentMax:
    """The best slot of every run of adjacent open slots, if above tau_low, and all above tau.

    dInfer's hierarchical decoding (arXiv:2510.08666): tokens that are far apart depend little on one another.

    Args:
        tau: None for none but the best of each run.
        tau_low: None for the best of each run whatever its score.
    """

    tau: float | None = 0.9
    tau_low: float | None = 0.4
    uses_quota: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse what is no number."""
        for name in ("tau", "tau_low"):
            if (value := getattr(self, name)) is not None:
                check_number(name, value, "0.9 and 0.4 are the published values")

    def select(self, score: Tensor, slots: Slots, quota: Tensor) -> Tensor:
        """bool `[b, N]`."""
        adjacent = slots.open[:, 1:] & slots.open[:, :-1] & (slots.index.diff(dim=-1) == 1)
        run = pad(~adjacent, (1, 0), value=True).cumsum(-1) - 1
        place = rank(score, slots.open)
        first = torch.full_like(place, place.shape[-1]).scatter_reduce(-1, run, place, "amin")
        pick = place == first.gather(-1, run)
        if self.tau_low is not None:
            pick = pick & (score > self.tau_low)
        if self.tau is not None:
            pick = pick | (score > self.tau)
        return pick & slots.open
