"""Stop rules: when a row is finished before its last block."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from dare_samplers.state import State, is_any

__all__ = ["EosStop", "LengthStop", "PadBlockStop"]


@dataclass(frozen=True)
class EosStop:
    """Stop once an end token was committed and no open slot precedes it.

    The text up to the first end token is the one of a full decode; what follows is filled with the pad id. A model
    without end tokens never stops early, and between given tokens (`Infill`) an end token is one like others.

    Args:
        within: `block` stops at the end of a block, so that all of its slots are sampled; `token` as soon as every slot
            before the end token is committed, in the middle of a block too.
        ids: token ids; the model's end tokens by default.
    """

    within: Literal["block", "token"] = "block"
    ids: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        """Refuse other words."""
        if self.within not in ("block", "token"):
            raise ValueError(f'`within`: expected "block" or "token", got {self.within!r}')

    def done(self, state: State, eos_ids: Sequence[int], ended: Tensor) -> Tensor:
        """bool `[B]`."""
        ends = is_any(state.tokens, eos_ids if self.ids is None else self.ids) & (state.trace.step_map >= 0)
        found = (ends & state.trailing & state.asked & (state.open.cumsum(-1) == 0)).any(-1)
        return found if self.within == "token" else found & ended


@dataclass(frozen=True)
class LengthStop:
    """Decode every block, end token or not, as the published LLaDA loop does."""

    def done(self, state: State, eos_ids: Sequence[int], ended: Tensor) -> Tensor:
        """bool `[B]`, all False."""
        return torch.zeros_like(ended)


@dataclass(frozen=True)
class PadBlockStop:
    """Stop after a block of nothing but end tokens (dLLM-RL, arXiv:2509.06949), here row by row.

    Args:
        ids: end and pad tokens; the model's end tokens by default.
    """

    ids: tuple[int, ...] | None = None

    def done(self, state: State, eos_ids: Sequence[int], ended: Tensor) -> Tensor:
        """bool `[B]`."""
        empty = is_any(state.tokens, eos_ids if self.ids is None else self.ids) & ~state.open
        block = torch.where(state.trailing, state.block.long() + 1, 0)  # 0 for what is no slot, or between given tokens
        none = block.new_zeros(block.shape[0], block.shape[1] + 1)
        count = none.scatter_add(-1, block, torch.ones_like(block))
        full = none.scatter_add(-1, block, empty.long())
        whole = (count > 0) & (count == full)
        return whole[:, 1:].any(-1) & ended
