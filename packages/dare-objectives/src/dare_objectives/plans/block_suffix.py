"""One block partly masked, everything after it hidden."""

import torch
from torch import Tensor

from dare_objectives._errors import expect_count, expect_range
from dare_objectives._order import INT63, Grid, choose, grid_of, order_bits
from dare_objectives.batch import Batch
from dare_objectives.keyed import PURPOSES, fold, uniform
from dare_objectives.plan import Plan, mask_plan

__all__ = ["block_suffix"]


def block_suffix(
    batch: Batch, *, draws: int = 2, context: float = 0.15, min_t: float = 0.0, max_t: float = 1.0
) -> Plan:
    """The block-wise masks of SPG (arXiv 2510.09541): the states that semi-autoregressive decoding passes through.

    Stream j takes the j-th block b of a random order of the row's blocks (again from the first after the last) and
    masks k tokens of it, k uniform on max(1, floor(L_b min_t))..floor(L_b max_t), all later ones, and each earlier
    token, prompt or response, with probability `context`. What stands behind the last maskable token is hidden, too.
    All masked maskable tokens M are scored, those of the context as well, with weight L/|M|.

    Args:
        batch: B sequences, with blocks as they are decoded.
        draws: n >= 1 streams per row.
        context: rate at which earlier tokens are masked.
        min_t: least masked share of the block.
        max_t: largest masked share of the block; at least one token is masked anyway.

    Returns:
        Plan of n streams.
    """
    expect_count("draws", draws)
    expect_range("context", context, 0.0, 1.0)
    expect_range("min_t", min_t, 0.0, max_t)
    expect_range("max_t", max_t, min_t, 1.0)
    grid = grid_of(batch)
    number = _block_numbers(batch, grid, draws)
    chosen = choose(batch, grid, _counts(batch, grid, number, min_t, max_t))
    inside = chosen & (grid.place[:, None] == number)
    block, own = batch.blocks[:, None], grid.block.gather(1, number[:, :, 0])[:, :, None]
    later = (block > own) | _behind(batch)[:, None]
    earlier = ~later & ((block < own) | ~batch.maskable[:, None])
    stream = torch.arange(draws, device=number.device)[None, :, None]
    chance = uniform(batch.keys[:, None, None], "prompt", stream, batch.columns)
    masked = batch.valid[:, None] & (inside | later | (earlier & (chance < context))) & (own >= 0)
    target = masked & batch.maskable[:, None]
    weight = batch.lengths[:, None, None] / target.sum(2, keepdim=True).clamp(min=1)
    return mask_plan(batch, masked, weight, target=target)


def _block_numbers(batch: Batch, grid: Grid, draws: int) -> Tensor:
    """int64 `[B, n, 1]`: the block of each stream, distinct within a row as far as there are enough."""
    number = torch.arange(grid.size.shape[1], device=grid.size.device)
    order = order_bits(batch.keys[:, None], "order", number).masked_fill(grid.size == 0, INT63).argsort(1)
    turn = torch.arange(draws, device=order.device) % grid.number.clamp(min=1)[:, None]
    return order.gather(1, turn)[:, :, None]


def _counts(batch: Batch, grid: Grid, number: Tensor, min_t: float, max_t: float) -> Tensor:
    """int64 `[B, n, N]`: k for the block of the stream, the same number (unused) for the others."""
    size = grid.size.gather(1, number[:, :, 0])
    least = (size.double() * min_t).long().clamp(min=1)
    most = torch.maximum((size.double() * max_t).long(), least)
    stream = torch.arange(number.shape[1], device=number.device)
    draw = fold(batch.keys[:, None], PURPOSES["level"], stream) & INT63
    return (least + draw % (most - least + 1))[:, :, None].expand(-1, -1, grid.size.shape[1])


def _behind(batch: Batch) -> Tensor:
    """bool `[B, S]`: after the last maskable token."""
    return batch.maskable.flip(1).cumsum(1).flip(1) == 0
