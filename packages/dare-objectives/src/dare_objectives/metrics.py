"""Metrics that merge exactly over micro-batches and ranks."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Max", "Mean", "Metrics", "masked_max", "masked_mean", "merge_metrics"]


@dataclass(frozen=True, eq=False)
class Mean:
    """A weighted mean, kept as total and weight; both may stay on the device until `value` is read.

    >>> Mean(3.0, 2).merge(Mean(1.0, 2)).value
    1.0
    """

    total: Tensor | float
    weight: Tensor | float = 1.0

    def merge(self, other: "Mean") -> "Mean":
        """The mean over both parts."""
        return Mean(self.total + other.total, self.weight + other.weight)

    @property
    def value(self) -> float:
        """The mean as a float; 0 where nothing was counted."""
        weight = float(self.weight)
        return float(self.total) / weight if weight else 0.0


@dataclass(frozen=True, eq=False)
class Max:
    """A maximum.

    >>> Max(3.0).merge(Max(5.0)).value
    5.0
    """

    maximum: Tensor | float

    def merge(self, other: "Max") -> "Max":
        """The larger of both."""
        return Max(torch.maximum(torch.as_tensor(self.maximum), torch.as_tensor(other.maximum)))

    @property
    def value(self) -> float:
        """The maximum as a float."""
        return float(self.maximum)


Metrics = dict[str, Mean | Max]
"""Named metrics of one micro-batch."""


def merge_metrics(parts: Iterable[Mapping[str, Mean | Max]]) -> Metrics:
    """Merge the metrics of micro-batches name by name.

    >>> merge_metrics([{"ratio_max": Max(1.0)}, {"ratio_max": Max(2.0)}])["ratio_max"].value
    2.0
    """
    merged: Metrics = {}
    for part in parts:
        for name, metric in part.items():
            merged[name] = merged[name].merge(metric) if name in merged else metric  # type: ignore[arg-type]
    return merged


def masked_mean(x: Tensor, mask: Tensor) -> Mean:
    """Mean of `x` where `mask` is True."""
    return Mean(torch.where(mask, x.detach(), 0.0).sum(), mask.sum())


def masked_max(x: Tensor, mask: Tensor, *, empty: float = 0.0) -> Max:
    """Maximum of `x` where `mask` is True; `empty` where it is nowhere."""
    if not x.numel():
        return Max(empty)
    largest = torch.where(mask, x.detach(), -torch.inf).amax()
    return Max(torch.where(largest == -torch.inf, empty, largest))
