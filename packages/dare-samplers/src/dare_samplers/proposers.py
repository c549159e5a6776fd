"""Proposers: which token to write into an open slot."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_samplers.filters import Filter, Nucleus, Order
from dare_samplers.parts import Logits, Proposal, Slots

__all__ = ["Categorical", "Greedy"]

_CHUNK = 512
_SMALLEST_CHUNK = 64


@dataclass(frozen=True)
class Greedy:
    """The most probable token; the lowest id among equals. A point mass, so log q = 0.

    Args:
        top_k, top_p, order, nucleus: as in `Categorical`. They change no token, only the law that a scorer with
            `score_law="proposal"` sees, as in Dream's sampler at temperature 0 (arXiv:2508.15487).
    """

    top_k: int | None = None
    top_p: float | None = None
    order: Order = "top_k_first"
    nucleus: Nucleus = "first_above"

    def __post_init__(self) -> None:
        """Check the filters."""
        _ = self._filter

    @property
    def _filter(self) -> Filter:
        """The filters as one object."""
        return Filter(self.top_k, self.top_p, self.order, self.nucleus)

    def propose(self, logits: Logits, slots: Slots) -> Proposal:
        """argmax over the vocabulary."""
        tokens = logits.values.argmax(-1)
        law = logits
        if self._filter.active:
            law = Logits(torch.where(self._filter.keep(logits.values), logits.values, -torch.inf))
        return Proposal(tokens, torch.zeros_like(tokens, dtype=logits.values.dtype), law)


@dataclass(frozen=True)
class Categorical:
    """A draw from softmax(logits / temperature), filtered, by inversion of its distribution function.

    The same law as Gumbel noise on every logit, for one uniform number per slot. It is a hash of the row's key, the
    step and the response position, so a draw does not depend on the other rows of the batch.

    Args:
        temperature: > 0.
        top_k: keep the k most probable tokens, and all that equal the k-th; None keeps all.
        top_p: keep the smallest set of most probable tokens whose mass exceeds this, after the temperature; None keeps
            all.
        order: `top_k_first` as in SDAR (arXiv:2510.06303) and LLaDA2 (arXiv:2512.15745), where `top_p` counts among the
            k tokens, or `top_p_first` as in Dream (arXiv:2508.15487).
        nucleus: `within` for the largest set whose mass does not exceed `top_p`, but at least one token (BD3-LM,
            arXiv:2503.09573).

    Raises:
        ValueError: for a temperature that is no positive number, or filters out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    order: Order = "top_k_first"
    nucleus: Nucleus = "first_above"

    def __post_init__(self) -> None:
        """Check temperature and filters."""
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"`temperature`: expected a number > 0, got {self.temperature!r}; use Greedy() for 0")
        _ = self._filter

    @property
    def _filter(self) -> Filter:
        """The filters as one object."""
        return Filter(self.top_k, self.top_p, self.order, self.nucleus)

    def propose(self, logits: Logits, slots: Slots) -> Proposal:
        """Inverse-CDF draw, with log q under the tempered and filtered law."""
        top = logits.values.amax(-1, keepdim=True)
        values = logits.values - top
        plain = self.temperature == 1 and not self._filter.active
        if self.temperature != 1:
            values.div_(self.temperature)
        if self._filter.active:
            values.masked_fill_(~self._filter.keep(values), -torch.inf)
        weight = values.exp_() if plain else values.exp()
        wide = torch.float32 if values.device.type == "mps" else torch.float64
        tokens, total = _invert(weight, slots.uniform("token", wide))
        law = logits if plain else Logits(values)
        value = logits.at(tokens) - top.squeeze(-1) if plain else law.at(tokens)
        return Proposal(tokens, value - total.log().to(value.dtype), law)


def _invert(weight: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Index at which the cumulative weight passes `u` times the total, and the total.

    Two levels keep the sums short and in the precision of `u`: first the chunk, then the element inside it. A running
    float32 sum over a vocabulary of 10^5 would lose the tail; a float64 copy of the vocabulary is never made: a chunk's
    own sum is short enough for float32.
    """
    size = math.gcd(weight.shape[-1], _CHUNK)
    if size < _SMALLEST_CHUNK:
        size = _CHUNK
        weight = pad(weight, (0, -weight.shape[-1] % size))
    chunks = weight.unflatten(-1, (-1, size))
    sums = chunks.sum(-1).to(u.dtype)
    total = sums.sum(-1)
    chunk, rest = _passing(sums, u * total)
    inside = chunks.gather(-2, chunk[..., None, None].expand(*chunk.shape, 1, size)).squeeze(-2)
    element, _ = _passing(inside.to(u.dtype), rest)
    return chunk * size + element, total


def _passing(weight: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """First index whose cumulative weight exceeds `level`, and the level counted from there. It has positive weight."""
    total = weight.cumsum(-1)
    end = total[..., -1]
    level = torch.minimum(level, end * (1 - torch.finfo(end.dtype).eps))
    index = (total <= level.unsqueeze(-1)).sum(-1).clamp(max=weight.shape[-1] - 1)
    before = total.gather(-1, index.unsqueeze(-1)) - weight.gather(-1, index.unsqueeze(-1))
    return index, (level - before.squeeze(-1)).clamp(min=0)
