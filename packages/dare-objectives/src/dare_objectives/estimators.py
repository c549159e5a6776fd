"""Likelihood estimators: from the log-probs of a plan's streams to scores of tokens or sequences.

All are linear in the log-probs and ignore whatever stands off target.
"""

import torch
from torch import Tensor

from dare_objectives._errors import expect
from dare_objectives.plan import Plan

__all__ = ["elbo_draws", "elbo_seq", "token_logp", "weighted_token_logp"]


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
