"""Estimators of KL(policy, reference) at sampled tokens or sequences (Schulman, 2020): one function per kind.

With d = log p - log q at a sample of p. None of them looks at the advantage.
"""

from torch import Tensor

from dare_objectives.losses.tangent import tangent_expm1

__all__ = ["kl_abs", "kl_k1", "kl_k1_corrected", "kl_k2", "kl_k3"]


def kl_k1(logp: Tensor, ref: Tensor) -> Tensor:
    """d: unbiased in value; its own gradient has expectation 0, so it belongs in the reward, not in a loss.

    Args:
        logp: log-probs of the policy, any shape.
        ref: log-probs of the reference, same shape.

    Returns:
        Same shape.
    """
    return logp - ref


def kl_k1_corrected(logp: Tensor, ref: Tensor) -> Tensor:
    """d with the gradient 1 + d of a score-function estimator: unbiased in value and in gradient.

    Args:
        logp: log-probs of the policy, any shape.
        ref: log-probs of the reference, same shape.

    Returns:
        Same shape.
    """
    d = logp - ref
    return d + d.detach() * (logp - logp.detach())


def kl_k2(logp: Tensor, ref: Tensor) -> Tensor:
    """d²/2: biased in value, unbiased in gradient.

    Args:
        logp: log-probs of the policy, any shape.
        ref: log-probs of the reference, same shape.

    Returns:
        Same shape, never negative.
    """
    return (logp - ref) ** 2 / 2


def kl_k3(logp: Tensor, ref: Tensor) -> Tensor:
    """exp(-d) + d - 1: unbiased in value, never negative.

    For d < -40 the exponential continues as its tangent: an outlier pulls back with the finite gradient 1 - exp(40).

    Args:
        logp: log-probs of the policy, any shape.
        ref: log-probs of the reference, same shape.

    Returns:
        Same shape.
    """
    d = logp - ref
    return tangent_expm1(-d) + d


def kl_abs(logp: Tensor, ref: Tensor) -> Tensor:
    """|d|: a distance, no estimator of the divergence.

    Args:
        logp: log-probs of the policy, any shape.
        ref: log-probs of the reference, same shape.

    Returns:
        Same shape.
    """
    return (logp - ref).abs()
