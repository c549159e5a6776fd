"""Cache policies: what each forward is fed, and which keys and values it stores.

All of them are two masks over a row's columns. A fed token takes the place of the stored one, so that whatever is fed
is fresh and whatever is not is as old as its last write. For block-causal models every policy is exact; for full
attention all but `NoCache` are approximations, whose error a refresh ends.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from dare_samplers.parts import Feed
from dare_samplers.state import State

__all__ = ["BlockKV", "Dual", "Horizon", "NoCache", "Prefix", "Vicinity"]


@dataclass(frozen=True)
class NoCache:
    """The whole canvas at every step, as far as the model can see: block-causal, up to the end of the block."""

    stores: ClassVar[bool] = False

    def plan(self, state: State) -> Feed:
        """Everything, nothing stored."""
        columns = _all(state)
        if state.attention_block is not None:
            columns = columns & (state.positions < _bounds(state)[1])
        return Feed(columns, None, state.running, state.stored)


@dataclass(frozen=True)
class Prefix:
    """Fast-dLLM's prefix cache (arXiv:2505.22618): the first forward of a block stores what stands before it.

    Later forwards of the block feed the block and everything after it. Exact where attention is block-causal.

    Args:
        refresh: forwards in a block after which everything is fed again; None for one full forward per block.
    """

    refresh: int | None = None
    needs: ClassVar[tuple[str, ...]] = ("prefix_cache",)
    stores: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a count below 1."""
        _check_counts(refresh=(self.refresh, 1))

    def plan(self, state: State) -> Feed:
        """Everything, storing the prefix; or the block and the suffix."""
        start, _ = _bounds(state)
        before = _between(state, 0, start)
        return _refreshed(state, self.refresh, stored=before, fed=_all(state) & ~before)


@dataclass(frozen=True)
class Dual:
    """Fast-dLLM's dual cache (arXiv:2505.22618): the first forward of a block stores everything.

    Later forwards feed the block alone; prefix and suffix are as old as the last full forward.

    Args:
        refresh: forwards in a block after which everything is fed again; None for one full forward per block, 1 for
            no approximation at all.
    """

    refresh: int | None = None
    needs: ClassVar[tuple[str, ...]] = ("window_cache",)
    stores: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse a count below 1."""
        _check_counts(refresh=(self.refresh, 1))

    def plan(self, state: State) -> Feed:
        """Everything, storing all; or the block."""
        start, end = _bounds(state)
        return _refreshed(state, self.refresh, stored=_all(state), fed=_between(state, start, end))


@dataclass(frozen=True)
class Vicinity:
    """dInfer's vicinity refresh (arXiv:2510.08666): the block and its neighbourhood are fed and stored at each step.

    A full forward stores everything whenever a block begins, and for the first steps of the row.

    Args:
        before: columns left of the block.
        after: columns right of it.
        warmup: full forwards at the start of a row.
    """

    before: int = 16
    after: int = 16
    warmup: int = 4
    needs: ClassVar[tuple[str, ...]] = ("window_cache",)
    stores: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse negative counts."""
        _check_counts(before=(self.before, 0), after=(self.after, 0), warmup=(self.warmup, 0))

    def plan(self, state: State) -> Feed:
        """Everything, or the neighbourhood; both stored."""
        start, end = _bounds(state)
        near = _between(state, start - self.before, end + self.after)
        fresh = _stale(state) | (state.step < self.warmup)
        columns = torch.where(fresh.unsqueeze(-1), _all(state), near)
        return Feed(columns, columns, state.running, _length(state), fresh)


@dataclass(frozen=True)
class Horizon:
    """dLLM-RL's cache (arXiv:2509.06949): as `Prefix`, but later forwards see only `ahead` columns after the block.

    Args:
        ahead: columns of the suffix that stay visible.
        refresh: as in `Prefix`.
    """

    ahead: int = 128
    refresh: int | None = None
    needs: ClassVar[tuple[str, ...]] = ("window_cache",)
    stores: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse negative counts."""
        _check_counts(ahead=(self.ahead, 0), refresh=(self.refresh, 1))

    def plan(self, state: State) -> Feed:
        """Everything, storing the prefix; or the block and what follows closely."""
        start, end = _bounds(state)
        fed = _between(state, start, end + self.ahead)
        return _refreshed(state, self.refresh, stored=_between(state, 0, start), fed=fed)


@dataclass(frozen=True)
class BlockKV:
    """Block-causal cache: finished blocks are stored once, and a step feeds its own block. Exact.

    Args:
        commit: `fused`, the first forward of a block also feeds and stores the block before it; `separate`, each
            block is stored by a forward of its own, as in the published loops. The prompt's blocks are stored by one
            forward before the first step.
        final_commit: also store the last block, as the published loops do.
    """

    commit: Literal["fused", "separate"] = "fused"
    final_commit: bool = False
    needs: ClassVar[tuple[str, ...]] = ("block_cache",)
    stores: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Refuse another word."""
        if self.commit not in ("fused", "separate"):
            raise ValueError(f'`commit`: expected "fused" or "separate", got {self.commit!r}')

    def plan(self, state: State) -> Feed:
        """What is not stored yet and the current block; or, separately, what is not stored yet alone."""
        start, end = _bounds(state)
        stored, running = state.stored.unsqueeze(-1), state.running.unsqueeze(-1)
        last = torch.where(state.sampled, state.positions + 1, 0).amax(-1, keepdim=True)
        start = torch.where(running, start, last if self.final_commit else stored)
        alone = stored < start
        if self.commit == "fused":
            alone = alone & (state.step == 0).unsqueeze(-1)
        alone = alone | ~running
        real = (state.positions >= stored) & (state.positions >= 0)
        columns = real & (state.positions < torch.where(alone, start, end))
        return Feed(columns, columns & (state.positions < start), ~alone.squeeze(-1), start.squeeze(-1))


def _bounds(state: State) -> tuple[Tensor, Tensor]:
    """First column of the current block and the one after its last, `[B, 1]`; block-causal, of its attention block."""
    start, end = state.bounds
    if (length := state.attention_block) is None:
        return start, end
    return start - start % length, end + (-end) % length


def _refreshed(state: State, refresh: int | None, stored: Tensor, fed: Tensor) -> Feed:
    """A full forward that stores `stored` when a block begins, nothing is right or it is time; `fed` otherwise."""
    fresh = _stale(state)
    if refresh is not None:
        fresh = fresh | (state.block_step % refresh == 0)
    columns = torch.where(fresh.unsqueeze(-1), _all(state), fed)
    return Feed(columns, stored & fresh.unsqueeze(-1), state.running, _length(state), fresh)


def _stale(state: State) -> Tensor:
    """bool `[B]`: rows whose block begins, or for which something before it is not stored or no longer right."""
    start, _ = _bounds(state)
    return (state.block_step == 0) | (state.stored == 0) | (state.stored < start.squeeze(-1))


def _all(state: State) -> Tensor:
    return (state.positions >= 0) & state.running.unsqueeze(-1)


def _length(state: State) -> Tensor:
    """int64 `[B]`: all positions are known to the cache, fresh or not."""
    return (state.positions >= 0).sum(-1)


def _between(state: State, start: Tensor | int, end: Tensor) -> Tensor:
    """Columns of running rows from `start` to before `end`, `[B, 1]` each."""
    return _all(state) & (state.positions >= start) & (state.positions < end)


def _check_counts(**counts: tuple[int | None, int]) -> None:
    for name, (value, least) in counts.items():
        if value is not None and value < least:
            raise ValueError(f"`{name}`: expected at least {least}, got {value}")
