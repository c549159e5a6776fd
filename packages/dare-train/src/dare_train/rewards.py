"""From completions to rewards: verifiers of dare-eval tasks and user functions by import path."""

import importlib
import inspect
import math
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from dare_eval.tasks import Task
from dare_eval.verify import Verdict

from .config import RewardConfig
from .data import Row
from .errors import ConfigError, RewardError

__all__ = ["Outcome", "RewardFn", "build_rewards"]


@dataclass(frozen=True)
class Outcome:
    """How one completion was judged."""

    score: float
    """The weighted sum of all rewards; what is optimised."""
    correct: bool | None
    """The task's verdict: the only input of accuracy. None where no verifier judged."""
    parts: dict[str, float]
    """The unweighted score of each reward."""
    reason: str
    """Why the verifier judged as it did."""


RewardFn = Callable[[Sequence[Row], Sequence[str]], list[Outcome]]
"""From rows and their completions to outcomes."""


def build_rewards(configs: Sequence[RewardConfig], task: Task | None, rows: Sequence[Row]) -> RewardFn:
    """The reward of a run.

    Args:
        configs: the terms; `task` is the verifier, any other source is imported as `module:function` and called as
            `function(completions, prompt=[…], **columns) -> list[float]`.
        task: the task that the rows come from.
        rows: the data, for the names of its columns.

    Raises:
        ConfigError: for a function that cannot be imported, or needs a column that the data does not have.
    """
    functions = {c.source: _load(c.source) for c in configs if c.source != "task"}
    columns = {"prompt"}.union(*(row.columns for row in rows))
    accepted = {name: _accepted(name, function, columns) for name, function in functions.items()}

    def judge(rows: Sequence[Row], completions: Sequence[str]) -> list[Outcome]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # programs under test run beside one another
            verdicts = list(pool.map(partial(_verify, task), rows, completions))
        scores = {
            name: _call(name, function, accepted[name], rows, completions) for name, function in functions.items()
        }
        scores["task"] = [verdict.score for verdict in verdicts]
        parts = [{c.source: scores[c.source][i] for c in configs} for i in range(len(rows))]
        return [
            Outcome(
                score=sum(c.weight * part[c.source] for c in configs),
                correct=verdict.correct,
                parts=part,
                reason=verdict.reason,
            )
            for verdict, part in zip(verdicts, parts, strict=True)
        ]

    return judge


def _verify(task: Task | None, row: Row, completion: str) -> Verdict:
    if task is None or row.item is None:
        return Verdict.unparsable("no task judges this row")
    return task.verify(row.item, completion)


def _load(source: str) -> Callable[..., Sequence[float]]:
    module, _, name = source.partition(":")
    try:
        function = getattr(importlib.import_module(module), name) if name else None
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"reward {source!r} cannot be imported ({error}); give `task` or `module:function`"
        ) from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"reward {source!r}: {error}; give `task` or `module:function`") from error
    if not callable(function):
        raise ConfigError(f"reward {source!r} is no function; give `task` or `module:function`")
    return cast(Callable[..., Sequence[float]], function)


def _accepted(source: str, function: Callable[..., Sequence[float]], columns: Collection[str]) -> set[str]:
    """The columns that a reward is given: all that it names, or all if it takes any.

    Raises:
        ConfigError: where it needs one that the data does not have.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())[1:]
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"reward {source!r} cannot be called with columns ({error}); wrap it in a function"
        ) from error
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return set(columns)
    if missing := [p.name for p in parameters if p.default is p.empty and p.name not in columns]:
        raise ConfigError(f"reward {source!r} needs the column {missing[0]!r}; the data has {sorted(columns)}")
    return {p.name for p in parameters}.intersection(columns)


def _call(
    name: str, function: Callable[..., Sequence[float]], accepted: set[str], rows: Sequence[Row], texts: Sequence[str]
) -> list[float]:
    columns: dict[str, Any] = {key: [row.columns.get(key) for row in rows] for key in accepted - {"prompt"}}
    if "prompt" in accepted:
        columns["prompt"] = [row.prompt for row in rows]
    try:
        scores = [float(score) for score in function(list(texts), **columns)]
    except Exception as error:
        raise RewardError(f"reward {name!r} failed: {type(error).__name__}: {error}") from error
    if len(scores) != len(texts) or not all(math.isfinite(s) for s in scores):
        raise RewardError(
            f"reward {name!r} gave {len(scores)} scores for {len(texts)} completions, or a non-finite one"
        )
    return scores
