"""Finished rows on disk, so that an evaluation that was stopped goes on where it was."""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from dare_eval.protocol import digest
from dare_eval.record import RecordError, Row

__all__ = ["Cache", "Part", "Spent"]


class Spent(NamedTuple):
    """What some rows cost together."""

    forwards: int = 0
    seconds: float = 0.0

    def plus(self, other: "Spent") -> "Spent":
        """Both together."""
        return Spent(self.forwards + other.forwards, self.seconds + other.seconds)


class Part(NamedTuple):
    """Rows that were computed together."""

    rows: Sequence[Row]
    spent: Spent


class Cache:
    """A file of JSON lines, one per finished row, named after everything that decides a row.

    Lines are only ever appended. A line that was torn by a crash is passed over and its row computed again.

    Args:
        folder: is made if need be.
        identity: what decides a row: protocol, prompts, weights, device and dtype.

    Raises:
        RecordError: if the folder cannot be made.
    """

    def __init__(self, folder: Path, identity: Sequence[str]) -> None:
        self.path = folder / f"{digest(list(identity))[:24]}.jsonl"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RecordError(f"cannot make the cache {folder}: {error.strerror}; give another `cache`") from error

    def read(self) -> Part:
        """What is finished."""
        rows: dict[tuple[int, int], Row] = {}
        spent = Spent()
        text = self.path.read_text(encoding="utf-8", errors="replace") if self.path.exists() else ""
        for line in text.split("\n"):
            try:
                data: Any = json.loads(line)
                row = Row.model_validate(data["row"])
                cost = Spent(int(data["forwards"]), float(data["seconds"]))
            except (ValueError, KeyError, TypeError, ValidationError):
                continue  # torn
            rows.setdefault((row.uid, row.sample), row)
            spent = spent.plus(cost)
        return Part(list(rows.values()), spent)

    def append(self, rows: Iterable[Row], spent: Spent) -> None:
        """Add rows that were computed together; their cost stands with the first."""
        costs = [spent]
        lines: list[str] = []
        for row in rows:
            cost = costs.pop() if costs else Spent()
            lines.append(json.dumps({"row": row.model_dump(mode="json"), **cost._asdict()}))
        with self.path.open("a+b") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - 1, 0))
            torn = file.read(1) not in (b"", b"\n")
            file.write((("\n" if torn else "") + "\n".join(lines) + "\n").encode())
            file.flush()
            os.fsync(file.fileno())
