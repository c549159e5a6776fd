"""CJ-GRPO (arXiv 2509.23924): the policy gradient of a recorded denoising trajectory."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from dare_objectives.advantages import group_normalize
from dare_objectives.batch import Batch
from dare_objectives.objective import Advantage, Coefficients, Objective, at_least_one
from dare_objectives.objectives.token_policy import AdvantageName, advantage_named
from dare_objectives.objectives.trajectory_policy import (
    equal_transitions,
    per_sequence,
    trajectory_coefficients,
    trajectory_policy,
)
from dare_objectives.plan import Plan
from dare_objectives.plans.trajectory import trajectory

__all__ = ["cj_grpo", "cj_grpo_dare_compat", "cj_grpo_step_equal", "cj_grpo_step_equal_dare_compat"]


def cj_grpo(
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    beta: float = 0.0,
    shrink: int = 1,
    per: Literal["sequence", "block"] = "sequence",
    parallel_blocks: bool = False,
    advantage: AdvantageName = "center",
) -> Objective:
    """PPO on l_ki = log p(y_i | tokens committed before step k) at the tokens U_k committed at step k.

    loss = 1/B sum_b 1/T_b sum_k 1/|U_bk| sum_{i in U_bk} [PPO(rho_bki, A_b) + beta k3_bki]: every transition of a
    sequence counts alike, and every sequence (CJ-GRPO, arXiv 2509.23924, with the weights of its block-model version
    in DARE). sum_k sum_i l_ki is the log-likelihood of the trajectory but for the choice of positions. The paper's own
    run: clip 0.5 on both sides, beta 0.04, 8 to 12 updates per rollout, and the weights of `cj_grpo_step_equal`.

    Args:
        clip_low: see `ppo_token`.
        clip_high: see `ppo_token`.
        dual_clip: see `ppo_token`.
        beta: weight of k3 to the reference.
        shrink: merge every so many steps into one transition.
        per: whether `shrink` counts the steps of a sequence or of each block.
        parallel_blocks: for block-causal models: one forward for the same step of all blocks; a transition then is a
            step of one block.
        advantage: `"center"`, `"group_normalize"` or `"leave_one_out"`.

    Returns:
        Objective that needs `step_map`; as many forwards per update as there are steps (of a block).
    """
    return _transitions(
        "cj_grpo",
        advantage_named(advantage),
        parallel_blocks=parallel_blocks,
        shrink=shrink,
        per=per,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        beta=beta,
    )


def cj_grpo_dare_compat() -> Objective:
    """CJ-GRPO as DARE has it for block models: z-score (a group of one keeps its reward), dual clip 3, no KL.

    Not reproduced: transport of dense masks, and the training of tokens sampled after the end token.

    Returns:
        Objective.
    """
    return _transitions(
        "cj_grpo_dare_compat",
        partial(group_normalize, singleton="raw"),
        parallel_blocks=True,
        shrink=1,
        per="sequence",
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=3.0,
        beta=0.0,
    )


def _transitions(
    name: str,
    advantage: Advantage,
    *,
    parallel_blocks: bool,
    shrink: int,
    per: Literal["sequence", "block"],
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    beta: float,
) -> Objective:
    return trajectory_policy(
        name,
        partial(trajectory, shrink=shrink, per=per, parallel_blocks=parallel_blocks),
        advantage,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        beta=beta,
        weights=partial(equal_transitions, per="block" if parallel_blocks else "sequence"),
        normaliser=per_sequence,
        needs=frozenset({"step_map"}),
    )


def cj_grpo_step_equal(
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    beta: float = 0.0,
    shrink: int = 1,
    per: Literal["sequence", "block"] = "sequence",
    parallel_blocks: bool = False,
    advantage: AdvantageName = "center",
) -> Objective:
    """CJ-GRPO with the weights as published: a mean over steps of means over the tokens that the batch commits there.

    loss = 1/T sum_k [sum_b sum_{i in U_bk} PPO(rho_bki, A_b) + beta k3_bki] / sum_b |U_bk|, over the whole batch
    (arXiv 2509.23924). k is the row's k-th step that committed something to score; T is the number of steps that any
    row has. Unlike in `cj_grpo` a sequence of few tokens counts for little.

    Args:
        clip_low: see `ppo_token`.
        clip_high: see `ppo_token`.
        dual_clip: see `ppo_token`.
        beta: weight of k3 to the reference.
        shrink: see `cj_grpo`.
        per: see `cj_grpo`.
        parallel_blocks: see `cj_grpo`.
        advantage: `"center"`, `"group_normalize"` or `"leave_one_out"`.

    Returns:
        Objective that needs `step_map`.
    """
    return _steps(
        "cj_grpo_step_equal",
        partial(trajectory, shrink=shrink, per=per, parallel_blocks=parallel_blocks),
        advantage_named(advantage),
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        beta=beta,
    )


def cj_grpo_step_equal_dare_compat() -> Objective:
    """CJ-GRPO as DARE has it for full attention: z-score (a group of one keeps its reward), dual clip 3, no KL.

    Its mistakes are not reproduced: means over the tokens of a micro-batch, steps without tokens counted in T, and
    the training of filler after the end token.

    Returns:
        Objective.
    """
    advantage = partial(group_normalize, singleton="raw")
    clips = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0}
    return _steps("cj_grpo_step_equal_dare_compat", trajectory, advantage, **clips, beta=0.0)


def _steps(
    name: str,
    plan: Callable[[Batch], Plan],
    advantage: Advantage,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    beta: float,
) -> Objective:
    return trajectory_policy(
        name,
        plan,
        advantage,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        beta=beta,
        needs=frozenset({"step_map"}),
        prepare=partial(step_coefficients, advantage=advantage),
    )


def step_coefficients(
    batch: Batch,
    plan: Plan,
    rewards: Tensor | None = None,
    detached: Tensor | None = None,
    *,
    advantage: Advantage,
    every_row: bool,
) -> Coefficients:
    """1 / sum_b |U_bk| as weight of each step k of the whole batch, the number of steps as normaliser."""
    base = trajectory_coefficients(
        batch, plan, rewards, detached, advantage=advantage, normaliser=_steps_taken, every_row=every_row
    )
    size = plan.target.sum((0, 2)).clamp(min=1)
    weight = (1 / size.to(base.advantage.dtype))[None, :, None]
    return replace(base, token_weight=weight.expand(len(batch), -1, -1))


def _steps_taken(batch: Batch, plan: Plan, advantage: Tensor) -> Tensor:
    """T, the number of streams with a target in any row."""
    return at_least_one(torch.any(plan.target.flatten(2).any(2), 0).sum())
