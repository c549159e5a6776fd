"""Row selection shared by every record that has one entry per sequence."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from dare_objectives._errors import expect

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Record = TypeVar("Record", bound=DataclassInstance)
else:
    Record = TypeVar("Record")

__all__ = ["Rows", "select_rows"]

Rows = slice | Tensor | Sequence[int]
"""Which rows: a slice, or integers or one bool per row as a tensor, a list or whatever else `torch.as_tensor` takes."""

_SHARED = (type(None), bool, int, float, str, tuple, Mapping)


def select_rows(record: Record, rows: Rows) -> Record:
    """The same record for some rows.

    Fields with rows (tensors with axes, or any object that indexes by rows) are indexed. Numbers, strings, tuples,
    mappings and 0-d tensors belong to all rows and stay.
    """
    if isinstance(rows, int):
        raise TypeError(f"`rows`: expected a slice, a tensor or a list, got {rows}; write slice({rows}, {rows} + 1)")
    index = rows if isinstance(rows, slice) else _index(rows)
    values = {f.name: getattr(record, f.name) for f in fields(record)}
    return replace(record, **{name: _pick(value, index) for name, value in values.items()})


def _index(rows: Tensor | Sequence[int]) -> Tensor:
    """int64 or bool `[N]`; an empty sequence, which torch would make float32, selects nothing."""
    index = torch.as_tensor(rows, dtype=torch.int64 if isinstance(rows, Sequence) and not rows else None)
    expect("rows", index, "N", {}, dtype=(torch.int64, torch.bool))
    return index


def _pick(value: Any, index: slice | Tensor) -> Any:
    if isinstance(value, _SHARED) or (isinstance(value, Tensor) and value.ndim == 0):
        return value
    return value[index]
