"""Shape checks and hints for error messages."""

from collections.abc import Iterable
from difflib import get_close_matches

import torch
from torch import Tensor

__all__ = ["expect", "expect_count", "expect_range", "suggest"]


def expect(
    name: str, tensor: Tensor, axes: str, sizes: dict[str, int], *, dtype: torch.dtype | tuple[torch.dtype, ...] = ()
) -> None:
    """Check rank, sizes and dtype of one argument; axis names not yet in `sizes` are bound to the sizes found.

    >>> sizes = {}
    >>> expect("tokens", torch.zeros(2, 3), "B S", sizes), sizes
    (None, {'B': 2, 'S': 3})
    """
    names = axes.split()
    found = tuple(tensor.shape)
    wanted = tuple(sizes.get(axis, found[i] if i < len(found) else -1) for i, axis in enumerate(names))
    if len(found) != len(names) or found != wanted:
        known = {axis: sizes[axis] for axis in names if axis in sizes}
        raise ValueError(f"`{name}`: expected shape [{', '.join(names)}] with {known}, got {list(found)}")
    allowed = (dtype,) if isinstance(dtype, torch.dtype) else dtype
    if allowed and tensor.dtype not in allowed:
        raise ValueError(f"`{name}`: expected {' or '.join(map(str, allowed))}, got {tensor.dtype}; convert it first")
    sizes.update(zip(names, found, strict=True))


def expect_range(name: str, value: float, low: float, high: float) -> None:
    """Check that an option lies in the closed interval [low, high]."""
    if not low <= value <= high:
        raise ValueError(f"`{name}`: expected a number in [{low:g}, {high:g}], got {value!r}")


def expect_count(name: str, value: int) -> None:
    """Check that a count is at least 1."""
    if not value >= 1:
        raise ValueError(f"`{name}`: expected a count of at least 1, got {value!r}")


def suggest(kind: str, word: str, choices: Iterable[str]) -> str:
    """The message for an unknown word, with the nearest known one."""
    known = sorted(choices)
    near = get_close_matches(word, known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? Known" if near else "known"
    return f"unknown {kind} {word!r}; {hint}: {', '.join(known) or 'none'}"
