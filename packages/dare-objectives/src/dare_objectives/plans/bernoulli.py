"""Independent masking at a random rate."""

from typing import Literal

import torch

from dare_objectives._errors import expect_count, expect_range
from dare_objectives.batch import Batch
from dare_objectives.keyed import uniform
from dare_objectives.plan import Plan, mask_plan

__all__ = ["bernoulli"]


def bernoulli(
    batch: Batch,
    *,
    low: float = 0.0,
    high: float = 1.0,
    eps: float = 0.0,
    per: Literal["sequence", "block"] = "sequence",
    streams: int = 1,
) -> Plan:
    """Mask each maskable token with probability p = (1 - eps) t + eps, t ~ U(low, high), and weight it by 1/p.

    The weighted sum of one stream is an evidence lower bound (MDLM, arXiv 2406.07524; LLaDA, arXiv 2502.09992),
    unbiased for low = eps = 0 and high = 1.

    Args:
        batch: B sequences.
        low: least t.
        high: largest t.
        eps: smallest rate; the estimate is biased by O(eps).
        per: one t per sequence, or one per block of `batch.blocks` (BD3-LM, arXiv 2503.09573).
        streams: K >= 1 independent draws.

    Returns:
        Plan of K streams.
    """
    expect_range("low", low, 0.0, high)
    expect_range("high", high, low, 1.0)
    expect_range("eps", eps, 0.0, 1.0)
    expect_count("streams", streams)
    keys = batch.keys[:, None, None]
    stream = torch.arange(streams, device=keys.device)[None, :, None]
    level = uniform(keys, "level", stream, batch.blocks[:, None] if per == "block" else 0)
    rate = (1 - eps) * (low + (high - low) * level) + eps
    masked = batch.maskable[:, None] & (uniform(keys, "mask", stream, batch.columns) < rate)
    return mask_plan(batch, masked, 1 / rate)
