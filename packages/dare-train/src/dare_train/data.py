"""Training rows: where they come from, their stable ids, and their keyed order."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dare_eval.sandbox import SandboxError
from dare_eval.tasks import Item, Task, get_task
from dare_models import DiffusionLM
from dare_objectives.keyed import PURPOSES, fold, make_key

from .config import DataConfig, JsonlData, TaskData
from .errors import DataError

__all__ = ["Row", "encode_pairs", "encode_prompts", "load_rows", "load_task", "rows_of_step"]

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
    """The problem, where the row comes from a task."""
    chat: bool = False
    """Whether the prompt is a user message."""


def load_task(config: TaskData) -> Task:
    """The task of a configuration.

    Raises:
        DataError: for an unknown task or option, with the nearest known one, or a system that cannot judge it.
    """
    try:
        task = get_task(config.task, config.options, data=config.folder)
        task.conditions()
    except (ValueError, ImportError, AttributeError, SandboxError) as error:
        raise DataError(f"`data.task`={config.task!r}: {error}") from error
    return task


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
            items = load_task(config).problems("train", config.size, config.seed)
        except ValueError as error:
            raise DataError(str(error)) from error
        if completions and (bare := [item for item in items if not item.answer]):
            raise DataError(f"task {config.task!r} shows no answers to learn ({len(bare)} of {len(items)}); use RL")
        return [
            Row(uid=i.uid, prompt=i.prompt, completion=i.answer, columns=dict(i.data), item=i, chat=config.chat)
            for i in items
        ]
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


def encode_prompts(rows: Sequence[Row], lm: DiffusionLM) -> list[list[int]]:
    """Token ids of all prompts.

    Raises:
        DataError: for a text that the tokenizer cannot represent, or a chat without a template.
    """
    return [_encoded(lm, row.prompt, f"row {number}, `prompt`", row.chat) for number, row in enumerate(rows, 1)]


def encode_pairs(rows: Sequence[Row], lm: DiffusionLM, end: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Token ids of prompts and completions, each closed: chats as the template closes a turn, others by `end`.

    Raises:
        DataError: for a text that the tokenizer cannot represent, or a chat that its template cannot render.
    """
    pairs: list[tuple[list[int], list[int]]] = []
    for number, row in enumerate(rows, 1):
        if row.chat:
            turns = [{"role": "user", "content": row.prompt}, {"role": "assistant", "content": row.completion or ""}]
            try:
                ids, trained = lm.dialogue(turns)
            except ValueError as error:
                raise DataError(f"row {number}: {error}") from error
            start = trained.index(True)
            pairs.append((ids[:start], ids[start:]))
        else:
            completion = _encoded(lm, row.completion or "", f"row {number}, `completion`")
            pairs.append((_encoded(lm, row.prompt, f"row {number}, `prompt`"), [*completion, *end]))
    return pairs


def _encoded(lm: DiffusionLM, text: str, where: str, chat: bool = False) -> list[int]:
    try:
        return lm.encode(text, chat=chat)
    except ValueError as error:
        raise DataError(f"{where}: {error}") from error


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
