"""MDPO (arXiv 2508.13148): reward the complete prediction of every denoising step."""

from functools import partial

import torch
from torch import Tensor

from dare_objectives._errors import expect_count, expect_range
from dare_objectives.advantages import group_normalize
from dare_objectives.batch import Batch
from dare_objectives.estimators import token_logp
from dare_objectives.losses.kl import kl_k2
from dare_objectives.losses.ppo import check_clips, ppo_token
from dare_objectives.metrics import Mean, Metrics, masked_mean
from dare_objectives.objective import Advantage, Coefficients, Objective, at_least_one
from dare_objectives.objectives.trajectory_policy import anchored, broadcast, weighted_terms
from dare_objectives.plan import Plan
from dare_objectives.plans.given_states import given_states
from dare_objectives.records import states_of
from dare_objectives.score import Scored, logp_of
from dare_objectives.steps import mdpo_steps, steps_by_importance

__all__ = ["mdpo", "mdpo_dare_compat", "open_states"]


def mdpo(
    *,
    steps: int | None = 16,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    beta: float = 0.0,
    eps: float = 1e-4,
) -> Objective:
    """PPO on the predictions for all open positions M_k of the K denoising steps that matter most.

    loss = sum_bk sum_{i in M_bk} c_bki [lambda_bk PPO(rho_bki, A_bk) + beta d^2/2] / sum_bk |M_bk|, with the recorded
    confidence c, lambda_bk = L_b / |M_bk|, d = log p - log p_ref (MDPO, arXiv 2508.13148). A_bk is the z-score, step by
    step, of `mdpo_credit`; K steps of largest sum_b |A_bk| in the whole batch are kept. Published: rollouts at
    temperature 0.1, with logits divided by it in training as well (`evaluate(..., temperature=0.1)`), 128 steps, K 16,
    beta 0 to 0.04.

    The rewards are those of `batch.states`, one per step; those given to `prepare` are only reported.

    Args:
        steps: K, or None for all.
        clip_low: see `ppo_token`.
        clip_high: see `ppo_token`.
        dual_clip: see `ppo_token`.
        beta: weight of the squared distance to the reference; above 0 it is needed.
        eps: added to the standard deviation.

    Returns:
        Objective that needs `states`; K forwards per update once the plan is cut by `active_streams`.
    """
    advantage = partial(group_normalize, eps=eps)
    return _mdpo("mdpo", steps, advantage, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip, beta=beta)


def mdpo_dare_compat() -> Objective:
    """MDPO with the numbers of DARE: eps 1e-6, a group of one keeps its credit, no divergence.

    Its mistakes are not reproduced: lambda and the normaliser count positions after the end token, the temperature is
    left out of training, metrics mix up steps and rows.

    Returns:
        Objective.
    """
    advantage = partial(group_normalize, singleton="raw")
    return _mdpo("mdpo_dare_compat", 16, advantage, clip_low=0.2, clip_high=0.2, dual_clip=None, beta=0.0)


def _mdpo(
    name: str,
    steps: int | None,
    advantage: Advantage,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
    beta: float,
) -> Objective:
    if steps is not None:
        expect_count("steps", steps)
    check_clips(clip_low, clip_high, dual_clip)
    expect_range("beta", beta, 0.0, torch.inf)
    per_step = partial(mdpo_steps, advantage=advantage)
    options = {"clip_low": clip_low, "clip_high": clip_high, "dual_clip": dual_clip, "beta": beta}
    return Objective(
        name=name,
        plan=open_states,
        estimator=weighted_terms,
        advantage=per_step,
        prepare=partial(step_coefficients, advantage=per_step, steps=steps, every_row=beta > 0),
        loss=partial(confident_loss, **options),
        needs=frozenset({"states", "old", "ref"} if beta else {"states", "old"}),
    )


def open_states(batch: Batch) -> Plan:
    """Score the recorded prediction at each open maskable position of each step, with its confidence as weight."""
    states = states_of(batch)
    target = (states.inputs == batch.mask_id) & batch.maskable[:, None]
    labels = torch.where(target, states.tokens, batch.tokens[:, None])
    return given_states(batch, states.inputs, target, labels=labels, weight=states.confidence)


def step_coefficients(
    batch: Batch,
    plan: Plan,
    rewards: Tensor | None = None,
    detached: Tensor | None = None,
    *,
    advantage: Advantage,
    steps: int | None,
    every_row: bool,
) -> Coefficients:
    """Advantages of all steps; lambda as weight of the chosen ones, 0 for the others."""
    states = states_of(batch)
    value = advantage(states.rewards, batch.group)
    open_ = plan.target.sum(2)
    chosen = torch.zeros_like(open_[:1], dtype=torch.bool)
    chosen[:, steps_by_importance(value)[:steps]] = True
    lam = torch.where(chosen & (open_ > 0), batch.lengths[:, None].to(value.dtype) / open_.clamp(min=1), 0.0)
    earns = (lam != 0).any(1) if every_row else ((lam != 0) & (value != 0)).any(1)
    return Coefficients(
        advantage=value[:, :, None],
        row_weight=earns.to(value.dtype),
        normaliser=at_least_one((open_ * chosen).sum()),
        metrics=_metrics(states.rewards, rewards, value),
        token_weight=lam[:, :, None],
    )


def _metrics(step_rewards: Tensor, rewards: Tensor | None, advantage: Tensor) -> dict[str, Mean]:
    rewards = step_rewards[:, -1] if rewards is None else rewards
    return {
        "reward": Mean(rewards.sum(), len(rewards)),
        "step_reward": Mean(step_rewards.sum(), step_rewards.numel()),
        "zero_advantage": Mean((advantage == 0).sum(), advantage.numel()),
    }


def confident_loss(
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
) -> tuple[Tensor, Metrics]:
    """PPO weighted by lambda c, plus beta k2 to the reference weighted by c alone."""
    assert coefficients.token_weight is not None
    logp = token_logp(logp_of(scored), plan)
    before = logp.detach() if old is None else token_logp(logp_of(old), plan)
    trust = plan.weight.to(logp.dtype) * broadcast(coefficients.row_weight, logp)
    loss, metrics = ppo_token(
        logp,
        before,
        broadcast(coefficients.advantage, logp),
        trust * coefficients.token_weight,
        clip_low=clip_low,
        clip_high=clip_high,
        dual_clip=dual_clip,
        normaliser=coefficients.normaliser,
    )
    if not beta:
        return loss, metrics
    trust = trust * (coefficients.token_weight != 0)
    distance = kl_k2(logp, anchored(before, ref, plan, beta, "ref"))
    metrics["kl_ref"] = masked_mean(distance, trust != 0)
    return loss + beta * (trust * distance).sum() / coefficients.normaliser, metrics
