"""Masks of a given number of tokens."""

import torch
from torch import Tensor

from dare_objectives._errors import expect_count
from dare_objectives._order import INT63, Grid, choose
from dare_objectives.batch import Batch
from dare_objectives.keyed import PURPOSES, fold
from dare_objectives.plan import Plan, mask_plan

__all__ = ["count_complementary", "count_stratified", "count_stratified_llada_compat", "spread_counts"]


def count_stratified(batch: Batch, draws: int = 1) -> Plan:
    """Mask exactly k tokens without replacement, k uniform on 1..L, and weight them by L/k.

    The counts of a row's draws are spread over 1..L: k_j = 1 + (k_0 + floor(j L / n)) mod L. Each has an exactly
    uniform marginal, so each stream is an unbiased evidence lower bound (LLaDA, arXiv 2502.09992; VRPO, 2505.19223).

    Args:
        batch: B sequences.
        draws: K = n >= 1 draws per row.

    Returns:
        Plan of n streams; rows without maskable tokens have no targets.
    """
    expect_count("draws", draws)
    length = batch.lengths[:, None]
    count = 1 + spread_counts(_first(batch.keys, length), length, draws)
    return mask_plan(batch, _choose(batch, count), (length / count)[:, :, None])


def count_stratified_llada_compat(batch: Batch, draws: int = 1) -> Plan:
    """`count_stratified` with the counts of LLaDA's evaluation code: 1 + (round(k_0 + j L/n) - 1) mod L, half to even.

    To compare numbers only. Where j L/n ends in 1/2 some counts are drawn up to three times as often as others
    (L = 40, n = 16), so the mean is not the evidence lower bound.

    Args:
        batch: B sequences.
        draws: K = n >= 1 draws per row.

    Returns:
        Plan of n streams.
    """
    expect_count("draws", draws)
    length = batch.lengths[:, None]
    first = 1 + _first(batch.keys, length)
    offset = torch.arange(draws, device=first.device) * length.double() / draws
    count = 1 + ((first + offset).round().long() - 1) % length.clamp(min=1)
    return mask_plan(batch, _choose(batch, count), (length / count)[:, :, None])


def count_complementary(batch: Batch, pairs: int = 1) -> Plan:
    """Pairs of complementary masks of k and L - k tokens, k uniform on 0..L (ESPO, arXiv 2512.03759).

    Weights (L + 1)/k and (L + 1)/(L - k). The mean of a pair is an unbiased evidence lower bound; a stream alone is
    too, although one with k = 0 scores nothing.

    Args:
        batch: B sequences.
        pairs: number of pairs, at least 1, with counts spread over 0..L.

    Returns:
        Plan of 2 x pairs streams: first the masks, then their complements in the same order.
    """
    expect_count("pairs", pairs)
    size = batch.lengths[:, None] + 1
    count = spread_counts(_first(batch.keys, size), size, pairs)
    mask = _choose(batch, count)
    counts = torch.cat([count, size - 1 - count], 1)
    masks = torch.cat([mask, batch.maskable[:, None] & ~mask], 1)
    return mask_plan(batch, masks, (size / counts.clamp(min=1))[:, :, None])


def spread_counts(first: Tensor, size: Tensor, draws: int) -> Tensor:
    """(first + floor(j size / draws)) mod size for j = 0..draws-1: uniform on 0..size-1 if `first` is.

    Rounding the offsets instead of taking their floor, together with the upper end, is what makes the published
    stratification uneven for some lengths.

    Args:
        first: int64 `[B, 1]`, in 0..size-1.
        size: int64 `[B, 1]`.
        draws: number of counts per row.

    Returns:
        int64 `[B, draws]`; distinct where draws <= size.
    """
    size = size.clamp(min=1)
    return (first + torch.arange(draws, device=first.device) * size // draws) % size


def _first(keys: Tensor, size: Tensor) -> Tensor:
    return (fold(keys, PURPOSES["level"]) & INT63)[:, None] % size.clamp(min=1)


def _choose(batch: Batch, count: Tensor) -> Tensor:
    """bool `[B, K, S]`: `count` random maskable positions of each row and stream."""
    whole = Grid(batch.maskable.long() - 1, batch.lengths[:, None], torch.zeros_like(batch.lengths)[:, None])
    return choose(batch, whole, count[:, :, None])
