"""What the toys and the tiny transformer share: a cache by position, what is visible, and counters."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Level2", "PositionCache", "Visible"]


@dataclass(frozen=True)
class Visible:
    """The keys of one forward: what the cache holds and no fed token shadows, and behind it what is fed.

    Attributes:
        positions: int64 `[B, K]`, -1 on what nobody sees; the last Q columns are the fed ones.
        blocks: int `[B, K]`, or None where attention is full.
        documents: int64 `[B, K]` for packed rows, or None.
    """

    positions: Tensor
    blocks: Tensor | None
    documents: Tensor | None

    def to(self, queries: Tensor) -> Tensor:
        """bool `[B, N, K]`: whether the key is visible to the queries, which are columns of K, `[B, N]`."""
        visible = (self.positions >= 0).unsqueeze(1).expand(-1, queries.shape[1], -1)
        if self.blocks is not None:
            visible = visible & (self.blocks.unsqueeze(1) <= self.blocks.gather(1, queries).unsqueeze(2))
        if self.documents is not None:
            visible = visible & (self.documents.unsqueeze(1) == self.documents.gather(1, queries).unsqueeze(2))
        return visible


class PositionCache:
    """A store addressed by (row, position), with as many tensors per entry as the model likes.

    A page is `[B, capacity + 1 + spare, …]`: the entries, a column for what is not to be kept (turning a mask into
    indices would wait for the device), and spare columns for what is fed.

    Args:
        stored: bool `[B, capacity + 1]`, entries that hold something; never the last column.
        blocks: int32 `[B, capacity + 1]`, their attention blocks.
        pages: the model's tensors.
        version: of the weights that filled it.
    """

    def __init__(self, stored: Tensor, blocks: Tensor, pages: list[Tensor], version: int) -> None:
        """Keep the tensors; they are changed in place."""
        self.stored = stored
        self.blocks = blocks
        self.pages = pages
        self.version = version

    @classmethod
    def empty(cls, pages: list[Tensor], version: int) -> "PositionCache":
        """Nothing stored yet; `pages` are `[B, capacity + 1, …]`."""
        stored = torch.zeros(pages[0].shape[:2], dtype=torch.bool, device=pages[0].device)
        return cls(stored, torch.zeros_like(stored, dtype=torch.int32), pages, version)

    @staticmethod
    def of(cache: object | None) -> "PositionCache | None":
        """The cache, if it is one of these.

        Raises:
            TypeError: for any other.
        """
        if cache is None or isinstance(cache, PositionCache):
            return cache
        raise TypeError(
            f"`cache`: expected what `new_cache` made, got {type(cache).__name__}; make one with `new_cache`"
        )

    @property
    def capacity(self) -> int:
        """Positions per row."""
        return self.stored.shape[1] - 1

    def select(self, index: Tensor) -> "PositionCache":
        """A copy with these rows, `[n]`; repeats are allowed."""
        pages = [page[:, : self.capacity + 1].index_select(0, index) for page in self.pages]
        return PositionCache(
            self.stored.index_select(0, index), self.blocks.index_select(0, index), pages, self.version
        )

    def truncate(self, lengths: Tensor) -> None:
        """Forget positions at and beyond `lengths`, `[B]`, in place."""
        self.stored &= torch.arange(self.capacity + 1, device=lengths.device) < lengths.unsqueeze(1)

    def reserve(self, width: int) -> None:
        """Make room for `width` spare columns."""
        missing = self.capacity + 1 + width - self.pages[0].shape[1]
        if missing > 0:
            self.pages = [
                torch.cat([page, page.new_zeros(len(page), missing, *page.shape[2:])], 1) for page in self.pages
            ]

    def address(
        self, positions: Tensor, documents: Tensor | None, write: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Row and column of every fed token, `[B, Q]` each; the unkept column for pads and what `write` leaves out."""
        kept = positions >= 0 if write is None else write & (positions >= 0)
        column = torch.where(kept, positions, self.capacity)
        if documents is not None:
            return documents.clamp(min=0), column
        return torch.arange(len(column), device=column.device).unsqueeze(1).expand_as(column), column

    def visible(self, positions: Tensor, blocks: Tensor | None, documents: Tensor | None) -> Visible:
        """Stored entries that no fed token shadows, then the fed tokens; packed, the rows of the store in one row."""
        address = self.address(positions, documents)
        shadowed = torch.zeros_like(self.stored).index_put_(address, torch.ones_like(positions, dtype=torch.bool))
        column = torch.arange(self.capacity + 1, device=positions.device)
        held = torch.where(self.stored & ~shadowed, column, -1)
        held_blocks = self.blocks
        if documents is not None:
            row = torch.arange(len(held), device=positions.device).unsqueeze(1).expand_as(held)
            documents = torch.cat([row.reshape(1, -1), documents], 1)
            held, held_blocks = held.reshape(1, -1), held_blocks.reshape(1, -1)
        return Visible(
            positions=torch.cat([held, positions], 1),
            blocks=None if blocks is None else torch.cat([held_blocks, blocks.to(held_blocks.dtype)], 1),
            documents=documents,
        )

    def join(self, page: int, fed: Tensor, documents: Tensor | None) -> Tensor:
        """Entries of one page, then `fed` `[B, Q, …]`, in the order of `visible`; no copy of the page unless packed."""
        stop = self.capacity + 1
        if documents is not None:
            return torch.cat([self.pages[page][:, :stop].reshape(1, -1, *fed.shape[2:]), fed], 1)
        self.reserve(fed.shape[1])
        self.pages[page][:, stop : stop + fed.shape[1]] = fed
        return self.pages[page][:, : stop + fed.shape[1]]

    def put(self, page: int, fed: Tensor, address: tuple[Tensor, Tensor]) -> None:
        """Store `fed` `[B, Q, …]` in one page."""
        self.pages[page].index_put_(address, fed.to(self.pages[page].dtype))

    def mark(self, blocks: Tensor | None, address: tuple[Tensor, Tensor]) -> None:
        """Note that these entries are stored, with their blocks."""
        self.stored.index_put_(address, torch.ones_like(address[1], dtype=torch.bool))
        self.stored[:, self.capacity] = False
        if blocks is not None:
            self.blocks.index_put_(address, blocks.to(self.blocks.dtype))


class Level2:
    """The attributes of a level-2 model, and what it counts."""

    level = 2
    packs = True
    attention = "full"
    block_length: int | None = None
    left_context = 0
    version = 0
    device = torch.device("cpu")

    def __init__(
        self, *, mask_id: int, vocab_size: int, eos_ids: Sequence[int] = (), pad_id: int = 0, count: bool = False
    ) -> None:
        """Keep the ids."""
        self.mask_id = mask_id
        self.vocab_size = vocab_size
        self.eos_ids = tuple(eos_ids)
        self.pad_id = pad_id
        self.count = count
        """Whether to fill `fed`, for which every forward waits for the device."""
        self.batches: list[int] = []
        """Rows of each forward call so far."""
        self.fed: list[int] = []
        """Tokens of each forward call so far, pads left out; empty without `count`."""

    def note(self, positions: Tensor) -> None:
        """Count a forward."""
        self.batches.append(len(positions))
        if self.count:
            self.fed.append(int((positions >= 0).sum()))

    def source(self, positions: Tensor, rows: Tensor, documents: Tensor | None) -> Tensor:
        """Columns `[B, N]` whose state scores the tokens at `rows`.

        With `left_context`, the fed column one position to the left; its own at position 0 or where there is none.
        """
        if not self.left_context:
            return rows
        wanted = positions.gather(1, rows) - 1
        match = positions.unsqueeze(1) == wanted.unsqueeze(2)
        if documents is not None:
            match = match & (documents.unsqueeze(1) == documents.gather(1, rows).unsqueeze(2))
        found, column = match.to(torch.int8).max(-1)
        return torch.where((found > 0) & (wanted >= 0), column, rows)
