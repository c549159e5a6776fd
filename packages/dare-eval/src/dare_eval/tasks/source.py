"""The rows of a data set: from the hub, or from files in the same columns."""

import csv
import json
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final

__all__ = ["DataError", "miniature", "read_rows"]

ENDINGS: Final = ("jsonl", "json", "parquet", "csv")


class DataError(ValueError):
    """The data of a task cannot be read, or too many of its rows are unusable."""


def read_rows(
    task: str, hub: str, configs: tuple[str, ...], split: str, theirs: str, data: Path | None
) -> list[tuple[str, dict[str, Any]]]:
    """The rows of a split, each with the name of the configuration that it comes from.

    A folder holds `SPLIT.jsonl` (or .json, .parquet, .csv), under the hub's name of the split or ours, or
    `CONFIG/SPLIT.jsonl` where there are several configurations.

    Args:
        task: named in errors.
        hub: repository of the data set.
        configs: its configurations to read, in this order; one empty name where it has none.
        split: our name of the split.
        theirs: the hub's.
        data: a folder in place of the hub.

    Raises:
        DataError: where there are no such files, or the hub cannot be reached.
    """
    found: list[tuple[str, dict[str, Any]]] = []
    for config in configs:
        names = theirs, split
        rows = _from_hub(task, hub, config, theirs) if data is None else _from_files(task, data, config, names)
        found += [(config, dict(row)) for row in rows]
    return found


def _from_hub(task: str, hub: str, config: str, split: str) -> Iterator[Mapping[str, Any]]:
    from datasets import load_dataset  # noqa: PLC0415 - slow, and only needed here

    try:
        rows: Any = load_dataset(hub, config or None, split=split)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"cannot read split {split!r} of {hub!r} for task {task!r}: {reason}; go online, or give a folder with"
            f" {split}.jsonl in the same columns (`data`, --data)"
        ) from error
    yield from rows


def _from_files(task: str, data: Path, config: str, names: tuple[str, str]) -> Iterator[Mapping[str, Any]]:
    folders = [data / config, data] if config else [data]
    paths = [folder / f"{name}.{ending}" for name in names for folder in folders for ending in ENDINGS]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        files = " or ".join(f"{name}.jsonl" for name in dict.fromkeys(names))
        raise DataError(f"expected {files} (or .json, .parquet, .csv) of task {task!r} in {folders[0]}, got none")
    try:
        match path.suffix:
            case ".jsonl":
                lines = path.read_text(encoding="utf-8").split("\n")
                rows: Any = [json.loads(line) for line in lines if line.strip()]
            case ".json":
                rows = json.loads(path.read_text(encoding="utf-8"))
            case ".csv":
                with path.open(encoding="utf-8", newline="") as file:
                    rows = list(csv.DictReader(file))
            case _:
                from datasets import Dataset  # noqa: PLC0415 - slow, and only needed here

                rows = list(Dataset.from_parquet(str(path)))
    except (ValueError, OSError) as error:
        raise DataError(f"cannot read {path}: {error}") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"expected a list of rows with named columns in {path}, got something else")
    yield from rows


def miniature(task: str) -> Path:
    """A folder with a few rows of our own in the columns of a benchmark, to try things with and to test.

    Raises:
        ValueError: for a task without one.
    """
    folder = Path(str(resources.files("dare_eval.tasks"))) / "miniatures" / task
    if not folder.is_dir():
        raise ValueError(f"task {task!r} has no miniature; benchmarks have one")
    return folder
