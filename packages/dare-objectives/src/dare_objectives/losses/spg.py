"""The loss of SPG (arXiv 2510.09541): a lower bound is pushed up, an upper bound is pushed down."""

import torch
from torch import Tensor

from dare_objectives._errors import expect_range
from dare_objectives.losses.nll import weighted_nll
from dare_objectives.metrics import Metrics, masked_mean

__all__ = ["spg_loss"]


def spg_loss(
    lower: Tensor, upper: Tensor, advantage: Tensor, weight: Tensor, *, mix: float, normaliser: Tensor | float
) -> tuple[Tensor, Metrics]:
    """-sum_b w_b A_b s_b / normaliser with s = lower for A > 0 and omega upper + (1 - omega) lower for A < 0.

    SPG (arXiv 2510.09541). A row with A = 0 contributes nothing.

    Args:
        lower: `[B]`, lower bounds of the log-likelihood per token (`elbo_mean`).
        upper: `[B]`, upper bounds (`eubo_mean`).
        advantage: `[B]`.
        weight: bool or float `[B]`; rows with weight 0 are ignored, whatever they hold.
        mix: omega in [0, 1]; 0 takes the lower bound for both signs, 1 the upper one for A < 0.
        normaliser: computed on the whole batch, so that the losses of micro-batches add up.

    Returns:
        (scalar, metrics `lower`, `upper`, `bound_gap`, over the rows that count).

    Raises:
        ValueError: for a mix out of range.
    """
    expect_range("mix", mix, 0.0, 1.0)
    advantage, on = advantage.to(lower.dtype), weight != 0
    above = torch.where(advantage < 0, upper, lower)
    score = lower + mix * (above - lower)
    metrics: Metrics = {
        "lower": masked_mean(lower, on),
        "upper": masked_mean(upper, on),
        "bound_gap": masked_mean(upper - lower, on),
    }
    return weighted_nll(score, weight * advantage, normaliser=normaliser), metrics
