"""The numbers of a report, the same for every format."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final, NamedTuple

from dare_eval.record import Record, Row

__all__ = ["Lengths", "cells", "examples", "headings", "lengths", "reasons", "settings"]

_DETAILS: Final = re.compile(r"'[^']*'|\"[^\"]*\"|-?\d+(?:[./]\d+)*")
_EXPECTED: Final = re.compile(r"expected (?!.*\bgot\b).*|finds it likelier than .*", re.DOTALL)
SHOWN: Final = 3


class Lengths(NamedTuple):
    """Statistics of completions."""

    mean: float
    median: int
    longest: int
    ended: float
    """Share with an end token."""
    empty: float
    """Share without any token before it."""


def lengths(record: Record) -> Lengths:
    """Lengths in tokens and how completions end."""
    sizes = sorted(row.tokens for row in record.rows)
    n = len(sizes)
    ended = sum(not row.truncated for row in record.rows)
    return Lengths(sum(sizes) / n, sizes[n // 2], sizes[-1], ended / n, sizes.count(0) / n)


def reasons(record: Record) -> list[tuple[str, int]]:
    """Why completions failed and how often: numbers and quotations left out, so that like faults count together."""
    found = Counter(_kind(row) for row in record.rows if row.correct is not True)
    return found.most_common()


def _kind(row: Row) -> str:
    kind = "wrong" if row.status == "ok" else row.status
    if _EXPECTED.fullmatch(row.reason):
        return f"{kind}: another answer"
    return f"{kind}: {_DETAILS.sub('…', row.reason)[:80]}"


def examples(record: Record) -> list[Row]:
    """A few completions to read: unreadable, wrong and right ones."""
    chosen: list[Row] = []
    for kind in (None, False, True):
        chosen += [row for row in record.rows if row.correct is kind][:SHOWN]
    return chosen


def headings() -> list[str]:
    """Of `cells`."""
    scores = ["record", "task", "accuracy", "interval", "n", "chance", "no answer"]
    return [*scores, "ended", "tokens", "forwards", "tok/fwd", "tok/s", "protocol", "checkpoint"]


def cells(name: str, record: Record) -> list[str]:
    """One line of the table of records."""
    rows = len(record.rows)
    sizes, generated = lengths(record), record.protocol.mode == "generate"
    low, high = record.interval
    samples = record.protocol.samples
    return [
        name,
        record.protocol.task,
        f"{record.score:.1%}",
        f"{low:.1%} – {high:.1%}",
        f"{record.n}" if samples == 1 else f"{record.n} × {samples}",
        f"{record.chance:.2%}",
        f"{record.unparsable / rows:.1%}",
        f"{sizes.ended:.0%}" if generated else "–",
        f"{sizes.mean:.1f}",
        f"{sum(row.nfe for row in record.rows) / rows:.1f}",
        f"{record.tokens_per_forward:.2f}" if generated else "–",
        f"{record.tokens_per_second:,.0f}",
        record.protocol_hash[:8],
        record.checkpoint[:8],
    ]


def settings(record: Record) -> list[tuple[str, str]]:
    """The protocol and the conditions, one line each."""
    protocol = record.protocol.model_dump(mode="json")
    shown = {key: value for key, value in protocol.items() if value not in (None, {}, [], "", ())}
    if record.protocol.mode == "generate":
        shown.pop("likelihood", None)
    extra = {"model": record.model, "device": record.device, "dtype": record.dtype, "decoding": record.decoding}
    extra |= {"versions": ", ".join(f"{name} {number}" for name, number in record.versions.items())}
    return [(key, _line(value)) for key, value in {**shown, **extra}.items() if value != ""]


def _line(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_line(inner)}" for key, inner in value.items() if inner not in (None, {}, []))
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_line, value))
    return str(value)
