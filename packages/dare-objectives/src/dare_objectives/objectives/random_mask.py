"""Random-mask policy gradient of dLLM-RL (arXiv 2509.06949), and what UniGRPO shares with it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from dare_objectives._errors import expect_count, expect_range, suggest
from dare_objectives.batch import Batch
from dare_objectives.estimators import token_logp
from dare_objectives.losses.kl import kl_k3
from dare_objectives.losses.ppo import check_clips, ppo_token
from dare_objectives.metrics import Metrics, masked_mean
from dare_objectives.objective import Advantage, Coefficients, Estimator, Objective, Planner, at_least_one
from dare_objectives.objectives.sequence_policy import Divergence, DivergenceName, divergence_named
from dare_objectives.objectives.token_policy import AdvantageName, advantage_named, group_coefficients
from dare_objectives.plan import Plan, unweighted
from dare_objectives.plans.bernoulli import bernoulli, bernoulli_complementary
from dare_objectives.score import Scored, logp_of

__all__ = [
    "ReferenceName",
    "WeightingName",
    "mask_policy",
    "random_mask",
    "stream_mean",
    "unweighted_plan",
]

ReferenceName = Literal["old", "ref"]
"""What the divergence is taken from: the policy of the rollout, or a frozen reference."""

WeightingName = Literal["token", "stream", "stream_kl_sum"]
"""What counts alike: the scored tokens of all streams, or the streams (mean over the tokens of each).

`"stream_kl_sum"` is the reduction of dLLM-RL: the divergence is summed over the tokens of a stream, not averaged, which
makes it the heavier the longer the response is and the more of it is masked.
"""

MaskName = Literal["sequence", "block", "complementary"]
"""One mask rate per sequence and stream, one per block, or one per sequence with the complement as another stream."""


def random_mask(
    *,
    streams: int = 35,
    masks: MaskName = "sequence",
    low: float = 0.1,
    high: float = 0.9,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    beta: float = 0.01,
    divergence: DivergenceName = "k3",
    reference: ReferenceName = "old",
    weighting: WeightingName = "token",
    advantage: AdvantageName = "population_normalize",
) -> Objective:
    """PPO on the masked tokens of random masks, rho = p_i / p_i^old under the same mask, without 1/t.

    loss = sum over streams and masked tokens of [PPO(rho_ki, A) + beta KL_ki] / number of them, t ~ U(0.1, 0.9) for
    each stream ("random masking" of dLLM-RL, arXiv 2509.06949). The divergence is from the old policy and averaged
    like the rest. A mask has one rate for all its tokens: a threshold drawn for each token, as in the published code
    for block models, would mask every token with probability 1/2.

    Args:
        streams: K, masks per sequence.
        masks: `"sequence"`, `"block"` (rates per block, for block-diffusion models) or `"complementary"` (K masks and
            their complements: 2 K forwards).
        low: least rate.
        high: largest rate.
        clip_low: see `ppo_token`.
        clip_high: see `ppo_token`.
        dual_clip: see `ppo_token`.
        beta: weight of the divergence; 0 for none.
        divergence: `"k3"`, `"k1"`, `"k1_corrected"`, `"k2"` or `"abs"`.
        reference: `"old"`, or `"ref"` for a frozen one, which then is needed.
        weighting: `"token"`; `"stream"`: mean over the tokens of each stream, then over all streams; or
            `"stream_kl_sum"`, as published: the same with the divergence summed over the tokens of a stream.
        advantage: `"population_normalize"`, `"group_normalize"`, `"center"` or `"leave_one_out"`.

    Returns:
        Objective; K forwards per update, one graph at a time with `stream_backward`.

    >>> sorted(random_mask().needs), sorted(random_mask(reference="ref").needs)
    (['old'], ['old', 'ref'])
    """
    return mask_policy(
        "random_mask",
        _plan_named(masks, streams=streams, low=low, high=high),
        advantage_named(advantage),
        weighting=weighting,
        reference=reference,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        beta=beta,
        divergence=divergence_named(divergence),
    )


def unweighted_plan(batch: Batch, *, plan: Planner) -> Plan:
    """The plan without the weights 1/p."""
    return unweighted(plan(batch))


def _plan_named(name: str, *, streams: int, low: float, high: float) -> Planner:
    expect_count("streams", streams)
    expect_range("low", low, 0.0, high)
    expect_range("high", high, low, 1.0)
    plans: Mapping[str, Planner] = {
        "sequence": partial(bernoulli, low=low, high=high, streams=streams),
        "block": partial(bernoulli, low=low, high=high, streams=streams, per="block"),
        "complementary": partial(bernoulli_complementary, low=low, high=high, pairs=streams),
    }
    if name not in plans:
        raise ValueError(suggest("kind of masks", name, plans))
    return partial(unweighted_plan, plan=plans[name])


def stream_mean(logp: Tensor, plan: Plan) -> Tensor:
    """Mean over the targets of each stream, 1/|M_k| sum_{i in M_k} l_ki.

    The sequence log-likelihood of UniGRPO (arXiv 2505.15809) under one mask.

    Args:
        logp: `[B, K, S]`.
        plan: the plan that was scored; its weights play no part.

    Returns:
        `[B, K]`, 0 for streams without targets.
    """
    return (token_logp(logp, plan) * _means(plan, logp.dtype)).sum(2)


Share = Callable[[Plan, torch.dtype], Tensor]
"""The share of each target in a loss: `[B, K, S]`, 0 off target."""


def _ones(plan: Plan, dtype: torch.dtype) -> Tensor:
    return plan.target.to(dtype)


def _means(plan: Plan, dtype: torch.dtype) -> Tensor:
    return plan.target.to(dtype) / plan.target.sum(2, keepdim=True).clamp(min=1)


def _tokens(batch: Batch, plan: Plan) -> Tensor:
    return plan.target.sum()


def _streams(batch: Batch, plan: Plan) -> Tensor:
    """Streams of the sequences with something to score; those that mask nothing count as well."""
    return (batch.lengths > 0).sum() * plan.streams


class _Weighting(NamedTuple):
    estimator: Estimator
    share: Share
    kl_share: Share
    total: Callable[[Batch, Plan], Tensor]


_WEIGHTINGS: Final[Mapping[str, _Weighting]] = {
    "token": _Weighting(token_logp, _ones, _ones, _tokens),
    "stream": _Weighting(stream_mean, _means, _means, _streams),
    "stream_kl_sum": _Weighting(stream_mean, _means, _ones, _streams),
}


class _Anchor(NamedTuple):
    """What the divergence is taken from: the name of its metric, and how to pick it from old and reference."""

    metric: str
    pick: Callable[[Tensor, Tensor | Scored | None, Plan], Tensor]


def _pick_old(old: Tensor, ref: Tensor | Scored | None, plan: Plan) -> Tensor:
    return old


def _pick_ref(old: Tensor, ref: Tensor | Scored | None, plan: Plan) -> Tensor:
    if ref is None:
        raise ValueError("`ref`: expected the reference's log-probs, got None; pass them, or use reference 'old'")
    return token_logp(logp_of(ref), plan)


_ANCHORS: Final[Mapping[str, _Anchor]] = {"old": _Anchor("kl_old", _pick_old), "ref": _Anchor("kl_ref", _pick_ref)}


def mask_policy(
    name: str,
    plan: Planner,
    advantage: Advantage,
    *,
    weighting: str,
    reference: str,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    beta: float,
    divergence: Divergence = kl_k3,
) -> Objective:
    """A PPO objective on the tokens of each stream, with a divergence from the old policy or a reference.

    Args:
        name: the objective's name.
        plan: batch -> plan.
        advantage: (rewards, group) -> advantages.
        weighting: a `WeightingName`, for the clipped loss and for the divergence.
        reference: `"old"` or `"ref"`.
        clip_low: see `ppo_token`.
        clip_high: see `ppo_token`.
        dual_clip: see `ppo_token`.
        beta: weight of the divergence.
        divergence: (log-probs, log-probs of the reference) -> divergences.

    Returns:
        Objective that needs `old` (or the on-policy shortcut) and, with beta and the reference `"ref"`, `ref`.
    """
    check_clips(clip_low, clip_high, dual_clip)
    expect_range("beta", beta, 0.0, torch.inf)
    if weighting not in _WEIGHTINGS:
        raise ValueError(suggest("weighting", weighting, _WEIGHTINGS))
    if reference not in _ANCHORS:
        raise ValueError(suggest("reference", reference, _ANCHORS))
    rule = _WEIGHTINGS[weighting]
    clips = {"clip_low": clip_low, "clip_high": clip_high, "dual_clip": dual_clip}
    share = {"share": rule.share, "kl_share": rule.kl_share, "anchor": _ANCHORS[reference]}
    return Objective(
        name=name,
        sums_over_streams=True,
        plan=plan,
        estimator=rule.estimator,
        advantage=advantage,
        prepare=partial(_prepare, advantage=advantage, total=rule.total, every_row=beta > 0),
        loss=partial(_loss, **clips, **share, beta=beta, divergence=divergence),
        needs=frozenset({"old", "ref"} if beta and reference == "ref" else {"old"}),
    )


def _prepare(
    batch: Batch,
    plan: Plan,
    rewards: Tensor | None = None,
    detached: Tensor | None = None,
    *,
    advantage: Advantage,
    total: Callable[[Batch, Plan], Tensor],
    every_row: bool,
) -> Coefficients:
    base = group_coefficients(batch, plan, rewards, detached, advantage=advantage, every_row=every_row)
    weight = base.row_weight * (batch.lengths > 0)
    return replace(base, row_weight=weight, normaliser=at_least_one(total(batch, plan)))


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
    beta: float,
    divergence: Divergence,
    share: Share,
    kl_share: Share,
    anchor: _Anchor,
) -> tuple[Tensor, Metrics]:
    """PPO on the targets of each stream, plus beta times a divergence on the same targets."""
    logp = token_logp(logp_of(scored), plan)
    before = (logp if old is None else token_logp(logp_of(old), plan)).detach()
    row_weight = coefficients.row_weight[:, None, None].to(logp.dtype)
    loss, metrics = ppo_token(
        logp,
        before,
        coefficients.advantage[:, None, None],
        share(plan, logp.dtype) * row_weight,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        normaliser=coefficients.normaliser,
    )
    if not beta:
        return loss, metrics
    distance = divergence(logp, anchor.pick(before, ref, plan).detach())
    metrics[anchor.metric] = masked_mean(distance, plan.target)
    return loss + beta * (kl_share(plan, logp.dtype) * row_weight * distance).sum() / coefficients.normaliser, metrics
