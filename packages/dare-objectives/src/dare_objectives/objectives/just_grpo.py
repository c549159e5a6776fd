"""JustGRPO (arXiv 2601.15165): the exact left-to-right likelihood of a denoiser."""

from collections.abc import Mapping
from functools import partial
from typing import Final, Literal

from torch import Tensor

from dare_objectives._errors import suggest
from dare_objectives.advantages import group_normalize
from dare_objectives.batch import Batch
from dare_objectives.objective import Objective, at_least_one
from dare_objectives.objectives.trajectory_policy import Normaliser, longest, per_token, trajectory_policy
from dare_objectives.plan import Plan
from dare_objectives.plans.left_to_right import left_to_right

__all__ = ["just_grpo", "just_grpo_dare_compat"]


def per_compared(batch: Batch, plan: Plan, advantage: Tensor) -> Tensor:
    """Length of the longest response times the number of sequences whose advantage is not 0."""
    return at_least_one((advantage != 0).sum()) * at_least_one(longest(batch))


_NORMALISERS: Final[Mapping[str, Normaliser]] = {"token": per_token, "compared": per_compared}


def just_grpo(
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    beta: float = 0.0,
    chunk: int = 1,
    eps: float = 1e-4,
    normaliser: Literal["token", "compared"] = "token",
) -> Objective:
    """PPO on l_i = log p(y_i | y_<i, everything from i on masked), the autoregressive factorisation of a denoiser.

    loss = sum_i [PPO(rho_i, A) + beta k3_i] / number of tokens, A = (r - mean_G) / (std_G + eps) (JustGRPO, arXiv
    2601.15165). For answers that were decoded left to right. Equal to `cj_grpo` and `tracerl` on that trajectory but
    for their normalisers. Published: one update per rollout, 16 samples per prompt, normaliser `"compared"`.

    Args:
        clip_low: see `ppo_token`.
        clip_high: see `ppo_token`.
        dual_clip: see `ppo_token`.
        beta: weight of k3 to the reference.
        chunk: tokens per forward; 1 is exact, more is the trajectory of a decoder that commits as many at once.
        eps: added to the standard deviation.
        normaliser: `"token"`: scored tokens; `"compared"`: longest response x sequences with an advantage other than 0,
            as published.

    Returns:
        Objective; one forward per token and update.
    """
    if normaliser not in _NORMALISERS:
        raise ValueError(suggest("normaliser", normaliser, _NORMALISERS))
    return trajectory_policy(
        "just_grpo",
        partial(left_to_right, chunk=chunk),
        partial(group_normalize, eps=eps),
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        beta=beta,
        normaliser=_NORMALISERS[normaliser],
        sums_over_streams=True,
    )


def just_grpo_dare_compat() -> Objective:
    """JustGRPO with the numbers of DARE: a mean over tokens, dual clip 3, eps 1e-6, a group of one keeps its reward.

    DARE samples and scores at temperature 0.6: pass it to `evaluate`. Not reproduced: the training of filler after the
    end token.

    Returns:
        Objective.
    """
    return trajectory_policy(
        "just_grpo_dare_compat",
        left_to_right,
        partial(group_normalize, singleton="raw"),
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=3.0,
        beta=0.0,
        sums_over_streams=True,
    )
