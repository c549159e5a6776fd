"""Tasks: seeded problem generators with disjoint splits and a verifier each. Nothing here loads torch.

One file per task, one entry in `registry.TASKS`.
"""

from dare_eval.tasks.base import SPLITS as SPLITS
from dare_eval.tasks.base import GeneratedTask as GeneratedTask
from dare_eval.tasks.base import Item as Item
from dare_eval.tasks.base import Split as Split
from dare_eval.tasks.base import Task as Task
from dare_eval.tasks.base import split_of as split_of
from dare_eval.tasks.base import uid_of as uid_of
from dare_eval.tasks.registry import get_task as get_task
from dare_eval.tasks.registry import names as names

__all__ = ["SPLITS", "GeneratedTask", "Item", "Split", "Task", "get_task", "names", "split_of", "uid_of"]
