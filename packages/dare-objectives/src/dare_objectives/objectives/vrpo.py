"""VRPO of LLaDA 1.5 (arXiv 2505.19223): direct preference optimisation on shared-mask evidence lower bounds."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from dare_objectives._errors import expect_range
from dare_objectives.advantages import center
from dare_objectives.batch import Batch
from dare_objectives.estimators import elbo_draws, elbo_seq
from dare_objectives.losses.dpo import dpo_terms
from dare_objectives.losses.hinge import hinge_terms
from dare_objectives.losses.ipo import ipo_terms
from dare_objectives.losses.pairs import check_beta
from dare_objectives.metrics import Max, Mean, Metrics, masked_mean
from dare_objectives.objective import Coefficients, Objective, Planner, at_least_one
from dare_objectives.objectives.sequence_policy import CountName, counts_named, raw_scores, valid_lengths
from dare_objectives.objectives.token_policy import group_coefficients
from dare_objectives.plan import Plan
from dare_objectives.score import Scored, logp_of

__all__ = ["PairCoefficients", "pair_coefficients", "pair_loss", "vrpo", "vrpo_dare_compat", "vrpo_hinge", "vrpo_ipo"]

PairTerms = Callable[[Tensor], Tensor]
"""From the scores of pairs to their losses, same shape."""


def vrpo(
    *,
    beta: float = 0.2,
    label_smoothing: float = 0.0,
    draws: int = 8,
    counts: CountName = "sequence",
    per_token: bool = False,
) -> Objective:
    """DPO on evidence lower bounds: loss = mean over pairs of -log sigma(beta [(e_w - e_w^ref) - (e_l - e_l^ref)]).

    e is the mean of n bounds with stratified counts, on the same masks for policy and reference; winner and loser have
    their own masks (VRPO, arXiv 2505.19223; published: n = 8, beta 0.2). Rows of one `group` are answers to one prompt,
    and of two rows the one with the larger reward wins (1 and 0 will do). More than two rows give all pairs of unequal
    rewards; rows without such a partner have weight 0. The bounds are not divided by a length: dividing by the padded
    response length would make beta smaller by that factor, and the gradient nearly linear.

    Pairs are coupled in `prepare`, which needs `batch.ref` and the detached log-probs of this very policy; see
    `pair_coefficients`. Block diffusion (arXiv 2512.15745): `counts="block"`, beta 0.1.

    Args:
        beta: above 0; scales the implicit rewards.
        label_smoothing: see `dpo`.
        draws: n, masks per row.
        counts: `"sequence"`, or `"block"` for one count per block.
        per_token: divide each bound by the row's number of maskable tokens.

    Returns:
        Objective that needs `ref`; n forwards per row and update, and n without a graph for the pairs.
    """
    expect_range("label_smoothing", label_smoothing, 0.0, 0.5)
    terms = partial(dpo_terms, beta=beta, label_smoothing=label_smoothing)
    return _preference("vrpo", counts_named(counts, draws), terms, beta=beta, per_token=per_token)


def vrpo_ipo(*, beta: float = 0.2, draws: int = 8, counts: CountName = "sequence", per_token: bool = True) -> Objective:
    """VRPO's bounds in the loss of IPO, (s - 1 / (2 beta))^2 (arXiv 2310.12036).

    Args:
        beta: above 0; the margin to reach is 1 / (2 beta).
        draws: see `vrpo`.
        counts: see `vrpo`.
        per_token: see `vrpo`.

    Returns:
        Objective that needs `ref`.
    """
    terms = partial(ipo_terms, beta=beta)
    return _preference("vrpo_ipo", counts_named(counts, draws), terms, beta=beta, per_token=per_token)


def vrpo_hinge(
    *, beta: float = 0.2, draws: int = 8, counts: CountName = "sequence", per_token: bool = False
) -> Objective:
    """VRPO's bounds in the hinge loss, max(0, 1 - beta s) (SLiC-HF, arXiv 2305.10425).

    Args:
        beta: above 0; pairs with beta s > 1 are left alone.
        draws: see `vrpo`.
        counts: see `vrpo`.
        per_token: see `vrpo`.

    Returns:
        Objective that needs `ref`.
    """
    terms = partial(hinge_terms, beta=beta)
    return _preference("vrpo_hinge", counts_named(counts, draws), terms, beta=beta, per_token=per_token)


def vrpo_dare_compat() -> Objective:
    """VRPO with the number of the DARE reference: 4 draws.

    Its mistakes are not reproduced: the bound over the padded response length, which makes beta 0.2 / 512, and metrics
    of the last micro-batch alone.

    Returns:
        Objective.
    """
    terms = partial(dpo_terms, beta=0.2)
    return _preference("vrpo_dare_compat", counts_named("sequence", 4), terms, beta=0.2, per_token=False)


def _preference(name: str, plan: Planner, terms: PairTerms, *, beta: float, per_token: bool) -> Objective:
    check_beta(beta)
    length = valid_lengths if per_token else raw_scores
    return Objective(
        name=name,
        plan=plan,
        estimator=elbo_draws,
        advantage=center,
        prepare=partial(pair_coefficients, terms=terms, beta=beta, length=length),
        loss=pair_loss,
        needs=frozenset({"ref"}),
        on_policy_shortcut=False,
        detached=True,
        sums_over_streams=True,
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class PairCoefficients(Coefficients):
    """The pairs of a batch, linearised in each row's bound; `advantage` is minus the derivative.

    Args:
        value: `[B]`, the row's share (one half) of the losses of its pairs.
        score: `[B]`, the bound at which they were taken.
    """

    value: Tensor
    score: Tensor


def pair_coefficients(
    batch: Batch,
    plan: Plan,
    rewards: Tensor | None = None,
    detached: Tensor | None = None,
    *,
    terms: PairTerms,
    beta: float,
    length: Callable[[Batch], Tensor],
) -> PairCoefficients:
    """Losses of all pairs and their derivatives f'(s) by each row's bound, -beta sigma(-beta s) for DPO.

    A row's own loss is then linear in its own bound, with the exact value and the exact gradient of the whole loss at
    the parameters of `detached` (docs/decisions/0005-pairs.md).

    Args:
        batch: with `ref`, the reference's log-probs of this plan.
        plan: the plan.
        rewards: `[B]`; in a group the row with the larger one wins.
        detached: `[B, K, S]`, the policy's log-probs of this plan, from a pass without gradient.
        terms: scores of pairs -> losses.
        beta: scales the rewards in the metrics.
        length: what divides the bounds.

    Raises:
        ValueError: without rewards, detached log-probs or reference.
    """
    base = group_coefficients(batch, plan, rewards, advantage=center)
    assert rewards is not None
    score, ref = elbo_seq(_given("detached", detached), plan).detach(), elbo_seq(_given("batch.ref", batch.ref), plan)
    gain = (score - ref.detach()) / length(batch)
    pairs = (batch.group[:, None] == batch.group) & (rewards[:, None] > rewards)
    margin = gain[:, None] - gain
    value, slope = (torch.where(pairs, x, 0.0) for x in _value_and_slope(terms, margin))
    paired = pairs.any(0) | pairs.any(1)
    return PairCoefficients(
        advantage=(slope.sum(0) - slope.sum(1)) / length(batch),
        row_weight=paired.to(value.dtype),
        normaliser=at_least_one(pairs.sum()) * plan.streams,
        metrics=_metrics(base, pairs, beta * gain, paired),
        value=(value.sum(0) + value.sum(1)) / 2,
        score=score,
    )


def _given(name: str, logp: Tensor | Scored | None) -> Tensor:
    if logp is None:
        raise ValueError(f"`{name}`: expected log-probs of the plan, since they couple the rows of a pair, got None")
    return logp_of(logp)


def _value_and_slope(terms: PairTerms, margin: Tensor) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(mode=False), torch.enable_grad():
        leaf = margin.detach().clone().requires_grad_()
        value = terms(leaf)
        (slope,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), slope


def _metrics(base: Coefficients, pairs: Tensor, reward: Tensor, paired: Tensor) -> dict[str, Mean | Max]:
    """Implicit rewards of the pairs of the whole batch, and how many rows are in none."""
    winner, loser = reward[:, None].expand_as(pairs), reward.expand_as(pairs)
    rest = {name: metric for name, metric in base.metrics.items() if name != "zero_advantage"}
    return rest | {
        "chosen_reward": masked_mean(winner, pairs),
        "rejected_reward": masked_mean(loser, pairs),
        "margin": masked_mean(winner - loser, pairs),
        "accuracy": masked_mean((winner > loser).to(reward.dtype), pairs),
        "unpaired": Mean((~paired).sum(), len(paired)),
    }


def pair_loss(
    scored: Tensor | Scored,
    plan: Plan,
    coefficients: Coefficients,
    *,
    old: Tensor | Scored | None = None,
    ref: Tensor | Scored | None = None,
) -> tuple[Tensor, Metrics]:
    """sum_b sum_k [value_b - advantage_b (e_bk - score_b)] / (pairs K), a sum over rows and streams alike.

    `old` and `ref` play no part: the reference is in the coefficients.
    """
    if not isinstance(coefficients, PairCoefficients):
        kind = type(coefficients).__name__
        raise TypeError(f"`coefficients`: expected PairCoefficients, got {kind}; use this objective's own `prepare`")
    logp = logp_of(scored)
    move = elbo_draws(logp, plan) - coefficients.score[:, None]
    loss = coefficients.value[:, None] - coefficients.advantage[:, None] * move
    total = (coefficients.row_weight[:, None] * loss).sum() / coefficients.normaliser
    return total, {"nll": masked_mean(-logp, plan.target)}
