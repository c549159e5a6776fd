"""The trajectory of left-to-right decoding."""

from dataclasses import replace

import torch

from dare_objectives._errors import expect_count
from dare_objectives.batch import Batch
from dare_objectives.plan import Plan
from dare_objectives.plans.trajectory import trajectory

__all__ = ["left_to_right"]


def left_to_right(batch: Batch, chunk: int = 1) -> Plan:
    """Score `chunk` tokens at a time from left to right, all later ones hidden.

    chunk = 1 is the exact autoregressive factorisation (JustGRPO, arXiv 2601.15165), with one forward per token. Equal
    to `trajectory` with the step map floor(i / chunk) of the i-th maskable token. Tokens between the maskable ones
    (the turns of others) are seen from the chunk after the one before them.

    Args:
        batch: B sequences; a step map that it has plays no part.
        chunk: tokens per stream, at least 1.

    Returns:
        Plan of ceil(L / chunk) streams for the longest row, with weights 1.
    """
    expect_count("chunk", chunk)
    step = (batch.maskable.cumsum(1) - 1).div(chunk, rounding_mode="floor")
    return trajectory(replace(batch, step_map=torch.where(batch.valid, step, -1).to(torch.int32)))
