"""Corrections late in the block: ReMDM on LLaDA."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from dare_samplers.parts import Logits, Proposal, Revision, Slots
from dare_samplers.revisers.places import spread, weakest
from dare_samplers.selectors import rank

if TYPE_CHECKING:
    from dare_samplers.config import SamplerConfig

__all__ = ["ReMaskLowest"]


@dataclass(frozen=True)
class ReMaskLowest:
    """Late in a block, mask the weakest tokens again and commit as many (LLaDA with ReMDM, arXiv:2503.00307).

    Of the block's S steps, r are corrections and w = min(S - r, block size) commit equal shares of the block by score.
    After floor(start w) of these the corrections come: each commits the `number` best open slots, and before each the
    `number` committed slots of lowest score at commit are masked, net 0. Then the remaining shares. Among
    equals the lowest positions stay. Schedule and selector have no say; S steps are needed.

    Args:
        number: tokens masked again per correction; where fewer are committed, these.
        start: fraction of the shares committed before.
        rounds: r; None for half of the steps.
    """

    number: int
    start: float = 7 / 8
    rounds: int | None = None
    sees: ClassVar[Literal["open", "block", "row"]] = "block"
    decides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        if self.number < 1:
            raise ValueError(f"`number`: expected at least 1, got {self.number}; leave the reviser out for none")
        if not 0 < self.start <= 1:
            raise ValueError(
                f"`start`: expected a fraction in (0, 1], got {self.start!r}; 7 / 8 is the published value"
            )
        if self.rounds is not None and self.rounds < 0:
            raise ValueError(f"`rounds`: expected at least 0, got {self.rounds}; None takes half of the steps")

    def check(self, config: "SamplerConfig") -> None:
        """Refuse a config without steps, or with too few."""
        self._corrections(config.steps_per_block)

    def revise(
        self, logits: Logits, proposal: Proposal, score: Tensor, slots: Slots, pick: Tensor, stored: Tensor
    ) -> Revision:
        """`pick` and `reopen`.

        Raises:
            ValueError: without a number of steps, or with more corrections than steps.
        """
        rounds = self._corrections(slots.steps)
        shares = slots.size.clamp(min=1, max=(slots.steps or 0) - rounds)
        first = (self.start * shares).floor().long().clamp(min=1)
        correcting = (slots.clock >= first) & (slots.clock < first + rounds)
        shared = torch.where(slots.clock < first, slots.clock, slots.clock - rounds)
        left = (shares - shared).clamp(min=1)
        held_then = first * (slots.size // shares) + torch.minimum(first, slots.size % shares)
        number = held_then.clamp(max=self.number)
        quota = torch.where(correcting, number, (slots.remaining + left - 1) // left)
        quota = torch.where(slots.clock >= shares + rounds - 1, slots.remaining, quota).unsqueeze(-1)
        take = slots.open & (rank(score, slots.open) < quota)
        before = (slots.clock >= first - 1) & (slots.clock < first + rounds - 1)
        held = stored.gather(-1, slots.index.clamp(0, stored.shape[-1] - 1)).to(score.dtype)
        count = torch.where(before, number, 0)
        drop = weakest(torch.where(slots.open, score, held), take | slots.committed, count)
        # a slot that would be committed and masked at once just stays open
        return Revision(pick=take & ~drop, reopen=spread(drop & slots.committed, slots, stored.shape[-1]))

    def _corrections(self, steps: int | None) -> int:
        if steps is None:
            raise ValueError("`steps`: expected a number for ReMaskLowest, got None; half of them are corrections")
        rounds = steps // 2 if self.rounds is None else self.rounds
        if rounds >= steps:
            raise ValueError(f"`rounds`: expected less than the {steps} steps of a block, got {rounds}; raise `steps`")
        return rounds
