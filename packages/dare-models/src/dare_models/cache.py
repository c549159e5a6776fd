"""A key/value cache addressed by row and position, inside transformers' own `Cache`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import Cache, CacheLayerMixin

from dare_models.attention import BlockCausal, Documents, Full, Plan

__all__ = ["PositionCache"]


@dataclass(frozen=True)
class Feed:
    """What one forward does with the cache.

    The keys of the forward are the entries `start … length` of each row, then the fed tokens that are not stored.

    Args:
        rows: [B, Q] cache row of each fed token.
        entries: [B, Q] entry it goes to: its position + 1; 0, which nobody sees, if it is not stored.
        blocks: [B, Q] its block id, -1 on padding.
        loose: [B, U] columns of the fed tokens that are not stored, then filler; None where these are all columns.
        start: 0, or 1 where the entry that nobody sees is left out.
        length: last entry in use.
        width: U.
        writes: whether anything is stored.
        packed: all rows of the cache in one row of the forward.
        plan: who sees whom, over these keys.
    """

    rows: Tensor
    entries: Tensor
    blocks: Tensor
    loose: Tensor | None
    start: int
    length: int
    width: int
    writes: bool
    packed: bool
    plan: Plan

    def keys(self, batch: int) -> int:
        """Return the number of keys of one row of the forward."""
        return (self.length + 1 - self.start) * (batch if self.packed else 1) + self.width


class PositionLayer(CacheLayerMixin):
    """Keys and values of one layer, rotated by their positions: [B, heads, capacity + 1 + spare, d] each.

    Args:
        batch: rows.
        capacity: positions per row.
    """

    def __init__(self, batch: int, capacity: int) -> None:
        super().__init__()
        self.batch = batch
        self.capacity = capacity
        self.feed: Feed | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Make room, once the shapes are known."""
        self.keys, self.values = (
            states.new_zeros(self.batch, states.shape[1], self.capacity + 1, states.shape[3])
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Store what the feed says, and return the keys and values that attention is to see."""
        assert self.feed is not None, "PositionCache.begin comes before the forward"
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        self.keys, keys = _join(self.keys, key_states, self.feed)
        self.values, values = _join(self.values, value_states, self.feed)
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys and their offset."""
        del query_length
        assert self.feed is not None
        return self.feed.keys(self.batch), 0

    def get_seq_length(self) -> int:
        """Return 0: positions are given, never counted."""
        return 0

    def get_max_length(self) -> int:
        """Return the capacity."""
        return self.capacity

    def get_max_cache_shape(self) -> int:
        """Return the capacity, under an older name."""
        return self.capacity

    def picked(self, index: Tensor) -> PositionLayer:
        """Return a copy with some rows."""
        layer = PositionLayer(len(index), self.capacity)
        if self.keys is not None and self.values is not None:
            layer.keys, layer.values = (
                page[:, :, : self.capacity + 1].index_select(0, index) for page in (self.keys, self.values)
            )
            layer.is_initialized = True
        return layer


def _join(page: Tensor, fed: Tensor, feed: Feed) -> tuple[Tensor, Tensor]:
    """Store `fed` [B, h, Q, d] in a page; return the page (a wider one if needed) and what attention sees of it."""
    if feed.writes:
        page.transpose(1, 2).index_put_((feed.rows, feed.entries), fed.transpose(1, 2))
    loose = fed
    if feed.loose is not None:
        loose = fed.gather(2, feed.loose[:, None, :, None].expand(-1, fed.shape[1], -1, fed.shape[3]))
    end = feed.length + 1
    if feed.packed:
        held = page[:, :, feed.start : end].transpose(0, 1).flatten(1, 2)[None]
        return page, torch.cat([held, loose], dim=2)
    if (missing := end + feed.width - page.shape[2]) > 0:
        page = pad(page, (0, 0, 0, missing))
    page[:, :, end : end + feed.width] = loose
    return page, page[:, :, feed.start : end + feed.width]


class PositionCache(Cache):
    """Keys and values of all layers, addressed by row and position.

    A fed token takes the place of the stored one in its forward, and for good where it is to be written. Rows may hold
    different positions.

    Args:
        layers: one per layer of the network.
        stored: [B, capacity + 1] bool; entry p + 1 is position p, entry 0 takes what is not kept.
        blocks: [B, capacity + 1] int64 block ids of the stored entries.
        version: of the weights that fill it.
        argument: name under which the network takes a cache.
    """

    def __init__(
        self, layers: Sequence[PositionLayer], stored: Tensor, blocks: Tensor, version: int, argument: str
    ) -> None:
        super().__init__(layers=list(layers))
        self.stored = stored
        self.blocks = blocks
        self.version = version
        self.argument = argument

    @classmethod
    def empty(
        cls, layers: int, batch: int, capacity: int, *, version: int, argument: str, device: torch.device
    ) -> PositionCache:
        """Return a cache that holds nothing.

        Args:
            layers: of the network.
            batch: rows.
            capacity: positions per row.
            version: of the weights.
            argument: name under which the network takes it.
            device: where it lives.

        Raises:
            ValueError: no rows or no positions.
        """
        if batch < 1 or capacity < 1:
            raise ValueError(f"expected `batch` and `capacity` of at least 1, got {batch} and {capacity}")
        stored = torch.zeros(batch, capacity + 1, dtype=torch.bool, device=device)
        pages = [PositionLayer(batch, capacity) for _ in range(layers)]
        return cls(pages, stored, torch.zeros_like(stored, dtype=torch.int64), version, argument)

    @property
    def batch(self) -> int:
        """Rows."""
        return self.stored.shape[0]

    @property
    def capacity(self) -> int:
        """Positions per row."""
        return self.stored.shape[1] - 1

    def select(self, index: Tensor) -> PositionCache:
        """Return a copy with these rows.

        Args:
            index: [n] int64, repeats allowed.
        """
        layers = [layer.picked(index) for layer in self._pages()]
        rows = (self.stored.index_select(0, index), self.blocks.index_select(0, index))
        return PositionCache(layers, *rows, self.version, self.argument)

    def truncate(self, lengths: Tensor) -> None:
        """Forget, in place, the positions at and beyond `lengths`.

        Args:
            lengths: [B] int64.
        """
        entries = torch.arange(self.capacity + 1, device=self.stored.device)
        self.stored &= entries <= lengths.to(entries.device)[:, None]

    def begin(self, positions: Tensor, blocks: Tensor | None, write: Tensor | None, documents: Tensor | None) -> Feed:
        """Prepare a forward: where the fed tokens go, and who sees whom. One small transfer to the host.

        Args:
            positions: [B, Q] int64, -1 on padding; [1, Q] with documents.
            blocks: [B, Q] block ids, or None under full attention.
            write: [B, Q] bool, what to store; None stores nothing.
            documents: [1, Q] cache row of each token, -1 on padding; None where rows are rows.

        Raises:
            ValueError: shapes or positions that do not fit the cache.
        """
        self._check(positions, documents)
        feed = self._feed(positions, blocks, write, documents)
        for layer in self._pages():
            layer.feed = feed
        return feed

    def finish(self, feed: Feed) -> None:
        """Note what the forward has stored.

        Args:
            feed: what `begin` returned.
        """
        if feed.writes:
            self.stored, self.blocks = self._after(feed.rows, feed.entries, feed.blocks)

    def _pages(self) -> list[PositionLayer]:
        return [layer for layer in self.layers if isinstance(layer, PositionLayer)]

    def _check(self, positions: Tensor, documents: Tensor | None) -> None:
        rows = self.batch if documents is None else 1
        if positions.shape[0] != rows:
            raise ValueError(
                f"expected {rows} rows for this cache, got {positions.shape[0]}; make one with `new_cache`, or "
                "`select` its rows"
            )

    def _after(self, rows: Tensor, entries: Tensor, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """`stored` and `blocks` once these entries are stored."""
        stored = self.stored.index_put((rows, entries), torch.ones_like(entries, dtype=torch.bool))
        stored[:, 0] = False
        return stored, self.blocks.index_put((rows, entries), blocks)

    def _feed(self, positions: Tensor, blocks: Tensor | None, write: Tensor | None, documents: Tensor | None) -> Feed:
        real = positions >= 0
        kept = torch.zeros_like(real) if write is None else write & real
        loose = real & ~kept
        ids = torch.zeros_like(positions) if blocks is None else blocks.to(torch.int64)
        ids = ids.masked_fill(~real, -1)
        rows = torch.arange(len(positions), device=positions.device)[:, None].expand_as(positions)
        rows = rows if documents is None else documents.clamp(min=0)
        # Nothing is looked up at places that are not there; the numbers below tell of them.
        at = (positions + 1).clamp(min=0, max=self.capacity)
        rows = rows.clamp(max=self.batch - 1)
        entries = at.masked_fill(~kept, 0)
        stored, held_blocks = self._after(rows, entries, ids)
        shadowed = torch.zeros_like(stored).index_put((rows, at), torch.ones_like(real))
        written = torch.zeros_like(stored).index_put((rows, entries), torch.ones_like(real))
        held = stored & (written | ~shadowed)
        held_blocks = held_blocks.masked_fill(~held, -1)
        length, width, narrowest, clear, writes, beyond, last = _numbers(
            stored, held, held_blocks, ids, loose, kept, positions, documents
        )
        self._check_reach(beyond, last)
        clear = bool(clear) and narrowest == width and documents is None
        start = 1 if clear else 0
        columns = None
        if width < positions.shape[1] or narrowest < width:
            columns = (~loose).to(torch.uint8).argsort(dim=1, stable=True)[:, :width]
        plan = Full()
        if not clear:
            mine = ids.masked_fill(~loose, -1)
            mine = mine if columns is None else mine.gather(1, columns)
            documents_of = None
            if documents is not None:
                documents_of = documents if columns is None else documents.gather(1, columns)
            plan = _plan(held_blocks[:, : length + 1], mine, ids, blocks is not None, documents, documents_of)
        return Feed(rows, entries, ids, columns, start, length, width, bool(writes), documents is not None, plan)

    def _check_reach(self, position: int, document: int) -> None:
        if position >= self.capacity:
            raise ValueError(
                f"expected positions below the cache's capacity {self.capacity}, got {position}; make a larger one "
                "with `new_cache`"
            )
        if document >= self.batch:
            raise ValueError(f"expected documents below the cache's {self.batch} rows, got {document}")


def _numbers(
    stored: Tensor,
    held: Tensor,
    held_blocks: Tensor,
    ids: Tensor,
    loose: Tensor,
    kept: Tensor,
    positions: Tensor,
    documents: Tensor | None,
) -> list[int]:
    """What the host must know: last entry, loose tokens at most and at least, all visible, writes, last position, row.

    All keys are visible where each row has no padding, holds every entry up to the last and has no query whose block
    is before a key's.
    """
    entries = torch.arange(stored.shape[1], device=stored.device)
    length = torch.where(stored, entries, 0).amax()
    counts = loose.sum(1)
    clear = (positions >= 0).all() & (held.sum(1) == length).all()
    if documents is None:
        clear = clear & (torch.maximum(held_blocks.amax(1), ids.amax(1)) <= ids.amin(1)).all()
    last = positions.new_zeros(()) if documents is None else documents.amax()
    numbers = (length, counts.amax(), counts.amin(), clear, kept.any(), positions.amax(), last)
    return torch.stack([number.to(torch.int64) for number in numbers]).tolist()


def _plan(
    held: Tensor, loose: Tensor, queries: Tensor, causal: bool, documents: Tensor | None, documents_of: Tensor | None
) -> Plan:
    """Who sees whom, from block ids of entries [B, n], loose tokens [B, U] and queries [B, Q], -1 where invisible."""
    if documents is None:
        keys = torch.cat([held, loose], dim=1)
        return BlockCausal(keys, queries) if causal else Full(keys >= 0)
    assert documents_of is not None
    keys = torch.cat([held.reshape(1, -1), loose], dim=1)
    rows = torch.arange(len(held), device=held.device)[:, None].expand_as(held).reshape(1, -1)
    owners = torch.cat([rows, documents_of], dim=1).masked_fill(keys < 0, -1)
    return Documents(owners, BlockCausal(keys, queries) if causal else Full(), documents.masked_fill(queries < 0, -1))
