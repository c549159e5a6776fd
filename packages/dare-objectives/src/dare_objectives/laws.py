"""The laws of masks that likelihoods are estimated from, by name."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor

from dare_objectives._errors import suggest
from dare_objectives.batch import Batch
from dare_objectives.enumeration import enumerate_masks, enumerated_size
from dare_objectives.plan import Plan
from dare_objectives.plans import bernoulli, count_complementary, count_stratified, left_to_right, per_block_count

__all__ = ["LAWS", "Draw", "Law", "law_of"]

Draw = Callable[[Batch, int], Plan]
"""From a batch and a number n of draws to a plan of n streams."""


class Law(NamedTuple):
    """How to draw a likelihood, and how to enumerate it.

    Args:
        draw: one replicate, whose mean over the streams is the estimate; None = never drawn.
        enumerate: a plan whose sum over the streams is the exact value; None = never enumerated.
        size: number of tokens enumerated together, int64 `[B]`; 0 where the value is always exact.
        forwards: number of forwards of the enumeration, int64 `[B]`.
    """

    draw: Draw | None
    enumerate: Callable[[Batch], Plan] | None = None
    size: Callable[[Batch], Tensor] | None = None
    forwards: Callable[[Batch], Tensor] | None = None


def law_of(estimator: str | Draw) -> Law:
    """The law of that name, or of a planner of one's own.

    Raises:
        ValueError: for an unknown name.
    """
    if not isinstance(estimator, str):
        return Law(estimator)
    if estimator not in LAWS:
        raise ValueError(suggest("estimator", estimator, LAWS))
    return LAWS[estimator]


def _pairs(batch: Batch, draws: int) -> Plan:
    if draws % 2:
        raise ValueError(f"`draws`: expected an even number per replicate for pairs, got {draws}; change `replicates`")
    return count_complementary(batch, draws // 2)


def _spread_levels(batch: Batch, draws: int) -> Plan:
    return bernoulli(batch, streams=draws, spread=True)


def _nothing(batch: Batch) -> Tensor:
    return torch.zeros_like(batch.lengths)


def _lengths(batch: Batch) -> Tensor:
    return batch.lengths


def _masks(batch: Batch, per: Literal["sequence", "block"] = "sequence") -> Tensor:
    return (1 << enumerated_size(batch, per=per)) - 1


_BY_SEQUENCE: Final = (enumerate_masks, enumerated_size, _masks)

LAWS: Final[Mapping[str, Law]] = {
    "count": Law(count_stratified, *_BY_SEQUENCE),
    "complementary": Law(_pairs, *_BY_SEQUENCE),
    "bernoulli": Law(_spread_levels, *_BY_SEQUENCE),
    "block_count": Law(
        per_block_count,
        partial(enumerate_masks, per="block"),
        partial(enumerated_size, per="block"),
        partial(_masks, per="block"),
    ),
    "left_to_right": Law(None, left_to_right, _nothing, _lengths),
}
"""The estimators of `log_likelihood`."""
