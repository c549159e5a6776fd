"""Weighted negative log-likelihood."""

import torch
from torch import Tensor

__all__ = ["weighted_nll"]


def weighted_nll(logp: Tensor, weight: Tensor, *, normaliser: Tensor | float) -> Tensor:
    """-sum w log p / normaliser.

    Args:
        logp: log-probs, any shape; entries with weight 0 are ignored, whatever they hold.
        weight: same shape.
        normaliser: computed on the whole batch, so that the losses of micro-batches add up.

    Returns:
        Scalar.

    >>> float(weighted_nll(torch.tensor([-1.0, -2.0]), torch.tensor([1.0, 0.0]), normaliser=2))
    0.5
    """
    return -(weight.to(logp.dtype) * torch.where(weight != 0, logp, 0.0)).sum() / normaliser
