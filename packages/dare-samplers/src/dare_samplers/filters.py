"""Top-k and nucleus filters: which tokens a draw may choose from. No sort of the vocabulary, no wait for the device."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = ["Filter", "Nucleus", "Order"]

Order = Literal["top_k_first", "top_p_first"]
Nucleus = Literal["first_above", "within"]

_ONE = 0x3F800000  # the bits of 1.0 in float32
_TINY = 2.0**-149  # the number whose bits are 1


@dataclass(frozen=True)
class Filter:
    """The tokens that top-k and top-p leave of a law.

    Args:
        top_k: keep the k most probable tokens, and all that equal the k-th.
        top_p: keep the most probable tokens up to this mass; of equal ones the lowest ids. 1 keeps all.
        order: `top_k_first` measures the mass among the k tokens (SDAR, arXiv:2510.06303; LLaDA2, arXiv:2512.15745),
            `top_p_first` among all (Dream, arXiv:2508.15487).
        nucleus: `first_above` is the smallest set whose mass exceeds `top_p`; `within` the largest whose mass does not,
            and at least one token (BD3-LM, arXiv:2503.09573).

    Raises:
        ValueError: for numbers out of range or unknown words.
    """

    top_k: int | None = None
    top_p: float | None = None
    order: Order = "top_k_first"
    nucleus: Nucleus = "first_above"

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"`top_k`: expected at least 1 or None, got {self.top_k!r}; None keeps all tokens")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"`top_p`: expected a number in (0, 1] or None, got {self.top_p!r}; None keeps all tokens")
        if self.order not in ("top_k_first", "top_p_first"):
            raise ValueError(f'`order`: expected "top_k_first" or "top_p_first", got {self.order!r}')
        if self.nucleus not in ("first_above", "within"):
            raise ValueError(f'`nucleus`: expected "first_above" or "within", got {self.nucleus!r}')

    @property
    def active(self) -> bool:
        """Whether anything is filtered."""
        return self.top_k is not None or self.top_p not in (None, 1)

    def keep(self, values: Tensor) -> Tensor:
        """Tokens that stay, bool of the shape of `values`, which are logits `[…, V]`.

        >>> Filter(top_p=0.7).keep(torch.tensor([0.5, 0.3, 0.2]).log()).tolist()
        [True, True, False]
        >>> Filter(top_p=0.7, nucleus="within").keep(torch.tensor([0.5, 0.3, 0.2]).log()).tolist()
        [True, False, False]
        """
        if self.top_k is None:
            weight = _weight(values, values)
            mass = weight.sum(-1, keepdim=True) * (1 if self.top_p is None else self.top_p)
            return self._prefix(weight, _edge(weight, mass), mass)
        best = values.topk(min(self.top_k, values.shape[-1]), -1).values
        inside = values >= best[..., -1:]
        if self.top_p is None or self.top_p == 1:
            return inside
        weight = _weight(values, best)
        whole = weight if self.order == "top_p_first" else torch.where(inside, weight, 0)
        mass = whole.sum(-1, keepdim=True) * self.top_p
        return inside & self._prefix(weight, _edge_of_few(_weight(best, best), mass), mass)

    def _prefix(self, weight: Tensor, edge: Tensor, mass: Tensor) -> Tensor:
        """Everything above the edge, and as many of those on it as the mass wants."""
        above = weight > edge
        missing = mass - torch.where(above, weight, 0).sum(-1, keepdim=True)
        count = (missing / edge).nan_to_num().floor() + (self.nucleus == "first_above")
        count = torch.maximum(count, (edge >= 1).to(count.dtype)).clamp(max=weight.shape[-1]).to(torch.int32)
        on_edge = weight == edge
        return above | (on_edge & (on_edge.cumsum(-1, dtype=torch.int32) <= count))


def _weight(values: Tensor, best: Tensor) -> Tensor:
    """Probabilities over that of the best token, in float32."""
    return (values - best.amax(-1, keepdim=True)).exp_().float()


def _edge(weight: Tensor, mass: Tensor) -> Tensor:
    """The largest number such that the weights >= it exceed `mass`; weights in [0, 1], the largest of them 1.

    Positive floats are ordered as their bits are, so 30 halvings find it exactly. On a vocabulary of 10^5 that is
    faster than a sort, and it needs no indices.
    """
    low = torch.ones_like(mass, dtype=torch.int32)
    high = torch.full_like(low, _ONE + 1)
    for _ in range(_ONE.bit_length()):
        middle = (low + high) // 2
        enough = torch.where(weight >= middle.view(torch.float32), weight, 0).sum(-1, keepdim=True) > mass
        low, high = torch.where(enough, middle, low), torch.where(enough, high, middle)
    return low.view(torch.float32)


def _edge_of_few(best: Tensor, mass: Tensor) -> Tensor:
    """The same from the k largest weights in descending order; the smallest of them if the edge lies below."""
    index = (best.cumsum(-1) <= mass).sum(-1, keepdim=True).clamp(max=best.shape[-1] - 1)
    return best.gather(-1, index).clamp(min=_TINY)
