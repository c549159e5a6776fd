"""What users of such software run into."""

from itertools import product

import pytest
import torch

from dare_samplers import LengthStop, Suppress, Threshold, generate, presets
from dare_samplers.testing import AdversarialDenoiser, TableDenoiser

CONTENT, EOS, EOT, MASK = 0, 1, 2, 3


def end_prone(end: int) -> TableDenoiser:
    """`end` has probability 0.99 everywhere; without it, content has 0.6."""
    table = torch.full((16, 4), -torch.inf)
    table[:, CONTENT], table[:, EOS], table[:, EOT] = 0.006, 0.002, 0.002
    table[:, end] = 0.99
    return TableDenoiser(table.clamp(min=1e-9).log(), mask_id=MASK, eos_ids=(EOS, EOT))


POLICIES = list(product([EOS, EOT], ["low_confidence", "random", "threshold"], [0.0, 0.7]))


def config_of(order: str, temperature: float):
    if order == "threshold":
        return presets.threshold(8, 4, 0.9, temperature)
    return presets.llada(8, 4, temperature=temperature, remasking=order)


@pytest.mark.parametrize(("end", "order", "temperature"), POLICIES)
def test_end_token_policy_off_counts_the_empty_answer(end, order, temperature):
    out = generate(end_prone(end), [[0]] * 4, config_of(order, temperature), keys=1)
    empty = out.completion_mask.sum(-1) == 1
    assert bool(empty.all())
    assert set(out.completions[:, 0].tolist()) == {end}
    assert out.finish_reason == ("eos",) * 4


@pytest.mark.wheel
@pytest.mark.parametrize(("end", "order", "temperature"), POLICIES)
def test_end_token_policy_never(end, order, temperature):
    config = config_of(order, temperature).replace(rules=(Suppress((EOS, EOT)),))
    out = generate(end_prone(end), [[0]] * 4, config, keys=1)
    assert set(out.completions.flatten().tolist()) == {CONTENT}
    assert out.finish_reason == ("length",) * 4


@pytest.mark.parametrize(("order", "temperature"), list(product(["low_confidence", "random", "threshold"], [0.0, 0.7])))
def test_the_two_end_tokens_are_symmetric(order, temperature):
    runs = [generate(end_prone(end), [[0]], config_of(order, temperature), keys=1) for end in (EOS, EOT)]
    assert torch.equal(runs[0].step_map, runs[1].step_map)


LENGTHS, BLOCKS, STEPS = (1, 7, 8, 12), (1, 3, 4, 8, 12, 16), (1, 2, 5, 12, 20)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("length", LENGTHS)
def test_no_stranded_mask(length, rows):
    """Any sizes: either refused with a remedy, or every slot is filled with a token and nothing else changes."""
    prompts = [[MASK, 1, 2], [5], []][:rows]
    for block, steps in product(BLOCKS, STEPS):
        if length % block or steps % (length // block):
            with pytest.raises(ValueError, match="choose"):
                presets.llada(length, block, steps)
            continue
        for config in (
            presets.llada(length, block, steps, remasking="low_confidence").replace(stop=LengthStop()),
            presets.llada(length, block, steps, 1.0).replace(stop=LengthStop()),
            presets.llada(length, block).replace(selector=Threshold(0.5), stop=LengthStop()),
        ):
            out = generate(AdversarialDenoiser(), prompts, config, keys=steps)
            assert not bool((out.completions == 7).any())
            assert bool((out.step_map >= 0).all())
            assert out.nfe <= length
            for row, prompt in enumerate(prompts):
                assert out.sequences[row][out.prompt_mask[row]].tolist() == prompt
            later = out.block_id[:, :, None] < out.block_id[:, None, :]
            assert bool((out.step_map[:, :, None] < out.step_map[:, None, :])[later].all())
