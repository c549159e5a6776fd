"""BGPO (arXiv 2510.11683): a sequence policy gradient whose Monte-Carlo draws need one graph at a time."""

from dataclasses import replace
from functools import partial
from typing import Final, Literal

from torch import Tensor

from dare_objectives._errors import suggest
from dare_objectives.advantages import group_normalize
from dare_objectives.batch import Batch
from dare_objectives.estimators import elbo_draws
from dare_objectives.losses.bgpo import bgpo_loss
from dare_objectives.losses.ppo import check_clips
from dare_objectives.metrics import Metrics, masked_mean
from dare_objectives.objective import Advantage, Coefficients, Objective, Planner, at_least_one
from dare_objectives.objectives.sequence_policy import (
    CountName,
    SequenceCoefficients,
    counts_named,
    lengths_of,
    sequence_coefficients,
    valid_lengths,
)
from dare_objectives.objectives.token_policy import AdvantageName, advantage_named
from dare_objectives.plan import Plan
from dare_objectives.score import Scored, logp_of

__all__ = ["bgpo", "bgpo_dare_compat"]


def bgpo(
    *,
    draws: int = 16,
    counts: CountName = "sequence",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    advantage: AdvantageName = "group_normalize",
    weighting: Literal["sequence", "length"] = "sequence",
) -> Objective:
    """PPO on a bound of each draw's ratio: 1 + d_bj for A >= 0, exp(d_bj) for A < 0, d = (e_bj - e_bj^old) / L_b.

    loss = 1/B sum_b 1/n sum_j max(-A g_bj, -A clip(g_bj)) (BGPO, arXiv 2510.11683), e_bj = L/k_j sum_{i masked} log p.
    L_b counts the valid tokens of the row, not the padded response. On policy value and gradient are those of the
    exact objective. The loss is a sum over draws as it is over rows: `stream_backward` needs one graph at a time and
    no second pass.

    Args:
        draws: n, counts spread over 1..L.
        counts: `"sequence"`: one count per row and draw; `"block"`: one per block, which has less variance for a
            block-diffusion model.
        clip_low: see `bgpo_loss`.
        clip_high: see `bgpo_loss`.
        dual_clip: see `bgpo_loss`.
        advantage: `"center"`, `"group_normalize"` or `"leave_one_out"`.
        weighting: `"sequence"`: mean over sequences; `"length"`: weighted by L_b, as a mean over tokens would be.

    Returns:
        Objective; n forwards per update.
    """
    return _bgpo(
        "bgpo",
        counts_named(counts, draws),
        advantage_named(advantage),
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        weighting=weighting,
    )


def bgpo_dare_compat() -> Objective:
    """BGPO with the numbers of the DARE reference: dual clip 3, weights by length, a group of one keeps its reward.

    Its mistakes are not reproduced: exp(log(1 + d)), which is nan for d <= -1, the padded length in d, a factor that
    counts the keys of a dictionary, a mean per micro-batch and the training of filler after the end token.

    Returns:
        Objective.
    """
    return _bgpo(
        "bgpo_dare_compat",
        counts_named("sequence", 16),
        partial(group_normalize, singleton="raw"),
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=3.0,
        weighting="length",
    )


def _bgpo(
    name: str,
    plan: Planner,
    advantage: Advantage,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    weighting: str,
) -> Objective:
    check_clips(clip_low, clip_high, dual_clip)
    if weighting not in _WEIGHTINGS:
        raise ValueError(suggest("weighting", weighting, _WEIGHTINGS))
    return Objective(
        name=name,
        sums_over_streams=True,
        plan=plan,
        estimator=elbo_draws,
        advantage=advantage,
        prepare=partial(_WEIGHTINGS[weighting], advantage=advantage),
        loss=partial(_loss, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip),
        needs=frozenset({"old"}),
    )


def _per_sequence(
    batch: Batch,
    plan: Plan,
    rewards: Tensor | None = None,
    detached: Tensor | None = None,
    *,
    advantage: Advantage,
) -> SequenceCoefficients:
    """Normaliser: number of sequences with something to score, times n."""
    base = sequence_coefficients(
        batch, plan, rewards, detached, advantage=advantage, length=valid_lengths, every_row=False
    )
    return replace(base, normaliser=base.normaliser * plan.streams)


def _per_length(
    batch: Batch,
    plan: Plan,
    rewards: Tensor | None = None,
    detached: Tensor | None = None,
    *,
    advantage: Advantage,
) -> SequenceCoefficients:
    """Weight L_b; normaliser: number of maskable tokens, times n."""
    base = _per_sequence(batch, plan, rewards, detached, advantage=advantage)
    total = at_least_one(batch.lengths.sum()) * plan.streams
    return replace(base, row_weight=base.row_weight * base.length, normaliser=total)


_WEIGHTINGS: Final = {"sequence": _per_sequence, "length": _per_length}


def _loss(
    scored: Tensor | Scored,
    plan: Plan,
    coefficients: Coefficients,
    *,
    old: Tensor | Scored | None = None,
    ref: Tensor | Scored | None = None,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> tuple[Tensor, Metrics]:
    """The loss of some rows and streams; `ref` plays no part."""
    elbo, length = elbo_draws(logp_of(scored), plan), lengths_of(coefficients)
    weight = coefficients.row_weight
    loss, metrics = bgpo_loss(
        elbo,
        elbo.detach() if old is None else elbo_draws(logp_of(old), plan),
        coefficients.advantage,
        weight,
        length=length,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        normaliser=coefficients.normaliser,
    )
    metrics["nll"] = masked_mean(-elbo / length[:, None], (weight != 0)[:, None].expand_as(elbo))
    return loss, metrics
