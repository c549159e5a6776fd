"""Tasks by name."""

from collections.abc import Mapping
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

from dare_eval.hints import did_you_mean
from dare_eval.tasks.addition import Addition
from dare_eval.tasks.base import GeneratedTask, Task
from dare_eval.tasks.benchmark import Benchmark, sheet, sheet_names
from dare_eval.tasks.countdown import Countdown
from dare_eval.tasks.sort import Sort
from dare_eval.tasks.sudoku4 import Sudoku4
from dare_eval.tasks.sudoku9 import Sudoku9

__all__ = ["TASKS", "generated_task", "get_task", "names"]

TASKS: Final[tuple[type[GeneratedTask], ...]] = (Addition, Countdown, Sort, Sudoku4, Sudoku9)


def names() -> list[str]:
    """The names that `get_task` knows: the generated tasks, then the benchmarks."""
    return [*(task.name for task in TASKS), *sheet_names()]


def get_task(name: str, options: Mapping[str, Any] | None = None, *, data: Path | None = None) -> Task:
    """A task by name, or by `"package.module:Class"` for one of your own.

    Args:
        name: one of `names()`, the address of a `GeneratedTask` subclass, or a file `….yaml` with a benchmark's sheet.
        options: the task's options, e.g. `{"digits": 6}`; the others keep their defaults.
        data: a folder with the rows of a benchmark, in place of the hub.

    Raises:
        ValueError: for an unknown name or option (with the nearest known one) or a value out of range, or data for a
            task that is generated.

    >>> get_task("sort", {"digits": 6})
    Sort(digits=6)
    >>> get_task("gsm8k").options
    {'prompt': 'boxed', 'only': ''}
    """
    if name in sheet_names() or name.endswith(".yaml"):
        chosen = dict(options or {})
        for key, value in chosen.items():
            if key not in ("prompt", "only"):
                raise ValueError(f"task {name!r} has no option {key!r}{did_you_mean(key, ('prompt', 'only'))}")
            if not isinstance(value, str):
                raise ValueError(f"option `{key}` of task {name!r}: expected a text, got {value!r}")
        return Benchmark(sheet(name), data=data, **chosen)
    if data is not None:
        raise ValueError(f"`data`: task {name!r} makes its problems itself; leave it out")
    return generated_task(name, options)


def generated_task(name: str, options: Mapping[str, Any] | None = None) -> GeneratedTask:
    """A task whose problems are drawn, by name or address; see `get_task`.

    Raises:
        ValueError: as `get_task`.
    """
    task = _imported(name) if ":" in name else next((t for t in TASKS if t.name == name), None)
    if task is None:
        raise ValueError(f"unknown task {name!r}{did_you_mean(name, names())}")
    defaults = {f.name: f.default for f in fields(cast(Any, task))}
    for key, value in (options or {}).items():
        if key not in defaults:
            raise ValueError(f"task {name!r} has no option {key!r}{did_you_mean(key, defaults)}")
        if type(value) is not (wanted := type(defaults[key])):
            raise ValueError(f"option `{key}` of task {name!r}: expected {wanted.__name__}, got {value!r}")
    return task(**(options or {}))


def _imported(address: str) -> type[GeneratedTask]:
    module, _, attribute = address.partition(":")
    try:
        task = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"cannot import task {address!r}: {error}; write package.module:Class") from error
    if not (isinstance(task, type) and issubclass(task, GeneratedTask)):
        raise ValueError(f"expected a subclass of GeneratedTask at {address!r}, got {task!r}")
    return task
