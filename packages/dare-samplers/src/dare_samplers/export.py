"""Trajectories as JSON lines: everything that happened to every row, readable without torch."""

import json
import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from torch import Tensor

from dare_samplers.output import SamplerOutput

__all__ = ["write_trajectories"]


def write_trajectories(
    out: SamplerOutput, path: str | os.PathLike[str], *, decode: Callable[[Sequence[int]], str] | None = None
) -> None:
    """Write one JSON object per row; the file appears whole or not at all, and replaces an older one.

    The objects have the keys `row`, `prompt` (ids left and right of the slots are one list), `slots` (columns of the
    response), `completion`, `finish`, `nfe`, `events` (lists `[step, position, old, new, log p, score, kind]`, from
    which the row can be replayed; a score without a number in JSON, such as -inf, is null), with `decode` also `text`;
    and `config`, the strategy.

    Args:
        out: what `generate` returned.
        path: the file.
        decode: ids to text, for example a tokenizer's `decode`.

    Raises:
        OSError: if the file cannot be written.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            for row in range(len(out.state)):
                file.write(json.dumps(_row(out, row, decode), ensure_ascii=False, allow_nan=False) + "\n")
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def _numbers(column: Tensor) -> list[float | None]:
    """The values of a column, None where JSON has no word for one."""
    values: list[float] = column.tolist()
    return [value if math.isfinite(value) else None for value in values]


def _row(out: SamplerOutput, row: int, decode: Callable[[Sequence[int]], str] | None) -> dict[str, object]:
    state, events = out.state, out.events
    here = (events.row == row).nonzero().flatten()
    columns = (events.step, events.position, events.old, events.new, events.logp, events.score, events.kind)
    given = (state.positions[row] >= 0) & (state.block[row] < 0)
    completion: list[int] = out.completions[row][out.completion_mask[row]].tolist()
    record: dict[str, object] = {
        "row": row,
        "prompt": state.tokens[row][given].tolist(),
        "slots": state.columns[row][state.has_slot[row]].tolist(),
        "completion": completion,
        "finish": out.finish_reason[row],
        "nfe": int(out.row_nfe[row]),
        "events": [list(event) for event in zip(*(_numbers(column[here]) for column in columns), strict=True)],
        "config": repr(out.config),
    }
    if decode is not None:
        record["text"] = decode(completion)
    return record
