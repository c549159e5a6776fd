"""Every mask of a short answer, with weights that make the sum an expectation."""

import math
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from dare_objectives._errors import expect_range
from dare_objectives._order import Grid, grid_of, largest
from dare_objectives.batch import Batch
from dare_objectives.plan import Plan, mask_plan
from dare_objectives.score import Score, evaluate

__all__ = ["LONGEST", "enumerate_masks", "enumerated_size", "random_order_log_likelihood"]

LONGEST: Final = 16
"""The most tokens whose masks are enumerated together: 65,535 forwards."""


def enumerate_masks(batch: Batch, *, per: Literal["sequence", "block"] = "sequence") -> Plan:
    """Every non-empty mask m once, with weight 1 / (|m| binom(L, |m|)): `weighted_token_logp` is the exact bound.

    sum_m 1/(|m| binom(L, |m|)) sum_{i in m} l_i(m) = E_{k ~ U{1..L}, |m| = k} L/k sum_{i in m} l_i(m), the mean over
    all orders of the sequence's log-probability (LLaDA, arXiv 2502.09992). It costs 2^L - 1 forwards.

    Args:
        batch: B sequences of at most `LONGEST` maskable tokens; rows of equal length waste no forward.
        per: `"block"` masks a subset of every block at once, with L of the block: 2^max L_b - 1 forwards whatever the
            number of blocks. Only for block-causal models, where no block sees another one's masks.

    Returns:
        Plan with float64 weights, of 2^L - 1 streams for the longest row (or block).

    Raises:
        ValueError: for more than `LONGEST` tokens.
    """
    parts = _parts(batch, per)
    longest = int(largest(parts.size))
    expect_range("maskable tokens enumerated together", longest, 0, LONGEST)
    code = torch.arange(1, max(2, 1 << longest), device=batch.tokens.device)[None, :, None]
    size = parts.size[:, None]
    masked = batch.maskable[:, None] & (code < 1 << size) & (code >> parts.rank[:, None] & 1).bool()
    count = torch.zeros_like(code + size).scatter_add(2, parts.place[:, None].expand_as(masked), masked.long())
    count = count.gather(2, parts.place[:, None].expand_as(masked))
    return mask_plan(batch, masked, _share(longest).to(count.device)[size, count])


def enumerated_size(batch: Batch, *, per: Literal["sequence", "block"] = "sequence") -> Tensor:
    """int64 `[B]`: the number of tokens whose masks `enumerate_masks` enumerates together, L or max L_b."""
    return batch.lengths if per == "sequence" else grid_of(batch).size.amax(1)


def random_order_log_likelihood(
    score: Score,
    batch: Batch,
    *,
    streams: int | None = None,
    temperature: float = 1.0,
    support: Tensor | None = None,
) -> Tensor:
    """Log-probability that decoding token by token in uniformly random order writes the answer, by enumeration.

    log 1/L! sum_orders prod_i p(y_i | those before it), by P(m) = 1/|m| sum_{i in m} p_i(m) P(m without i). At least
    the bound of `log_likelihood`, which is the mean over orders of the logarithm. It costs 2^L - 1 forwards.

    Args:
        score: a model's score function.
        batch: B sequences of at most `LONGEST` maskable tokens.
        streams: see `evaluate`.
        temperature: see `evaluate`.
        support: see `evaluate`.

    Returns:
        `[B]`, 0 for rows without maskable tokens.
    """
    plan = enumerate_masks(batch)
    with torch.no_grad():
        logp = evaluate(score, plan, temperature=temperature, support=support, streams=streams).logp
    width = max(1, int(largest(batch.lengths)))
    rank = torch.where(batch.maskable, batch.maskable.long().cumsum(1) - 1, width)[:, None].expand_as(logp)
    term = logp.new_full((*logp.shape[:2], width + 1), -torch.inf)
    term = term.scatter(2, rank, torch.where(plan.target, logp, -torch.inf))[:, :, :width]
    bit = 1 << torch.arange(width, device=logp.device)
    code = torch.arange(1 << width, device=logp.device)
    count = (code[:, None] & bit != 0).sum(1)
    total = torch.zeros(len(batch), 1 << width, dtype=logp.dtype, device=logp.device)
    for size in range(1, width + 1):
        some = (count == size).nonzero().squeeze(1)
        before = total[:, some[:, None] & ~bit]
        total[:, some] = (before + term[:, some - 1]).logsumexp(2) - math.log(size)
    return total.gather(1, (1 << batch.lengths[:, None]) - 1).squeeze(1)


class _Parts(NamedTuple):
    rank: Tensor  # int64 [B, S], which token of its part a maskable column is
    size: Tensor  # int64 [B, S], tokens of the part
    place: Tensor  # int64 [B, S], number of the part


def _parts(batch: Batch, per: Literal["sequence", "block"]) -> _Parts:
    """What is enumerated together; 0 where not maskable."""
    whole = Grid(batch.maskable.long() - 1, batch.lengths[:, None], torch.zeros_like(batch.lengths)[:, None])
    grid = whole if per == "sequence" else grid_of(batch)
    order = torch.where(batch.maskable, grid.place, grid.size.shape[1]).argsort(dim=1, stable=True)
    place = grid.place.clamp(min=0)
    start = (grid.size.cumsum(1) - grid.size).gather(1, place)
    rank, size = order.argsort(1) - start, grid.size.gather(1, place)
    return _Parts(*(torch.where(batch.maskable, x, 0) for x in (rank, size, place)))


def _share(longest: int) -> Tensor:
    """float64 `[L + 1, L + 1]`: 1/(k binom(n, k)) at (n, k), 0 for k = 0 or k > n."""
    numbers = range(longest + 1)
    rows = [[1 / (k * math.comb(n, k)) if 0 < k <= n else 0.0 for k in numbers] for n in numbers]
    return torch.tensor(rows, dtype=torch.float64)
