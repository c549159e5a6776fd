"""A decoding strategy as data."""

import dataclasses
from dataclasses import dataclass, field
from typing import Literal, Self, TypedDict, Unpack

from dare_samplers.parts import LogitsRule, Proposer, Schedule, Scorer, Selector, StopRule
from dare_samplers.proposers import Greedy
from dare_samplers.schedules import LinearFront
from dare_samplers.scorers import Probability
from dare_samplers.selectors import TopK
from dare_samplers.stops import EosStop
from dare_samplers.trace import Record

__all__ = ["SamplerConfig"]

_KINDS = {
    "schedule": Schedule,
    "proposer": Proposer,
    "scorer": Scorer,
    "selector": Selector,
    "stop": StopRule,
    "record": Record,
}


class Changes(TypedDict, total=False):
    """The fields of `SamplerConfig`, any of them."""

    gen_length: int
    block_length: int
    steps: int | None
    grid: Literal["prompt", "zero"]
    schedule: Schedule
    proposer: Proposer
    scorer: Scorer
    selector: Selector
    rules: tuple[LogitsRule, ...]
    stop: StopRule
    record: Record


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """A decoding strategy: sizes, and one part for each choice of the loop.

    Args:
        gen_length: response slots per row.
        block_length: slots denoised together; blocks are decoded from left to right. Divides `gen_length`.
        steps: forwards for the whole response, a multiple of the number of blocks; None for one commit per step, or
            as many as the selector needs.
        grid: where blocks begin: `prompt`, at the end of the prompt, or `zero`, at the row's first token, so that the
            first block may hold the prompt's tail (what block-causal models are trained on).
        schedule: how many slots a step commits.
        proposer: which token for a slot.
        scorer: how good a proposal is.
        selector: which slots to commit.
        rules: edits of the logits, applied in order.
        stop: when a row ends before its last block.
        record: what to record beyond tokens, steps and log-probabilities.

    Raises:
        ValueError: for sizes that do not fit together; the message says what to use.
        TypeError: for a part that lacks its method.

    >>> SamplerConfig(gen_length=8, block_length=4, steps=4).steps_per_block
    2
    """

    gen_length: int
    block_length: int
    steps: int | None = None
    grid: Literal["prompt", "zero"] = "prompt"
    schedule: Schedule = field(default_factory=LinearFront)
    proposer: Proposer = field(default_factory=Greedy)
    scorer: Scorer = field(default_factory=Probability)
    selector: Selector = field(default_factory=TopK)
    rules: tuple[LogitsRule, ...] = ()
    stop: StopRule = field(default_factory=EosStop)
    record: Record = field(default_factory=Record)

    def __post_init__(self) -> None:
        """Check sizes and parts."""
        object.__setattr__(self, "rules", tuple(self.rules))
        _check_blocks(self.gen_length, self.block_length)
        if self.grid not in ("prompt", "zero"):
            raise ValueError(f'`grid`: expected "prompt" or "zero", got {self.grid!r}')
        for name, kind in _KINDS.items():
            _check_part(name, getattr(self, name), kind)
        for rule in self.rules:
            _check_part("rules", rule, LogitsRule)
        if self.steps is not None:
            _check_steps(self.steps, self.blocks, self.selector)

    @property
    def blocks(self) -> int:
        """Blocks of a response; one more where the `zero` grid splits one."""
        return self.gen_length // self.block_length

    @property
    def steps_per_block(self) -> int | None:
        """Forwards planned for a block, None without a plan."""
        return None if self.steps is None else self.steps // self.blocks

    def replace(self, **changes: Unpack[Changes]) -> Self:
        """A copy with some fields changed, checked again.

        >>> SamplerConfig(gen_length=8, block_length=4).replace(block_length=8).blocks
        1
        """
        return dataclasses.replace(self, **changes)


def _check_blocks(gen_length: int, block_length: int) -> None:
    if gen_length < 1:
        raise ValueError(f"`gen_length`: expected at least 1, got {gen_length}")
    if block_length < 1 or gen_length % block_length:
        divisors = ", ".join(str(n) for n in range(1, gen_length + 1) if gen_length % n == 0)
        raise ValueError(
            f"`block_length`={block_length} does not divide `gen_length`={gen_length}; choose one of {divisors}"
        )


def _check_steps(steps: int, blocks: int, selector: Selector) -> None:
    if not selector.uses_quota:
        raise ValueError(
            f"`steps`={steps} has no meaning with {selector!r}, which takes as many as it needs; use steps=None"
        )
    if steps < blocks or steps % blocks:
        nearest = sorted({max(steps // blocks, 1) * blocks, (steps // blocks + 1) * blocks})
        raise ValueError(
            f"`steps`={steps} is no multiple of the {blocks} blocks; choose {' or '.join(map(str, nearest))}, "
            "or another `block_length`"
        )


def _check_part(name: str, value: object, kind: type) -> None:
    if isinstance(value, type) or not isinstance(value, kind):
        raise TypeError(f"`{name}`: expected an instance with the methods of {kind.__name__}, got {value!r}")
