"""Slots anywhere in a row."""

import pytest
import torch
from arbitrary import MASK, facts, same, scenes, text
from hypothesis import given, settings

from dare_samplers import Infill, LengthStop, SamplerConfig, generate, presets
from dare_samplers.testing import ToyDenoiser

TOY = ToyDenoiser.random(eos_bias=-9.0)


@settings(max_examples=12)
@given(scenes(spans=False))
def test_slots_at_the_end_are_generation(scene):
    """[24] On the zero grid where the last block ends with the response."""
    length = scene.config.gen_length
    rows = [
        row
        for row, prompt in enumerate(scene.prompts)
        if scene.config.grid == "prompt" or (len(prompt) + length) % scene.config.block_length == 0
    ]
    if not rows:
        return
    spans = [
        Infill([*scene.prompts[row], *[7] * length], [False] * len(scene.prompts[row]) + [True] * length)
        for row in rows
    ]
    out = generate(scene.model, spans, scene.config, keys=scene.keys[rows])
    same(out, scene.run(rows))


@settings(max_examples=10)
@given(scenes())
def test_every_span_is_filled_block_by_block(scene):
    """[24] Spans are cut into windows; all slots get a token, from left to right, and nothing else changes."""
    row = Infill([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], [i in (0, 1, 2, 4, 7, 8) for i in range(10)])
    out = generate(scene.model, [row], scene.config.replace(stop=LengthStop()))
    assert not bool(out.state.open.any())
    assert bool((out.step_map >= 0).all())
    assert out.state.columns.tolist() == [[0, 1, 2, 4, 7, 8]]
    assert out.state.tokens[0, [3, 5, 6, 9]].tolist() == [4, 6, 7, 3]
    blocks = out.block_id[0].tolist()
    assert blocks == sorted(blocks)
    assert len({blocks[2], blocks[3], blocks[4]}) == 3
    first = out.first_step_map[0]
    assert bool((first[:, None] < first)[out.block_id[0][:, None] < out.block_id[0]].all())


@settings(max_examples=5)
@given(scenes(["toy", "tiny"]))
def test_what_stands_on_a_slot_does_not_matter(scene):
    blanks = [
        [
            Infill(
                [token if not slot else blank for token, slot in zip(row.tokens, row.writable, strict=True)],
                row.writable,
            )
            if isinstance(row, Infill)
            else row
            for row in scene.prompts
        ]
        for blank in (MASK, 3)
    ]
    one, other = (generate(scene.model, rows, scene.config, keys=scene.keys) for rows in blanks)
    same(one, other)


def test_both_sides_are_seen():
    config = SamplerConfig(gen_length=2, block_length=2)
    outs = [generate(TOY, [Infill([1, 0, 0, last], [False, True, True, False])], config) for last in range(2, 10)]
    assert len({tuple(out.completions[0].tolist()) for out in outs}) > 1


def test_blocks_of_spans():
    """On the prompt's grid a span's blocks are counted from its first slot, on the zero grid from the row's."""
    row = Infill([0] * 9, [False, True, True, True, False, True, True, True, True])
    config = SamplerConfig(gen_length=8, block_length=2, stop=LengthStop())
    assert generate(TOY, [row], config).block_id.tolist() == [[0, 0, 1, 2, 2, 3, 3]]
    assert generate(TOY, [row], config.replace(grid="zero")).block_id.tolist() == [[0, 1, 1, 2, 3, 3, 4]]
    gap = Infill([0] * 3, [True, False, True])
    for grid in ("prompt", "zero"):
        wide = config.replace(block_length=8, grid=grid)
        assert generate(TOY, [gap], wide).block_id.tolist() == [[0, 1]]


def test_steps_are_planned_for_each_block():
    """A block of two slots in two steps takes two, of one slot one."""
    row = Infill([0] * 5, [True, True, False, True, False])
    out = generate(TOY, [row], presets.llada(4, 2, 4).replace(stop=LengthStop()))
    assert sorted(out.step_map[0, :2].tolist()) == [0, 1]
    assert out.step_map[0, 2] == 2


def test_completions_are_the_slots_in_order():
    row = Infill([5, 0, 6, 0, 7], [False, True, False, True, False])
    out = generate(TOY, [row, [1]], SamplerConfig(gen_length=3, block_length=3))
    assert text(out, 0) == out.state.tokens[0, [1, 3]].tolist()
    assert out.stop_length.tolist() == [2, 3]
    assert out.completions[0, 2] == TOY.pad_id
    assert facts(out, 0)["canvas"] == [5, text(out, 0)[0], 6, text(out, 0)[1], 7]


@pytest.mark.parametrize(
    ("tokens", "writable", "message"),
    [
        ([1, 2], [True], "expected one bool per token and at least one True, got 1 bools with 1 True for 2 tokens"),
        ([1, 2], [False, False], "got 2 bools with 0 True for 2 tokens"),
        ([], [], "got 0 bools with 0 True for 0 tokens"),
    ],
)
def test_lengths_are_checked(tokens, writable, message):
    with pytest.raises(ValueError, match=message):
        Infill(tokens, writable)


def test_tensors_are_welcome():
    config = SamplerConfig(gen_length=2, block_length=2)
    plain = Infill([5, 0, 6], [False, True, False])
    tensors = Infill(torch.tensor([5, 0, 6]), torch.tensor([False, True, False]))
    assert torch.equal(generate(TOY, [plain], config).sequences, generate(TOY, [tensors], config).sequences)
