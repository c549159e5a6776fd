"""Likelihood estimators: from the log-probs of a plan's streams to scores of tokens or sequences.

All ignore whatever stands off target; all but the upper bounds are linear in the log-probs.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from dare_objectives._errors import expect, expect_range
from dare_objectives._order import dense_rank
from dare_objectives.plan import Plan

__all__ = [
    "cart_weights",
    "elbo_draws",
    "elbo_mean",
    "elbo_seq",
    "eubo_mean",
    "eubo_token",
    "seq_sum",
    "token_logp",
    "transition_weights",
    "weighted_token_logp",
]


def token_logp(logp: Tensor, plan: Plan) -> Tensor:
    """Log-prob of each scored token in each stream, l_ki.

    Args:
        logp: `[B, K, S]`.
        plan: the plan that was scored.

    Returns:
        `[B, K, S]`, 0 off target.
    """
    expect("logp", logp, "B K S", dict(zip("BKS", plan.target.shape, strict=True)))
    return torch.where(plan.target, logp, 0.0)


def weighted_token_logp(logp: Tensor, plan: Plan) -> Tensor:
    """Weighted score of each token over the streams, sum_k w_ki l_ki.

    Args:
        logp: `[B, K, S]`.
        plan: the plan that was scored.

    Returns:
        `[B, S]`, 0 where no stream scores.
    """
    return (plan.weight.to(logp.dtype) * token_logp(logp, plan)).sum(1)


def elbo_draws(logp: Tensor, plan: Plan) -> Tensor:
    """One evidence lower bound per stream, sum_i w_ki l_ki.

    Args:
        logp: `[B, K, S]`.
        plan: the plan that was scored.

    Returns:
        `[B, K]`.
    """
    return (plan.weight.to(logp.dtype) * token_logp(logp, plan)).sum(2)


def elbo_seq(logp: Tensor, plan: Plan) -> Tensor:
    """Mean over the streams of their evidence lower bounds.

    Args:
        logp: `[B, K, S]`.
        plan: the plan that was scored.

    Returns:
        `[B]`.
    """
    return elbo_draws(logp, plan).mean(1)


def elbo_mean(logp: Tensor, plan: Plan) -> Tensor:
    """Lower bound per token of SPG (arXiv 2510.09541): mean over the streams of mean_{i in M_k} l_ki, no 1/t.

    Equals `elbo_seq` over L for the weights L/|M_k| of `block_suffix`. A stream without targets counts as 0.

    Args:
        logp: `[B, K, S]`.
        plan: the plan that was scored; its weights play no part.

    Returns:
        `[B]`, 0 without targets.
    """
    return (token_logp(logp, plan).sum(2) / plan.target.sum(2).clamp(min=1)).mean(1)


def eubo_token(logp: Tensor, plan: Plan, beta: float) -> Tensor:
    """Upper bound of each token, u_i = 1/beta log (1/n sum_k w_ki p_ki^beta), p = exp l (SPG, arXiv 2510.09541).

    With w_ki = L/|M_k|, the weights of `block_suffix`, over n = K streams. Computed as a logsumexp of beta l: powers
    of small probabilities, as published, underflow to 0, which there passes for "not masked".

    Args:
        logp: `[B, K, S]`.
        plan: the plan that was scored.
        beta: above 0; at least 1 for a bound, and l_i as beta -> 0 where w has mean 1.

    Returns:
        `[B, S]`, 0 where no stream scores.
    """
    expect_range("beta", beta, torch.finfo(torch.float32).tiny, torch.inf)
    scored = plan.scored[:, None]
    power = beta * token_logp(logp, plan) + plan.weight.to(logp.dtype).clamp(min=0).log()
    power = torch.where(plan.target, power, -torch.inf).masked_fill(~scored, 0.0)
    bound = (power.logsumexp(1) - math.log(plan.streams)) / beta
    return torch.where(plan.scored, bound, 0.0)


def eubo_mean(logp: Tensor, plan: Plan, beta: float) -> Tensor:
    """Upper bound per token of SPG (arXiv 2510.09541): mean of `eubo_token` over the tokens scored at least once.

    Args:
        logp: `[B, K, S]`.
        plan: the plan that was scored, with weights L/|M_k|.
        beta: see `eubo_token`.

    Returns:
        `[B]`, 0 without targets. With one stream its gradient is that of `elbo_mean`.
    """
    return eubo_token(logp, plan, beta).sum(1) / plan.scored.sum(1).clamp(min=1)


def seq_sum(logp: Tensor, plan: Plan) -> Tensor:
    """Sum of the log-probs of all targets, without weights: sum_k sum_i l_ki.

    The mean-field log-likelihood of a full mask (wd1, arXiv 2507.08838), the log-likelihood of a trajectory.

    Args:
        logp: `[B, K, S]`.
        plan: the plan that was scored.

    Returns:
        `[B]`.
    """
    return token_logp(logp, plan).sum((1, 2))


def cart_weights(
    masked: Tensor, p: float = 0.3, *, visible: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Context-adaptive weights of Dream (arXiv 2508.15487): w_i = 1/2 sum_{j visible} p (1 - p)^{|i - j| - 1}.

    A masked token counts for as much as it has unmasked ones nearby; they take the place of 1/t.

    Args:
        masked: bool `[..., S]`.
        p: parameter of the geometric distribution, in (0, 1].
        visible: bool `[..., S]`, the tokens that count; default: all that are not masked. Pass `valid & ~masked`, so
            that padding does not count (in the published code it does).
        dtype: of the result.

    Returns:
        `[..., S]`, 0 where not masked.
    """
    expect_range("p", p, 1e-6, 1.0)
    seen = (~masked if visible is None else visible & ~masked).to(dtype)
    weight = p / 2 * (_decaying_sum(seen, 1 - p) + _decaying_sum(seen.flip(-1), 1 - p).flip(-1))
    return torch.where(masked, weight, 0.0)


def _decaying_sum(x: Tensor, ratio: float) -> Tensor:
    """sum_{d >= 1} ratio^(d - 1) x_{i - d} in log S additions, the same whatever follows i."""
    total, reach = _shift(x, 1), 1
    while reach < x.shape[-1]:
        total = total + ratio**reach * _shift(total, reach)
        reach *= 2
    return total


def _shift(x: Tensor, by: int) -> Tensor:
    return torch.nn.functional.pad(x, (by, 0))[..., : x.shape[-1]]


def transition_weights(
    plan: Plan, *, per: Literal["sequence", "block"] = "sequence", dtype: torch.dtype = torch.float32
) -> Tensor:
    """Weight of each target such that all transitions of a sequence count alike: 1/(|U| x number of transitions).

    CJ-GRPO (arXiv 2509.23924) for block models, as DARE has it. U are the targets of one transition.

    Args:
        plan: a plan of `trajectory`.
        per: what a transition is: the targets of a stream, or, if all blocks advance together, those of a stream in
            one block.
        dtype: of the result.

    Returns:
        `[B, K, S]`, 0 off target; the sum of each row with targets is 1.
    """
    block = torch.zeros_like(plan.blocks, dtype=torch.int64)
    if per == "block":
        block = dense_rank(plan.blocks, plan.valid).clamp(min=0)
    place = block[:, None].expand_as(plan.target)
    size = torch.zeros_like(place).scatter_add(2, place, plan.target.long())
    count = size.gather(2, place) * (size > 0).sum((1, 2))[:, None, None]
    return torch.where(plan.target, 1 / count.clamp(min=1).to(dtype), 0.0)
