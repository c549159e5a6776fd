"""Logits rules: edits of the logits before proposing and scoring. None edits them in place."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dare_samplers.parts import Logits, Slots

__all__ = ["Credit", "LogitsHook", "RepeatPenalty", "Suppress"]


@dataclass(frozen=True)
class Suppress:
    """Never propose these token ids; probabilities are renormalised over the rest.

    Args:
        ids: token ids, for example the end tokens, to force answers of full length.
    """

    ids: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse an empty or negative list."""
        if not self.ids or min(self.ids) < 0:
            raise ValueError(
                f"`ids`: expected at least one token id >= 0, got {self.ids!r}; leave the rule out instead"
            )
        object.__setattr__(self, "ids", tuple(self.ids))

    def apply(self, logits: Logits, slots: Slots) -> Logits:
        """Logits with -inf at `ids`."""
        return logits.without(self.ids)


@dataclass(frozen=True)
class LogitsHook:
    """Any function of logits and slots.

    Args:
        hook: returns new logits of the same shape, row by row, and leaves the given ones as they are.
    """

    hook: Callable[[Logits, Slots], Logits]

    def apply(self, logits: Logits, slots: Slots) -> Logits:
        """What `hook` returns."""
        return self.hook(logits, slots)


@dataclass(frozen=True)
class RepeatPenalty:
    """Subtract lam from the logit of the token that stands one column to the left: sglang's guard against repetition.

    Args:
        lam: in nats. Nothing is subtracted where the column to the left is masked, or is none.
    """

    lam: float

    def apply(self, logits: Logits, slots: Slots) -> Logits:
        """Logits in a copy."""
        known = (slots.left != slots.mask_id) & (slots.left >= 0)
        change = -self.lam * known.to(logits.values.dtype)
        return Logits(logits.values.scatter_add(-1, slots.left.clamp(min=0).unsqueeze(-1), change.unsqueeze(-1)))


@dataclass(frozen=True)
class Credit:
    """Credit for tokens that have been the most probable ones before: l + alpha ln(1 + A) (dInfer, arXiv:2510.08666).

    At every step A <- beta A, then A[slot, best token] += p(best token)^gamma on open slots. A is kept as pairs of a
    token and its credit, one for each token that was ever the best of a slot, instead of a number for every token.

    Args:
        alpha: strength.
        gamma: < 1 lifts the credit of improbable tokens.
        beta: decay per step, in [0, 1].

    Raises:
        ValueError: for a decay out of range.
    """

    alpha: float = 0.7
    gamma: float = 0.2
    beta: float = 0.8

    def __post_init__(self) -> None:
        """Refuse a decay out of range."""
        if not 0 <= self.beta <= 1:
            raise ValueError(f"`beta`: expected a number in [0, 1], got {self.beta!r}; 0.8 is the published value")

    def width(self, slots_per_block: int) -> int:
        """A pair per step of a block, which has no more steps than slots."""
        return 2 * slots_per_block

    def recall(self, logits: Logits, slots: Slots, memory: Tensor) -> tuple[Logits, Tensor]:
        """Logits in a copy, and the pairs: tokens + 1 (0 for none), then credits."""
        tokens, credit = memory.chunk(2, -1)
        best = logits.values.argmax(-1)
        earned = logits.logp(best).exp().to(memory.dtype) ** self.gamma
        tokens, credit = _earn(tokens, credit * self.beta, best, earned * slots.open)
        memory = torch.where(slots.open.unsqueeze(-1), torch.cat([tokens, credit], -1), memory)
        bonus = (self.alpha * credit.log1p() * (tokens > 0)).to(logits.values.dtype)
        return Logits(logits.values.scatter_add(-1, (tokens - 1).clamp(min=0).long(), bonus)), memory


def _earn(tokens: Tensor, credit: Tensor, best: Tensor, earned: Tensor) -> tuple[Tensor, Tensor]:
    """Add to the pair of `best`, or begin one in the place with the least credit, an empty one if there is any."""
    same = tokens == (best + 1).unsqueeze(-1)
    known = same.any(-1)
    place = torch.where(known, same.to(torch.uint8).argmax(-1), credit.argmin(-1)).unsqueeze(-1)
    before = torch.where(known.unsqueeze(-1), credit.gather(-1, place), 0)
    tokens = tokens.scatter(-1, place, (best + 1).unsqueeze(-1).to(tokens.dtype))
    return tokens, credit.scatter(-1, place, before + earned.unsqueeze(-1))
