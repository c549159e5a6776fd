"""Proposers: which token to write into an open slot."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_samplers.parts import Logits, Proposal, Slots

__all__ = ["Categorical", "Greedy"]

_CHUNK = 512


@dataclass(frozen=True)
class Greedy:
    """The most probable token; the lowest id among equals. A point mass, so log q = 0."""

    def propose(self, logits: Logits, slots: Slots) -> Proposal:
        """argmax over the vocabulary."""
        tokens = logits.values.argmax(-1)
        return Proposal(tokens, torch.zeros_like(tokens, dtype=logits.values.dtype))


@dataclass(frozen=True)
class Categorical:
    """A draw from softmax(logits / temperature) by inversion of its distribution function, one uniform per slot.

    The same law as Gumbel noise on every logit, for a millionth of the noise. The uniform number is a hash of the row's
    key, the step and the response position, so a draw does not depend on the other rows of the batch.

    Args:
        temperature: > 0.
    """

    temperature: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a temperature that is no positive number."""
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"`temperature`: expected a number > 0, got {self.temperature!r}; use Greedy() for 0")

    def propose(self, logits: Logits, slots: Slots) -> Proposal:
        """Inverse-CDF draw, with log q under the tempered law."""
        shifted = (logits.values - logits.values.amax(-1, keepdim=True)) / self.temperature
        wide = torch.float32 if shifted.device.type == "mps" else torch.float64
        tokens, total = _invert(shifted.exp(), slots.uniform("token", wide))
        logq = shifted.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - total.log().to(shifted.dtype)
        return Proposal(tokens, logq)


def _invert(weight: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """Index at which the cumulative weight passes `u` times the total, and the total.

    Two levels keep the sums short and in the precision of `u`: first the chunk, then the element inside it. A running
    float32 sum over a vocabulary of 10^5 would lose the tail; a float64 copy of the vocabulary is never made: a chunk's
    own sum is short enough for float32.
    """
    size = weight.shape[-1]
    chunks = pad(weight, (0, -size % _CHUNK)).unflatten(-1, (-1, _CHUNK))
    sums = chunks.sum(-1).to(u.dtype)
    chunk, rest = _passing(sums, u * sums.sum(-1))
    inside = chunks.gather(-2, chunk[..., None, None].expand(*chunk.shape, 1, _CHUNK)).squeeze(-2)
    element, _ = _passing(inside.to(u.dtype), rest)
    return chunk * _CHUNK + element, sums.sum(-1)


def _passing(weight: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    """First index whose cumulative weight exceeds `level`, and the level counted from there. It has positive weight."""
    total = weight.cumsum(-1)
    end = total[..., -1]
    level = torch.minimum(level, end * (1 - torch.finfo(end.dtype).eps))
    index = (total <= level.unsqueeze(-1)).sum(-1).clamp(max=weight.shape[-1] - 1)
    before = total.gather(-1, index.unsqueeze(-1)) - weight.gather(-1, index.unsqueeze(-1))
    return index, (level - before.squeeze(-1)).clamp(min=0)
