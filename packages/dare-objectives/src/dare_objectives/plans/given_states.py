"""States that the rollout recorded."""

import torch
from torch import Tensor

from dare_objectives._errors import expect
from dare_objectives.batch import Batch
from dare_objectives.plan import Plan

__all__ = ["given_states"]


def given_states(
    batch: Batch, inputs: Tensor, target: Tensor, *, labels: Tensor | None = None, weight: Tensor | None = None
) -> Plan:
    """Score `labels` in recorded states, such as the x0 predictions of each step of MDPO (arXiv 2508.13148).

    Args:
        batch: B sequences.
        inputs: int64 `[B, K, S]`, the states.
        target: bool `[B, K, S]`, the scored positions; they need not be open.
        labels: int64 `[B, K, S]` (or `[B, K, S, C]`); default: the clean tokens.
        weight: floating `[B, K, S]`, ignored off target; default: 1.

    Returns:
        Plan of K streams.
    """
    sizes = dict(zip("BS", batch.tokens.shape, strict=True))
    expect("inputs", inputs, "B K S", sizes, dtype=torch.int64)
    expect("target", target, "B K S", sizes, dtype=torch.bool)
    given = torch.ones(target.shape, device=target.device) if weight is None else weight
    return Plan(
        inputs=inputs,
        target=target,
        labels=batch.tokens[:, None].expand_as(inputs) if labels is None else labels,
        weight=torch.where(target, given, torch.zeros((), dtype=given.dtype, device=given.device)),
        clean=batch.tokens,
        valid=batch.valid,
        blocks=batch.blocks,
    )
