"""The loss of BGPO (arXiv 2510.11683): a bound of the ratio that is a sum over Monte-Carlo draws."""

import torch
from torch import Tensor

from dare_objectives.losses.clip import clip_gain
from dare_objectives.losses.ppo import check_clips
from dare_objectives.losses.tangent import tangent_exp, tangent_expm1
from dare_objectives.metrics import Metrics, masked_max, masked_mean

__all__ = ["bgpo_loss"]


def bgpo_loss(
    elbo: Tensor,
    old: Tensor,
    advantage: Tensor,
    weight: Tensor,
    *,
    length: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    normaliser: Tensor | float,
) -> tuple[Tensor, Metrics]:
    """sum_b w_b sum_j max(-A_b g_bj, -A_b clip(g_bj)) / normaliser, g = 1 + d for A >= 0, exp(d) for A < 0.

    BGPO (arXiv 2510.11683), d_bj = (elbo_bj - old_bj) / length_b. With G = mean_j d_j the exact ratio is exp(G); since
    exp(x) >= 1 + x and mean exp(d_j) >= exp(G), the objective A g is a lower bound of A exp(G) for both signs, equal in
    value and gradient at d = 0. It is a sum over the draws: they may be computed one at a time (`stream_backward`).
    1 + d is taken as such, so it is finite for d <= -1 as well.

    Args:
        elbo: `[B, n]`, one bound per draw under the new policy.
        old: `[B, n]`, of the old policy on the same masks; constants.
        advantage: `[B]`.
        weight: bool or float `[B]`; rows with weight 0 are ignored, whatever they hold.
        length: `[B]`, valid response tokens, at least 1 where the weight is not 0.
        clip_low: see `ppo_token`; the clip acts on each draw.
        clip_high: see `ppo_token`.
        dual_clip: see `ppo_token`.
        normaliser: of the whole batch: B n for the mean over draws and sequences.

    Returns:
        (scalar, metrics `ratio`, `ratio_max`, `log_ratio_max`, `approx_kl`, `clip_fraction`, `dual_clip_fraction`) over
        draws and of delta.

    Raises:
        ValueError: for a clip out of range.
    """
    check_clips(clip_low, clip_high, dual_clip)
    on = (weight != 0)[:, None].expand_as(elbo)
    A = advantage.to(elbo.dtype)[:, None].expand_as(elbo)
    delta = torch.where(on, elbo - old.detach(), 0.0) / torch.where(on, length.to(elbo.dtype)[:, None], 1.0)
    g = torch.where(A < 0, tangent_exp(delta), 1 + delta)
    low, high, ceiling = 1 - clip_low, 1 + clip_high, dual_clip or torch.inf
    held = clip_gain(g, A, low=low, high=high, ceiling=ceiling)
    clipped = ((A < 0) & (g < low)) | ((A > 0) & (g > high))
    metrics: Metrics = {
        "ratio": masked_mean(g, on),
        "ratio_max": masked_max(g, on, empty=1.0),
        "log_ratio_max": masked_max(delta.abs(), on),
        "approx_kl": masked_mean(tangent_expm1(delta) - delta, on),
        "clip_fraction": masked_mean(clipped.to(g.dtype), on),
        "dual_clip_fraction": masked_mean(((A < 0) & (g > ceiling)).to(g.dtype), on),
    }
    return (weight.to(g.dtype)[:, None] * -A * held).sum() / normaliser, metrics
