"""Training rows: where they come from, their stable ids, and their keyed order."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dare_eval.tasks import GeneratedTask, Item, generated_task
from dare_models import DiffusionLM
from dare_objectives.keyed import PURPOSES, fold, make_key

from .config import DataConfig, JsonlData, TaskData
from .errors import DataError

__all__ = ["Row", "encode_texts", "load_rows", "load_task", "rows_of_step"]

_MASK_63 = (1 << 63) - 1


@dataclass(frozen=True)
class Row:
    """One training example."""

    uid: int
    """Stable 63-bit id: equal for equal content, whatever its place in the file."""
    prompt: str
    completion: str | None = None
    """What SFT learns; RL does not read it."""
    columns: dict[str, Any] = field(default_factory=dict)
    """The other columns, forwarded to rewards."""
    item: Item | None = None
    """The problem, where the row comes from a task generator."""


def load_task(config: TaskData) -> GeneratedTask:
    """The task generator of a configuration.

    Raises:
        DataError: for an unknown task or option, with the nearest known one.
    """
    try:
        return generated_task(config.task, config.options)
    except (ValueError, ImportError, AttributeError) as error:
        raise DataError(f"`data.task`={config.task!r}: {error}") from error


def load_rows(config: DataConfig, *, completions: bool) -> list[Row]:
    """All rows of a data set, validated.

    Args:
        config: a task draw or a JSON-lines file.
        completions: whether the rows must hold a completion (SFT).

    Raises:
        DataError: naming the row and field that cannot be used.
    """
    if isinstance(config, TaskData):
        try:
            items = load_task(config).generate("train", config.size, config.seed)
        except ValueError as error:
            raise DataError(str(error)) from error
        return [Row(uid=i.uid, prompt=i.prompt, completion=i.answer, columns=dict(i.data), item=i) for i in items]
    return _read_jsonl(config, completions)


def _read_jsonl(config: JsonlData, completions: bool) -> list[Row]:
    needed = ("prompt", "completion") if completions else ("prompt",)
    try:
        lines = config.path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read `data.path`={str(config.path)!r}: {error}") from error
    rows = [_parse(config.path, n, line, needed) for n, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise DataError(f"{config.path} holds no rows; write one JSON object per line with {', '.join(needed)}")
    return rows


def _parse(path: Path, number: int, line: str, needed: Sequence[str]) -> Row:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise DataError(f"{path}:{number}: not JSON ({error.msg}); write one object per line") from error
    if not isinstance(value, dict):
        raise DataError(f"{path}:{number}: expected an object, got {type(value).__name__}")
    for name in needed:
        if not isinstance(value.get(name), str):
            has = f"{name!r} is {value[name]!r}" if name in value else f"its fields are {sorted(value)}"
            raise DataError(f"{path}:{number}: the row needs a text field {name!r}; {has}")
    digest = hashlib.sha256(json.dumps(value, sort_keys=True, ensure_ascii=False).encode()).digest()
    return Row(
        uid=int.from_bytes(digest[:8], "big") & _MASK_63,
        prompt=value["prompt"],
        completion=value.get("completion"),
        columns={k: v for k, v in value.items() if k not in ("prompt", "completion")},
    )


def encode_texts(texts: Sequence[str], lm: DiffusionLM, field: str) -> list[list[int]]:
    """Token ids of one field of all rows.

    Raises:
        DataError: for a text that the tokenizer cannot represent.
    """
    encoded: list[list[int]] = []
    for number, text in enumerate(texts, 1):
        try:
            encoded.append(lm.encode(text))
        except ValueError as error:
            raise DataError(f"row {number}, `{field}`: {error}") from error
    return encoded


def rows_of_step(count: int, batch: int, step: int, seed: int) -> list[tuple[int, int]]:
    """The rows that a step sees, as (index, epoch): a keyed permutation per epoch, read `batch` at a time.

    The whole order is a function of the seed, so that the cursor of a resumed run is the step itself. An epoch's tail
    is completed from the next epoch.

    >>> rows_of_step(count=3, batch=2, step=1, seed=0)[0][1], rows_of_step(count=3, batch=2, step=1, seed=0)[1][1]
    (0, 1)
    """
    orders: dict[int, list[int]] = {}
    picked: list[tuple[int, int]] = []
    for position in range(step * batch, (step + 1) * batch):
        epoch, offset = divmod(position, count)
        if epoch not in orders:
            orders[epoch] = _permutation(count, make_key(seed, PURPOSES["order"], epoch))
        picked.append((orders[epoch][offset], epoch))
    return picked


def _permutation(count: int, key: int) -> list[int]:
    words = fold(torch.full((count,), key, dtype=torch.int64), torch.arange(count))
    return torch.sort(words, stable=True).indices.tolist()
