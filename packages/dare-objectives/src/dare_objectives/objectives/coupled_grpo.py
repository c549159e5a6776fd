"""coupled-GRPO of DiffuCoder (arXiv 2506.20639): the full mask, a random mask and its complement."""

from functools import partial

from dare_objectives._errors import expect_range
from dare_objectives.advantages import group_normalize
from dare_objectives.objective import Objective
from dare_objectives.objectives.token_policy import AdvantageName, advantage_named, token_policy
from dare_objectives.plans.coupled import coupled

__all__ = ["coupled_grpo", "coupled_grpo_dare_compat"]


def coupled_grpo(
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    beta: float = 0.0,
    rate_low: float = 0.2,
    rate_high: float = 0.8,
    advantage: AdvantageName = "leave_one_out",
) -> Objective:
    """PPO on s_i = [l_i(full) + l_i(m) m_i / gamma + l_i(1 - m) (1 - m_i) / (1 - gamma)] / 2, gamma ~ U(0.2, 0.8).

    loss = sum_i [PPO(rho_i, A) + beta k3_i] / number of response tokens, rho_i = exp(s_i - s_i^old) on the same masks.
    The weights add up to 3/2 in expectation, as published, so rho_i is a power 3/2 of a likelihood ratio. gamma is
    drawn for each row (published: once per batch). The paper's own run: clip 0.5, beta 0.01, 2 updates per rollout.

    Args:
        clip_low: see `ppo_token`.
        clip_high: see `ppo_token`.
        dual_clip: see `ppo_token`.
        beta: weight of k3 to the reference, on the same scores s_i.
        rate_low: least gamma.
        rate_high: largest gamma.
        advantage: `"center"`, `"group_normalize"` or `"leave_one_out"`.

    Returns:
        Objective; three forwards per update.
    """
    expect_range("rate_low", rate_low, 1e-6, rate_high)
    expect_range("rate_high", rate_high, rate_low, 1 - 1e-6)
    return token_policy(
        "coupled_grpo",
        partial(coupled, low=rate_low, high=rate_high),
        advantage_named(advantage),
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        beta=beta,
    )


def coupled_grpo_dare_compat() -> Objective:
    """coupled-GRPO with the numbers of the DARE reference: z-score (a group of one keeps its reward), dual clip 3.

    Its mistake is not reproduced: one mask, drawn from seed 42, for all samples and steps.

    Returns:
        Objective.
    """
    return token_policy(
        "coupled_grpo_dare_compat",
        coupled,
        partial(group_normalize, singleton="raw"),
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=3.0,
        beta=0.0,
    )
