"""Classifier-free guidance and iteration smoothing: what a forward is fed beyond the canvas."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Guidance", "Smoothing"]


@dataclass(frozen=True)
class Guidance:
    """Classifier-free guidance (arXiv:2502.09992, unsupervised): l = l_u + (scale + 1) (l_c - l_u).

    The unconditional branch sees the mask id in place of every given token; both branches are one forward. Proposals
    and scores follow the guided logits; the recorded raw log-probabilities are those of the conditional branch.

    Args:
        scale: w; at 0 the second branch is not computed.
    """

    scale: float

    def __post_init__(self) -> None:
        """Refuse what is no finite number at least 0."""
        if not 0 <= self.scale < math.inf:
            raise ValueError(f"`scale`: expected a number >= 0, got {self.scale!r}; 0 means no guidance")

    def mix(self, conditional: Tensor, unconditional: Tensor) -> Tensor:
        """The guided logits; where both branches say -inf, so does the result."""
        guided = unconditional + (self.scale + 1) * (conditional - unconditional)
        guided = guided.clamp(max=torch.finfo(guided.dtype).max)
        return guided.where(conditional.isfinite() & unconditional.isfinite(), conditional)


@dataclass(frozen=True)
class Smoothing:
    """dInfer's iteration smoothing (arXiv:2510.08666): an open slot remembers what the last step thought of it.

    The embedding of the mask on it becomes E[mask] + w_i sum_v p(v) E[v], with w_i = min(init + growth i, limit) and i
    the row's step. The model must offer `mix` and take `added`.

    Args:
        init: w_0.
        growth: per step.
        limit: largest weight.
    """

    init: float = 0.15
    growth: float = 0.02
    limit: float = 0.3

    def weight(self, step: Tensor) -> Tensor:
        """w_i of every row, `[b]`."""
        return (self.init + self.growth * step).clamp(max=self.limit)
