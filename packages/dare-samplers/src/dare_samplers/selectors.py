"""Selectors: which slots to commit. Ties go to the lowest position.

Where one takes no slot of a row, the loop commits the best one.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from dare_samplers.adaptive import EntropyBudget, Factor, SegmentMax
from dare_samplers.parts import Selector, Slots
from dare_samplers.ranking import check_number, rank

__all__ = [
    "All",
    "BudgetThreshold",
    "EntropyBudget",
    "Factor",
    "Hybrid",
    "Lead",
    "SegmentMax",
    "SoftTopK",
    "Threshold",
    "TopK",
    "rank",
]

_GUMBEL = 1
"""Sets the numbers of `SoftTopK` apart from those of `RandomScore`."""


@dataclass(frozen=True)
class TopK:
    """The `quota` slots of highest score."""

    uses_quota: ClassVar[bool] = True

    def select(self, score: Tensor, slots: Slots, quota: Tensor) -> Tensor:
        """bool `[b, N]` with min(quota, open slots) True per row."""
        return (rank(score, slots.open) < quota.unsqueeze(-1)) & slots.open


@dataclass(frozen=True)
class SoftTopK:
    """`quota` slots drawn without replacement with weights softmax(score / alg_temp): Dream's `alg_temp`.

    By Gumbel noise on score / alg_temp, whose largest entries are such a draw (arXiv:2508.15487).

    Args:
        alg_temp: > 0. Slots of score -inf come last.
    """

    alg_temp: float
    uses_quota: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a temperature that is no positive number."""
        if not 0 < self.alg_temp < math.inf:
            raise ValueError(f"`alg_temp`: expected a number > 0, got {self.alg_temp!r}; use TopK() for 0")

    def select(self, score: Tensor, slots: Slots, quota: Tensor) -> Tensor:
        """bool `[b, N]` with min(quota, open slots) True per row."""
        finfo = torch.finfo(score.dtype)
        best = score.masked_fill(~slots.open, finfo.min).amax(-1, keepdim=True).clamp(min=finfo.min)
        noise = -(-slots.uniform("order", score.dtype, _GUMBEL).log()).log()
        return TopK().select((score - best) / self.alg_temp + noise, slots, quota)


@dataclass(frozen=True)
class All:
    """Every open slot: one forward per block."""

    uses_quota: ClassVar[bool] = False

    def select(self, score: Tensor, slots: Slots, quota: Tensor) -> Tensor:
        """bool `[b, N]`."""
        return slots.open


@dataclass(frozen=True)
class Threshold:
    """Every slot with score >= tau (Fast-dLLM, arXiv:2505.22618).

    Args:
        tau: at most 0 commits a block in one step, above 1 one token per step.
        strict: score > tau instead, as in SDAR, LLaDA2 and sglang.
        decay: begin at 1 and lower the bar by this at every step of the response, down to tau: max(1 - decay i, tau)
            (dInfer's iteration smoothing, arXiv:2510.08666).
        ties: dInfer's rule score >= min(tau, best - ties), 1e-5 there, which commits near ties of the best one
            together. Only for comparison with it.

    Raises:
        ValueError: for what is no number, or negative `decay` or `ties`.
    """

    tau: float = 0.9
    strict: bool = False
    decay: float = 0.0
    ties: float | None = None
    uses_quota: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Check the numbers."""
        check_number("tau", self.tau, "0.9 is the published value")
        if not self.decay >= 0:
            raise ValueError(f"`decay`: expected a number >= 0, got {self.decay!r}; 0 keeps tau fixed")
        if self.ties is not None and not self.ties >= 0:
            raise ValueError(f"`ties`: expected a number >= 0 or None, got {self.ties!r}; None commits no ties")

    def select(self, score: Tensor, slots: Slots, quota: Tensor) -> Tensor:
        """bool `[b, N]`."""
        bar = torch.full_like(score[:, :1], self.tau)
        if self.decay:
            bar = torch.maximum(bar, 1 - self.decay * slots.step.unsqueeze(-1).to(score.dtype))
        if self.ties is not None:
            best = score.masked_fill(~slots.open, -torch.inf).amax(-1, keepdim=True)
            bar = torch.minimum(bar, best - self.ties)
        return (score > bar if self.strict else score >= bar) & slots.open


@dataclass(frozen=True)
class Hybrid:
    """Every slot above tau if they are at least the quota, else the quota's best: SDAR's `low_confidence_dynamic`.

    arXiv:2510.06303, and LLaDA2.0 (arXiv:2512.15745).

    Args:
        tau: above 1 it is `TopK`.
        strict: score > tau; False for >=.
    """

    tau: float = 0.85
    strict: bool = True
    uses_quota: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a tau that is no number."""
        check_number("tau", self.tau, "0.85 is the published value")

    def select(self, score: Tensor, slots: Slots, quota: Tensor) -> Tensor:
        """bool `[b, N]`."""
        high = Threshold(self.tau, self.strict).select(score, slots, quota)
        enough = high.sum(-1) >= quota
        return torch.where(enough.unsqueeze(-1), high, TopK().select(score, slots, quota))


@dataclass(frozen=True)
class BudgetThreshold:
    """Of the quota's best slots those with score >= tau, and the best one: Fast-dLLM's rule for Dream.

    With the schedule `DreamBudget`, which carries over what is dropped here (arXiv:2505.22618).

    Args:
        tau: at most 0 is `TopK`.
    """

    tau: float = 0.9
    uses_quota: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a tau that is no number."""
        check_number("tau", self.tau, "0.9 is the published value")

    def select(self, score: Tensor, slots: Slots, quota: Tensor) -> Tensor:
        """bool `[b, N]`, at most `quota` True per row."""
        place = rank(score, slots.open)
        return (place < quota.unsqueeze(-1)) & ((score >= self.tau) | (place == 0)) & slots.open


@dataclass(frozen=True)
class Lead:
    """At a block's first step its first open slot alone, then `inner`: the autoregressive token of Fast-dLLM v2.

    arXiv:2509.26328. A model that predicts the next token knows most about it from the block before.

    Args:
        inner: the selector of all other steps.
    """

    inner: Selector
    uses_quota: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """The schedule has a say if it has one in `inner`."""
        object.__setattr__(self, "uses_quota", self.inner.uses_quota)

    def select(self, score: Tensor, slots: Slots, quota: Tensor) -> Tensor:
        """bool `[b, N]`."""
        first = slots.open & (slots.open.cumsum(-1) == 1)
        begins = (slots.block_step == 0).unsqueeze(-1)
        return torch.where(begins, first, self.inner.select(score, slots, quota))
