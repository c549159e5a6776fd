"""Compare two records on the same problems."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dare_eval.record import Record
from dare_eval.stats import bootstrap, mcnemar, paired_interval

__all__ = ["Comparison", "NotComparable", "compare"]

_PROMPTS = (
    "other token ids: tokenizer, chat template, or end, pad and mask tokens differ; `ignore` it to compare models that"
    " read text in their own ways"
)


class NotComparable(ValueError):
    """Two records differ in something that decides a score.

    Attributes:
        fields: the names of what differs.
    """

    def __init__(self, message: str, fields: tuple[str, ...]) -> None:
        super().__init__(message)
        self.fields = fields


@dataclass(frozen=True)
class Comparison:
    """b against a, paired by problem."""

    n: int
    score_a: float
    score_b: float
    difference: float
    """Accuracy of b minus accuracy of a."""
    interval: tuple[float, float]
    """Score interval of the difference (Tango); with several completions per problem, the bootstrap's."""
    bootstrap: tuple[float, float]
    """Percentile interval of the difference, from resampled problems."""
    level: float
    only_a: int
    """Problems that a solves and b does not, or more often than b."""
    only_b: int
    """Problems that b solves and a does not, or more often than a."""
    p_value: float
    """Exact two-sided McNemar test of "equally good"; with several completions per problem, a sign test."""
    notes: tuple[str, ...]
    """What else differs without deciding the score."""
    samples: int = 1
    """Completions per problem."""

    @property
    def test(self) -> str:
        """Name of the test behind the p-value."""
        return "exact McNemar" if self.samples == 1 else "sign test over problems"

    @property
    def conclusion(self) -> str:
        """What the interval allows to say."""
        low, high = self.interval
        return "b is better" if low > 0 else "a is better" if high < 0 else "no difference shown"


def compare(a: Record, b: Record, *, level: float = 0.95, ignore: Collection[str] = ()) -> Comparison:
    """Paired comparison of two records of one protocol.

    Args:
        a: the baseline.
        b: the record to compare with it.
        level: confidence level of the interval.
        ignore: of `"device"`, `"dtype"` and `"prompts"`, those that may differ. Nothing in the protocol can be ignored.

    Raises:
        NotComparable: if protocol, device, dtype or prompts differ, naming every field.
        ValueError: for another word in `ignore`.
    """
    conditions = {"device", "dtype", "prompts"}
    if not conditions.issuperset(ignore):
        raise ValueError(f"`ignore`: expected words of {sorted(conditions)}, got {sorted(ignore)}")
    unlike = dict(_differences(a.protocol.model_dump(mode="json"), b.protocol.model_dump(mode="json")))
    unlike |= dict(_conditions(a, b, conditions - set(ignore)))
    if unlike:
        found = ", ".join(f"{name} ({text})" for name, text in unlike.items())
        raise NotComparable(f"not comparable: {found}; score both with the same protocol", tuple(unlike))
    solved_a, solved_b = _solved(a), _solved(b)
    if solved_a.keys() != solved_b.keys():
        raise NotComparable("not comparable: rows (other problems); score again", ("rows",))
    gained = [solved_b[uid] - solved_a[uid] for uid in solved_a]
    only_a, only_b = sum(gain < 0 for gain in gained), sum(gain > 0 for gain in gained)
    resampled = bootstrap(gained, level=level)
    return Comparison(
        n=a.n,
        score_a=a.score,
        score_b=b.score,
        difference=sum(gained) / a.n,
        interval=paired_interval(only_a, only_b, a.n, level) if a.protocol.samples == 1 else resampled,
        bootstrap=resampled,
        level=level,
        only_a=only_a,
        only_b=only_b,
        p_value=mcnemar(only_a, only_b),
        notes=tuple(_notes(a, b, ignore)),
        samples=a.protocol.samples,
    )


def _solved(record: Record) -> dict[int, float]:
    """The share of each problem's completions that solve it."""
    return {
        uid: sum(row.correct is True for row in rows) / len(rows) for uid, rows in sorted(record.by_problem().items())
    }


def _differences(a: Mapping[str, Any], b: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted names of unequal leaves with both values."""
    for key in dict.fromkeys([*a, *b]):
        left, right = a.get(key, "–"), b.get(key, "–")
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            yield from _differences(left, right, f"{prefix}{key}.")
        elif left != right:
            yield f"{prefix}{key}", f"{_short(left)} ≠ {_short(right)}"


def _conditions(a: Record, b: Record, names: Collection[str]) -> Iterator[tuple[str, str]]:
    for name in sorted(names):
        left, right = getattr(a, name), getattr(b, name)
        if left != right:
            yield name, _PROMPTS if name == "prompts" else f"{left} ≠ {right}"


def _notes(a: Record, b: Record, ignored: Collection[str]) -> Iterator[str]:
    for name, text in [*_conditions(a, b, [*ignored, "batch_size"]), *_differences(a.versions, b.versions)]:
        yield f"{name}: {text}"
    if a.decoding and b.decoding and a.decoding != b.decoding:
        yield "decoding: the families' own strategies"
    if a.checkpoint == b.checkpoint:
        yield "checkpoint: the same weights"


def _short(value: object) -> str:
    text = repr(value) if isinstance(value, str) and len(value) < 13 else str(value)
    return text if len(text) <= 40 else f"{text[:12]}…"
