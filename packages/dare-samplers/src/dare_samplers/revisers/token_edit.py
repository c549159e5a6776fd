"""Editing of committed tokens: LLaDA2.1."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from dare_samplers.parts import Logits, Proposal, Revision, Slots
from dare_samplers.selectors import rank

__all__ = ["MultiBlockEdit", "TokenEdit"]


@dataclass(frozen=True)
class TokenEdit:
    """Rewrite a committed token where another one is proposed with confidence (LLaDA2.1, arXiv:2602.08676).

    Δ = {i committed : x̂_i ≠ x_i and p(x̂_i) > tau}, written together with what the selector commits. A block ends after
    a forward that began without an open slot and edited nothing, or after `max_post_steps` such forwards. Where edits
    are made but the selector takes nothing, the best open slot is committed too, so that masks cannot outlive edits.

    Args:
        tau: editing threshold on p of the raw logits; at least 1 never edits, published are 0.5 and 0.
        max_post_steps: most forwards in a block that begin without an open slot; 0 asks for no confirmation.

    >>> TokenEdit(0.5)
    TokenEdit(tau=0.5, max_post_steps=16)
    """

    tau: float
    max_post_steps: int = 16
    needs: ClassVar[tuple[str, ...]] = ("token_editing",)
    sees: ClassVar[Literal["open", "block", "row"]] = "block"
    decides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse what is no threshold or no count."""
        check_editing(self.tau, self.max_post_steps)

    def revise(
        self, logits: Logits, proposal: Proposal, score: Tensor, slots: Slots, pick: Tensor, stored: Tensor
    ) -> Revision:
        """`pick`, `write`, `tokens` and `hold`."""
        confident = logits.logp(proposal.tokens).exp() > self.tau
        write = slots.committed & (proposal.tokens != slots.tokens) & confident
        edited = write.any(-1)
        forced = (edited & ~pick.any(-1)).unsqueeze(-1) & slots.open & (rank(score, slots.open) == 0)
        idle = slots.remaining == 0
        hold = (slots.idle + idle.long() < self.max_post_steps) & (edited | ~idle)
        return Revision(pick=pick | forced, write=write, tokens=proposal.tokens, hold=hold)


@dataclass(frozen=True)
class MultiBlockEdit(TokenEdit):
    """`TokenEdit` on the current block and all blocks before it (multi-block editing, arXiv:2602.08676).

    A cache is told what changed; what depends on it is computed anew.
    """

    sees: ClassVar[Literal["open", "block", "row"]] = "row"


def check_editing(tau: float, max_post_steps: int) -> None:
    """Refuse what is no threshold or no count.

    Raises:
        ValueError: for a tau that is no number >= 0, or a negative number of steps.
    """
    if not 0 <= tau < math.inf:
        raise ValueError(f"`tau`: expected a number >= 0, got {tau!r}; 0.5 is a published value, 1 never edits")
    if max_post_steps < 0:
        raise ValueError(f"`max_post_steps`: expected at least 0, got {max_post_steps}; 16 is the published value")
