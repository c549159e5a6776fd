"""How much a Monte-Carlo estimate can be trusted, as metrics that merge over micro-batches."""

import torch
from torch import Tensor

from dare_objectives._errors import expect
from dare_objectives.metrics import Mean, Metrics, masked_mean

__all__ = ["draw_metrics", "effective_size", "weight_metrics"]


def effective_size(log_weight: Tensor, mask: Tensor | None = None) -> Tensor:
    """Effective sample size of importance weights w = exp(log_weight), (sum w)^2 / sum w^2, over the last axis.

    Args:
        log_weight: `[..., N]`.
        mask: bool `[..., N]`, the weights that count; default: all.

    Returns:
        `[...]`, between 1 and the number that count, 0 if none does; finite for any finite weights.

    >>> effective_size(torch.tensor([[5.0, 5.0, 5.0], [0.0, -900.0, -900.0]]))
    tensor([3., 1.])
    """
    mask = torch.ones_like(log_weight, dtype=torch.bool) if mask is None else mask
    log_weight = torch.where(mask, log_weight, -torch.inf)
    top = log_weight.amax(-1, keepdim=True)
    weight = torch.where(mask, (log_weight - top).exp(), 0.0)
    return torch.where(mask.any(-1), weight.sum(-1) ** 2 / (weight**2).sum(-1), 0.0)


def draw_metrics(draws: Tensor, *, rows: Tensor | None = None) -> Metrics:
    """Spread of the K draws of one estimate, such as `elbo_draws`, averaged over the rows.

    Args:
        draws: `[B, K]`.
        rows: bool `[B]`, the rows that count; default: all.

    Returns:
        `draw_variance`, the unbiased variance of one draw, and `estimate_variance`, that of the mean of K independent
        ones (stratified or paired draws have another); nothing for K = 1, which shows no spread.
    """
    expect("draws", draws, "B K", {})
    if draws.shape[1] < 2:
        return {}
    rows = torch.ones_like(draws[:, 0], dtype=torch.bool) if rows is None else rows
    variance = draws.detach().var(1)
    return {
        "draw_variance": masked_mean(variance, rows),
        "estimate_variance": masked_mean(variance / draws.shape[1], rows),
    }


def weight_metrics(log_weight: Tensor, mask: Tensor | None = None) -> Metrics:
    """Effective sample size of the importance weights of each row (log ratios of tokens or draws), as a share.

    Args:
        log_weight: `[B, N]`.
        mask: bool `[B, N]`, the weights that count; default: all.

    Returns:
        `effective_share`: mean over the rows with any weight of ESS / number of weights; 1 on policy.
    """
    expect("log_weight", log_weight, "B N", sizes := {})
    mask = torch.ones_like(log_weight, dtype=torch.bool) if mask is None else mask
    expect("mask", mask, "B N", sizes, dtype=torch.bool)
    count = mask.sum(1)
    share = effective_size(log_weight.detach(), mask) / count.clamp(min=1)
    return {"effective_share": Mean(share.sum(), (count > 0).sum())}
