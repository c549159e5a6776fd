"""How far an evaluation is."""

from collections.abc import Iterable
from dataclasses import dataclass

from dare_eval.record import Row

__all__ = ["Progress", "progress_of"]


@dataclass(frozen=True)
class Progress:
    """How far an evaluation is, completions of earlier runs included."""

    done: int
    """Completions that were judged, or problems in likelihood mode."""
    total: int
    correct: int
    unparsable: int
    tokens: int = 0
    """Useful tokens so far."""
    seconds: float = 0.0
    """Seconds of decoding so far."""


def progress_of(rows: Iterable[Row], total: int, seconds: float) -> Progress:
    """The counts of the rows so far."""
    found = [(row.correct, row.tokens) for row in rows]
    verdicts = [correct for correct, _ in found]
    tokens = sum(count for _, count in found)
    return Progress(len(found), total, verdicts.count(True), verdicts.count(None), tokens, seconds)
