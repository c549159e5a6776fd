"""The state of a decode: a batch of canvases, each with its own pointer, counters and key."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Final, Protocol, Self

import torch
from torch import Tensor

from dare_samplers.keyed import fold
from dare_samplers.parts import StopRule
from dare_samplers.trace import FILLED, GIVEN, Trace

__all__ = ["EOS", "LENGTH", "RUNNING", "Cache", "State", "is_any"]

RUNNING: Final = 0
EOS: Final = 1
LENGTH: Final = 2

_LAST: Final = 2**31 - 1
_FORK: Final = -1


class Cache(Protocol):
    """Keys and values that a model keeps, addressed by row and position."""

    @property
    def version(self) -> object:
        """Which weights made it."""
        ...

    def select(self, index: Tensor) -> Self:
        """A copy with these rows, int64 `[n]`, repeats allowed."""
        ...


@dataclass
class State:
    """Everything a decode needs to go on, row by row.

    Rows are compact: the first real token of a row is its column 0, so that column and position are the same, and pads
    are on the right. Plain tensors, so `fork` works, and `torch.save` (read it back with `weights_only=False`).

    Attributes:
        tokens: int64 `[B, T]`, the canvases.
        positions: int64 `[B, T]`, the column number, -1 on pads.
        block: int32 `[B, T]`, decoding block of each response slot, -1 elsewhere.
        slot: int64 `[B, T]`, position inside the response of each slot, 0 elsewhere.
        columns: int64 `[B, G]`, the column of each response position, 0 where the row has fewer.
        starts, ends: int64 `[B, K]`, first column of each block and the one after its last.
        open: bool `[B, T]`, slots still to fill. Only slots are ever written; no token id is compared.
        key: int64 `[B]`.
        row_block: int64 `[B]`, current block; a large number once there is none.
        block_step: int64 `[B]`, denoising forwards in it.
        clock: int64 `[B]`, schedule steps in it.
        idle: int64 `[B]`, denoising forwards in it that began without an open slot.
        step: int64 `[B]`, denoising forwards the row has had.
        finish: int8 `[B]`, RUNNING, EOS or LENGTH.
        broken: bool `[B]`, the last commit had no possible token.
        stored: int64 `[B]`, leading positions whose keys and values the cache holds and that are still right.
        trace: the record.
        memory: what logits rules, reviser and smoothing remember, `[B, …]` each.
        prompt_lengths: given tokens before the first slot, for each row.
        gen_length: response positions asked for.
        shape: `block_length` and `grid` it was begun with.
        parts: cache policy, reviser and remembering rules it was begun with.
        surplus: int64 `[B]`, slots beyond those asked for, which complete the last block on the zero grid.
        attention_block: the model's, None for full attention.
        pad_id: stands on pads and on filled slots.
        branches: rows that each row has in a forward, 2 under guidance.
        twins: for each row the first one whose next forward is the same, because nothing was sampled since they parted.
        cache: the model's, or None.
        cache_rows: the row that each row of the cache belongs to.
        nfe, tokens_forwarded: forward calls, and tokens without pads that they were fed, in this state's history.
    """

    tokens: Tensor
    positions: Tensor
    block: Tensor
    slot: Tensor
    columns: Tensor
    starts: Tensor
    ends: Tensor
    open: Tensor
    key: Tensor
    row_block: Tensor
    block_step: Tensor
    clock: Tensor
    idle: Tensor
    step: Tensor
    finish: Tensor
    broken: Tensor
    stored: Tensor
    surplus: Tensor
    trace: Trace
    prompt_lengths: tuple[int, ...]
    gen_length: int
    shape: tuple[int | tuple[int, ...], str]
    parts: tuple[object, object, tuple[object, ...]]
    attention_block: int | None
    pad_id: int
    branches: int
    twins: tuple[int, ...]
    memory: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    cache: Cache | None = None
    cache_rows: tuple[int, ...] = ()
    nfe: int = 0
    tokens_forwarded: int = 0

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.prompt_lengths)

    @property
    def running(self) -> Tensor:
        """bool `[B]`, rows that are not finished."""
        return self.finish == RUNNING

    @property
    def has_slot(self) -> Tensor:
        """bool `[B, G]`, which response positions a row has."""
        count = (self.block >= 0).sum(-1, keepdim=True)
        return torch.arange(self.columns.shape[1], device=count.device) < count

    @property
    def sampled(self) -> Tensor:
        """bool `[B, T]`, slots that hold a sampled token."""
        return self.trace.step_map >= 0

    @property
    def asked(self) -> Tensor:
        """bool `[B, T]`, slots that were asked for; the rest of the last block on the zero grid was not."""
        slots = self.block >= 0
        return slots & (self.slot < (slots.sum(-1) - self.surplus).unsqueeze(-1))

    @property
    def trailing(self) -> Tensor:
        """bool `[B, T]`, columns that no given token follows: only there an end token ends the row."""
        given = (self.positions >= 0) & (self.block < 0)
        return given.flip(-1).cumsum(-1).flip(-1) == 0

    @property
    def window(self) -> Tensor:
        """bool `[B, T]`, open slots of the current block and of those before it."""
        return self.open & (self.block <= self.row_block.unsqueeze(-1))

    @property
    def bounds(self) -> tuple[Tensor, Tensor]:
        """int64 `[B, 1]` twice: first column of the current block, and the one after its last."""
        current = self.row_block.clamp(max=self.starts.shape[1] - 1).unsqueeze(-1)
        return self.starts.gather(1, current), self.ends.gather(1, current)

    def map(self, change: Callable[[Tensor], Tensor]) -> "State":
        """The state with `change` applied to every tensor but those of the cache."""
        tensors = {one.name: getattr(self, one.name) for one in fields(self)}
        changed = {name: change(value) for name, value in tensors.items() if isinstance(value, Tensor)}
        memory = {name: change(value) for name, value in self.memory.items()}
        return replace(self, trace=self.trace.map(change), memory=memory, **changed)

    def copy(self) -> "State":
        """A state that may be changed without changing this one."""
        return self.select(range(len(self)))

    def select(self, rows: Sequence[int]) -> "State":
        """The given rows, in that order, repeats allowed."""
        index = torch.tensor(rows, dtype=torch.int64, device=self.tokens.device)
        picked = replace(
            self.map(lambda tensor: tensor.index_select(0, index)),
            prompt_lengths=tuple(self.prompt_lengths[row] for row in rows),
            twins=_first_equal([self.twins[row] for row in rows]),
        )
        picked.regroup({new: self.twins[rows[new]] for new in dict.fromkeys(picked.twins)})
        return picked

    def regroup(self, sources: Mapping[int, int]) -> None:
        """Give the cache a row for each key, in their order, copied from that of the row it names; none if it has none.

        The branches of a row follow one another in the cache.
        """
        if self.cache is None:
            return
        places = {row: place for place, row in enumerate(self.cache_rows)}
        kept = {new: places[old] for new, old in sources.items() if old in places}
        index = torch.tensor(list(kept.values()), dtype=torch.int64, device=self.tokens.device)
        branches = [index + len(self.cache_rows) * branch for branch in range(self.branches)]
        self.cache, self.cache_rows = self.cache.select(torch.cat(branches)), tuple(kept)

    def fork(self, n: int, keys: Tensor | None = None) -> "State":
        """`n` rows for every row, neighbours in the batch, that share the past and draw apart from here on.

        Their next forward is computed once.

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

    def advance(self, active: Tensor, hold: Tensor | None, stop: StopRule, eos_ids: Sequence[int]) -> None:
        """Move the active rows whose block is done to their next one, and finish those that stop or have none."""
        full = active & ~self.window.any(-1)
        ended = full if hold is None else full & ~hold
        block = torch.where(self.open, self.block, _LAST).amin(-1).long()
        stopped = active & stop.done(self, eos_ids, ended)
        complete = ended & ~stopped & (block == _LAST)
        self.finish = self.finish + EOS * stopped.to(torch.int8) + LENGTH * complete.to(torch.int8)
        self.fill(self.open & stopped.unsqueeze(-1))
        self.row_block = torch.where(stopped, _LAST, torch.where(ended, block, self.row_block))
        for counter in (self.block_step, self.clock, self.idle):
            counter.masked_fill_(ended, 0)

    def fill(self, slots: Tensor) -> None:
        """Close `slots` (bool `[B, T]`) with the pad id."""
        self.tokens = torch.where(slots, self.pad_id, self.tokens)
        self.trace.origin = torch.where(slots, FILLED, self.trace.origin)
        self.open = self.open & ~slots

    def reopen(self, slots: Tensor, mask_id: int) -> None:
        """Mask `slots` (bool `[B, T]`) again."""
        self.tokens = torch.where(slots, mask_id, self.tokens)
        self.trace.origin = torch.where(slots, GIVEN, self.trace.origin)
        self.trace.step_map = torch.where(slots, -1, self.trace.step_map)
        self.trace.block_step = torch.where(slots, -1, self.trace.block_step)
        self.trace.clear(slots)
        self.open = self.open | slots

    def forget(self, changed: Tensor) -> None:
        """Distrust the cache from the first attention block with a slot of `changed` (bool `[B, T]`) in an old block.

        With full attention every key depends on every token, so all of it.
        """
        old = changed & (self.block < self.row_block.unsqueeze(-1))
        first = torch.where(old, self.positions, _LAST).amin(-1)
        if self.attention_block is not None:
            first = first.div(self.attention_block, rounding_mode="floor") * self.attention_block
        else:
            first = torch.where(first < _LAST, 0, first)
        self.stored = torch.minimum(self.stored, first)


def is_any(tokens: Tensor, ids: Sequence[int]) -> Tensor:
    """Whether a token is one of `ids`: bool of the shape of `tokens`."""
    hit = torch.zeros_like(tokens, dtype=torch.bool)
    for one in ids:
        hit = hit | (tokens == one)
    return hit


def _first_equal(values: Sequence[int]) -> tuple[int, ...]:
    """For each element the index of the first one equal to it."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(value, index) for index, value in enumerate(values))
