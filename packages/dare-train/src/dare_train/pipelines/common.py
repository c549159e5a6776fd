"""What the pipelines share: one optimiser step over micro-batches, and the report of a step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from dare_objectives import Coefficients, Objective, Plan
from dare_objectives.metrics import Metrics, merge_metrics

from ..batching import micro_batches
from ..config import OptimConfig
from ..errors import DivergedError
from ..protocols import Engine
from ..schedule import learning_rate

__all__ = ["Optimiser", "Pipeline", "StepReport", "Update"]

_PATIENCE = 5


@dataclass(frozen=True)
class StepReport:
    """What one training step did."""

    metrics: dict[str, float]
    samples: list[dict[str, Any]] = field(default_factory=list)
    """Completions to write down, as JSON rows; empty where none are due."""


class Pipeline(Protocol):
    """The worker of a run: an engine, and what one training step does with it."""

    engine: Engine
    optimiser: "Optimiser"

    def step(self, step: int) -> StepReport:
        """Do the 0-based training step."""
        ...


@dataclass(frozen=True)
class Update:
    """All that one optimiser step needs."""

    plan: Plan
    coefficients: Coefficients
    rows: Tensor
    """Indices of the rows that can contribute to the loss."""
    old: Tensor | None = None
    """Log-probs `[B,K,S]` under the policy that sampled; None where they would equal the new ones."""
    ref: Tensor | None = None
    """Log-probs `[B,K,S]` under the reference."""


class Optimiser:
    """Applies updates through an engine, and counts them.

    Args:
        engine: holds the policy.
        objective: gives the loss.
        config: learning-rate schedule.
        total: planned number of updates, for the schedule.
        micro_batch: rows per forward and backward.
    """

    def __init__(
        self, engine: Engine, objective: Objective, config: OptimConfig, *, total: int, micro_batch: int
    ) -> None:
        self.updates = 0
        self.grad_sequences = 0
        self._engine = engine
        self._objective = objective
        self._config = config
        self._total = total
        self._micro_batch = micro_batch
        self._dropped_in_a_row = 0

    @property
    def healthy(self) -> bool:
        """Whether the last update was applied."""
        return self._dropped_in_a_row == 0

    def counters(self) -> dict[str, int]:
        """Integers to store in a checkpoint."""
        return {
            "updates": self.updates,
            "grad_sequences": self.grad_sequences,
            "dropped_in_a_row": self._dropped_in_a_row,
        }

    def restore(self, counters: Mapping[str, int]) -> None:
        """Continue from stored counters."""
        self.updates, self.grad_sequences = counters["updates"], counters["grad_sequences"]
        self._dropped_in_a_row = counters["dropped_in_a_row"]

    def score(self, plan: Plan, rows: Tensor) -> Tensor:
        """Log-probs `[B,K,S]` without gradient, split into micro-batches exactly as `apply` splits them."""
        return self._scatter(plan, rows, self._engine.score)

    def score_reference(self, plan: Plan, rows: Tensor) -> Tensor:
        """Like `score`, under the reference."""
        return self._scatter(plan, rows, self._engine.score_reference)

    def _scatter(self, plan: Plan, rows: Tensor, score: Callable[[Plan], Tensor]) -> Tensor:
        parts = [score(plan[chunk]) for chunk in micro_batches(rows, self._micro_batch)]
        if not parts:
            return plan.weight.new_zeros(plan.target.shape)
        return parts[0].new_zeros(plan.target.shape).index_copy(0, rows, torch.cat(parts))

    def apply(self, updates: Sequence[Update]) -> dict[str, float]:
        """Take one optimiser step per update.

        Returns:
            Metrics averaged over the updates' rows, the last gradient norm and learning rate, and what was skipped.

        Raises:
            DivergedError: after five dropped steps in a row.
        """
        metrics: Metrics = {}
        skipped, norm, lr = 0, 0.0, 0.0
        for update in updates:
            for chunk in micro_batches(update.rows, self._micro_batch):
                metrics = merge_metrics([metrics, self._accumulate(update, chunk)])
                self.grad_sequences += len(chunk) * update.plan.streams
            if not update.rows.numel():
                skipped += 1
                continue
            lr = learning_rate(self._config, self.updates, self._total)
            stats = self._engine.step(lr)
            norm = stats.grad_norm
            self.updates += stats.applied
            self._watch(stats.applied)
            skipped += not stats.applied
        values = {f"policy/{name}": metric.value for name, metric in metrics.items()}
        return values | {
            "opt/grad_norm": norm,
            "opt/lr": lr,
            "opt/updates": self.updates,
            "opt/skipped": skipped,
            "opt/grad_sequences": self.grad_sequences,
        }

    def _accumulate(self, update: Update, chunk: Tensor) -> Metrics:
        plan, coefficients = update.plan[chunk], update.coefficients[chunk]
        old = None if update.old is None else update.old[chunk]
        ref = None if update.ref is None else update.ref[chunk]
        return self._engine.accumulate(
            plan, lambda scored: self._objective.loss(scored, plan, coefficients, old=old, ref=ref)
        )

    def _watch(self, applied: bool) -> None:
        self._dropped_in_a_row = 0 if applied else self._dropped_in_a_row + 1
        if self._dropped_in_a_row >= _PATIENCE:
            raise DivergedError(
                f"the gradient was not finite in {_PATIENCE} updates in a row, after {self.updates} good ones; "
                "start a new run with a lower `optim.lr`, perhaps from a checkpoint of this one as `model.path`"
            )
