"""Running confidence re-masking: MDPO."""

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from dare_samplers.parts import Logits, Proposal, Revision, Slots
from dare_samplers.revisers.places import spread, weakest

__all__ = ["MasksAfter", "RunningConfidence"]


@runtime_checkable
class MasksAfter(Protocol):
    """A schedule that knows how many slots are still open after the step."""

    def masked_after(self, slots: Slots) -> Tensor:
        """int64 `[b]`; 0 after the last step of the block."""
        ...


@dataclass(frozen=True)
class RunningConfidence:
    """Whatever the row holds with least confidence is masked after the step (RCR of MDPO, arXiv:2508.13148).

    R_i = score of the proposal at open slots of the window, score of the last commit at committed ones, earlier blocks
    included. The `masked_after` lowest R of the row stay or become masked, all other open slots are committed: that is
    filling every mask and taking the weakest back, without writing what would be erased at once. Among equals the
    lowest positions stay. The selector has no say.

    Args:
        schedule: gives `masked_after`; use the one of the config.
    """

    schedule: MasksAfter
    sees: ClassVar[Literal["open", "block", "row"]] = "open"
    decides: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a schedule that cannot tell."""
        if not isinstance(self.schedule, MasksAfter):
            raise TypeError(
                f"`schedule`: expected one with `masked_after`, got {type(self.schedule).__name__}; use MaskGit"
            )

    def revise(
        self, logits: Logits, proposal: Proposal, score: Tensor, slots: Slots, pick: Tensor, stored: Tensor
    ) -> Revision:
        """`pick` and `reopen`."""
        length = stored.shape[-1]
        index = slots.index.clamp(0, length - 1)
        opened = spread(slots.open, slots, length)
        fresh = torch.where(slots.open, score, 0.0)
        fresh = fresh.new_zeros(len(index), length).scatter_add(-1, index, fresh)
        masked = weakest(
            torch.where(opened, fresh, stored), opened | ~stored.isnan(), self.schedule.masked_after(slots)
        )
        return Revision(pick=slots.open & ~masked.gather(-1, index), reopen=masked & ~opened)
