"""The record of a decode: for every canvas column when, how sure and why its token was written."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Final

import torch
from torch import Tensor

__all__ = ["FILLED", "FORCED", "GIVEN", "SAMPLED", "Commit", "Record", "Trace"]

GIVEN: Final = 0
"""Origin of prompt, pads and slots that are still open."""
SAMPLED: Final = 1
"""Origin of a slot that the selector took."""
FORCED: Final = 2
"""Origin of a slot committed because the selector took none."""
FILLED: Final = 3
"""Origin of a slot filled with the pad id after its row had stopped; its step map is -1."""


@dataclass(frozen=True)
class Record:
    """What to record beyond the token, step, log-probabilities and score of every commit.

    Args:
        entropies: also the entropy of the raw distribution at each commit, one more pass over the slots' logits.
    """

    entropies: bool = False


@dataclass(frozen=True)
class Commit:
    """One step's outcome at the open slots, all `[b, N]`: which were written, and the numbers to record there.

    `possible` is False where the model or the rules left no token to propose, or where a logit was NaN.
    """

    pick: Tensor
    forced: Tensor
    possible: Tensor
    tokens: Tensor
    logp: Tensor
    logq: Tensor
    score: Tensor
    entropy: Tensor | None


@dataclass
class Trace:
    """Per column `[B, T]`: step map, step inside the block, log-probabilities, score, entropy and origin."""

    step_map: Tensor
    block_step: Tensor
    logprobs: Tensor
    sample_logprobs: Tensor
    scores: Tensor
    entropies: Tensor | None
    origin: Tensor

    @classmethod
    def empty(cls, shape: tuple[int, int], device: torch.device) -> "Trace":
        """Nothing sampled yet."""
        whole = torch.full(shape, -1, dtype=torch.int32, device=device)
        number = torch.zeros(shape, dtype=torch.float32, device=device)
        return cls(
            whole,
            whole.clone(),
            number,
            number.clone(),
            number.clone(),
            None,
            torch.zeros_like(whole, dtype=torch.int8),
        )

    def map(self, change: Callable[[Tensor], Tensor]) -> "Trace":
        """The trace with `change` applied to every tensor."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return replace(self, **{name: change(value) for name, value in values.items() if value is not None})

    def write(self, rows: Tensor, columns: Tensor, commit: Commit, step: Tensor, block_step: Tensor) -> None:
        """Record one commit of `rows` `[b]` at `columns` `[b, N]`, in the precision of the logits."""
        self.widen(commit)
        put(self.logprobs, rows, columns, commit.pick, commit.logp)
        put(self.sample_logprobs, rows, columns, commit.pick, commit.logq)
        put(self.scores, rows, columns, commit.pick, commit.score)
        if commit.entropy is not None and self.entropies is not None:
            put(self.entropies, rows, columns, commit.pick, commit.entropy)
        put(self.step_map, rows, columns, commit.pick, step.unsqueeze(-1))
        put(self.block_step, rows, columns, commit.pick, block_step.unsqueeze(-1))
        put(self.origin, rows, columns, commit.pick, SAMPLED + (FORCED - SAMPLED) * commit.forced.to(torch.int8))

    def widen(self, commit: Commit) -> None:
        """Go over to float64 with the logits, and make room for entropies once there are some."""
        dtype = torch.promote_types(self.logprobs.dtype, commit.logp.dtype)
        self.logprobs = self.logprobs.to(dtype)
        self.sample_logprobs = self.sample_logprobs.to(dtype)
        self.scores = self.scores.to(dtype)
        if commit.entropy is not None and self.entropies is None:
            self.entropies = torch.zeros_like(self.logprobs)


def put(target: Tensor, rows: Tensor, columns: Tensor, pick: Tensor, value: Tensor) -> None:
    """target[rows, columns] = value where pick, in place, for `columns` `[b, N]` distinct within each row."""
    old = target.index_select(0, rows)
    new = torch.where(pick, value.to(target.dtype), old.gather(1, columns))
    target.index_copy_(0, rows, old.scatter(1, columns, new))
