"""Scorers: how much a proposed token deserves to be committed.

They see the model's law or, with `score_law="proposal"`, the tempered and filtered one that the token was drawn from.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dare_samplers.parts import Logits, Scorer, Slots
from dare_samplers.state import is_any

if TYPE_CHECKING:
    from dare_samplers.config import SamplerConfig

__all__ = [
    "EosLast",
    "EosScaled",
    "LogProb",
    "Margin",
    "NegEntropy",
    "PadPenalty",
    "PositionScore",
    "Probability",
    "RandomScore",
]

_FAR = -700.0  # exp of it is 0, or as good as, and the product of the two is no nan


@dataclass(frozen=True)
class Probability:
    """p(token): LLaDA's low-confidence remasking (arXiv:2502.09992).

    Of the model's law, temperature acts on the proposal alone and a threshold means the same at every temperature.
    """

    def score(self, logits: Logits, tokens: Tensor, slots: Slots) -> Tensor:
        """`[b, N]` in [0, 1]."""
        return logits.logp(tokens).exp()


@dataclass(frozen=True)
class LogProb:
    """ln p(token): the order of `Probability`, without ties where p rounds to 0 or 1."""

    def score(self, logits: Logits, tokens: Tensor, slots: Slots) -> Tensor:
        """`[b, N]`, at most 0."""
        return logits.logp(tokens)


@dataclass(frozen=True)
class Margin:
    """p(1) - p(2), the two most probable tokens apart: Dream's `topk_margin` (arXiv:2508.15487)."""

    def score(self, logits: Logits, tokens: Tensor, slots: Slots) -> Tensor:
        """`[b, N]` in [0, 1]; says nothing about the token."""
        first, second = (logits.values.topk(2, -1).values - logits.log_norm.unsqueeze(-1)).exp().unbind(-1)
        return first - second


@dataclass(frozen=True)
class NegEntropy:
    """Sum of p ln p: the most certain position first, Dream's `entropy` (arXiv:2508.15487)."""

    def score(self, logits: Logits, tokens: Tensor, slots: Slots) -> Tensor:
        """`[b, N]`, at most 0; says nothing about the token."""
        z = (logits.values - logits.values.amax(-1, keepdim=True)).clamp_(min=_FAR)
        weight = z.exp()
        total = weight.sum(-1)
        return (z.mul_(weight).sum(-1) / total - total.log()).clamp(max=0)


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


@dataclass(frozen=True)
class EosLast:
    """End tokens are proposed as ever but committed last: their score is -inf.

    The score alone changes, not the logits, so probabilities are not renormalised and temperature makes no difference.

    Args:
        inner: the score of all other tokens.
        ids: token ids; the model's end tokens by default.
    """

    inner: Scorer
    ids: tuple[int, ...] | None = None

    def score(self, logits: Logits, tokens: Tensor, slots: Slots) -> Tensor:
        """`[b, N]`, -inf on open slots with an end token."""
        ends = is_any(tokens, slots.eos_ids if self.ids is None else self.ids)
        return self.inner.score(logits, tokens, slots).masked_fill(ends & slots.open, -torch.inf)


@dataclass(frozen=True)
class EosScaled:
    """End tokens' scores times gamma, which grows over the response: the EOS early-rejection of EOSER.

    gamma = gamma_min + (gamma_max - gamma_min) r, with r = i / (S - 1) (`linear`) or (2^(i+1) - 1) / 2^S (`ascending`,
    for the schedule `Ascending`), where i counts the steps of the whole response and S is their number
    (arXiv:2509.23924). Scores below 0 are divided, so that they fall as well.

    Args:
        inner: the score to scale.
        gamma_min, gamma_max: in [0, 1], the first not above the second.
        ramp: how gamma grows.
        ids: token ids; the model's end tokens by default.
        steps: S; the config's `steps` by default.

    Raises:
        ValueError: for numbers out of range or an unknown ramp; in use, where neither it nor the config has `steps`.
    """

    inner: Scorer
    gamma_min: float = 0.4
    gamma_max: float = 1.0
    ramp: Literal["linear", "ascending"] = "linear"
    ids: tuple[int, ...] | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        """Check ranges and ramp."""
        if not 0 <= self.gamma_min <= self.gamma_max <= 1:
            raise ValueError(
                f"`gamma_min`, `gamma_max`: expected 0 <= gamma_min <= gamma_max <= 1, got {self.gamma_min!r} and "
                f"{self.gamma_max!r}; 0.4 and 1.0 are the published values"
            )
        if self.ramp not in ("linear", "ascending"):
            raise ValueError(f'`ramp`: expected "linear" or "ascending", got {self.ramp!r}')

    def score(self, logits: Logits, tokens: Tensor, slots: Slots) -> Tensor:
        """`[b, N]`."""
        score = self.inner.score(logits, tokens, slots)
        ends = is_any(tokens, slots.eos_ids if self.ids is None else self.ids)
        return torch.where(ends & slots.open, _lowered(score, self._gamma(slots, score.dtype)), score)

    def check(self, config: "SamplerConfig") -> None:
        """Refuse a config without steps, where it has none of its own."""
        self._of(config.steps)

    def _of(self, total: int | None) -> int:
        """Steps of the ramp: its own, or those of the whole response."""
        steps = total if self.steps is None else self.steps
        if steps is None:
            raise ValueError("`steps`: expected a number, got None; set the config's or that of EosScaled")
        return steps

    def _gamma(self, slots: Slots, dtype: torch.dtype) -> Tensor:
        """`[b, 1]`."""
        steps = self._of(slots.total_steps)
        if self.ramp == "linear":
            ratio = slots.step.to(dtype) / max(steps - 1, 1)
        else:
            ratio = (slots.step + 1 - steps).to(dtype).exp2() - 0.5**steps
        gamma = self.gamma_min + (self.gamma_max - self.gamma_min) * ratio.clamp(max=1)
        return gamma.unsqueeze(-1)


@dataclass(frozen=True)
class PadPenalty:
    """Scores of pad proposals divided by a penalty (dLLM-RL's `pad_target_penalty`, arXiv:2509.06949).

    Scores below 0 are multiplied, so that they fall as well.

    Args:
        inner: the score to lower.
        penalty: at least 1.
        ids: token ids; the model's pad id by default.
    """

    inner: Scorer
    penalty: float
    ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse a penalty that rewards."""
        if not self.penalty >= 1:
            raise ValueError(f"`penalty`: expected a number >= 1, got {self.penalty!r}; 1 leaves scores as they are")

    def score(self, logits: Logits, tokens: Tensor, slots: Slots) -> Tensor:
        """`[b, N]`."""
        score = self.inner.score(logits, tokens, slots)
        pads = is_any(tokens, (slots.pad_id,) if self.ids is None else self.ids)
        factor = torch.full_like(score[:, :1], 1 / self.penalty)
        return torch.where(pads & slots.open, _lowered(score, factor), score)


def _lowered(score: Tensor, factor: Tensor) -> Tensor:
    """Times a factor in [0, 1]; negative scores are divided by it; 0 stays."""
    return torch.where(score > 0, score * factor, torch.where(score < 0, score / factor, score))
