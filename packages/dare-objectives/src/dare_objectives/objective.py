"""The objective: plain data that a trainer can run without knowing its name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import torch
from torch import Tensor

from dare_objectives._errors import expect, suggest
from dare_objectives._rows import Rows, select_rows
from dare_objectives.batch import Batch
from dare_objectives.metrics import Max, Mean, Metrics
from dare_objectives.plan import Plan
from dare_objectives.score import Scored

__all__ = [
    "NEEDS",
    "Advantage",
    "Coefficients",
    "Estimator",
    "Loss",
    "Objective",
    "Planner",
    "Prepare",
    "active_streams",
    "at_least_one",
]

NEEDS: Final = ("old", "ref", "step_map", "states", "tree", "value")
"""What an objective may ask of the trainer beyond tokens and rewards."""


@dataclass(frozen=True, eq=False)
class Coefficients:
    """Everything in an objective that couples rows, computed once per optimiser step on the whole batch.

    `coefficients[rows]` keeps 0-d tensors, tuples and mappings and indexes all others; a subclass may add fields of
    either kind.

    Args:
        advantage: `[B]` (or `[B, ...]`); 1 where there is no reward.
        row_weight: `[B]`, factor of each row's loss; a row of weight 0 has none and needs no forward.
        normaliser: 0-d, divides the loss; at least 1.
        metrics: statistics of the whole batch.
        token_weight: factor of each log-prob's share of the loss, `[B, K, S]` (or `[B, K, S, C]`) or what broadcasts to
            it, such as `[B, K, 1]` for streams; None = 1. Streams without a weight need no forward
            (`active_streams`).
    """

    advantage: Tensor
    row_weight: Tensor
    normaliser: Tensor
    metrics: Mapping[str, Mean | Max] = field(default_factory=dict)
    token_weight: Tensor | None = None

    def __post_init__(self) -> None:
        """Check shapes, dtypes and values."""
        expect("row_weight", self.row_weight, "B", {})
        expect("normaliser", self.normaliser, "", {})
        if len(self.advantage) != len(self):
            raise ValueError(f"`advantage`: expected {len(self)} rows, as in `row_weight`, got {len(self.advantage)}")

    def __len__(self) -> int:
        """B, the number of rows."""
        return self.row_weight.shape[0]

    def __getitem__(self, rows: Rows) -> "Coefficients":
        """The same record for some rows."""
        return select_rows(self, rows)


Planner = Callable[[Batch], Plan]
"""From a batch to a plan; random draws come from `batch.keys` alone."""

Estimator = Callable[[Tensor, Plan], Tensor]
"""From log-probs `[B, K, S]` and their plan to token or sequence scores."""

Advantage = Callable[[Tensor, Tensor], Tensor]
"""From rewards `[B]` and group numbers `[B]` to advantages `[B]`."""


class Prepare(Protocol):
    """Computes the coefficients; `detached` are the log-probs of the plan, for objectives that couple rows by them."""

    def __call__(
        self, batch: Batch, plan: Plan, rewards: Tensor | None = None, detached: Tensor | None = None
    ) -> Coefficients:
        """Coefficients of all rows."""
        ...


class Loss(Protocol):
    """The loss of some rows: their share of the whole batch's loss, so that the parts add up to the whole."""

    def __call__(
        self,
        scored: Tensor | Scored,
        plan: Plan,
        coefficients: Coefficients,
        /,
        *,
        old: Tensor | Scored | None = None,
        ref: Tensor | Scored | None = None,
    ) -> tuple[Tensor, Metrics]:
        """(scalar, metrics)."""
        ...


@dataclass(frozen=True)
class Objective:
    """A training objective: plan + estimator + advantage + loss.

    Args:
        name: how it is called in logs.
        plan: batch -> plan.
        estimator: (log-probs, plan) -> scores.
        advantage: (rewards, group) -> advantages, or None without rewards.
        prepare: (batch, plan, rewards, detached log-probs) -> coefficients, on the whole batch.
        loss: (log-probs, plan rows, coefficient rows, old=, ref=) -> (loss, metrics), on any rows.
        needs: subset of `NEEDS`.
        on_policy_shortcut: with one update per rollout, `old` may be left out (the detached new log-probs serve).
        detached: whether `prepare` reads the log-probs of all rows: this policy's as `detached`, and the reference's as
            `batch.ref` if that is needed. They are taken anew for every optimiser step.
        sums_over_streams: whether the loss of some streams is their share of the loss, so that `stream_backward` gives
            its gradient with the graph of one stream in memory; `replay_backward` does for every objective.

    Raises:
        ValueError: for an unknown need.
    """

    name: str
    plan: Planner
    estimator: Estimator
    advantage: Advantage | None
    prepare: Prepare
    loss: Loss
    needs: frozenset[str] = frozenset()
    on_policy_shortcut: bool = True
    detached: bool = False
    sums_over_streams: bool = False

    def __post_init__(self) -> None:
        """Check shapes, dtypes and values."""
        for need in self.needs:
            if need not in NEEDS:
                raise ValueError(suggest("need", need, NEEDS))


def active_streams(plan: Plan, coefficients: Coefficients) -> Plan:
    """The plan without the targets of streams that have no weight in the loss: nothing of them needs a forward.

    Args:
        plan: B sequences in K streams.
        coefficients: of the same rows.

    Returns:
        Plan of K streams; it gives the same loss.
    """
    if coefficients.token_weight is None:
        return plan
    keep = (coefficients.token_weight != 0).flatten(2).any(2)[:, :, None]
    return replace(plan, target=plan.target & keep, weight=torch.where(keep, plan.weight, 0.0))


def at_least_one(count: Tensor) -> Tensor:
    """A count as a normaliser: float32, never 0."""
    return count.to(torch.float32).clamp(min=1)
