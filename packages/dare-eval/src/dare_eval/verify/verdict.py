"""What a verifier says about one completion."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Status", "Verdict"]

Status = Literal["ok", "unparsable", "ambiguous"]
"""`ok`: an answer was found and judged, right or wrong. `unparsable`: no answer in the agreed format. `ambiguous`: more
than one."""

_SHOWN = 200


def _shorten(text: str) -> str:
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


@dataclass(frozen=True)
class Verdict:
    """A judgement. Make it with `right`, `wrong`, `unparsable` or `ambiguous`.

    >>> Verdict.wrong("2 is not 3", pred="2")
    Verdict(correct=False, score=0.0, status='ok', reason='2 is not 3', pred='2', parts={})
    """

    correct: bool | None
    """The only input of accuracy; None where nothing could be judged."""
    score: float
    """In [0, 1], possibly shaped: a reward for training, never an accuracy."""
    status: Status
    reason: str
    """Why the completion is not correct; empty where it is."""
    pred: str | None
    """The answer that was judged, shortened for display."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named sub-scores."""

    @classmethod
    def right(cls, pred: str, *, parts: Mapping[str, float] | None = None) -> "Verdict":
        """A correct answer: score 1."""
        return cls(True, 1.0, "ok", "", _shorten(pred), parts or {})

    @classmethod
    def wrong(
        cls, reason: str, *, pred: str, score: float = 0.0, parts: Mapping[str, float] | None = None
    ) -> "Verdict":
        """An answer that was understood and is wrong."""
        return cls(False, score, "ok", reason, _shorten(pred), parts or {})

    @classmethod
    def unparsable(cls, reason: str, *, pred: str | None = None, parts: Mapping[str, float] | None = None) -> "Verdict":
        """No answer in the agreed format: score 0, counted apart from wrong ones."""
        return cls(None, 0.0, "unparsable", reason, None if pred is None else _shorten(pred), parts or {})

    @classmethod
    def ambiguous(cls, reason: str, *, pred: str) -> "Verdict":
        """Several answers: score 0, counted with the unparsable ones."""
        return cls(None, 0.0, "ambiguous", reason, _shorten(pred), {})
