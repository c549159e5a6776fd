"""A decoding strategy as data."""

import dataclasses
from dataclasses import dataclass, field
from typing import Literal, Self, TypedDict, Unpack

from dare_samplers.caches import NoCache
from dare_samplers.guidance import Guidance, Smoothing
from dare_samplers.parts import (
    CachePolicy,
    Checks,
    LogitsRule,
    Proposer,
    Remembers,
    Reviser,
    Schedule,
    Scorer,
    Selector,
    StopRule,
)
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
    "cache": CachePolicy,
    "stop": StopRule,
    "record": Record,
}
_OPTIONAL = {"reviser": Reviser, "guidance": Guidance, "smoothing": Smoothing}
_WORDS = {
    "grid": ("prompt", "zero"),
    "layout": ("left", "right", "packed"),
    "score_law": ("model", "proposal"),
}


class Changes(TypedDict, total=False):
    """The fields of `SamplerConfig`, any of them."""

    gen_length: int
    block_length: int | tuple[int, ...]
    steps: int | None
    grid: Literal["prompt", "zero"]
    layout: Literal["left", "right", "packed"]
    schedule: Schedule
    proposer: Proposer
    scorer: Scorer
    score_law: Literal["model", "proposal"]
    selector: Selector
    reviser: Reviser | None
    rules: tuple[LogitsRule | Remembers, ...]
    guidance: Guidance | None
    smoothing: Smoothing | None
    cache: CachePolicy
    stop: StopRule
    record: Record


@dataclass(frozen=True, kw_only=True)
class SamplerConfig:
    """A decoding strategy: sizes, and one part for each choice of the loop.

    Args:
        gen_length: response slots per row; with `Infill`, only how many the steps are planned for.
        block_length: slots denoised together; blocks are decoded from left to right. Divides `gen_length` on the
            prompt's grid. A tuple for blocks of unequal size, which add up to `gen_length`.
        steps: schedule steps for the whole response, a multiple of the number of blocks; None for one commit per step,
            or as many as the selector needs.
        grid: where blocks begin: `prompt`, at the end of the prompt, or `zero`, at the row's first token, so that the
            first block may hold the prompt's tail (what block-causal models are trained on). On the zero grid the last
            block is always a whole one; what it holds beyond `gen_length` is sampled and then cut off.
        layout: how rows of unequal length are fed, with pads left or right, or packed into one row without any
            (models that declare `packs`). It changes no result.
        schedule: how many slots a step commits.
        proposer: which token for a slot.
        scorer: how good a proposal is.
        score_law: which law the scorer sees: `model`, the logits after the rules, or `proposal`, after temperature and
            filters as well. Thresholds do not carry over from one to the other.
        selector: which slots to commit.
        reviser: what to take back or edit; None for nothing.
        rules: edits of the logits, applied in order.
        guidance: classifier-free guidance.
        smoothing: soft embeddings on open slots.
        cache: what to feed and to store.
        stop: when a row ends before its last block.
        record: what to record beyond tokens, steps and log-probabilities.

    Raises:
        ValueError: for sizes that do not fit together; the message says what to use.
        TypeError: for a part that lacks its method.

    >>> SamplerConfig(gen_length=8, block_length=4, steps=4).steps_per_block
    2
    """

    gen_length: int
    block_length: int | tuple[int, ...]
    steps: int | None = None
    grid: Literal["prompt", "zero"] = "prompt"
    layout: Literal["left", "right", "packed"] = "left"
    schedule: Schedule = field(default_factory=LinearFront)
    proposer: Proposer = field(default_factory=Greedy)
    scorer: Scorer = field(default_factory=Probability)
    score_law: Literal["model", "proposal"] = "model"
    selector: Selector = field(default_factory=TopK)
    reviser: Reviser | None = None
    rules: tuple[LogitsRule | Remembers, ...] = ()
    guidance: Guidance | None = None
    smoothing: Smoothing | None = None
    cache: CachePolicy = field(default_factory=NoCache)
    stop: StopRule = field(default_factory=EosStop)
    record: Record = field(default_factory=Record)

    def __post_init__(self) -> None:
        """Check sizes and parts."""
        if isinstance(self.block_length, list):
            object.__setattr__(self, "block_length", tuple(self.block_length))
        if not isinstance(self.rules, tuple | list):
            raise TypeError(f"`rules`: expected a tuple of rules, got {self.rules!r}; write rules=({self.rules!r},)")
        object.__setattr__(self, "rules", tuple(self.rules))
        _check_blocks(self.gen_length, self.block_length, self.grid)
        for name, words in _WORDS.items():
            if getattr(self, name) not in words:
                raise ValueError(f"`{name}`: expected one of {', '.join(words)}, got {getattr(self, name)!r}")
        for name, kind in _KINDS.items():
            _check_part(name, getattr(self, name), kind)
        for name, kind in _OPTIONAL.items():
            if getattr(self, name) is not None:
                _check_part(name, getattr(self, name), kind)
        for rule in self.rules:
            _check_part("rules", rule, Remembers if isinstance(rule, Remembers) else LogitsRule)
        if self.steps is not None:
            _check_steps(self.steps, self.blocks, self.selector)
        self._ask_parts()

    def _ask_parts(self) -> None:
        for part in (self.schedule, self.proposer, self.scorer, self.selector, self.reviser, *self.rules):
            inner: object = part
            while inner is not None:
                if isinstance(inner, Checks):
                    inner.check(self)
                inner = getattr(inner, "inner", None)

    @property
    def blocks(self) -> int:
        """Blocks of a response; one more where the zero grid splits one."""
        return len(self.sizes)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Slots of each block where the grid splits none."""
        if isinstance(self.block_length, tuple):
            return self.block_length
        whole, rest = divmod(self.gen_length, self.block_length)
        return (self.block_length,) * whole + (rest,) * bool(rest)

    @property
    def longest(self) -> int:
        """Slots of the largest block."""
        return self.block_length if isinstance(self.block_length, int) else max(self.block_length)

    @property
    def steps_per_block(self) -> int | None:
        """Schedule steps planned for a block, None without a plan."""
        return None if self.steps is None else self.steps // self.blocks

    @property
    def lasting(self) -> tuple[CachePolicy, Reviser | None, tuple[Remembers, ...]]:
        """The parts that leave something in a state: a resumed decode has to go on with them."""
        return self.cache, self.reviser, tuple(rule for rule in self.rules if isinstance(rule, Remembers))

    @property
    def needs(self) -> tuple[str, ...]:
        """What a model must be able to do, by name: what the parts' `needs` say, the layout and the grid.

        >>> from dare_samplers import presets
        >>> presets.sdar().needs, presets.llada(8).needs
        (('block_cache',), ('full_attention',))
        """
        grid = ("full_attention",) if self.grid == "prompt" else ()
        packed = ("packed_documents",) if self.layout == "packed" else ()
        parts = (self.cache, self.reviser, self.smoothing, *self.rules)
        declared = (name for part in parts for name in getattr(part, "needs", ()))
        return tuple(dict.fromkeys((*grid, *packed, *declared)))

    def replace(self, **changes: Unpack[Changes]) -> Self:
        """A copy with some fields changed, checked again.

        >>> SamplerConfig(gen_length=8, block_length=4).replace(block_length=8).blocks
        1
        """
        return dataclasses.replace(self, **changes)


def _check_blocks(gen_length: int, block_length: int | tuple[int, ...], grid: str) -> None:
    if gen_length < 1:
        raise ValueError(f"`gen_length`: expected at least 1, got {gen_length}")
    if isinstance(block_length, tuple):
        if min(block_length, default=0) < 1 or sum(block_length) != gen_length or grid != "prompt":
            raise ValueError(
                f"`block_length`: expected sizes >= 1 that add up to `gen_length`={gen_length} on the prompt's grid, "
                f"got {block_length} on the {grid} grid; one number makes all blocks equal"
            )
    elif block_length < 1 or (gen_length % block_length and grid == "prompt"):
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
