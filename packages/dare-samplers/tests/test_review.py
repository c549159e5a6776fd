"""Faults that were found once: caches after edits, what a state carries on, and ends that are none."""

import pytest
import torch

from dare_samplers import (
    BlockKV,
    Denoiser,
    Dual,
    EosStop,
    Guidance,
    Horizon,
    Infill,
    LengthStop,
    MaskGit,
    NoCache,
    PadBlockStop,
    Prefix,
    Record,
    ReMDM,
    RunningConfidence,
    SamplerConfig,
    Smoothing,
    Suppress,
    Threshold,
    TokenEdit,
    Vicinity,
    generate,
    presets,
)
from dare_samplers.testing import TableDenoiser, TinyTransformer, ToyDenoiser

TINY = TinyTransformer.random()
CAUSAL = TinyTransformer.random(attention="block_causal", block_length=4)


@pytest.mark.parametrize("prompt", [2, 4, 5])
@pytest.mark.parametrize("cache", [Dual(), Prefix(), Vicinity(2, 2, 1), Horizon(4), BlockKV()], ids=repr)
def test_a_cache_forgets_what_follows_from_a_changed_block(cache, prompt):
    """Block-causal, a cache is exact even where a reviser masks tokens of an earlier block again."""
    config = SamplerConfig(
        gen_length=12,
        block_length=4,
        steps=12,
        grid="zero",
        schedule=MaskGit("linear"),
        reviser=RunningConfidence(MaskGit("linear")),
    )
    ids = [list(range(1, prompt + 1))]
    plain, cached = (generate(CAUSAL, ids, config.replace(cache=one)) for one in (NoCache(), cache))
    assert torch.equal(cached.sequences, plain.sequences)
    assert torch.equal(cached.step_map, plain.step_map)
    torch.testing.assert_close(cached.logprobs, plain.logprobs, rtol=0, atol=1e-10)


def test_recording_proposals_leaves_smoothing_alone():
    config = SamplerConfig(
        gen_length=12, block_length=4, selector=Threshold(0.3, decay=0.3), smoothing=Smoothing(init=0.9, limit=0.9)
    )
    plain, recorded = (
        generate(TINY, [[1, 2, 3]], config.replace(record=Record(proposals=proposals))) for proposals in (False, True)
    )
    assert torch.equal(plain.sequences, recorded.sequences)
    torch.testing.assert_close(plain.logprobs, recorded.logprobs, rtol=0, atol=1e-10)


def test_a_waiting_row_may_come_last_in_a_packed_batch():
    config = SamplerConfig(
        gen_length=8, block_length=4, grid="zero", layout="packed", cache=BlockKV(), stop=LengthStop()
    )
    half = generate(CAUSAL, [[1, 2, 3, 4], []], config, until_step=1)
    out = generate(CAUSAL, config=config, state=half.state)
    assert torch.equal(out.sequences, generate(CAUSAL, [[1, 2, 3, 4], []], config).sequences)


def test_a_network_without_padding_is_not_block_causal():
    with pytest.raises(ValueError, match="`level`: expected 1 for a block-causal network, got 0"):
        Denoiser(torch.nn.Embedding(4, 4), mask_id=3, attention="block_causal", block_length=2)


def test_a_state_goes_on_with_the_parts_that_left_something_in_it():
    config = presets.llada(8, 4, 8)
    half = generate(TINY, [[1, 2]], config, until_step=2)
    with pytest.raises(ValueError, match="`reviser`, `rules`: expected"):
        generate(
            TINY, config=config.replace(steps=None, selector=Threshold(0.5), reviser=TokenEdit(0.5)), state=half.state
        )


@pytest.mark.parametrize("later", [Prefix(), Horizon(2), NoCache(), BlockKV()], ids=repr)
def test_another_cache_policy_starts_afresh(later):
    config = SamplerConfig(gen_length=8, block_length=4, steps=8, grid="zero", cache=Dual())
    half = generate(CAUSAL, [[1, 2], [3, 4, 5, 6]], config, until_step=3)
    out = generate(CAUSAL, config=config.replace(cache=later), state=half.state)
    plain = generate(CAUSAL, [[1, 2], [3, 4, 5, 6]], config.replace(cache=NoCache()))
    assert torch.equal(out.step_map, plain.step_map)
    torch.testing.assert_close(out.logprobs, plain.logprobs, rtol=0, atol=1e-10)


def test_other_weights_find_no_use_for_a_cache():
    other = TinyTransformer.random(seed=1)
    config = SamplerConfig(gen_length=8, block_length=8, steps=8, cache=Dual())
    half = generate(TINY, [[1, 2]], config, until_step=4)
    out = generate(other, config=config, state=half.state)
    fresh = generate(other, config=config.replace(cache=Prefix()), state=half.state, until_step=5)
    taken = out.step_map == 4
    torch.testing.assert_close(out.logprobs[taken], fresh.logprobs[taken], rtol=0, atol=1e-10)


def test_smoothing_ends_with_its_config():
    config = SamplerConfig(gen_length=8, block_length=8, steps=8, smoothing=Smoothing(init=0.9, limit=0.9))
    half = generate(TINY, [[1, 2]], config, until_step=3)
    out = generate(TINY, config=config.replace(smoothing=None), state=half.state)
    canvas = half.sequences
    logits = TINY(canvas, positions=torch.arange(10)[None], rows=torch.arange(2, 10)[None])
    expected = logits.log_softmax(-1).gather(-1, out.sequences[:, 2:, None]).squeeze(-1)
    taken = out.step_map == 3
    torch.testing.assert_close(out.logprobs[taken], expected[taken], rtol=0, atol=1e-10)


def table(rows: list[int], **options: object) -> TableDenoiser:
    logits = torch.zeros(len(rows), 8)
    logits[torch.arange(len(rows)), torch.tensor(rows)] = 9.0
    return TableDenoiser(logits, mask_id=7, eos_ids=(6,), **options)


def test_blocks_of_pads_at_the_very_start():
    config = SamplerConfig(gen_length=4, block_length=1, stop=PadBlockStop())
    out = generate(table([1, 6, 1, 1]), [[]], config)
    assert out.step_map.tolist() == [[0, 1, -1, -1]]


def test_a_gap_of_pads_between_given_tokens_ends_nothing():
    config = SamplerConfig(gen_length=4, block_length=1, stop=PadBlockStop())
    gap = Infill([1, -1, 2, -1, -1], [False, True, False, True, True])
    out = generate(table([0, 6, 0, 1, 1]), [gap], config)
    assert bool((out.step_map >= 0).all())


def test_an_end_token_beyond_the_length_asked_for_is_none():
    config = SamplerConfig(gen_length=4, block_length=4, grid="zero")
    out = generate(table([0, 0, 1, 1, 1, 1, 1, 6]), [[0, 0]], config)
    assert out.finish_reason == ("length",)
    assert out.stop_length.tolist() == [4]


def test_stop_ids_of_ones_own_cut_the_completion():
    config = SamplerConfig(gen_length=4, block_length=4, stop=EosStop(ids=(5,)))
    out = generate(table([1, 5, 1, 1]), [[]], config)
    assert out.completions.tolist() == [[1, 5, 0, 0]]
    assert out.stop_length.tolist() == [2]


def test_open_slots_have_no_numbers():
    config = SamplerConfig(
        gen_length=8,
        block_length=8,
        steps=4,
        schedule=MaskGit("linear"),
        reviser=RunningConfidence(MaskGit("linear")),
    )
    for step in (1, 2, 3):
        out = generate(ToyDenoiser.random(), [[1], [2, 3]], config, keys=step, until_step=step)
        for table_ in (out.logprobs, out.sample_logprobs, out.scores):
            assert bool((table_[out.step_map < 0] == 0).all())


def test_guidance_survives_an_infinite_logit():
    mixed = Guidance(1.0).mix(torch.tensor([torch.finfo(torch.float32).max, 1.0]), torch.tensor([0.0, 0.0]))
    assert mixed.isfinite().all()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (lambda: SamplerConfig(gen_length=4, block_length=4, reviser=ReMDM()), "`steps`: expected a number for ReMDM"),
        (lambda: presets.eoser(8, 8).replace(steps=None), "`steps`: expected a number, got None"),
    ],
)
def test_what_needs_steps_says_so_before_any_forward(config, message):
    with pytest.raises(ValueError, match=message):
        config()


def test_ids_are_checked_before_any_forward():
    model = ToyDenoiser.random()
    with pytest.raises(ValueError, match=r"expected token ids in \[0, 24\), got 500"):
        generate(model, [[1]], presets.llada(4).replace(rules=(Suppress((500,)),)))
    assert model.batches == []
    model.eos_ids = (model.mask_id,)
    with pytest.raises(ValueError, match="`eos_ids`: expected ids other than the mask's, got 23"):
        generate(model, [[1]], presets.llada(4))


def test_one_rule_is_a_tuple_of_one():
    with pytest.raises(TypeError, match="`rules`: expected a tuple of rules"):
        SamplerConfig(gen_length=4, block_length=4, rules=Suppress((1,)))
    assert SamplerConfig(gen_length=4, block_length=[1, 3]).sizes == (1, 3)


def test_a_network_that_moves_takes_its_ids_along():
    net = torch.nn.Linear(2, 2)
    model = Denoiser(net, mask_id=1)
    net.to("meta")
    assert model.device.type == "meta"


def test_a_block_longer_than_the_response_is_remembered_whole():
    """On the zero grid a response of one token fills a block; the memory of a rule must hold all of it."""
    config = presets.llada22(3, 4, gen_length=1, block_length=8)
    model = ToyDenoiser.random(block_length=8)
    out = generate(model, [[1], [2, 5]], config)
    assert bool((out.step_map >= 0)[out.block_id >= 0].all())
    assert config.longest == 8
