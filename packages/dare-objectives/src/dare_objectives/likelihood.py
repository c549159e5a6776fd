"""Likelihoods of given answers, with standard errors; exact where enumeration costs no more."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from dare_objectives._errors import expect_count, expect_range
from dare_objectives._rows import Rows, select_rows
from dare_objectives.batch import Batch
from dare_objectives.enumeration import LONGEST
from dare_objectives.estimators import weighted_token_logp
from dare_objectives.guidance import Guided
from dare_objectives.keyed import PURPOSES, fold
from dare_objectives.laws import Draw, Law, law_of
from dare_objectives.plan import Plan
from dare_objectives.score import Score, evaluate

__all__ = ["Likelihood", "log_likelihood"]

_TokenScores = Callable[[Batch, Callable[[Batch], Plan]], Tensor]
"""From rows and a planner to the weighted log-probs of their plan, summed over its streams, `[b, S]`."""


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
    | `"left_to_right"` | none: sum_i log p(y_i given y_<i), later ones hidden, in L forwards | exact for that order |

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
        streams: at most this many streams of a row in one forward; None = all. It does not change the result.
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
    law = law_of(estimator)
    replicates = min(replicates, draws)
    _check(law, draws, replicates, exact_up_to)
    limit = (draws + 1).bit_length() - 1 if exact_up_to is None else exact_up_to

    def token_scores(rows: Batch, planner: Callable[[Batch], Plan]) -> Tensor:
        ask, plan = score.given(rows) if isinstance(score, Guided) else score, planner(rows)
        found = evaluate(ask, plan, temperature=temperature, support=support, streams=streams)
        return weighted_token_logp(found.logp, plan)

    with torch.no_grad():
        parts = [_exact(batch, rows, law, token_scores) for rows in _enumerated(batch, law, limit)]
        rest = batch.lengths > 0
        for part in parts:
            rest[part.rows] = False
        if bool(rest.any()):
            rows = rest.nonzero().squeeze(1)
            together = replicates if streams is None else max(1, streams * replicates // draws)
            parts.append(_drawn(batch, rows, law, token_scores, draws // replicates, replicates, together))
    return _merged(batch, parts, replicates)


class _Part(NamedTuple):
    rows: Tensor  # int64 [b]
    token: Tensor  # [b, S]
    replicates: Tensor  # [b, R], or [b, 1] where exact
    draws: Tensor | int
    exact: bool


def _check(law: Law, draws: int, replicates: int, exact_up_to: int | None) -> None:
    expect_count("draws", draws)
    expect_count("replicates", replicates)
    if draws % replicates:
        near = draws - draws % replicates
        raise ValueError(f"`draws`: expected a multiple of `replicates` = {replicates}, got {draws}; take {near}")
    if exact_up_to is not None:
        expect_range("exact_up_to", exact_up_to, 0, LONGEST if law.size else 0)


def _enumerated(batch: Batch, law: Law, limit: int) -> list[Tensor]:
    """The rows to enumerate, grouped by size: a row costs what it would alone."""
    if law.size is None:
        return []
    size = torch.where(batch.lengths > 0, law.size(batch), LONGEST + 1)
    few = size[size <= min(limit, LONGEST)].unique().tolist()
    return [(size == number).nonzero().squeeze(1) for number in few]


def _exact(batch: Batch, rows: Tensor, law: Law, token_scores: _TokenScores) -> _Part:
    assert law.enumerate is not None and law.forwards is not None
    token = token_scores(batch[rows], law.enumerate)
    forwards = law.forwards(batch[rows])
    return _Part(rows, token, token.sum(1, keepdim=True), forwards, exact=True)


def _drawn(
    batch: Batch, rows: Tensor, law: Law, token_scores: _TokenScores, draws: int, replicates: int, together: int
) -> _Part:
    """`together` replicates at once, as rows of their own with keys of their own."""
    draw = law.draw
    assert draw is not None
    parts: list[Tensor] = []
    for number in torch.arange(replicates, device=rows.device).split(together):
        some = batch[rows.repeat_interleave(len(number))]
        keys = fold(batch.keys[rows][:, None], PURPOSES["eval"], number).flatten()
        token = token_scores(replace(some, keys=keys), lambda some: draw(some, draws)) / draws
        parts.append(token.unflatten(0, (len(rows), len(number))))
    tokens = torch.cat(parts, 1)
    return _Part(rows, tokens.mean(1), tokens.sum(2), draws * replicates, exact=False)


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
