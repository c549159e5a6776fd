"""Re-masking of doubtful tokens: dInfer's hierarchical decoder."""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dare_samplers.parts import Logits, Proposal, Revision, Selector, Slots
from dare_samplers.revisers.places import spread
from dare_samplers.selectors import rank

__all__ = ["RemaskBelow"]


@dataclass(frozen=True)
class RemaskBelow:
    """Committed tokens are decided again where the model has become unsure (dInfer, arXiv:2510.08666).

    L = {i committed in the block : p(x̂_i) < tau}. What is selected from L and the open slots together is topped up by
    score to at least |L| + 1, so that every forward unmasks one slot net. Selected slots receive x̂, the others of L
    are masked again. Without an open slot nothing happens.

    Args:
        tau: on p of the proposal, not of the token that stands there; 0 does nothing.
        selector: selects from L and the open slots together, without quota; None takes what the config's selector
            picked from the open slots.
    """

    tau: float = 0.4
    selector: Selector | None = None
    sees: ClassVar[Literal["open", "block", "row"]] = "block"
    decides: ClassVar[bool] = False

    def __post_init__(self) -> None:
        """Refuse a tau that is no number, and a selector that needs a quota."""
        if math.isnan(self.tau):
            raise ValueError("`tau`: expected a number, got nan; 0.4 is the published value")
        if self.selector is not None and self.selector.uses_quota:
            raise ValueError(
                f"`selector`: expected one without quota, got {self.selector!r}; None takes the config's pick"
            )

    def revise(
        self, logits: Logits, proposal: Proposal, score: Tensor, slots: Slots, pick: Tensor, stored: Tensor
    ) -> Revision:
        """`pick`, `write`, `tokens` and `reopen`."""
        low = slots.committed & (logits.logp(proposal.tokens).exp() < self.tau) & slots.open.any(-1, keepdim=True)
        candidates = low | slots.open
        chosen = self._select(score, slots, pick, candidates)
        wanted = torch.maximum(low.sum(-1) + 1, chosen.sum(-1)).unsqueeze(-1)
        chosen = candidates & (rank(torch.where(chosen, torch.inf, score), candidates) < wanted)
        return Revision(
            pick=chosen & slots.open,
            write=chosen & low & (proposal.tokens != slots.tokens),
            tokens=proposal.tokens,
            reopen=spread(low & ~chosen, slots, stored.shape[-1]),
        )

    def _select(self, score: Tensor, slots: Slots, pick: Tensor, candidates: Tensor) -> Tensor:
        if self.selector is None:
            return pick
        wide = replace(slots, open=candidates, committed=slots.committed & ~candidates)
        return self.selector.select(score, wide, torch.zeros_like(slots.size)) & candidates
