"""The loop: keys, forwards, forced commits and arguments. Its invariants are in test_invariants*.py."""

import random

import pytest
import torch

from dare_samplers import (
    FORCED,
    SAMPLED,
    Denoiser,
    LengthStop,
    Logits,
    Suppress,
    generate,
    presets,
)
from dare_samplers.keyed import PURPOSES, uniform
from dare_samplers.testing import AdversarialDenoiser, TableDenoiser, ToyDenoiser

TOY = ToyDenoiser.random(eos_bias=2.0)
PROMPTS = [[3, 1, 4, 1, 5, 2, 6], [2], [TOY.mask_id, 5, 6]]


def test_an_int_key_names_the_row():
    """[10] Rows that are added later do not change the first ones."""
    config = presets.llada(8, 4, temperature=1.0)
    two = generate(TOY, PROMPTS[:2], config, keys=5)
    three = generate(TOY, PROMPTS, config, keys=5)
    assert torch.equal(two.completions, three.completions[:2])
    same = generate(TOY, [PROMPTS[1]] * 4, config, keys=5)
    assert len({tuple(row) for row in same.completions.tolist()}) > 1


def test_global_generators_are_untouched():
    before = torch.get_rng_state(), random.getstate()
    first = generate(TOY, PROMPTS, presets.llada(8, 4, temperature=1.0, remasking="random"), keys=1)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    torch.manual_seed(99)
    random.seed(99)
    again = generate(TOY, PROMPTS, presets.llada(8, 4, temperature=1.0, remasking="random"), keys=1)
    torch.set_rng_state(before[0])
    random.setstate(before[1])
    assert torch.equal(first.sequences, again.sequences)


def test_finished_rows_leave_the_batch():
    model = ToyDenoiser.random(eos_bias=2.0)
    out = generate(model, [[i, i + 1] for i in range(8)], presets.llada(24, 4, 12, temperature=1.0), keys=1)
    assert len(set(out.row_nfe.tolist())) > 1
    assert model.batches == [int((out.row_nfe > step).sum()) for step in range(out.nfe)]
    assert out.nfe == int(out.row_nfe.max())
    assert out.tokens_forwarded == int(out.row_nfe.sum()) * 26


def test_the_head_runs_only_at_open_slots_of_the_block():
    widths = []

    class Watched(ToyDenoiser):
        def logits(self, ids, positions, blocks, rows, documents=None):
            widths.append(rows.shape[1])
            assert ids.shape[1] == 9
            return super().logits(ids, positions, blocks, rows, documents)

    generate(Watched.random(), [[1]], presets.llada(8, 4, 4).replace(stop=LengthStop()))
    assert widths == [4, 2, 4, 2]


def test_padding_of_rows_that_left_is_not_fed():
    lengths = []

    class Watched(ToyDenoiser):
        def logits(self, ids, positions, blocks, rows, documents=None):
            lengths.append(ids.shape[1])
            return super().logits(ids, positions, blocks, rows, documents)

    model = Watched.random()
    config = presets.llada(4, 2, 4).replace(stop=LengthStop())
    state = generate(model, [[1] * 9, [1]], config, until_step=2).state
    generate(model, None, config, state=state.select([1]))
    assert lengths == [13, 13, 5, 5]


@pytest.mark.wheel
def test_forced_commits_are_marked():
    out = generate(TOY, [[1]], presets.threshold(4, 4, 2.0))
    assert set(out.origin[0].tolist()) == {FORCED}
    assert set(generate(TOY, [[1]], presets.llada(4)).origin[0].tolist()) == {SAMPLED}


def test_a_selector_that_takes_nothing_still_terminates():
    """Threshold decoding without forced progress is a known endless loop elsewhere."""

    class Never:
        uses_quota = True

        def select(self, score, slots, quota):
            return torch.zeros_like(slots.open)

    out = generate(TOY, PROMPTS, presets.llada(8, 4).replace(selector=Never()))
    assert torch.equal(out.step_map, generate(TOY, PROMPTS, presets.llada(8, 4)).step_map)


def test_a_model_that_loves_the_mask_terminates():
    for temperature in (0.0, 1.0):
        out = generate(AdversarialDenoiser(), [[7, 7], [1]], presets.threshold(12, 4, 0.9, temperature))
        assert not bool((out.completions == 7).any())


@pytest.mark.parametrize("config", [presets.llada(8, 4), presets.llada(12, 3).replace(grid="zero")])
def test_block_causal_models_need_their_grid(config):
    model = ToyDenoiser.random(block_length=4)
    with pytest.raises(
        ValueError, match=r'expected "zero" and a divisor of 4 .*replace\(grid="zero", block_length=4\)'
    ):
        generate(model, [[1]], config)


def test_raw_logits_are_never_edited():
    table = torch.randn(4, 6, generator=torch.Generator().manual_seed(6))
    kept = table.clone()
    model = TableDenoiser(table, mask_id=5)
    model.logits = lambda ids, positions, blocks, rows, documents=None: table[None]
    generate(model, [[]], presets.llada(4, 4, 1, temperature=0.5).replace(rules=(Suppress((1,)),)))
    assert torch.equal(table, kept)
    assert Logits.of(table).values is not table


@pytest.mark.parametrize(
    ("prompts", "keys", "message"),
    [
        ([], None, "`prompts`: expected at least one row"),
        ([[1, 24]], None, r"`prompts\[0\]`: expected ids in \[0, 24\), got 24"),
        ([[1, "a"]], None, r"`prompts\[0\]`: expected a flat sequence of token ids"),
        ([[[1, 2]]], None, r"`prompts\[0\]`: expected a flat sequence of token ids"),
        ([[1]], torch.tensor([1, 2]), r"`keys`: expected an int or int64 \[1\]"),
        ([[1]], torch.tensor([1.0]), r"`keys`: expected an int or int64 \[1\]"),
        ([[1]], 2**70, "make_key folds integers of any size"),
        (None, None, "`prompts`, `state`: expected one of the two"),
    ],
)
def test_arguments_are_checked_with_a_remedy(prompts, keys, message):
    with pytest.raises(ValueError, match=message):
        generate(TOY, prompts, presets.llada(4), keys=keys)


def test_a_config_is_required():
    with pytest.raises(TypeError, match="`config`: expected a SamplerConfig, got None"):
        generate(TOY, [[1]])


def test_prompts_may_be_tensors():
    config = presets.llada(4)
    expected = generate(TOY, [[1, 2], [3, 4]], config).sequences
    assert torch.equal(generate(TOY, torch.tensor([[1, 2], [3, 4]]), config).sequences, expected)
    assert torch.equal(generate(TOY, [torch.tensor([1, 2]), torch.tensor([3, 4])], config).sequences, expected)


def test_seeds_share_no_sample():
    """An int key is mixed before the row number is: row 1 of seed 0 is not row 0 of seed 1."""
    config = presets.llada(8, 8, temperature=1.0)
    keys = [generate(TOY, [[1, 5]] * 16, config, keys=seed).state.key for seed in range(16)]
    assert len(set(torch.cat(keys).tolist())) == 256


def test_small_keys_share_no_draw():
    """Purposes are far apart: token noise of one small key is not the order noise of another."""
    drawn = torch.cat([uniform(torch.arange(64), purpose, 0, dtype=torch.float64) for purpose in PURPOSES])
    assert len(set(drawn.tolist())) == 64 * len(PURPOSES)


def test_resume_keeps_the_layout():
    config = presets.llada(8, 4, temperature=1.0)
    half = generate(TOY, [[1, 5]], config, until_step=2)
    with pytest.raises(ValueError, match="grid"):
        generate(TOY, config=config.replace(grid="zero"), state=half.state)


def test_ids_outside_the_vocabulary_are_refused():
    with pytest.raises(ValueError, match=r"expected token ids in \[0, \d+\), got 500"):
        generate(TOY, [[1, 5]], presets.llada(8, 4).replace(rules=(Suppress((500,)),)))
    with pytest.raises(ValueError, match="`mask_id`: expected a token id >= 0, got -1"):
        Denoiser(torch.nn.Embedding(4, 4), mask_id=-1)
