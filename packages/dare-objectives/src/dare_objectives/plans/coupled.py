"""A mask, its complement and the full mask."""

import torch
from torch import Tensor

from dare_objectives._errors import expect, expect_range
from dare_objectives.batch import Batch
from dare_objectives.keyed import uniform
from dare_objectives.plan import Plan, mask_plan

__all__ = ["coupled", "coupled_masks"]


def coupled(batch: Batch, *, low: float = 0.2, high: float = 0.8) -> Plan:
    """Coupled sampling of coupled-GRPO (DiffuCoder, arXiv 2506.20639): rate gamma ~ U(low, high), mask m ~ Bern(gamma).

    gamma and m are drawn for each row from its key, so rows stay independent of their batch. (The published code draws
    gamma once per batch; the marginal law of a row is the same.)

    Args:
        batch: B sequences.
        low: least gamma, above 0.
        high: largest gamma, below 1.

    Returns:
        Plan of three streams, see `coupled_masks`.
    """
    expect_range("low", low, 1e-6, high)
    expect_range("high", high, low, 1 - 1e-6)
    gamma = low + (high - low) * uniform(batch.keys, "level")
    return coupled_masks(batch, uniform(batch.keys[:, None], "mask", batch.columns) < gamma[:, None], gamma)


def coupled_masks(batch: Batch, mask: Tensor, gamma: Tensor) -> Plan:
    """The coupled plan for a given mask m and rate gamma.

    Streams: all maskable tokens; those in m; those outside m. Weights 1/2, 1/(2 gamma), 1/(2 (1 - gamma)). Every token
    is scored twice. The weights have expectation 1/2 + 1/2 + 1/2 = 3/2, as published: the ratio of a token is a power
    3/2 of a likelihood ratio.

    Args:
        batch: B sequences.
        mask: bool `[B, S]`; only its part inside `maskable` counts.
        gamma: `[B]`, float32 or float64; the plan's weights have the same dtype.

    Returns:
        Plan of three streams.
    """
    expect("mask", mask, "B S", dict(zip("BS", batch.tokens.shape, strict=True)), dtype=torch.bool)
    whole = batch.maskable
    weight = torch.stack([torch.full_like(gamma, 0.5), 0.5 / gamma, 0.5 / (1 - gamma)], 1)
    return mask_plan(batch, torch.stack([whole, whole & mask, whole & ~mask], 1), weight[:, :, None])
