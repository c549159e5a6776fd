"""Floating-point types by name."""

from __future__ import annotations

import torch

__all__ = ["FLOATS", "as_dtype", "dtype_name"]

FLOATS = ("float64", "float32", "float16", "bfloat16")


def as_dtype(dtype: str | torch.dtype) -> torch.dtype:
    """Return a floating-point torch dtype by name.

    Raises:
        ValueError: unknown name.

    >>> as_dtype("bfloat16")
    torch.bfloat16
    """
    name = dtype if isinstance(dtype, str) else dtype_name(dtype)
    name = name.removeprefix("torch.")
    if name not in FLOATS:
        raise ValueError(f"expected `dtype` to be one of {list(FLOATS)}, got {dtype!r}")
    return getattr(torch, name)


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a torch dtype, as config files have it.

    >>> dtype_name(torch.bfloat16)
    'bfloat16'
    """
    return str(dtype).removeprefix("torch.")
