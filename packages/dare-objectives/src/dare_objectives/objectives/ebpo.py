"""EBPO of the LLaDA2.1 report (arXiv 2602.08676): one raw ratio per sequence, clipped in the log domain."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from dare_objectives._errors import expect_count
from dare_objectives.advantages import group_normalize
from dare_objectives.batch import Batch
from dare_objectives.objective import Objective, Planner
from dare_objectives.objectives.sequence_policy import (
    DivergenceName,
    divergence_named,
    raw_scores,
    sequence_policy,
)
from dare_objectives.objectives.token_policy import AdvantageName, advantage_named
from dare_objectives.plan import Plan
from dare_objectives.plans import per_block_count

__all__ = ["ebpo", "ebpo_dare_compat", "weigh_streams"]


def ebpo(
    *,
    draws: int = 16,
    stream_weights: Sequence[float] | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    beta: float = 0.0,
    divergence: DivergenceName = "k2",
    advantage: AdvantageName = "group_normalize",
) -> Objective:
    """PPO on rho_b = exp(s_b - s_b^old), s = sum_n w_n sum_blocks (L_b / k_b) sum_{i masked} log p(y_i | z_n).

    loss = 1/B sum_b [PPO(rho_b, A_b) + beta KL(s_b, s_b^ref)] (EBPO, arXiv 2602.08676, equations 4 and 5). In each
    stream every block of the row has its own count of masked tokens, at least one. The score is not divided by the
    length, so the ratio leaves the clip range early in more than one update; it is clipped in the log domain.

    Args:
        draws: n, streams per row.
        stream_weights: w_n, `draws` numbers; default 1/n each.
        clip_low: see `ppo_seq`.
        clip_high: see `ppo_seq`.
        dual_clip: see `ppo_seq`.
        beta: weight of the divergence from the reference; above 0 the objective needs `ref`.
        divergence: `"k2"`, `"k1_corrected"`, `"k3"`, `"k1"` or `"abs"`, of the raw scores.
        advantage: `"center"`, `"group_normalize"` or `"leave_one_out"`.

    Returns:
        Objective; n forwards per update, in memory of one with `replay_backward` (which adds n without a graph).

    Raises:
        ValueError: for an option out of range, or another number of weights than draws.
    """
    expect_count("draws", draws)
    plan = partial(per_block_count, draws=draws)
    return sequence_policy(
        "ebpo",
        plan if stream_weights is None else _weighted(plan, draws, stream_weights),
        advantage_named(advantage),
        length=raw_scores,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        beta=beta,
        divergence=divergence_named(divergence),
    )


def _weighted(plan: Planner, draws: int, stream_weights: Sequence[float]) -> Planner:
    if len(stream_weights) != draws:
        raise ValueError(f"`stream_weights`: expected {draws} numbers, one per draw, got {len(stream_weights)}")
    return partial(_plan_and_weigh, plan=plan, stream_weights=tuple(stream_weights))


def _plan_and_weigh(batch: Batch, *, plan: Planner, stream_weights: tuple[float, ...]) -> Plan:
    return weigh_streams(plan(batch), stream_weights)


def weigh_streams(plan: Plan, stream_weights: Sequence[float]) -> Plan:
    """The plan whose mean over streams is the sum with these weights.

    Args:
        plan: K streams.
        stream_weights: K numbers.

    Returns:
        Plan with weights K w_k times its own.
    """
    share = torch.tensor(stream_weights, dtype=plan.weight.dtype, device=plan.weight.device) * plan.streams
    return replace(plan, weight=plan.weight * share[:, None])


def ebpo_dare_compat() -> Objective:
    """EBPO with the numbers of the DARE reference: z-score (a group of one keeps its reward), no KL; else as published.

    Returns:
        Objective.
    """
    return sequence_policy(
        "ebpo_dare_compat",
        partial(per_block_count, draws=16),
        partial(group_normalize, singleton="raw"),
        length=raw_scores,
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=None,
        beta=0.0,
        divergence=divergence_named("k2"),
    )
