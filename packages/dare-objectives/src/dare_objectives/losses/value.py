"""Regression of a critic."""

import torch
from torch import Tensor

from dare_objectives._errors import expect_range
from dare_objectives.metrics import Metrics, masked_mean

__all__ = ["value_loss"]


def value_loss(
    value: Tensor,
    old: Tensor,
    ret: Tensor,
    weight: Tensor,
    *,
    clip: float | None = 0.2,
    normaliser: Tensor | float,
) -> tuple[Tensor, Metrics]:
    """1/2 sum w max((V - R)^2, (V_clip - R)^2) / normaliser, V_clip = V_old + clip(V - V_old, -c, c).

    The clipped regression of PPO (arXiv 1707.06347), as TraceRL has it (arXiv 2509.06949): a value that moved by more
    than c towards its return has no gradient.

    Args:
        value: values of the critic, any shape.
        old: values before the update, same shape; constants.
        ret: returns, same shape; constants.
        weight: bool or float, same shape; entries with weight 0 are ignored, whatever they hold.
        clip: c, or None for plain squares.
        normaliser: computed on the whole batch, so that the losses of micro-batches add up.

    Returns:
        (scalar, metrics `value`, `return`, `value_error` (squared), `value_clip_fraction`).

    Raises:
        ValueError: for a negative clip.
    """
    if clip is not None:
        expect_range("clip", clip, 0.0, torch.inf)
    on = weight != 0
    value, old, ret = (torch.where(on, x, 0.0) for x in (value, old.detach(), ret.detach()))
    square = (value - ret) ** 2
    held = square if clip is None else (old + (value - old).clamp(-clip, clip) - ret) ** 2
    metrics: Metrics = {
        "value": masked_mean(value, on),
        "return": masked_mean(ret, on),
        "value_error": masked_mean(square, on),
        "value_clip_fraction": masked_mean((held > square).to(value.dtype), on),
    }
    return (weight.to(value.dtype) * torch.maximum(square, held)).sum() / 2 / normaliser, metrics
