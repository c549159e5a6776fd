"""Scorers: how much a proposed token deserves to be committed."""

from dataclasses import dataclass

from torch import Tensor

from dare_samplers.parts import Logits, Slots

__all__ = ["PositionScore", "Probability", "RandomScore"]


@dataclass(frozen=True)
class Probability:
    """p(token) of the raw logits at temperature 1: LLaDA's low-confidence remasking (arXiv:2502.09992).

    Temperature acts on the proposal alone, so a threshold means the same at every temperature.
    """

    def score(self, logits: Logits, tokens: Tensor, slots: Slots) -> Tensor:
        """`[b, N]` in [0, 1]."""
        return logits.logp(tokens).exp()


@dataclass(frozen=True)
class RandomScore:
    """A uniform number per slot, keyed by row, step and position: random order."""

    def score(self, logits: Logits, tokens: Tensor, slots: Slots) -> Tensor:
        """`[b, N]` in (0, 1)."""
        return slots.uniform("order", logits.values.dtype)


@dataclass(frozen=True)
class PositionScore:
    """Minus the position: left to right."""

    def score(self, logits: Logits, tokens: Tensor, slots: Slots) -> Tensor:
        """`[b, N]`, at most 0."""
        return -slots.index.to(logits.values.dtype)
