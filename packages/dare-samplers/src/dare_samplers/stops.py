"""Stop rules: when a row is finished before its last block."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dare_samplers.state import State, is_any

__all__ = ["EosStop", "LengthStop"]


@dataclass(frozen=True)
class EosStop:
    """Stop at the end of the block in which an end token was committed, once no open slot precedes it.

    The text up to the first end token is the one of a full decode; later blocks are filled with the pad id. The end
    tokens are the model's `eos_ids`, as everywhere; a model without any never stops early.
    """

    def done(self, state: State, eos_ids: Sequence[int]) -> Tensor:
        """bool `[B]`."""
        ends = is_any(state.tokens, eos_ids) & (state.trace.step_map >= 0)
        return (ends & (state.open.cumsum(-1) == 0)).any(-1)


@dataclass(frozen=True)
class LengthStop:
    """Decode every block, end token or not, as the published LLaDA loop does."""

    def done(self, state: State, eos_ids: Sequence[int]) -> Tensor:
        """bool `[B]`, all False."""
        return torch.zeros_like(state.finish, dtype=torch.bool)
