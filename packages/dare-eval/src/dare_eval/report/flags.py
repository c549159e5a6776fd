"""What looks wrong with a record, with rows to look at."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from dare_eval.record import UNDECIDED, Record, Row
from dare_eval.sampling import LladaSampler, PresetSampler, ThresholdSampler

__all__ = ["Flag", "flags"]

FEW: Final = 10
"""Below so many completions nothing is said of shares."""
SHOWN: Final = 3


@dataclass(frozen=True)
class Flag:
    """A suspicion."""

    name: str
    """In a few words."""
    detail: str
    """What was found, and what to look for."""
    rows: tuple[Row, ...]
    """Completions that show it."""


def flags(record: Record) -> list[Flag]:
    """Everything that looks suspicious about a record; an empty list says only that none of the checks objects."""
    found = [check(record) for check in _CHECKS]
    return [flag for flag in found if flag is not None]


def _none_right(record: Record) -> Flag | None:
    parsed = [row for row in record.rows if row.correct is not None]
    if record.correct or len(parsed) < FEW or len(parsed) < 0.8 * len(record.rows):
        return None
    detail = (
        f"{len(parsed)} of {len(record.rows)} answers were read and none is right: is the label or the filter broken?"
    )
    return Flag("many answers, none right", detail, tuple(parsed[:SHOWN]))


def _filters_apart(record: Record) -> Flag | None:
    judged = [row for row in record.rows if row.lenient is not None]
    lost = [row for row in judged if row.lenient and row.correct is not True]
    if len(judged) < FEW or len(lost) < 0.1 * len(judged):
        return None
    share = sum(row.lenient is True for row in judged) / len(judged)
    strict = sum(row.correct is True for row in judged) / len(judged)
    detail = (
        f"{strict:.1%} under the verifier, {share:.1%} under its lenient filter: answers are lost to form; see the"
        " prompt and the template"
    )
    return Flag("strict and lenient filters far apart", detail, tuple(lost[:SHOWN]))


def _other_blocks(record: Record) -> Flag | None:
    trained, sampler = record.block_length, record.protocol.sampler
    if isinstance(sampler, LladaSampler | ThresholdSampler):
        decoded: object = sampler.block_length
    else:
        decoded = sampler.settings.get("block_length") if isinstance(sampler, PresetSampler) else None
    if record.protocol.mode != "generate" or trained is None or not isinstance(decoded, int) or trained % decoded == 0:
        return None
    detail = f"trained with blocks of {trained}, decoded with blocks of {decoded}; use a length that divides {trained}"
    return Flag("blocks that the model was not trained with", detail, record.rows[:SHOWN])


def _empty(record: Record) -> Flag | None:
    blank = [row for row in record.rows if row.tokens == 0]
    if record.protocol.mode != "generate" or len(record.rows) < FEW or len(blank) < 0.3 * len(record.rows):
        return None
    detail = (
        f"{len(blank)} of {len(record.rows)} completions end at once; end tokens may win by confidence (eos=suppress)"
    )
    return Flag("empty completions", detail, tuple(blank[:SHOWN]))


def _cut(record: Record) -> Flag | None:
    if record.protocol.mode != "generate" or record.protocol.eos == "suppress" or len(record.rows) < FEW:
        return None
    lost = [row for row in record.rows if row.truncated and row.correct is None]
    if len(lost) < 0.2 * len(record.rows):
        return None
    detail = f"{len(lost)} of {len(record.rows)} completions fill the canvas and hold no answer; raise gen_length"
    return Flag("answers cut off", detail, tuple(lost[:SHOWN]))


def _unreadable(record: Record) -> Flag | None:
    lost = [row for row in record.rows if row.correct is None]
    if len(record.rows) < FEW or len(lost) < 0.2 * len(record.rows):
        return None
    detail = f"{len(lost)} of {len(record.rows)} completions have no readable answer and count as not solved"
    return Flag("answers that cannot be read", detail, tuple(lost[:SHOWN]))


def _chance(record: Record) -> Flag | None:
    if record.chance == 0 or record.interval[0] > record.chance:
        return None
    detail = (
        f"the interval [{record.interval[0]:.1%}, {record.interval[1]:.1%}] reaches down to chance, {record.chance:.2%}"
    )
    return Flag("no better than chance", detail, ())


def _dropped(record: Record) -> Flag | None:
    short = [row for row in record.rows if row.dropped]
    if not short:
        return None
    detail = f"{len(short)} prompts had no room for all {record.protocol.shots} demonstrations and lost some"
    return Flag("demonstrations left out", detail, ())


def _undecided(record: Record) -> Flag | None:
    close = [row for row in record.rows if row.margin is not None and row.margin < UNDECIDED]
    if len(close) < 0.1 * len(record.rows):
        return None
    detail = (
        f"in {len(close)} of {len(record.rows)} problems the choice is within the noise of the draws; raise `draws`"
    )
    return Flag("choices within the noise", detail, tuple(close[:SHOWN]))


_CHECKS: Final[Sequence[Callable[[Record], Flag | None]]] = (
    _none_right, _filters_apart, _other_blocks, _empty, _cut, _unreadable, _chance, _dropped, _undecided
)  # fmt: skip
