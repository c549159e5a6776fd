"""At least one mask in every block."""

from typing import Final

import torch
from torch import Tensor

from dare_objectives._errors import expect_count
from dare_objectives._order import choose, grid_of
from dare_objectives.batch import Batch
from dare_objectives.keyed import PURPOSES, fold
from dare_objectives.plan import Plan, mask_plan

__all__ = ["LEVELS", "block_counts", "per_block_count"]

LEVELS: Final = 1 << 40
"""How finely a level in [0, 1) is drawn, as an integer in 0..LEVELS - 1."""


def per_block_count(batch: Batch, draws: int = 1) -> Plan:
    """Mask k_b = floor(u_b L_b) + 1 random tokens of every block and weight them by L_b / k_b (EBPO, arXiv 2602.08676).

    u_b = (U + j/J) mod 1, stratified over the J blocks of the row. k_b is uniform on 1..L_b, hence each stream of a
    block model is an unbiased estimate of minus its block NLL, with a smaller variance than one count for the whole
    sequence where blocks differ in nothing else. DARE stratifies over the blocks of all rows; here a row depends on
    its key alone.

    Args:
        batch: B sequences, with `blocks` as the model sees them.
        draws: K >= 1 independent draws.

    Returns:
        Plan of K streams.
    """
    expect_count("draws", draws)
    grid = grid_of(batch)
    stream = torch.arange(draws, device=batch.keys.device)
    count = block_counts(fold(batch.keys[:, None], PURPOSES["level"], stream) & (LEVELS - 1), grid.size)
    place = grid.place.clamp(min=0)[:, None].expand(-1, draws, -1)
    return mask_plan(batch, choose(batch, grid, count), (grid.size[:, None] / count).gather(-1, place))


def block_counts(level: Tensor, size: Tensor) -> Tensor:
    """k_b = min(floor(u_b L_b) + 1, L_b) with u_b = (U + j/J) mod 1, in integer arithmetic: the same on every device.

    Args:
        level: int64 `[B, K]`, U x LEVELS, in 0..LEVELS - 1.
        size: int64 `[B, N]`, L_b of the row's J blocks, 0 after the last one; below 2**22.

    Returns:
        int64 `[B, K, N]`, at least 1.

    >>> block_counts(torch.tensor([[LEVELS // 4]]), torch.tensor([[4, 4]])).tolist()
    [[[2, 4]]]
    """
    blocks = (size > 0).sum(1, keepdim=True).clamp(min=1)
    offset = torch.arange(size.shape[1], device=size.device) * LEVELS // blocks
    spread = (level[:, :, None] + offset[:, None]) % LEVELS
    return spread * size[:, None] // LEVELS + 1
