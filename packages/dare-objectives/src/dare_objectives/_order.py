"""Ranks of steps and blocks within a row, and random choices within blocks, without loops over rows."""

from typing import Final, NamedTuple

import torch
from torch import Tensor

from dare_objectives.batch import Batch
from dare_objectives.keyed import PURPOSES, fold

__all__ = ["INT63", "Grid", "choose", "dense_rank", "grid_of", "largest", "order_bits", "step_ranks"]

INT63: Final = (1 << 63) - 1


class Grid(NamedTuple):
    """The blocks with maskable tokens, numbered from 0 within each row by their id."""

    place: Tensor  # int64 [B, S], number of each maskable column's block, -1 elsewhere
    size: Tensor  # int64 [B, N], maskable tokens of each block, 0 beyond the row's last one
    block: Tensor  # int64 [B, N], its id, -1 beyond the last one

    @property
    def number(self) -> Tensor:
        """int64 `[B]`: how many blocks the row has."""
        return (self.size > 0).sum(1)


def grid_of(batch: Batch) -> Grid:
    """The grid of `batch.blocks`, with N >= 1."""
    index = dense_rank(batch.blocks, batch.maskable)
    empty = torch.full((len(batch), int(largest(index)) + 1), -1, dtype=torch.int64, device=index.device)
    place = index.clamp(min=0)
    size = torch.zeros_like(empty).scatter_add(1, place, batch.maskable.long())
    block = empty.scatter_reduce(1, place, torch.where(batch.maskable, batch.blocks.long(), -1), "amax")
    return Grid(index, size, block)


def dense_rank(key: Tensor, keep: Tensor) -> Tensor:
    """int64 `[B, S]`: how many distinct smaller keys the kept columns of the row hold; -1 where not kept."""
    return step_ranks(key, keep, keep, torch.zeros_like(key))


def step_ranks(step: Tensor, sampled: Tensor, scored: Tensor, segment: Tensor) -> Tensor:
    """Rank of each sampled column's step among the distinct steps of the scored columns of its segment.

    Args:
        step: `[B, S]`, at least 0 where sampled.
        sampled: bool `[B, S]`.
        scored: bool `[B, S]`, a subset of `sampled`.
        segment: `[B, S]`, at least 0 and below S where sampled.

    Returns:
        int64 `[B, S]`: (number of distinct scored steps <= step) - 1, so -1 before the first one; -1 if not sampled.
    """
    place = segment.long().clamp(min=0)
    width = largest(step.long()) + 1
    key = torch.where(sampled, 2 * (place * width + step.long()) + (~scored).long(), INT63)
    value, order = key.sort(1)  # among equal steps the scored columns come first
    before = torch.nn.functional.pad(value[:, :-1] >> 1, (1, 0), value=-1)
    fresh = (value & 1 == 0) & (value >> 1 != before)
    rank = torch.empty_like(order).scatter(1, order, fresh.cumsum(1) - 1)
    start = torch.full_like(rank, INT63).scatter_reduce(1, place, torch.where(scored, rank, INT63), "amin")
    start = start.gather(1, place)
    return torch.where(sampled & (start < INT63), (rank - start).clamp(min=-1), -1)


def largest(number: Tensor) -> Tensor:
    """The maximum, at least 0; 0 of nothing."""
    return torch.cat([number.flatten(), number.new_zeros(1)]).amax()


def order_bits(keys: Tensor, purpose: str, *words: int | Tensor) -> Tensor:
    """Random int64 in 0..2**62 - 1, whose order is a uniform permutation."""
    return fold(keys, PURPOSES[purpose], *words) & (INT63 >> 1)


def choose(batch: Batch, grid: Grid, count: Tensor) -> Tensor:
    """Random maskable columns, `count` in each block.

    Args:
        batch: B sequences.
        grid: N blocks.
        count: int64 `[B, K, N]`.

    Returns:
        bool `[B, K, S]`.
    """
    stream = torch.arange(count.shape[1], device=count.device)[None, :, None]
    inside, place = (grid.place >= 0)[:, None], grid.place.clamp(min=0)[:, None]
    order = order_bits(batch.keys[:, None, None], "mask", stream, batch.columns).masked_fill(~inside, INT63)
    block = torch.where(inside, place, grid.size.shape[1]).expand_as(order)
    random = order.argsort(-1)
    by_block = block.gather(-1, random).argsort(stable=True, dim=-1)
    rank = random.gather(-1, by_block).argsort(-1)  # place of each column in the order of (block, random)
    start = (grid.size.cumsum(1) - grid.size)[:, None].expand_as(count).gather(-1, place.expand_as(order))
    return inside & (rank - start < count.gather(-1, place.expand_as(order)))
