"""What a step proposes at every open slot; the golden cases of MDPO are in test_golden.py."""

import pytest
import torch
from arbitrary import canvas, same, scenes
from hypothesis import given, settings

from dare_samplers import NoCache, Record, SamplerConfig, generate
from dare_samplers.testing import ToyDenoiser
from dare_samplers.trace import EDITED, MOVED, REOPENED

RECORD = Record(proposals=True)


def table(events, row: int, step: int) -> dict[int, tuple[int, float, float]]:
    here = (events.row == row) & (events.step == step)
    columns = (events.position, events.new, events.logp, events.score)
    return {p: rest for p, *rest in zip(*(column[here].tolist() for column in columns), strict=True)}


@settings(max_examples=20)
@given(scenes())
def test_every_open_slot_of_each_step_has_a_proposal(scene):
    """All open slots that were fed; what is committed is what was proposed, with its numbers."""
    out = scene.run(record=RECORD, cache=NoCache())
    mask, causal = scene.model.mask_id, scene.causal
    assert bool((out.proposals.old == mask).all())
    assert not bool((out.proposals.new == mask).any())
    for row in range(len(scene.prompts)):
        slots = int((out.block_id[row] >= 0).sum())
        opened = set(range(slots))
        for step in range(int(out.row_nfe[row])):
            proposed, written = table(out.proposals, row, step), events_of(out, row, step)
            assert set(proposed) <= opened
            if not causal:
                assert set(proposed) == opened
            for position, new, logp, score, kind in written:
                if kind == REOPENED:
                    opened.add(position)
                    continue
                if kind not in (EDITED, MOVED) and scene.config.reviser is None:
                    assert proposed[position] == [new, logp, score]
                opened.discard(position)
        assert opened == set() or out.finish_reason[row] == "eos"


def events_of(out, row: int, step: int) -> list[tuple[float, ...]]:
    events = out.events
    here = (events.row == row) & (events.step == step)
    columns = (events.position, events.new, events.logp, events.score, events.kind)
    return list(zip(*(column[here].tolist() for column in columns), strict=True))


@settings(max_examples=10)
@given(scenes())
def test_proposals_survive_stopping_and_forking(scene):
    whole = scene.run(record=RECORD)
    config = scene.config.replace(record=RECORD)
    half = scene.run(record=RECORD, until_step=1)
    rest = generate(scene.model, config=config, state=half.state)
    same(rest, whole)
    for row in range(len(scene.prompts)):
        for step in range(int(whole.row_nfe[row])):
            one, other = table(rest.proposals, row, step), table(whole.proposals, row, step)
            assert {k: v[0] for k, v in one.items()} == {k: v[0] for k, v in other.items()}


def test_slots_outside_the_block_are_there_too():
    """The whole response under full attention, the block alone where the rest is not fed."""
    config = SamplerConfig(gen_length=4, block_length=2, grid="zero", record=RECORD)
    full = generate(ToyDenoiser.random(), [[]], config)
    causal = generate(ToyDenoiser.random(block_length=2), [[]], config)
    assert [int((full.proposals.step == step).sum()) for step in range(4)] == [4, 3, 2, 1]
    assert [int((causal.proposals.step == step).sum()) for step in range(4)] == [2, 1, 2, 1]


def test_they_must_have_been_recorded():
    out = generate(ToyDenoiser.random(), [[1]], SamplerConfig(gen_length=2, block_length=2))
    with pytest.raises(ValueError, match=r"`proposals`: expected Record\(proposals=True\) in the config, got False"):
        _ = out.proposals


def test_entropies_are_those_of_the_raw_law():
    out = generate(ToyDenoiser.random(), [[1]], SamplerConfig(gen_length=4, block_length=4, record=Record(True, True)))
    assert out.entropies is not None
    assert bool((out.entropies > 0).all())
    assert torch.equal(out.sequences[0], torch.tensor(canvas(out, 0)))
