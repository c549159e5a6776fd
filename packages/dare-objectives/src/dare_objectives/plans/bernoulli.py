"""Independent masking at a random rate."""

from typing import Literal

import torch
from torch import Tensor

from dare_objectives._errors import expect_count, expect_range
from dare_objectives._order import INT63, grid_of, order_bits
from dare_objectives.batch import Batch
from dare_objectives.keyed import fold, uniform
from dare_objectives.plan import Plan, mask_plan

__all__ = ["bernoulli", "bernoulli_antithetic", "bernoulli_complementary", "bernoulli_nonempty"]


def bernoulli(
    batch: Batch,
    *,
    low: float = 0.0,
    high: float = 1.0,
    eps: float = 0.0,
    per: Literal["sequence", "block"] = "sequence",
    streams: int = 1,
    spread: bool = False,
) -> Plan:
    """Mask each maskable token with probability p = (1 - eps) t + eps, t ~ U(low, high), and weight it by 1/p.

    The weighted sum of one stream is an evidence lower bound (MDLM, arXiv 2406.07524; LLaDA, arXiv 2502.09992),
    unbiased for low = eps = 0 and high = 1. LLaDA2.0 (2512.15745): low 0.3, high 0.8 and `unweighted`. Random masks
    of dLLM-RL (2509.06949): low 0.1, high 0.9, 35 streams, `unweighted`.

    Args:
        batch: B sequences.
        low: least t.
        high: largest t.
        eps: smallest rate; the estimate is biased by O(eps).
        per: one t per sequence, or one per block of `batch.blocks` (BD3-LM, arXiv 2503.09573).
        streams: K >= 1 draws.
        spread: let the levels of stream k be (u + k/K) mod 1 with one u (UniGRPO, arXiv 2505.15809), each of them
            uniform, instead of K independent ones.

    Returns:
        Plan of K streams.
    """
    _check(low, high, eps, streams)
    stream = _streams(batch, streams)
    block = batch.blocks[:, None] if per == "block" else 0
    level = uniform(batch.keys[:, None, None], "level", 0 if spread else stream, block)
    level = (level + stream / streams) % 1 if spread else level
    rate = _rate(level, low, high, eps)
    return mask_plan(batch, _masked(batch, batch.keys, rate, streams), 1 / rate)


def bernoulli_complementary(
    batch: Batch, *, low: float = 0.0, high: float = 1.0, eps: float = 0.0, pairs: int = 1, spread: bool = False
) -> Plan:
    """Pairs of a mask at rate p, as in `bernoulli`, and its complement; weights 1/p and 1/(1 - p).

    Every maskable token is scored once in each pair. Either stream alone is an evidence lower bound, unbiased if p is
    uniform on (0, 1). The random masks with complements of dLLM-RL (arXiv 2509.06949): low 0.1, high 0.9 and
    `unweighted`.

    Args:
        batch: B sequences.
        low: least t.
        high: largest t.
        eps: smallest rate of the first mask of a pair.
        pairs: number of pairs, at least 1.
        spread: see `bernoulli`, over the pairs.

    Returns:
        Plan of 2 x pairs streams: first the masks, then their complements in the same order.
    """
    _check(low, high, eps, pairs, "pairs")
    stream = _streams(batch, pairs)
    level = uniform(batch.keys[:, None, None], "level", 0 if spread else stream, 0)
    rate = _rate((level + stream / pairs) % 1 if spread else level, low, high, eps)
    mask = _masked(batch, batch.keys, rate, pairs)
    masks = torch.cat([mask, batch.maskable[:, None] & ~mask], 1)
    return mask_plan(batch, masks, 1 / torch.cat([rate, 1 - rate], 1))


def bernoulli_nonempty(
    batch: Batch, *, low: float = 0.0, high: float = 1.0, eps: float = 1e-3, tries: int = 10, streams: int = 1
) -> Plan:
    """`bernoulli` per sequence, drawn again (rate and mask) while it masks nothing, as SDAR does (arXiv 2510.06303).

    If all tries mask nothing, one random token is masked at the last rate. The weight stays 1/p, as published: on the
    condition that something is masked the mean is larger by 1/P(something is masked), which is (L + 1)/L for
    t ~ U(0, 1). `bernoulli` has no such bias.

    Args:
        batch: B sequences.
        low: least t.
        high: largest t.
        eps: smallest rate.
        tries: draws before a token is forced, at least 1.
        streams: K >= 1 independent draws.

    Returns:
        Plan of K streams, none of them empty where the row has a maskable token.
    """
    _check(low, high, eps, streams)
    expect_count("tries", tries)
    rate = torch.ones(len(batch), streams, 1, device=batch.keys.device)
    masked = torch.zeros_like(batch.maskable[:, None]).repeat(1, streams, 1)
    for attempt in range(tries):
        keys = fold(batch.keys, attempt) if attempt else batch.keys
        missing = ~masked.any(2, keepdim=True)
        drawn = _rate(uniform(keys[:, None, None], "level", _streams(batch, streams), 0), low, high, eps)
        rate = torch.where(missing, drawn, rate)
        masked = torch.where(missing, _masked(batch, keys, drawn, streams), masked)
    masked = torch.where(masked.any(2, keepdim=True), masked, _one_token(batch, streams))
    return mask_plan(batch, masked, 1 / rate)


def bernoulli_antithetic(
    batch: Batch, *, low: float = 0.0, high: float = 1.0, eps: float = 0.0, streams: int = 1
) -> Plan:
    """One rate per block, stratified over the J blocks of the row (BD3-LM, arXiv 2503.09573).

    t_b = low + (high - low) (pi(b) + u_b)/J with a random permutation pi, so that each block's t is uniform and the J
    levels of a row fall into J distinct strata. The published code stratifies over all blocks of the batch, which
    makes a row's masks depend on its neighbours, and ties the stratum to the place in the batch; here a row depends on
    its key alone. Published range: low 1e-3, high 1.

    Args:
        batch: B sequences.
        low: least t.
        high: largest t.
        eps: smallest rate, p = (1 - eps) t + eps.
        streams: K >= 1 independent draws.

    Returns:
        Plan of K streams with weights 1/p.
    """
    _check(low, high, eps, streams)
    grid, stream = grid_of(batch), _streams(batch, streams)
    number = torch.arange(grid.size.shape[1], device=grid.size.device)
    order = order_bits(batch.keys[:, None, None], "order", stream, number)
    stratum = order.masked_fill((grid.size == 0)[:, None], INT63).argsort(-1).argsort(-1)
    level = uniform(batch.keys[:, None, None], "level", stream, number)
    level = ((stratum + level) / grid.number.clamp(min=1)[:, None, None]).clamp(max=1)
    place = grid.place.clamp(min=0)[:, None].expand(-1, streams, -1)
    rate = _rate(level, low, high, eps).gather(-1, place)
    return mask_plan(batch, _masked(batch, batch.keys, rate, streams), 1 / rate)


def _check(low: float, high: float, eps: float, count: int, name: str = "streams") -> None:
    expect_range("low", low, 0.0, high)
    expect_range("high", high, low, 1.0)
    expect_range("eps", eps, 0.0, 1.0)
    expect_count(name, count)


def _streams(batch: Batch, streams: int) -> Tensor:
    return torch.arange(streams, device=batch.keys.device)[None, :, None]


def _rate(level: Tensor, low: float, high: float, eps: float) -> Tensor:
    return (1 - eps) * (low + (high - low) * level) + eps


def _masked(batch: Batch, keys: Tensor, rate: Tensor, streams: int) -> Tensor:
    chance = uniform(keys[:, None, None], "mask", _streams(batch, streams), batch.columns)
    return batch.maskable[:, None] & (chance < rate)


def _one_token(batch: Batch, streams: int) -> Tensor:
    """bool `[B, K, S]`: one random maskable token of each row."""
    order = order_bits(batch.keys[:, None, None], "order", _streams(batch, streams), batch.columns)
    first = order.masked_fill(~batch.maskable[:, None], INT63).argmin(-1, keepdim=True)
    return batch.maskable[:, None] & (batch.columns == first)
