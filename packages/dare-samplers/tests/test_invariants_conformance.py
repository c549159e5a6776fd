"""[1-6, 10, 11, 13, 18-20] The conformance kit on every part of the package, and on combinations of them."""

import pytest
from arbitrary import (
    BLOCK_KV,
    IN_BLOCK,
    PROPOSERS,
    ROW_WIDE,
    RULES,
    SCHEDULES,
    SCORERS,
    SELECTORS,
    STALE,
    STOPS,
    TIMED,
    scenes,
)
from hypothesis import given, settings

from dare_samplers import Greedy, Guidance, NoCache, SamplerConfig, Threshold
from dare_samplers.revisers import RunningConfidence
from dare_samplers.testing import sampler_conformance

SMALL = SamplerConfig(gen_length=4, block_length=2)
PLANNED = SMALL.replace(steps=4)


def part_of(reviser) -> SamplerConfig:
    """The plan and schedule that it needs."""
    if isinstance(reviser, RunningConfidence):
        return PLANNED.replace(reviser=reviser, schedule=reviser.schedule)
    if reviser in TIMED:
        return PLANNED.replace(reviser=reviser)
    return SMALL.replace(reviser=reviser, selector=Threshold(0.4))


def one_of_each(parts):
    """The first of every class; the others, and empty steps, which the kit calls a waste, are in test_invariants.py."""
    return list({type(part): part for part in reversed(parts)}.values())


PARTS = [
    *one_of_each(SELECTORS),
    *one_of_each(SCORERS),
    *PROPOSERS[::2],
    *(rule for rules in RULES for rule in rules),
    *one_of_each(STOPS),
    *one_of_each([NoCache(), *STALE]),
    *(PLANNED.replace(schedule=schedule) for schedule in one_of_each(SCHEDULES)),
    *(part_of(reviser) for reviser in one_of_each([*IN_BLOCK, *ROW_WIDE, *TIMED])),
    *(SMALL.replace(grid="zero", cache=cache) for cache in BLOCK_KV[::2]),
    SMALL.replace(guidance=Guidance(0.5)),
]


def name(part) -> str:
    if not isinstance(part, SamplerConfig):
        return repr(part).partition(" at 0x")[0]  # the same on every worker
    return repr(part.reviser or part.guidance or (part.cache if part.cache != NoCache() else part.schedule))


@pytest.mark.wheel
@pytest.mark.parametrize("part", PARTS, ids=name)
def test_every_part_conforms(part):
    sampler_conformance(part)


@settings(max_examples=3)
@given(scenes(["toy", "toy_causal"]))
def test_every_combination_conforms(scene):
    sampler_conformance(scene.config.replace(smoothing=None, proposer=Greedy()))
