"""Everything masked at once."""

import torch

from dare_objectives._errors import expect_range
from dare_objectives.batch import Batch
from dare_objectives.keyed import uniform
from dare_objectives.plan import Plan, mask_plan

__all__ = ["full_response"]


def full_response(batch: Batch, *, prompt_mask: float = 0.0) -> Plan:
    """Mask and score every maskable token; mask each prompt token with probability `prompt_mask`, unscored.

    The mean-field likelihood of diffu-GRPO (d1, arXiv 2504.12216). The prompt mask is drawn for each row.

    Args:
        batch: B sequences.
        prompt_mask: rate at which prompt tokens are hidden.

    Returns:
        Plan of one stream with weights 1.
    """
    expect_range("prompt_mask", prompt_mask, 0.0, 1.0)
    hidden = batch.prompt & (uniform(batch.keys[:, None], "prompt", batch.columns) < prompt_mask)
    target = batch.maskable[:, None]
    return mask_plan(batch, target | hidden[:, None], torch.ones((), device=target.device), target=target)
