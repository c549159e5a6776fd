"""Floating-point types: names, and what float64 must mean."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn

ModuleT = TypeVar("ModuleT", bound=nn.Module)

FLOATS = ("float64", "float32", "float16", "bfloat16")


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return a floating-point torch dtype by name.

    Raises:
        ValueError: unknown name.

    >>> as_dtype("bfloat16")
    torch.bfloat16
    """
    name = str(dtype).removeprefix("torch.")
    if name not in FLOATS:
        raise ValueError(f"expected `dtype` to be one of {list(FLOATS)}, got {dtype!r}")
    return getattr(torch, name)


def place(module: ModuleT, dtype: str | torch.dtype, device: str | torch.device) -> ModuleT:
    """Cast the parameters of a module and move it, in place; in float64 its norms compute in float64 too.

    Buffers keep their dtype: rotary frequencies in bfloat16 would be wrong angles. transformers' RMS norms compute in
    float32 whatever the dtype, which would leave float64 no better than 1e-8. Parameters get memory of their own: in
    the mapped file they lie where its header ends, and matrix products may round by alignment.

    Args:
        module: a transformers model.
        dtype: floating-point type.
        device: where it goes.

    Returns:
        The module.
    """
    wanted = as_dtype(dtype)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(wanted, copy=True)
    module.to(device=device)
    if wanted is torch.float64:
        for parent in list(module.modules()):
            for name, norm in list(parent.named_children()):
                if hasattr(norm, "variance_epsilon"):
                    setattr(parent, name, _exact_norm(norm))
    return module


def _exact_norm(norm: Any) -> nn.RMSNorm:
    """Return torch's own norm around the same weight."""
    exact = nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon)
    exact.weight = norm.weight
    return exact
