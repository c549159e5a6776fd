"""Likelihoods of given answers, with standard errors; exact where enumeration costs no more."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor

from dare_objectives._errors import expect_count, expect_range, suggest
from dare_objectives._rows import Rows, select_rows
from dare_objectives.batch import Batch
from dare_objectives.enumeration import LONGEST, enumerate_masks, enumerated_size
from dare_objectives.estimators import weighted_token_logp
from dare_objectives.guidance import Guided
from dare_objectives.keyed import PURPOSES, fold
from dare_objectives.plan import Plan
from dare_objectives.plans import bernoulli, count_complementary, count_stratified, left_to_right, per_block_count
from dare_objectives.score import Score, evaluate

__all__ = ["Draw", "Likelihood", "estimator_names", "log_likelihood"]

Draw = Callable[[Batch, int], Plan]
"""From a batch and a number n of draws to a plan of n streams."""

_TokenScores = Callable[[Batch, Iterable[Plan]], list[Tensor]]
"""From rows and plans of them to weighted log-probs `[b, S]`, one for each plan."""


@dataclass(frozen=True, eq=False)
class Likelihood:
    """Log-likelihoods of B answers, or lower bounds on them.

    Args:
        value: `[B]`, the mean over the draws.
        standard_error: `[B]` of `value`; 0 where it is exact, nan where one replicate shows no spread.
        token: `[B, S]`, the share of each token; they sum to `value`.
        replicates: `[B, R]`, independent estimates whose mean is `value`; all equal where it is exact. For paired
            differences between models or answers that were scored under the same keys.
        exact: bool `[B]`, enumerated, not drawn.
        draws: int64 `[B]`, forwards per row.
        length: int64 `[B]`, scored tokens.
    """

    value: Tensor
    standard_error: Tensor
    token: Tensor
    replicates: Tensor
    exact: Tensor
    draws: Tensor
    length: Tensor

    def __len__(self) -> int:
        """B, the number of rows."""
        return self.value.shape[0]

    def __getitem__(self, rows: Rows) -> "Likelihood":
        """The same record for some rows."""
        return select_rows(self, rows)

    @property
    def per_token(self) -> Tensor:
        """`[B]`: value / length, 0 for empty answers."""
        return self.value / self.length.clamp(min=1)

    @property
    def total(self) -> Tensor:
        """0-d: sum over the rows, such as the windows of a text."""
        return self.value.sum()

    @property
    def total_error(self) -> Tensor:
        """0-d: standard error of `total`, if the rows have different keys."""
        return self.standard_error.square().sum().sqrt()

    @property
    def perplexity(self) -> Tensor:
        """0-d: exp(-total / tokens), at least the true one where `value` is a lower bound."""
        return (-self.total / self.length.sum().clamp(min=1)).exp()


def log_likelihood(
    score: Score | Guided,
    batch: Batch,
    *,
    estimator: str | Draw = "count",
    draws: int = 128,
    replicates: int = 16,
    exact_up_to: int | None = None,
    streams: int | None = None,
    temperature: float = 1.0,
    support: Tensor | None = None,
) -> Likelihood:
    """Log-likelihood of the maskable tokens given the others: minus the any-order NLL, a lower bound on log p.

    E_k L/k sum_{i in M, |M| = k} log p(y_i | y without M), k ~ U{1..L} (LLaDA, arXiv 2502.09992). Short answers are
    enumerated; the others are drawn in independent replicates, from whose spread the standard error comes. (Draws of
    one replicate are spread over the counts and so not independent: their own spread says little about the mean.)
    A row's number depends on its key alone: equal keys mean common random numbers for answers of equal length.

    | estimator | draws | |
    |---|---|---|
    | `"count"` | k tokens, weight L/k, counts spread over a replicate | the default |
    | `"complementary"` | pairs of a mask and its complement, weight (L + 1)/k, k ~ U{0..L} | even draws per replicate |
    | `"bernoulli"` | each token with probability t, weight 1/t, levels spread | heavy tail: prefer counts |
    | `"block_count"` | k_b tokens of every block, weight L_b/k_b | block-causal models only |
    | `"left_to_right"` | none: sum_i log p(y_i given y_<i), all later ones hidden, in L forwards | exact for that order |

    All are unbiased: the first three estimate the same number, `"block_count"` with less variance what they do if
    the model is block-causal.

    Args:
        score: a model's score function, or a `Guided` one (classifier-free guidance).
        batch: B sequences.
        estimator: one of the names above, or a planner of your own `(batch, n) -> Plan`, whose weighted sum per stream
            is the estimate; `count_stratified_llada_compat` gives LLaDA's published (biased) counts.
        draws: forwards per row that is drawn, a multiple of `replicates`.
        replicates: independent groups of draws, at most `draws`; LLaDA's batch size is draws / replicates.
        exact_up_to: rows with at most so many tokens (in their longest block, for `"block_count"`) are enumerated, in
            2^L - 1 forwards; 0 = never. Default: where that is no more than `draws`. Not for planners of your own.
        streams: at most this many streams in one forward.
        temperature: divides the logits.
        support: bool `[V]`, tokens that may occur; None = all.

    Returns:
        Likelihood, without gradient, in the dtype of the score.

    Raises:
        ValueError: for an unknown estimator, draws that the replicates do not divide, or too long an enumeration.

    >>> from dare_objectives.testing import ToyWorld, toy_batch
    >>> found = log_likelihood(ToyWorld.random(7, 5).score, toy_batch(), draws=16)
    >>> found.length.tolist(), found.exact.tolist(), found.draws.tolist()
    ([5, 2, 4, 1, 3, 5], [False, True, True, True, True, False], [16, 3, 15, 1, 7, 16])
    """
    law = _law(estimator)
    replicates = min(replicates, draws)
    _check(law, draws, replicates, exact_up_to)
    limit = (draws + 1).bit_length() - 1 if exact_up_to is None else exact_up_to

    def token_scores(rows: Batch, plans: Iterable[Plan]) -> list[Tensor]:
        ask = score.given(rows) if isinstance(score, Guided) else score
        found = ((evaluate(ask, p, temperature=temperature, support=support, streams=streams), p) for p in plans)
        return [weighted_token_logp(scored.logp, plan) for scored, plan in found]

    with torch.no_grad():
        parts = [_exact(batch, rows, law, token_scores) for rows in _enumerated(batch, law, limit)]
        rest = batch.lengths > 0
        for part in parts:
            rest[part.rows] = False
        if bool(rest.any()):
            rows = rest.nonzero().squeeze(1)
            parts.append(_drawn(batch, rows, law, token_scores, draws // replicates, replicates))
    return _merged(batch, parts, replicates)


def estimator_names() -> tuple[str, ...]:
    """The estimators that `log_likelihood` knows by name."""
    return tuple(_LAWS)


class _Law(NamedTuple):
    draw: Draw | None
    enumerate: Callable[[Batch], Plan] | None = None
    size: Callable[[Batch], Tensor] | None = None  # tokens enumerated together, [B]


class _Part(NamedTuple):
    rows: Tensor  # int64 [b]
    token: Tensor  # [b, S]
    replicates: Tensor  # [b, R], or [b, 1] where exact
    draws: Tensor | int
    exact: bool


def _pairs(batch: Batch, draws: int) -> Plan:
    if draws % 2:
        raise ValueError(f"`draws`: expected an even number per replicate for pairs, got {draws}; change `replicates`")
    return count_complementary(batch, draws // 2)


def _spread_levels(batch: Batch, draws: int) -> Plan:
    return bernoulli(batch, streams=draws, spread=True)


def _nothing(batch: Batch) -> Tensor:
    return torch.zeros_like(batch.lengths)


_LAWS: Final[Mapping[str, _Law]] = {
    "count": _Law(count_stratified, enumerate_masks, enumerated_size),
    "complementary": _Law(_pairs, enumerate_masks, enumerated_size),
    "bernoulli": _Law(_spread_levels, enumerate_masks, enumerated_size),
    "block_count": _Law(per_block_count, partial(enumerate_masks, per="block"), partial(enumerated_size, per="block")),
    "left_to_right": _Law(None, left_to_right, _nothing),
}


def _law(estimator: str | Draw) -> _Law:
    if not isinstance(estimator, str):
        return _Law(estimator)
    if estimator not in _LAWS:
        raise ValueError(suggest("estimator", estimator, _LAWS))
    return _LAWS[estimator]


def _check(law: _Law, draws: int, replicates: int, exact_up_to: int | None) -> None:
    expect_count("draws", draws)
    expect_count("replicates", replicates)
    if draws % replicates:
        near = draws - draws % replicates
        raise ValueError(f"`draws`: expected a multiple of `replicates` = {replicates}, got {draws}; take {near}")
    if exact_up_to is not None:
        expect_range("exact_up_to", exact_up_to, 0, LONGEST if law.size else 0)


def _enumerated(batch: Batch, law: _Law, limit: int) -> list[Tensor]:
    """The rows to enumerate, grouped by size: a row costs what it would alone."""
    if law.size is None:
        return []
    size = torch.where(batch.lengths > 0, law.size(batch), LONGEST + 1)
    few = size[size <= min(limit, LONGEST)].unique().tolist()
    return [(size == number).nonzero().squeeze(1) for number in few]


def _exact(batch: Batch, rows: Tensor, law: _Law, token_scores: _TokenScores) -> _Part:
    assert law.enumerate is not None
    some = batch[rows]
    plan = law.enumerate(some)
    token = token_scores(some, [plan])[0]
    return _Part(rows, token, token.sum(1, keepdim=True), plan.target.any(2).sum(1), exact=True)


def _drawn(batch: Batch, rows: Tensor, law: _Law, token_scores: _TokenScores, draws: int, replicates: int) -> _Part:
    assert law.draw is not None
    some = batch[rows]
    keys = [fold(some.keys, PURPOSES["eval"], number) for number in range(replicates)]
    plans = (law.draw(replace(some, keys=key), draws) for key in keys)
    tokens = torch.stack(token_scores(some, plans)) / draws
    return _Part(rows, tokens.mean(0), tokens.sum(2).T, draws * replicates, exact=False)


def _merged(batch: Batch, parts: list[_Part], replicates: int) -> Likelihood:
    """The parts in the rows' order; rows without maskable tokens have an exact 0."""
    dtype = parts[0].token.dtype if parts else torch.float32
    token = batch.tokens.new_zeros(batch.tokens.shape, dtype=dtype)
    values = token.new_zeros(len(batch), replicates)
    exact, draws = torch.ones_like(batch.keys, dtype=torch.bool), torch.zeros_like(batch.keys)
    for part in parts:
        token[part.rows], values[part.rows] = part.token, part.replicates
        exact[part.rows], draws[part.rows] = part.exact, part.draws
    spread = values.std(1) if replicates > 1 else torch.full_like(values[:, 0], torch.nan)
    error = torch.where(exact, 0.0, spread / math.sqrt(replicates))
    return Likelihood(token.sum(1), error, token, values, exact, draws, batch.lengths)
