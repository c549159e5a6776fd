import dataclasses

import pytest

from dare_samplers import Greedy, SamplerConfig, Threshold, TopK, presets


@pytest.mark.wheel
@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"gen_length": 0, "block_length": 1}, "`gen_length`: expected at least 1, got 0"),
        ({"gen_length": 12, "block_length": 8}, r"does not divide `gen_length`=12; choose one of 1, 2, 3, 4, 6, 12"),
        ({"gen_length": 12, "block_length": 0}, "choose one of"),
        ({"gen_length": 12, "block_length": 4, "steps": 7}, r"no multiple of the 3 blocks; choose 6 or 9"),
        ({"gen_length": 12, "block_length": 4, "steps": 2}, r"no multiple of the 3 blocks; choose 3"),
        ({"gen_length": 12, "block_length": (4, 7)}, r"add up to `gen_length`=12 on the prompt's grid, got \(4, 7\)"),
        ({"gen_length": 12, "block_length": (12, 0)}, "expected sizes >= 1"),
        ({"gen_length": 12, "block_length": (6, 6), "grid": "zero"}, "on the zero grid"),
        ({"gen_length": 12, "block_length": 4, "layout": "up"}, "`layout`: expected one of left, right, packed"),
        ({"gen_length": 12, "block_length": 4, "score_law": "raw"}, "`score_law`: expected one of model, proposal"),
        ({"gen_length": 12, "block_length": 4, "steps": 3, "selector": Threshold(0.9)}, "use steps=None"),
        ({"gen_length": 12, "block_length": 4, "grid": "one"}, "`grid`: expected one of prompt, zero, got 'one'"),
    ],
)
def test_sizes_are_checked_with_a_remedy(sizes, message):
    with pytest.raises(ValueError, match=message):
        SamplerConfig(**sizes)


@pytest.mark.parametrize("value", [Greedy(), TopK, 3])
def test_parts_are_checked(value):
    with pytest.raises(TypeError, match="`selector`: expected an instance with the methods of Selector"):
        SamplerConfig(gen_length=4, block_length=4, selector=value)


def test_replace_checks_again():
    config = presets.llada(gen_length=64, block_length=16)
    assert config.replace(selector=Threshold(0.9)).selector == Threshold(0.9)
    with pytest.raises(ValueError, match="choose one of"):
        config.replace(block_length=24)


def test_is_plain_frozen_data():
    config = presets.llada(8, 4, 4)
    assert config == presets.llada(8, 4, 4)
    assert hash(config) == hash(presets.llada(8, 4, 4))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.steps = 8


def test_presets():
    assert presets.llada().blocks == 1
    assert presets.llada().steps is None
    assert presets.threshold().selector == Threshold(0.9)
    with pytest.raises(ValueError, match="`remasking`: expected one of low_confidence, random, left_to_right"):
        presets.llada(remasking="entropy")
