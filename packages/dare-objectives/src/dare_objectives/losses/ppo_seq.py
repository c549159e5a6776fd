"""PPO on one ratio per sequence, clipped in the log domain (EBPO, arXiv 2602.08676; ESPO, arXiv 2512.03759)."""

from math import log, log1p

import torch
from torch import Tensor

from dare_objectives.losses.clip import clip_gain
from dare_objectives.losses.ppo import check_clips
from dare_objectives.losses.tangent import tangent_exp, tangent_expm1
from dare_objectives.metrics import Metrics, masked_max, masked_mean

__all__ = ["ppo_seq"]


def ppo_seq(
    score: Tensor,
    old: Tensor,
    advantage: Tensor,
    weight: Tensor,
    *,
    length: Tensor | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    normaliser: Tensor | float,
) -> tuple[Tensor, Metrics]:
    """sum w max(-A rho, -A clip(rho, 1 - low, 1 + high)) / normaliser with log rho = (score - old) / length.

    EBPO (arXiv 2602.08676) without `length`, ESPO (arXiv 2512.03759) with it. log rho is clipped before exp is taken:
    a clipped sequence has gradient 0 however far it moved, where exp first would give infinity times 0. A sequence
    with A < 0 and no dual clip keeps its gradient, on the tangent of exp beyond log rho = 40.

    Args:
        score: `[B]`, sequence scores of the new policy; finite where the weight is not 0, like `old`.
        old: `[B]`, of the old policy; constants.
        advantage: `[B]`.
        weight: bool or float `[B]`; entries with weight 0 are ignored, whatever they hold.
        length: `[B]`, at least 1 where the weight is not 0, or None for the raw difference.
        clip_low: in [0, 1]; for A < 0 a ratio below 1 - clip_low earns nothing more.
        clip_high: 0 or more; for A > 0 a ratio above 1 + clip_high earns nothing more.
        dual_clip: c > 1, bounds the loss of A < 0 by -A c, or None.
        normaliser: computed on the whole batch, so that the losses of micro-batches add up.

    Returns:
        (scalar, metrics `ratio`, `ratio_max`, `log_ratio_max`, `approx_kl`, `clip_fraction`, `clip_low_fraction`,
        `clip_high_fraction`, `dual_clip_fraction`).

    Raises:
        ValueError: for a clip out of range.
    """
    check_clips(clip_low, clip_high, dual_clip)
    on = weight != 0
    advantage = advantage.to(score.dtype)
    log_ratio = torch.where(on, score - old.detach(), 0.0)
    if length is not None:
        log_ratio = log_ratio / torch.where(on, length.to(score.dtype), 1.0)
    low, high = log1p(-clip_low) if clip_low < 1 else -torch.inf, log1p(clip_high)
    ceiling = torch.inf if dual_clip is None else log(dual_clip)
    held = clip_gain(log_ratio, advantage, low=low, high=high, ceiling=ceiling)
    loss = (weight.to(score.dtype) * -advantage * tangent_exp(held)).sum() / normaliser
    return loss, _metrics(log_ratio, advantage, on, low, high, ceiling)


def _metrics(log_ratio: Tensor, advantage: Tensor, on: Tensor, low: float, high: float, ceiling: float) -> Metrics:
    below, above = (advantage < 0) & (log_ratio < low), (advantage > 0) & (log_ratio > high)
    ratio = tangent_exp(log_ratio)
    return {
        "ratio": masked_mean(ratio, on),
        "ratio_max": masked_max(ratio, on, empty=1.0),
        "log_ratio_max": masked_max(log_ratio.abs(), on),
        "approx_kl": masked_mean(tangent_expm1(log_ratio) - log_ratio, on),
        "clip_fraction": masked_mean((below | above).to(ratio.dtype), on),
        "clip_low_fraction": masked_mean(below.to(ratio.dtype), on),
        "clip_high_fraction": masked_mean(above.to(ratio.dtype), on),
        "dual_clip_fraction": masked_mean(((advantage < 0) & (log_ratio > ceiling)).to(ratio.dtype), on),
    }
