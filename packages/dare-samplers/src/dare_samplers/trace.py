"""The record of a decode: for every canvas column when, how sure and why its token was written."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Final

import torch
from torch import Tensor

__all__ = [
    "EDITED",
    "FILLED",
    "FORCED",
    "GIVEN",
    "MOVED",
    "REOPENED",
    "SAMPLED",
    "Commit",
    "Record",
    "Trace",
    "Writes",
    "at",
    "put",
]

GIVEN: Final = 0
"""Origin of prompt, pads and slots that are still open."""
SAMPLED: Final = 1
"""Origin of a slot that the selector took."""
FORCED: Final = 2
"""Origin of a slot committed because the selector took none."""
FILLED: Final = 3
"""Origin of a slot filled with the pad id after its row had stopped; its step map is -1."""
EDITED: Final = 4
"""Origin of a slot whose token a reviser replaced."""
MOVED: Final = 5
"""Origin of a slot whose token a reviser shifted there; its log-probabilities came along."""
REOPENED: Final = 6
"""Kind of the event that masks a slot again; never the origin of a slot."""


@dataclass(frozen=True)
class Record:
    """What to record beyond the token, step, log-probabilities and score of every commit.

    Args:
        entropies: also the entropy of the raw distribution at each commit, one more pass over the slots' logits.
        proposals: also the proposed token and its score at every open slot that was fed, at each step; what MDPO's
            intermediate rewards need (arXiv:2508.13148). The head then runs at these slots.
    """

    entropies: bool = False
    proposals: bool = False


@dataclass(frozen=True)
class Commit:
    """One step's outcome at the slots, all `[b, N]`: what was written there, and the numbers to record.

    `kind` is SAMPLED, FORCED, EDITED or MOVED where something was written, GIVEN elsewhere. `possible` is False where
    the model or the rules left no token to propose, or where a logit was NaN.
    """

    kind: Tensor
    possible: Tensor
    tokens: Tensor
    logp: Tensor
    logq: Tensor
    score: Tensor
    entropy: Tensor | None


@dataclass(frozen=True)
class Writes:
    """What was written, as tables `[B, N]`.

    Attributes:
        step: int64 `[B, N]`, or `[B, 1]` where one forward wrote it.
        slot: int64 `[B, N]`, response positions.
        kind: int8 `[B, N]`, an origin or REOPENED where something was written, GIVEN elsewhere.
        old, new: int64 `[B, N]`, ids.
        logp: `[B, N]`, raw log-probability of `new`.
        score: `[B, N]`, its selection score.
    """

    step: Tensor
    slot: Tensor
    kind: Tensor
    old: Tensor
    new: Tensor
    logp: Tensor
    score: Tensor

    def map(self, change: Callable[[Tensor], Tensor]) -> "Writes":
        """The same with `change` applied to every tensor."""
        return Writes(*(change(getattr(self, one.name)) for one in fields(self)))


@dataclass
class Trace:
    """Per column `[B, T]`: step map, step inside the block, log-probabilities, score, entropy and origin.

    `log` holds the writes of every step where tokens may be revised, `proposals` what was proposed if that is recorded.
    """

    step_map: Tensor
    block_step: Tensor
    logprobs: Tensor
    sample_logprobs: Tensor
    scores: Tensor
    entropies: Tensor | None
    origin: Tensor
    log: list[Writes] = field(default_factory=list[Writes])
    proposals: list[Writes] = field(default_factory=list[Writes])

    @classmethod
    def empty(cls, shape: tuple[int, int], device: torch.device) -> "Trace":
        """Nothing sampled yet."""
        whole = torch.full(shape, -1, dtype=torch.int32, device=device)
        number = torch.zeros(shape, dtype=torch.float32, device=device)
        origin = torch.zeros_like(whole, dtype=torch.int8)
        return cls(whole, whole.clone(), number, number.clone(), number.clone(), None, origin)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Trace":
        """The trace with `change` applied to every tensor."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        changed = {name: change(value) for name, value in values.items() if isinstance(value, Tensor)}
        log, proposals = ([one.map(change) for one in writes] for writes in (self.log, self.proposals))
        return replace(self, log=log, proposals=proposals, **changed)

    def write(self, rows: Tensor, columns: Tensor, commit: Commit, step: Tensor, block_step: Tensor) -> None:
        """Record one commit of `rows` `[b]` at `columns` `[b, N]`, in the precision of the logits."""
        self.widen(commit)
        written = commit.kind != GIVEN
        put(self.logprobs, rows, columns, written, commit.logp)
        put(self.sample_logprobs, rows, columns, written, commit.logq)
        put(self.scores, rows, columns, written, commit.score)
        if commit.entropy is not None and self.entropies is not None:
            put(self.entropies, rows, columns, written, commit.entropy)
        put(self.step_map, rows, columns, written, step.unsqueeze(-1))
        put(self.block_step, rows, columns, written, block_step.unsqueeze(-1))
        put(self.origin, rows, columns, written, commit.kind)

    def clear(self, slots: Tensor) -> None:
        """Forget the numbers of `slots` (bool `[B, T]`)."""
        for name in ("logprobs", "sample_logprobs", "scores", "entropies"):
            if (table := getattr(self, name)) is not None:
                setattr(self, name, table.masked_fill(slots, 0.0))

    def widen(self, commit: Commit) -> None:
        """Go over to float64 with the logits, and make room for entropies once there are some."""
        dtype = torch.promote_types(self.logprobs.dtype, commit.logp.dtype)
        self.logprobs = self.logprobs.to(dtype)
        self.sample_logprobs = self.sample_logprobs.to(dtype)
        self.scores = self.scores.to(dtype)
        if commit.entropy is not None and self.entropies is None:
            self.entropies = torch.zeros_like(self.logprobs)


def at(table: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """`[b, N, …]` of a table `[B, T, …]` at `columns` `[b, N]` of `rows` `[b]`."""
    return table.index_select(0, rows).gather(1, _over(columns, table))


def put(table: Tensor, rows: Tensor, columns: Tensor, pick: Tensor, value: Tensor) -> None:
    """table[rows, columns] = value where pick, in place, for `columns` `[b, N]` distinct within each row.

    `pick` is bool `[b, N]`; the table is `[B, T, …]`, the value broadcasts to `[b, N, …]`.
    """
    old, index = table.index_select(0, rows), _over(columns, table)
    new = torch.where(_over(pick, table), value.to(table.dtype), old.gather(1, index))
    table.index_copy_(0, rows, old.scatter(1, index, new))


def _over(columns: Tensor, table: Tensor) -> Tensor:
    """`[b, N]` expanded over the further axes of the table."""
    further = table.shape[2:]
    return columns.reshape(*columns.shape, *[1] * len(further)).expand(*columns.shape, *further)
