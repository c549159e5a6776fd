"""The clip of PPO, told by the sign of the advantage."""

import torch
from torch import Tensor

__all__ = ["clip_gain"]


def clip_gain(x: Tensor, advantage: Tensor, *, low: float, high: float, ceiling: float) -> Tensor:
    """x held where a further move would earn something: at `high` for A >= 0, at `low` for A < 0.

    -A clip_gain(rho) = max(-A rho, -A clip(rho, low, high)), and for A < 0 at most -A `ceiling` (dual clip,
    arXiv 1912.09729). The same holds of log rho with the logarithms of the bounds.

    Args:
        x: ratios or their logarithms.
        advantage: broadcasts to `x`.
        low: lower end of the range.
        high: upper end of the range.
        ceiling: largest value for A < 0; infinity for none.

    Returns:
        Like `x`; the gradient is that of `x` where nothing is held, 0 elsewhere.

    >>> clip_gain(torch.tensor([0.5, 0.5]), torch.tensor([1.0, -1.0]), low=0.8, high=1.2, ceiling=torch.inf)
    tensor([0.5000, 0.8000])
    """
    return torch.where(advantage < 0, x.clamp(low, ceiling), x.clamp(max=high))
