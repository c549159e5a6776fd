"""Tasks, verifiers and score records for diffusion language models.

Only evaluating needs torch, so it is loaded when first used.
"""

from typing import TYPE_CHECKING

from dare_eval.comparison import Comparison as Comparison
from dare_eval.comparison import NotComparable as NotComparable
from dare_eval.comparison import compare as compare
from dare_eval.protocol import LikelihoodSettings as LikelihoodSettings
from dare_eval.protocol import Protocol as Protocol
from dare_eval.record import Record as Record
from dare_eval.record import RecordError as RecordError
from dare_eval.record import Row as Row
from dare_eval.sampling import CoreSampler as CoreSampler
from dare_eval.sampling import FamilySampler as FamilySampler
from dare_eval.sampling import LladaSampler as LladaSampler
from dare_eval.sampling import PresetSampler as PresetSampler
from dare_eval.sampling import ThresholdSampler as ThresholdSampler
from dare_eval.stats import bootstrap as bootstrap
from dare_eval.stats import mcnemar as mcnemar
from dare_eval.stats import paired_interval as paired_interval
from dare_eval.stats import wilson as wilson
from dare_eval.tasks import get_task as get_task

if TYPE_CHECKING:
    from dare_eval.runner import Progress as Progress
    from dare_eval.runner import evaluate as evaluate
    from dare_eval.runner import evaluate_on_ray as evaluate_on_ray

__all__ = [
    "Comparison",
    "CoreSampler",
    "FamilySampler",
    "LikelihoodSettings",
    "LladaSampler",
    "NotComparable",
    "PresetSampler",
    "Progress",
    "Protocol",
    "Record",
    "RecordError",
    "Row",
    "ThresholdSampler",
    "bootstrap",
    "compare",
    "evaluate",
    "evaluate_on_ray",
    "get_task",
    "mcnemar",
    "paired_interval",
    "wilson",
]


def __getattr__(name: str) -> object:
    if name in {"evaluate", "evaluate_on_ray", "Progress"}:
        from dare_eval import runner  # noqa: PLC0415 - loads torch

        return getattr(runner, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
