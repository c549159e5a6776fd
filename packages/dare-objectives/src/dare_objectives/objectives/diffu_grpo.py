"""diffu-GRPO of d1 (arXiv 2504.12216): one forward with the whole response masked."""

from functools import partial

from dare_objectives._errors import expect_range
from dare_objectives.advantages import group_normalize
from dare_objectives.objective import Objective
from dare_objectives.objectives.token_policy import AdvantageName, advantage_named, token_policy
from dare_objectives.plans.full_response import full_response

__all__ = ["diffu_grpo", "diffu_grpo_dare_compat"]


def diffu_grpo(
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    beta: float = 0.0,
    prompt_mask: float = 0.15,
    advantage: AdvantageName = "center",
) -> Objective:
    """PPO on the mean-field token log-probs log p(y_i | prompt with 15 % masked, response all masked).

    loss = sum_i [PPO(rho_i, A) + beta k3_i] / number of response tokens, rho_i = p_i / p_i^old under the same prompt
    mask, A = r - mean_G r. The paper's own run: clip 0.5 on both sides, beta 0.04, 12 updates per rollout, each with
    fresh masks (give the batch keys of the iteration).

    Args:
        clip_low: see `ppo_token`.
        clip_high: see `ppo_token`.
        dual_clip: see `ppo_token`.
        beta: weight of k3 to the reference.
        prompt_mask: rate of masked prompt tokens.
        advantage: `"center"`, `"group_normalize"` or `"leave_one_out"`.

    Returns:
        Objective; one forward per update.
    """
    expect_range("prompt_mask", prompt_mask, 0.0, 1.0)
    return token_policy(
        "diffu_grpo",
        partial(full_response, prompt_mask=prompt_mask),
        advantage_named(advantage),
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        beta=beta,
    )


def diffu_grpo_dare_compat() -> Objective:
    """diffu-GRPO with the numbers of the DARE reference: z-score (a group of one keeps its reward), dual clip 3, no KL.

    Its mistakes are not reproduced: a factor that counts the keys of a dictionary, a mean per micro-batch and the
    training of filler after the end token.

    Returns:
        Objective.
    """
    return token_policy(
        "diffu_grpo_dare_compat",
        partial(full_response, prompt_mask=0.15),
        partial(group_normalize, singleton="raw"),
        clip_low=0.2,
        clip_high=0.2,
        dual_clip=3.0,
        beta=0.0,
    )
