"""Toy rollouts for objectives that replay a trajectory."""

from dataclasses import replace

import torch

from dare_objectives.batch import Batch
from dare_objectives.keyed import uniform

__all__ = ["with_step_map"]


def with_step_map(batch: Batch, *, steps: int = 3) -> Batch:
    """The batch with a random step map: `steps` steps for each block, one block after the other.

    Some steps commit several tokens and some none. Tokens that are not maskable have step -1.

    Args:
        batch: B sequences, such as `toy_batch()`.
        steps: steps for each block.

    Returns:
        Batch with `step_map`.
    """
    local = (uniform(batch.keys[:, None], "order", batch.columns) * steps).long().clamp(max=steps - 1)
    step = torch.where(batch.maskable, batch.blocks.long() * steps + local, -1)
    return replace(batch, step_map=step.to(torch.int32))
