"""Score records: a number with everything that is needed to believe it."""

import json
import os
from collections.abc import Mapping, Sequence
from math import comb, isclose
from pathlib import Path
from typing import Any, Final, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator

from dare_eval.protocol import Protocol, digest
from dare_eval.stats import wilson
from dare_eval.verify import Status

__all__ = ["UNDECIDED", "Option", "Record", "RecordError", "Row"]

UNDECIDED: Final = 2.0
"""An option that leads by fewer standard errors of the difference is not certain to be the likeliest."""


class RecordError(ValueError):
    """A file is no intact score record, or must not be overwritten."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Option(_Frozen):
    """An answer and its log-likelihood."""

    value: float
    """Log-likelihood, normalised as the protocol says."""
    error: float = Field(ge=0)
    """Its standard error; 0 where it is exact."""


class Row(_Frozen):
    """One problem and what became of it.

    Raises:
        ValueError: (as pydantic's ValidationError) if verdict, score, status and reason contradict one another.
    """

    uid: int
    """The problem."""
    sample: int = Field(default=0, ge=0)
    """Which of the problem's completions this is."""
    correct: bool | None
    """None where no answer could be read."""
    score: float = Field(ge=0, le=1)
    """The verifier's, possibly shaped."""
    status: Status
    """Whether an answer was found."""
    reason: str
    """Why it is not correct."""
    pred: str | None
    """The answer that was judged, shortened."""
    completion: str
    """The text that was judged: what precedes the first end token, other special tokens included."""
    tokens: int = Field(ge=0)
    """Its length in tokens."""
    nfe: int = Field(ge=0)
    """Denoising forwards that this row took part in."""
    truncated: bool
    """No end token came before the canvas was full."""
    committed: int = Field(default=0, ge=0)
    """Positions that were decoded, those after the end token included."""
    lenient: bool | None = None
    """Whether the task's lenient filter, if it has one, finds the right answer."""
    dropped: int = Field(default=0, ge=0)
    """Demonstrations that were left out, because the context had no room for them."""
    options: tuple[Option, ...] = ()
    """The answers to choose from and how likely the model finds them, in likelihood mode."""
    margin: float | None = None
    """How far the most likely option is ahead of the second, in standard errors of their difference; None where both
    are exact, or nothing was compared."""
    picture: tuple[tuple[str, int], ...] | None = None
    """The decoded tokens and the step at which each was committed, for some of the problems."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (self.correct is None) != (self.status != "ok"):
            raise ValueError(f"expected `correct` None exactly where not ok, got {self.correct}, {self.status!r}")
        if (self.correct is True) != (self.reason == ""):
            raise ValueError(f"expected a `reason` for all but correct rows, got {self.correct}, {self.reason!r}")
        if self.score == 1 and self.correct is not True:
            raise ValueError(f"expected a `score` below 1 unless correct, got {self.score}, {self.correct}")
        return self


class Record(_Frozen):
    """The result of one evaluation. Make it with `evaluate`, or from rows with `Record.of`.

    Raises:
        ValueError: (as pydantic's ValidationError) if a field is missing, a summary does not follow from the rows, or
            the hash is another protocol's.
    """

    format: Literal["dare-eval/1"] = "dare-eval/1"
    """Of this file."""
    protocol: Protocol
    """Everything that decided the score except the model."""
    protocol_hash: str
    """`protocol.hash()`, printed with every score."""
    prompts: str = Field(min_length=1)
    """SHA-256 of the token ids that the model was given, and of its end, pad and mask ids."""
    checkpoint: str = Field(min_length=1)
    """Fingerprint of the weights."""
    device: str = Field(min_length=1)
    """Where it was computed; confidence-ordered decoding amplifies rounding, so scores differ between devices."""
    dtype: str = Field(min_length=1)
    """Floating-point type of the weights."""
    batch_size: int = Field(ge=1)
    """Rows decoded together at most; completions do not depend on it."""
    versions: Mapping[str, str] = Field(min_length=1)
    """Of python and the packages that took part."""
    n: int = Field(ge=1)
    """Problems."""
    correct: int
    """Completions that solve their problem."""
    unparsable: int
    """Completions without a readable answer; they count as not solved."""
    truncated: int
    """Completions without an end token."""
    score: float
    """Accuracy: the share of correct completions."""
    interval: tuple[float, float]
    """Wilson interval of the accuracy, over problems: with several completions each it is wider than need be."""
    level: float = Field(gt=0, lt=1)
    """Its confidence level."""
    chance: float
    """Accuracy of the blind strategy that the task names."""
    mean_score: float
    """Mean of the rows' shaped scores."""
    tokens: int
    """Tokens of all completions before their end tokens: the useful ones."""
    forwards: int = Field(ge=1)
    """Forward calls of the model, whatever their batch."""
    seconds: float = Field(gt=0)
    """Wall time of decoding."""
    rows: tuple[Row, ...]
    """In the order of the protocol's problems; the completions of a problem stand together."""
    model: str = ""
    """What was scored, for display: where it was loaded from."""
    decoding: str = ""
    """The sampler as it was run, for strategies that depend on the model's family."""
    block_length: int | None = None
    """Positions per block that the model was trained with, if any."""

    @classmethod
    def of(
        cls,
        rows: Sequence[Row],
        *,
        protocol: Protocol,
        prompts: str,
        checkpoint: str,
        device: str,
        dtype: str,
        batch_size: int,
        versions: Mapping[str, str],
        forwards: int,
        seconds: float,
        level: float = 0.95,
        model: str = "",
        decoding: str = "",
        block_length: int | None = None,
    ) -> Self:
        """Summarise rows."""
        return cls(
            protocol=protocol,
            protocol_hash=protocol.hash(),
            prompts=prompts,
            checkpoint=checkpoint,
            device=device,
            dtype=dtype,
            batch_size=batch_size,
            versions=versions,
            forwards=forwards,
            seconds=seconds,
            level=level,
            chance=protocol.load_task().chance,
            rows=tuple(rows),
            model=model,
            decoding=decoding,
            block_length=block_length,
            **_summary(rows, level, protocol.samples),
        )

    @property
    def tokens_per_second(self) -> float:
        """Useful tokens per second of decoding."""
        return self.tokens / self.seconds

    @property
    def tokens_per_forward(self) -> float:
        """Positions committed per denoising forward of a row; 0 where nothing was decoded."""
        forwards = sum(row.nfe for row in self.rows)
        return sum(row.committed for row in self.rows) / forwards if forwards else 0.0

    def by_problem(self) -> dict[int, list[Row]]:
        """The completions of each problem, by uid."""
        found: dict[int, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.uid, []).append(row)
        return found

    def pass_at(self, k: int) -> float:
        """Unbiased estimate of the chance that k completions hold a correct one: mean of 1 − C(n−c, k) / C(n, k).

        Raises:
            ValueError: for more than there are.
        """
        if not 1 <= k <= self.protocol.samples:
            raise ValueError(f"`k`: expected 1 to {self.protocol.samples} completions per problem, got {k}")
        solved = (sum(row.correct is True for row in rows) for rows in self.by_problem().values())
        return sum(1 - comb(self.protocol.samples - c, k) / comb(self.protocol.samples, k) for c in solved) / self.n

    def majority(self) -> float:
        """Accuracy of each problem's most frequent answer, the first of equals; unreadable ones abstain."""
        return sum(_majority(rows) for rows in self.by_problem().values()) / self.n

    @model_validator(mode="after")
    def _check_hash(self, info: ValidationInfo) -> Self:
        # a file's is over its text, so that fields added by later versions do not matter; from here on it is today's
        today = self.protocol.hash()
        expected = today if info.context is None else digest(info.context["protocol"])
        if self.protocol_hash != expected:
            raise ValueError(
                f"`protocol_hash`: expected {expected[:12]}, got {self.protocol_hash[:12]};"
                " the protocol was edited after it was scored, score again"
            )
        object.__setattr__(self, "protocol_hash", today)
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        n, samples = self.protocol.n_problems, self.protocol.samples
        uids, different = {row.uid for row in self.rows}, {(row.uid, row.sample) for row in self.rows}
        if not (len(uids) == n and len(self.rows) == len(different) == n * samples):
            raise ValueError(
                f"expected {n} rows with different uids, {samples} of each,"
                f" got {len(self.rows)} with {len(uids)} uids, {len(different)} of them different"
            )
        for name, value in _summary(self.rows, self.level, samples).items():
            if not _equal(getattr(self, name), value):
                raise ValueError(f"`{name}`: expected {value} from the rows, got {getattr(self, name)}")
        return self

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> None:
        """Write the record as JSON: to a temporary file beside it, then renamed.

        Args:
            path: the file.
            force: replace an existing one.

        Raises:
            RecordError: if the file exists and `force` is not set, or its folder does not exist.
        """
        text = json.dumps(self.model_dump(mode="json"), indent=1) + "\n"  # in ASCII: UTF-8 has no lone surrogates
        write_text(Path(path), text, force=force)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a record and check that it is intact.

        Raises:
            RecordError: if it cannot be read, a field is missing, or the protocol is not the one that was hashed.
        """
        try:
            data: Any = json.loads(Path(path).read_text(encoding="utf-8"))
            return cls.model_validate(data, context=data)
        except OSError as error:
            raise RecordError(f"cannot read {os.fspath(path)}: {error.strerror}") from error
        except ValidationError as error:
            raise RecordError(f"{os.fspath(path)} is no intact score record: {first_error(error)}") from error
        except ValueError as error:
            raise RecordError(f"{os.fspath(path)} is no JSON file: {error}") from error


def write_text(path: Path, text: str, *, force: bool = False) -> None:
    """Write a file: to a temporary one beside it, then renamed.

    Raises:
        RecordError: if the file exists and `force` is not set, or its folder does not exist.
    """
    refuse_overwrite(path, force)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def refuse_overwrite(path: Path, force: bool) -> None:
    """Refuse a path that `Record.save` could not write, before any work is done.

    Raises:
        RecordError: if the file exists and `force` is not set, or its folder does not exist.
    """
    if not path.parent.is_dir():
        raise RecordError(f"folder {path.parent} does not exist; create it first")
    if path.exists() and not force:
        raise RecordError(f"{path} exists; choose another name or pass --force")


def first_error(error: ValidationError) -> str:
    """The first complaint of pydantic in one line."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    message = first["msg"].removeprefix("Value error, ")
    return f"`{where}`: {message}" if where else message


def _equal(stored: Any, computed: Any) -> bool:
    """Equal up to the last bits, in which other machines round a logarithm differently."""
    if isinstance(computed, tuple):
        return all(map(_equal, stored, cast(tuple[float, ...], computed)))
    return isclose(stored, computed, rel_tol=1e-9, abs_tol=1e-12)


def _majority(rows: Sequence[Row]) -> bool:
    votes: dict[str, list[Row]] = {}
    for row in rows:
        if row.correct is not None:
            votes.setdefault(row.pred or "", []).append(row)
    return bool(votes) and max(votes.values(), key=len)[0].correct is True


def _summary(rows: Sequence[Row], level: float, samples: int) -> dict[str, Any]:
    """What follows from the rows."""
    completions, correct = len(rows), sum(row.correct is True for row in rows)
    n = completions // samples
    return {
        "n": n,
        "correct": correct,
        "unparsable": sum(row.correct is None for row in rows),
        "truncated": sum(row.truncated for row in rows),
        "score": correct / completions,
        "interval": wilson(correct / samples, n, level),
        "mean_score": sum(row.score for row in rows) / completions,
        "tokens": sum(row.tokens for row in rows),
    }
