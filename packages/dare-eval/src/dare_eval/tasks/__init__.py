"""Tasks: seeded problem generators with disjoint splits, and published benchmarks. Nothing here loads torch.

One file per generator and one entry in `registry.TASKS`; one sheet in `sheets/` per benchmark.
"""

from dare_eval.tasks.base import SPLITS as SPLITS
from dare_eval.tasks.base import GeneratedTask as GeneratedTask
from dare_eval.tasks.base import Item as Item
from dare_eval.tasks.base import Split as Split
from dare_eval.tasks.base import Task as Task
from dare_eval.tasks.base import split_of as split_of
from dare_eval.tasks.base import uid_of as uid_of
from dare_eval.tasks.registry import generated_task as generated_task
from dare_eval.tasks.registry import get_task as get_task
from dare_eval.tasks.registry import names as names
from dare_eval.tasks.source import DataError as DataError
from dare_eval.tasks.source import miniature as miniature

__all__ = [
    "SPLITS",
    "DataError",
    "GeneratedTask",
    "Item",
    "Split",
    "Task",
    "generated_task",
    "get_task",
    "miniature",
    "names",
    "split_of",
    "uid_of",
]
