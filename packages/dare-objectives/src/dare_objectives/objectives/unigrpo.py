"""UniGRPO of MMaDA (arXiv 2505.15809): random masks whose rates are spread over (0, 1)."""

from functools import partial

from dare_objectives._errors import expect_count
from dare_objectives.objective import Objective
from dare_objectives.objectives.random_mask import ReferenceName, WeightingName, mask_policy, unweighted_plan
from dare_objectives.objectives.sequence_policy import DivergenceName, divergence_named
from dare_objectives.objectives.token_policy import AdvantageName, advantage_named
from dare_objectives.plans.bernoulli import bernoulli

__all__ = ["unigrpo"]


def unigrpo(
    *,
    streams: int = 8,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    beta: float = 0.01,
    divergence: DivergenceName = "k3",
    reference: ReferenceName = "old",
    weighting: WeightingName = "token",
    advantage: AdvantageName = "group_normalize",
) -> Objective:
    """PPO on the masked tokens of K masks with rates t_k = (u + k/K) mod 1, the prompt never masked.

    loss = sum over masks and masked tokens of [PPO(rho_ki, A) + beta KL_ki] / number of them, rho = p_i / p_i^old under
    the same mask (UniGRPO of MMaDA, arXiv 2505.15809). The rates start at random and are spread evenly, so that each
    sequence is seen from nearly clean to nearly blank. Published: one mask for each of the K updates of a rollout,
    mean over the masked tokens of a sequence (`weighting="stream"`), then over sequences. Here the K masks belong to
    one update; for one each, take the streams one at a time (`plan_streams`).

    Args:
        streams: K, masks per sequence.
        clip_low: see `ppo_token`.
        clip_high: see `ppo_token`.
        dual_clip: see `ppo_token`.
        beta: weight of the divergence; 0 for none.
        divergence: `"k3"`, `"k1"`, `"k1_corrected"`, `"k2"` or `"abs"`.
        reference: `"old"`, or `"ref"` for a frozen one, which then is needed.
        weighting: `"token"`, `"stream"` (mean over the tokens of each mask, then over all masks) or `"stream_kl_sum"`.
        advantage: `"group_normalize"`, `"population_normalize"`, `"center"` or `"leave_one_out"`.

    Returns:
        Objective; K forwards per update, one graph at a time with `stream_backward`.
    """
    expect_count("streams", streams)
    return mask_policy(
        "unigrpo",
        partial(unweighted_plan, plan=partial(bernoulli, streams=streams, spread=True)),
        advantage_named(advantage),
        weighting=weighting,
        reference=reference,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        beta=beta,
        divergence=divergence_named(divergence),
    )
