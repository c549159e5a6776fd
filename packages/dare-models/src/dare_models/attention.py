"""Attention plans: a small description of who sees whom, turned into a mask as late as possible."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Full:
    """Every query sees every real key.

    Args:
        key_valid: [B, S] bool, False on padding; None where nothing is padding.
    """

    key_valid: Tensor | None = None


def materialise(plan: Full, *, backend: str, dtype: torch.dtype) -> Tensor | None:
    """Turn a plan into the mask that one attention backend expects.

    A row without any real key sees itself, so that no softmax is taken over nothing.

    Args:
        plan: who sees whom.
        backend: transformers' name of the attention implementation.
        dtype: type of an additive mask.

    Returns:
        None (everything visible); [B, 1, 1, S] bool for sdpa, in `dtype` and to be added for eager.

    Raises:
        ValueError: the backend cannot express the plan.

    >>> materialise(Full(torch.tensor([[True, False]])), backend="sdpa", dtype=torch.float32).tolist()
    [[[[True, False]]]]
    """
    if plan.key_valid is None:
        return None
    visible = (plan.key_valid | ~plan.key_valid.any(dim=1, keepdim=True))[:, None, None, :]
    if backend == "sdpa":
        return visible
    if backend == "eager":
        return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
    raise ValueError(
        f"expected attention backend 'sdpa' or 'eager' for rows with padding, got {backend!r}; "
        "load with backend='sdpa', or give rows of equal length"
    )
