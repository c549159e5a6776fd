"""A decode, step by step."""

from itertools import islice

import pytest
from arbitrary import same, scenes, writes
from hypothesis import given, settings
from hypothesis import strategies as st

from dare_samplers import Events, SamplerConfig, Threshold, generate, stream
from dare_samplers.output import SamplerOutput
from dare_samplers.testing import ToyDenoiser

TOY = ToyDenoiser.random(eos_bias=1.0)
CONFIG = SamplerConfig(gen_length=8, block_length=4, steps=4)


def joined(parts: list[Events]) -> list[tuple[float, ...]]:
    """All events, in the order of `SamplerOutput.events`: by step, row and position, re-masking last."""
    rows = [row for part in parts for row in zip(*(column.tolist() for column in part), strict=True)]
    return sorted(rows, key=lambda one: (one[0], one[1], one[7] == 6, one[2]))


@settings(max_examples=10)
@given(scenes())
def test_the_steps_are_those_of_generate(scene):
    """Events one after the other are `output.events`, and the output is the same; one item per forward."""
    live = stream(scene.model, scene.prompts, scene.config, keys=scene.keys)
    parts = list(live)
    out = scene.run()
    same(live.output, out)
    assert len(parts) == out.nfe == live.output.nfe
    assert joined(parts) == list(zip(*(column.tolist() for column in live.output.events), strict=True))
    assert live.output.tokens_forwarded == out.tokens_forwarded


@settings(max_examples=6)
@given(scenes(), st.integers(0, 5))
def test_a_stream_can_be_read_half_and_gone_on_with(scene, count):
    """`output` is what there is so far, and a state to go on from; reading on changes nothing in it."""
    live = stream(scene.model, scene.prompts, scene.config, keys=scene.keys)
    parts = list(islice(live, count))
    half: SamplerOutput = live.output
    before = [writes(half, row) for row in range(len(scene.prompts))]
    assert sum(map(len, before)) == sum(len(part.step) for part in parts)
    same(generate(scene.model, config=scene.config, state=half.state), scene.run())
    list(live)
    assert [writes(half, row) for row in range(len(scene.prompts))] == before
    same(live.output, scene.run())


@settings(max_examples=6)
@given(scenes(), st.integers(0, 4))
def test_a_stream_resumes_and_stops_where_it_is_told(scene, stop):
    half = stream(scene.model, scene.prompts, scene.config, keys=scene.keys, until_step=stop)
    list(half)
    same(half.output, scene.run(until_step=stop))
    rest = stream(scene.model, config=scene.config, state=half.output.state)
    list(rest)
    same(rest.output, scene.run())


def test_it_can_be_read_once():
    live = stream(TOY, [[1, 5]], CONFIG)
    assert iter(live) is live
    assert len(list(live)) == 4
    assert list(live) == []


def test_arguments_are_refused_before_the_first_step():
    with pytest.raises(ValueError, match=r"`prompts\[0\]`: expected ids in"):
        stream(TOY, [[99]], CONFIG)
    with pytest.raises(ValueError, match="expected one of the two, got both or neither"):
        stream(TOY, None, CONFIG)
    with pytest.raises(TypeError, match="`config`: expected a SamplerConfig, got None"):
        stream(TOY, [[1]])


def test_events_say_where_and_when():
    parts = list(stream(TOY, [[1, 5], [3]], CONFIG.replace(steps=None, selector=Threshold(0.3))))
    for number, part in enumerate(parts):
        assert bool((part.step <= number).all())
        assert bool((part.logp <= 0).all())
        assert bool((part.old == TOY.mask_id).all())
