"""From completions to rewards: verifiers of dare-eval tasks and user functions by import path."""

import importlib
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

from dare_eval.tasks import Task
from dare_eval.verify import Verdict

from .config import RewardConfig
from .data import Row
from .errors import ConfigError

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


def build_rewards(configs: Sequence[RewardConfig], task: Task | None) -> RewardFn:
    """The reward of a run.

    Args:
        configs: the terms; `task` is the verifier, any other source is imported as `module:function` and called as
            `function(completions, prompt=[…], **columns) -> list[float]`.
        task: the task that the rows come from.

    Raises:
        ConfigError: for a function that cannot be imported or called.
    """
    functions = {c.source: _load(c.source) for c in configs if c.source != "task"}

    def judge(rows: Sequence[Row], completions: Sequence[str]) -> list[Outcome]:
        verdicts = [_verify(task, row, text) for row, text in zip(rows, completions, strict=True)]
        scores = {name: _call(name, function, rows, completions) for name, function in functions.items()}
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
    if not callable(function):
        raise ConfigError(f"reward {source!r} is no function; give `task` or `module:function`")
    return cast(Callable[..., Sequence[float]], function)


def _call(
    name: str, function: Callable[..., Sequence[float]], rows: Sequence[Row], texts: Sequence[str]
) -> list[float]:
    columns = {key: [row.columns.get(key) for row in rows] for key in sorted({k for row in rows for k in row.columns})}
    columns["prompt"] = [row.prompt for row in rows]
    accepted = inspect.signature(function).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in accepted.values()):
        columns = {k: v for k, v in columns.items() if k in accepted}
    scores = [float(score) for score in function(list(texts), **columns)]
    if len(scores) != len(texts) or not all(math.isfinite(s) for s in scores):
        raise ConfigError(
            f"reward {name!r} gave {len(scores)} scores for {len(texts)} completions, or a non-finite one"
        )
    return scores
