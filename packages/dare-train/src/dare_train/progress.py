"""What a person watches while a run goes on."""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn

__all__ = ["ProgressView"]

_SHOWN = (
    ("loss", "policy/nll", "{:.4f}"),
    ("reward", "reward/mean", "{:.3f}"),
    ("accuracy", "reward/accuracy", "{:.1%}"),
    ("validation", "validation/accuracy", "{:.1%}"),
    ("KL", "policy/approx_kl", "{:.1e}"),
    ("ratio", "policy/ratio", "{:.3f}"),
    ("tokens/s", "rollout/tokens_per_s", "{:.0f}"),
    ("tokens/s", "train/tokens_per_s", "{:.0f}"),
)


class ProgressView:
    """A live line on a terminal, about twenty plain lines elsewhere; an observer of `run`.

    Args:
        title: what is running.
        console: where to show it.
    """

    def __init__(self, title: str, console: Console) -> None:
        self._title = title
        self._console = console
        self._live = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[numbers]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._started = time.perf_counter()
        self._first: int | None = None

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def __call__(self, done: int, total: int, metrics: Mapping[str, float]) -> None:
        """Show the step that just ended."""
        if self._first is None:
            self._first = done - 1
            self._started = time.perf_counter() - metrics.get("time/step", 0.0)
        numbers = f"{describe(metrics)} · {self._left(done, total)} left"
        if self._console.is_terminal:
            if self._task is None:
                self._task = self._live.add_task(self._title, total=total, numbers="")
            self._live.update(self._task, completed=done, numbers=numbers)
        elif done == total or done % max(1, total // 20) == 0 or "validation/accuracy" in metrics:
            self._console.print(f"{self._title} {done}/{total} · {numbers}", highlight=False, soft_wrap=True)

    def _left(self, done: int, total: int) -> str:
        pace = (time.perf_counter() - self._started) / max(1, done - (self._first or 0))
        minutes, seconds = divmod(round(pace * (total - done)), 60)
        return f"{minutes}:{seconds:02d}"


def describe(metrics: Mapping[str, float]) -> str:
    """The watched numbers of a step as one line.

    >>> describe({"reward/mean": 0.5, "reward/accuracy": 0.25, "opt/lr": 0.1})
    'reward 0.500 · accuracy 25.0%'
    """
    return " · ".join(f"{label} {form.format(metrics[name])}" for label, name, form in _SHOWN if name in metrics)
