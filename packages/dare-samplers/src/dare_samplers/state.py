"""The state of a decode: a batch of canvases, each with its own pointer, counters and key."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final, NamedTuple

import torch
from torch import Tensor

from dare_samplers.keyed import fold
from dare_samplers.parts import StopRule
from dare_samplers.trace import FILLED, Commit, Trace, put

__all__ = ["EOS", "LENGTH", "RUNNING", "State", "Status", "is_any"]

RUNNING: Final = 0
EOS: Final = 1
LENGTH: Final = 2

_LAST: Final = 2**31 - 1
_FORK: Final = -1


class Status(NamedTuple):
    """What the host must know about one row."""

    finish: int
    step: int
    left: int
    broken: int


@dataclass
class State:
    """Everything a decode needs to go on, row by row.

    Plain tensors, so `fork` works, and `torch.save` (read it back with `weights_only=False`).

    Attributes:
        tokens: int64 `[B, T]`, the canvases: prompts end and responses begin at column `prompt_width`.
        positions: int64 `[B, T]`, counted from the row's first real token, -1 on pads.
        block: int32 `[B, T]`, decoding block of each response slot, -1 elsewhere.
        open: bool `[B, T]`, slots still to fill. Only these are ever written; no token id is compared.
        key: int64 `[B]`.
        row_block: int64 `[B]`, current block.
        block_step: int64 `[B]`, denoising forwards in it.
        step: int64 `[B]`, denoising forwards the row has had.
        finish: int8 `[B]`, RUNNING, EOS or LENGTH.
        broken: bool `[B]`, the last commit had no possible token.
        trace: the record.
        prompt_lengths: real prompt tokens of each row.
        prompt_width, block_length, grid: layout.
        nfe, tokens_forwarded: forward calls, and tokens without pads that they were fed, in this state's history.
    """

    tokens: Tensor
    positions: Tensor
    block: Tensor
    open: Tensor
    key: Tensor
    row_block: Tensor
    block_step: Tensor
    step: Tensor
    finish: Tensor
    broken: Tensor
    trace: Trace
    prompt_lengths: tuple[int, ...]
    prompt_width: int
    block_length: int
    grid: str
    nfe: int = 0
    tokens_forwarded: int = 0

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.prompt_lengths)

    @property
    def gen_length(self) -> int:
        """Response slots per row."""
        return self.tokens.shape[1] - self.prompt_width

    def map(self, change: Callable[[Tensor], Tensor]) -> "State":
        """The state with `change` applied to every tensor."""
        tensors = {field.name: getattr(self, field.name) for field in fields(self)}
        changed = {name: change(value) for name, value in tensors.items() if isinstance(value, Tensor)}
        return replace(self, trace=self.trace.map(change), **changed)

    def select(self, rows: Sequence[int]) -> "State":
        """The given rows, in that order, repeats allowed."""
        index = torch.tensor(rows, dtype=torch.int64, device=self.tokens.device)
        lengths = tuple(self.prompt_lengths[row] for row in rows)
        return replace(self.map(lambda tensor: tensor.index_select(0, index)), prompt_lengths=lengths)

    def fork(self, n: int, keys: Tensor | None = None) -> "State":
        """`n` rows for every row, neighbours in the batch, that share the past and draw apart from here on.

        Args:
            n: children per row, at least 1.
            keys: int64 `[B * n]`; by default a hash of the parent's key, its step and the child's number.

        Raises:
            ValueError: for n < 1 or keys of another length.
        """
        if n < 1:
            raise ValueError(f"`n`: expected at least 1 child per row, got {n}")
        children = self.select([row for row in range(len(self)) for _ in range(n)])
        if keys is None:
            child = torch.arange(len(children), device=self.key.device) % n
            keys = fold(children.key, _FORK, children.step, child)
        if keys.shape != children.key.shape:
            raise ValueError(f"`keys`: expected shape [{len(children)}], one key per child, got {list(keys.shape)}")
        return replace(children, key=keys.to(children.key))

    def status(self) -> list[Status]:
        """The only place where the loop waits for the device: one small transfer."""
        left = (self.open & (self.block == self.row_block.unsqueeze(-1))).sum(-1)
        table = torch.stack([self.finish.to(left.dtype), self.step, left, self.broken.to(left.dtype)], -1)
        return [Status(*row) for row in table.tolist()]

    def window(self, rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
        """Columns of the open slots in the current block, ascending, and which of them are no filler: `[b, width]`."""
        current = self.open & (self.block == self.row_block.unsqueeze(-1))
        current = current.index_select(0, rows)
        columns = (~current).to(torch.uint8).argsort(dim=-1, stable=True)[:, :width]
        return columns, current.gather(1, columns)

    def commit(self, rows: Tensor, columns: Tensor, commit: Commit) -> None:
        """Write the picked slots and their record, and count the step."""
        put(self.tokens, rows, columns, commit.pick, commit.tokens)
        put(self.open, rows, columns, commit.pick, torch.zeros_like(commit.pick))
        step, block_step = self.step.index_select(0, rows), self.block_step.index_select(0, rows)
        self.trace.write(rows, columns, commit, step, block_step)
        self.broken.index_copy_(0, rows, (commit.pick & ~commit.possible).any(-1))
        one = torch.ones_like(rows)
        self.step.index_add_(0, rows, one)
        self.block_step.index_add_(0, rows, one)

    def advance(self, stop: StopRule, eos_ids: Sequence[int], pad_id: int) -> None:
        """Move rows whose block is full to their next block, and finish those that stop or have none."""
        block = self.first_open_block()
        ended = block != self.row_block
        stopped = ended & (self.finish == RUNNING) & stop.done(self, eos_ids)
        self.fill(self.open & stopped.unsqueeze(-1), pad_id)
        complete = ended & (self.finish == RUNNING) & ~stopped & (block == _LAST)
        self.finish = self.finish + EOS * stopped.to(torch.int8) + LENGTH * complete.to(torch.int8)
        self.row_block = block
        self.block_step = torch.where(ended, 0, self.block_step)

    def first_open_block(self) -> Tensor:
        """int64 `[B]`, a large number where no slot is open."""
        return torch.where(self.open, self.block, _LAST).amin(-1).long()

    def fill(self, slots: Tensor, pad_id: int) -> None:
        """Close `slots` (bool `[B, T]`) with the pad id."""
        self.tokens = torch.where(slots, pad_id, self.tokens)
        self.trace.origin = torch.where(slots, FILLED, self.trace.origin)
        self.open = self.open & ~slots


def is_any(tokens: Tensor, ids: Sequence[int]) -> Tensor:
    """Whether a token is one of `ids`: bool of the shape of `tokens`."""
    hit = torch.zeros_like(tokens, dtype=torch.bool)
    for one in ids:
        hit = hit | (tokens == one)
    return hit
