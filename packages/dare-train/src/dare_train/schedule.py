"""The learning rate as a pure function of the update: nothing to store, nothing to restore."""

import math

from .config import OptimConfig

__all__ = ["learning_rate"]


def learning_rate(config: OptimConfig, update: int, total: int) -> float:
    """Learning rate of the 0-based `update` out of `total`: linear warm-up, then constant or cosine.

    >>> config = OptimConfig(lr=1.0, warmup=2, schedule="cosine", final_ratio=0.0)
    >>> [round(learning_rate(config, i, 4), 3) for i in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    if update < config.warmup:
        return config.lr * (update + 1) / config.warmup
    if config.schedule == "constant":
        return config.lr
    progress = min(1.0, (update - config.warmup) / max(1, total - config.warmup))
    return config.lr * (config.final_ratio + (1 - config.final_ratio) * 0.5 * (1 + math.cos(math.pi * progress)))
