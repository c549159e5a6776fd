"""Clipped policy gradient on token scores."""

import torch
from torch import Tensor

from dare_objectives._errors import expect_range
from dare_objectives.losses.tangent import tangent_exp, tangent_expm1
from dare_objectives.metrics import Metrics, masked_max, masked_mean

__all__ = ["check_clips", "ppo_token"]


def check_clips(clip_low: float, clip_high: float, dual_clip: float | None) -> None:
    """Refuse clip ranges that `ppo_token` has no meaning for."""
    expect_range("clip_low", clip_low, 0.0, 1.0)
    expect_range("clip_high", clip_high, 0.0, torch.inf)
    if dual_clip is not None and not dual_clip > 1:
        raise ValueError(
            f"`dual_clip`: expected a number above 1, or None, got {dual_clip!r}; "
            "at 1 or less it would cut the gradient of on-policy tokens"
        )


def ppo_token(
    logp: Tensor,
    old: Tensor,
    advantage: Tensor,
    weight: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    normaliser: Tensor | float,
) -> tuple[Tensor, Metrics]:
    """sum w max(-A rho, -A clip(rho, 1 - low, 1 + high)) / normaliser with rho = exp(logp - old).

    PPO (arXiv 1707.06347). With `dual_clip` c the loss of a token with A < 0 is at most -A c (arXiv 1912.09729).
    rho is exactly 1 where `old` equals `logp` bit by bit. Beyond logp - old = 40 it continues as the tangent of exp: no
    overflow turns a clipped gradient into nan, and a token with A < 0 and no dual clip keeps the gradient -A exp(40).

    Args:
        logp: scores of the new policy, any shape; finite where the weight is not 0, like `old`.
        old: scores of the old policy, same shape; constants.
        advantage: broadcasts to `logp`.
        weight: bool or float, same shape; entries with weight 0 are ignored, whatever they hold.
        clip_low: in [0, 1]; for A < 0 a ratio below 1 - clip_low earns nothing more.
        clip_high: 0 or more; for A > 0 a ratio above 1 + clip_high earns nothing more.
        dual_clip: c > 1, or None.
        normaliser: computed on the whole batch, so that the losses of micro-batches add up.

    Returns:
        (scalar, metrics `ratio`, `ratio_max`, `log_ratio_max`, `approx_kl`, `clip_fraction`, `dual_clip_fraction`).

    Raises:
        ValueError: for a clip out of range.
    """
    check_clips(clip_low, clip_high, dual_clip)
    on = weight != 0
    advantage = advantage.to(logp.dtype)
    log_ratio = torch.where(on, logp - old.detach(), 0.0)
    ratio = tangent_exp(log_ratio)
    plain = -advantage * ratio
    clipped = -advantage * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(plain, clipped)
    bound = torch.where(advantage < 0, -advantage * (dual_clip or torch.inf), torch.inf)
    metrics: Metrics = {
        "ratio": masked_mean(ratio, on),
        "ratio_max": masked_max(ratio, on, empty=1.0),
        "log_ratio_max": masked_max(log_ratio.abs(), on),
        "approx_kl": masked_mean(tangent_expm1(log_ratio) - log_ratio, on),
        "clip_fraction": masked_mean((clipped > plain).to(ratio.dtype), on),
        "dual_clip_fraction": masked_mean((loss > bound).to(ratio.dtype), on),
    }
    return (weight.to(loss.dtype) * torch.minimum(loss, bound)).sum() / normaliser, metrics
