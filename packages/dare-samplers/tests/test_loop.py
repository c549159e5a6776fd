"""Invariants of every decode (numbers in brackets: the invariants of the design's list)."""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from dare_samplers import (
    FORCED,
    SAMPLED,
    Categorical,
    Denoiser,
    EosStop,
    Greedy,
    LengthStop,
    Logits,
    PositionScore,
    Probability,
    RandomScore,
    Record,
    SamplerConfig,
    Suppress,
    Threshold,
    TopK,
    generate,
    presets,
)
from dare_samplers.keyed import PURPOSES, uniform
from dare_samplers.testing import AdversarialDenoiser, JointDenoiser, TableDenoiser, ToyDenoiser, sampler_conformance

TOY = ToyDenoiser.random(eos_bias=2.0)
PROMPTS = [[3, 1, 4, 1, 5, 2, 6], [2], [TOY.mask_id, 5, 6]]

PARTS = [
    Greedy(),
    Categorical(0.7),
    Probability(),
    RandomScore(),
    PositionScore(),
    TopK(),
    Threshold(0.4),
    Threshold(2.0),
    Suppress((3, 4)),
    EosStop(),
    LengthStop(),
]


@st.composite
def configs(draw) -> SamplerConfig:
    """Any strategy of the package at a small size."""
    block = draw(st.sampled_from([1, 2, 3, 5]))
    blocks = draw(st.integers(1, 3))
    selector = draw(st.sampled_from([TopK(), Threshold(0.2), Threshold(0.6)]))
    quota = selector.uses_quota and draw(st.booleans())
    return SamplerConfig(
        gen_length=block * blocks,
        block_length=block,
        steps=blocks * draw(st.integers(1, 6)) if quota else None,
        grid=draw(st.sampled_from(["prompt", "zero"])),
        proposer=draw(st.sampled_from([Greedy(), Categorical(0.7), Categorical(1.5)])),
        scorer=draw(st.sampled_from([Probability(), RandomScore(), PositionScore()])),
        selector=selector,
        rules=draw(st.sampled_from([(), (Suppress((3, 2)),)])),
        stop=draw(st.sampled_from([EosStop(), LengthStop()])),
        record=Record(entropies=draw(st.booleans())),
    )


@pytest.mark.wheel
@pytest.mark.parametrize("part", PARTS, ids=repr)
def test_every_part_conforms(part):
    sampler_conformance(part)


@settings(max_examples=16)
@given(configs())
def test_every_combination_conforms(config):
    """[1-6, 10, 11, 18-20] in one kit."""
    sampler_conformance(config)


@pytest.mark.parametrize("block", [4, 8])
def test_threshold_above_one_is_one_token_per_step(block):
    """[7]"""
    one = generate(TOY, PROMPTS, presets.llada(8, block, 8))
    assert torch.equal(one.step_map, generate(TOY, PROMPTS, presets.threshold(8, block, 1.1)).step_map)


def test_threshold_zero_is_one_step_per_block():
    """[7]"""
    out = generate(TOY, PROMPTS, presets.threshold(12, 4, 0.0).replace(stop=LengthStop()))
    assert out.nfe == 3
    assert torch.equal(out.step_map, out.block_id)


def test_lower_threshold_needs_no_more_forwards_on_a_table():
    """[7] Where logits do not depend on the canvas."""
    table = 4 * torch.randn(12, 9, generator=torch.Generator().manual_seed(0))
    model = TableDenoiser(table, mask_id=8)
    counts = [generate(model, [[]], presets.threshold(12, 12, tau)).nfe for tau in (1.1, 0.9, 0.6, 0.3, 0.0)]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("grid", "block_causal"), [("prompt", False), ("zero", False), ("zero", True)])
def test_batch_peers_and_padding_change_nothing(temperature, grid, block_causal):
    """[10] Alone, in another order, with more rows and with wider padding."""
    model = ToyDenoiser.random(eos_bias=1.0, block_length=4 if block_causal else None)
    config = presets.llada(12, 4, 6, temperature).replace(grid=grid)
    prompts = [[5, 1, 2], list(range(1, 10)), list(range(2, 16))]
    keys = torch.tensor([7, 8, 9])
    batch = generate(model, prompts, config, keys=keys)
    order = [2, 0, 1]
    other = generate(model, [prompts[i] for i in order], config, keys=keys[order])
    wide = generate(model, [*prompts, [3] * 21], config, keys=torch.cat([keys, torch.tensor([1])]))
    for name in ("completions", "step_map", "row_nfe", "block_id", "origin"):
        assert torch.equal(getattr(other, name), getattr(batch, name)[order])
        table = getattr(batch, name)
        assert torch.equal(getattr(wide, name)[:3].view(3, -1)[:, : table.view(3, -1).shape[1]], table.view(3, -1))
    for row, prompt in enumerate(prompts):
        alone = generate(model, [prompt], config, keys=keys[row : row + 1])
        slots = alone.step_map.shape[1]
        assert torch.equal(alone.completions[0], batch.completions[row, :slots])
        assert torch.equal(alone.step_map[0], batch.step_map[row, :slots])
        torch.testing.assert_close(alone.logprobs[0], batch.logprobs[row, :slots], rtol=0, atol=1e-10)
        torch.testing.assert_close(wide.logprobs[row, :slots], alone.logprobs[0], rtol=0, atol=1e-10)


def test_an_int_key_names_the_row():
    """[10] Rows that are added later do not change the first ones."""
    config = presets.llada(8, 4, temperature=1.0)
    two = generate(TOY, PROMPTS[:2], config, keys=5)
    three = generate(TOY, PROMPTS, config, keys=5)
    assert torch.equal(two.completions, three.completions[:2])
    same = generate(TOY, [PROMPTS[1]] * 4, config, keys=5)
    assert len({tuple(row) for row in same.completions.tolist()}) > 1


def test_recording_changes_nothing():
    """[11]"""
    config = presets.llada(8, 4, temperature=1.0)
    plain = generate(TOY, PROMPTS, config, keys=1)
    full = generate(TOY, PROMPTS, config.replace(record=Record(entropies=True)), keys=1)
    assert torch.equal(plain.sequences, full.sequences)
    assert plain.entropies is None
    assert full.entropies is not None
    assert bool((full.entropies[full.step_map >= 0] > 0).all())


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


@pytest.mark.parametrize("remasking", ["low_confidence", "random", "left_to_right"])
def test_draws_from_the_joint_law(remasking):
    """[13] One slot per step at temperature 1 on exact conditionals: a chi-square test over all 27 outcomes.

    Low confidence chooses the slot by the drawn token's probability, which distorts the law; it must fail the test.
    """
    law = torch.rand(3, 3, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64) ** 2
    law = law / law.sum()
    rows = 3000
    out = generate(JointDenoiser(law), [[]] * rows, presets.llada(3, temperature=1.0, remasking=remasking), keys=0)
    cell = (out.completions * torch.tensor([9, 3, 1])).sum(-1)
    observed = torch.bincount(cell, minlength=27).double()
    expected = rows * law.flatten()
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    assert (chi_square < 61.7) == (remasking != "low_confidence")  # 0.9999 quantile, 26 degrees of freedom


def test_trajectory_log_likelihood_of_left_to_right_is_the_joint():
    """[18]"""
    law = torch.rand(3, 3, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    law = law / law.sum()
    config = presets.llada(3, temperature=1.0, remasking="left_to_right")
    out = generate(JointDenoiser(law), [[]] * 50, config)
    expected = law[tuple(out.completions.T)].log()
    torch.testing.assert_close(out.logprobs.sum(-1), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(out.sample_logprobs, out.logprobs, rtol=0, atol=1e-12)


def test_low_temperature_is_greedy():
    """[15]"""
    cold = generate(TOY, PROMPTS, presets.llada(8, 4, temperature=1e-6))
    assert torch.equal(cold.sequences, generate(TOY, PROMPTS, presets.llada(8, 4)).sequences)


def test_ties_go_to_the_lowest_position_and_id():
    """[16]"""
    out = generate(TableDenoiser(torch.zeros(6, 5), mask_id=4), [[]], presets.llada(6, 3, 6))
    assert out.step_map.tolist() == [[0, 1, 2, 3, 4, 5]]
    assert out.completions.tolist() == [[0] * 6]


def test_permuting_the_vocabulary_permutes_the_tokens():
    """[16]"""
    table = 3 * torch.randn(8, 10, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    order = torch.cat([torch.randperm(9, generator=torch.Generator().manual_seed(4)), torch.tensor([9])])
    config = presets.llada(8, 4, 4)
    out = generate(TableDenoiser(table, mask_id=9), [[]], config)
    permuted = generate(TableDenoiser(table[:, order], mask_id=9), [[]], config)
    assert torch.equal(order[permuted.completions], out.completions)
    assert torch.equal(permuted.step_map, out.step_map)
    shifted = generate(TableDenoiser(table + 17.0, mask_id=9), [[]], config)
    assert torch.equal(shifted.step_map, out.step_map)


@pytest.mark.parametrize("low", [torch.bfloat16, torch.float16])
def test_half_precision_logits_are_upcast(low):
    """[25] The result is that of the same logits in float32."""
    table = (4 * torch.randn(12, 40, generator=torch.Generator().manual_seed(5))).to(low)
    for temperature in (0.0, 1.0):
        config = presets.llada(12, 4, temperature=temperature)
        half = generate(TableDenoiser(table, mask_id=39), [[]], config)
        full = generate(TableDenoiser(table.float(), mask_id=39), [[]], config)
        assert torch.equal(half.sequences, full.sequences)
        assert torch.equal(half.logprobs, full.logprobs)
        assert half.logprobs.dtype == torch.float32


class HostSyncs(TorchDispatchMode):
    """Counts what makes the host wait for a device."""

    names = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        by_mask = "aten.index." in name and any(i is not None and i.dtype == torch.bool for i in args[1])
        self.count += by_mask or any(f"aten.{one}" in name for one in self.names)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "config", [presets.llada(8, 4, 8, 1.0), presets.threshold(8, 4, 0.4)], ids=["llada", "threshold"]
)
def test_one_host_sync_per_step(monkeypatch, config):
    """[26] Only the transfer of the rows' status, whatever the batch size."""
    transfers = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: (transfers.append(self.shape), tolist(self))[1])
    counts = {}
    for until in (2, 4):
        transfers.clear()
        with HostSyncs() as syncs:
            out = generate(TOY, PROMPTS * 3, config.replace(stop=LengthStop()), until_step=until)
        counts[until] = len(transfers) + syncs.count
        assert out.nfe == until
    assert counts[4] - counts[2] == 2


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
