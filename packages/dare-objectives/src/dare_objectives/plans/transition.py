"""Transitions between two states of a denoising tree."""

import torch
from torch import Tensor

from dare_objectives._errors import expect
from dare_objectives.batch import Batch
from dare_objectives.plan import Plan

__all__ = ["transition"]


def transition(batch: Batch, parent: Tensor, child: Tensor, active: Tensor | None = None) -> Plan:
    """See the parent, score the tokens that it has open and the child has set (d-TreeRPO, arXiv 2512.09675).

    What changed is read from the tokens. The published code infers it from log-probs other than 0, which leaves out
    tokens of probability 1.

    Args:
        batch: B sequences; `tokens` are what stands in the clean stream of a block model.
        parent: int64 `[B, K, S]`, the states before.
        child: int64 `[B, K, S]`, the states after.
        active: bool `[B, K, S]`, what may be scored, such as the tokens through the child's first end token; default:
            `batch.maskable`.

    Returns:
        Plan of K streams with weights 1.

    Raises:
        ValueError: where a child changes a token that its parent had set.
    """
    sizes = dict(zip("BS", batch.tokens.shape, strict=True))
    expect("parent", parent, "B K S", sizes, dtype=torch.int64)
    expect("child", child, "B K S", sizes, dtype=torch.int64)
    active = batch.maskable[:, None] if active is None else active
    valid, open_ = batch.valid[:, None], parent == batch.mask_id
    if bool((valid & ~open_ & (child != parent)).any()):
        raise ValueError("`child`: expected the parent's tokens where these are set, got others; is it another node's?")
    target = valid & open_ & (child != batch.mask_id) & active
    return Plan(
        inputs=parent,
        target=target,
        labels=torch.where(target, child, batch.tokens[:, None]),
        weight=target.to(torch.float32),
        clean=batch.tokens,
        valid=batch.valid,
        blocks=batch.blocks,
    )
