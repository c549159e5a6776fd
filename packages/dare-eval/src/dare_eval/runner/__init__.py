"""Score a model under a protocol, here or on a Ray cluster. Loads torch."""

from dare_eval.runner.distributed import evaluate_on_ray as evaluate_on_ray
from dare_eval.runner.local import evaluate as evaluate
from dare_eval.runner.progress import Progress as Progress
from dare_eval.runner.worker import Complete as Complete

__all__ = ["Complete", "Progress", "evaluate", "evaluate_on_ray"]
