"""Every preset is a config with published defaults, and decodes."""

import inspect
import re
from types import SimpleNamespace

import pytest
import torch
from small_presets import SMALL

from dare_samplers import SamplerConfig, generate, presets
from dare_samplers.caches import BlockKV, Dual, Horizon, NoCache, Prefix, Vicinity
from dare_samplers.proposers import Categorical, Greedy
from dare_samplers.revisers import Levenshtein, RemaskBelow, ReMDM
from dare_samplers.rules import Suppress
from dare_samplers.schedules import Bernoulli, DreamFloor
from dare_samplers.scorers import EosLast, EosScaled, Margin, NegEntropy, PadPenalty, Probability
from dare_samplers.selectors import EntropyBudget, Factor, Hybrid, Lead, SegmentMax, SoftTopK, Threshold, TopK
from dare_samplers.state import RUNNING
from dare_samplers.stops import LengthStop
from dare_samplers.testing import TinyTransformer, ToyDenoiser
from dare_samplers.trace import FORCED

PROMPTS = [[3, 1, 4, 1, 5], [2], [6, 7, 8]]

CASES = [pytest.param(config, id=f"{name}-{number}") for name in SMALL for number, config in enumerate(SMALL[name])]


def block_length(config: SamplerConfig) -> int | None:
    """The attention block that the preset is for: 4 throughout, also where smaller blocks are decoded."""
    return 4 if config.grid == "zero" else None


def transformer(block: int | None) -> TinyTransformer:
    attention = "full" if block is None else "block_causal"
    return TinyTransformer.random(width=16, layers=1, heads=1, attention=attention, block_length=block)


def test_every_preset_is_tried():
    assert set(SMALL) == set(presets.NAMES)


@pytest.mark.parametrize("name", presets.NAMES)
def test_docstrings_name_a_paper(name):
    assert re.search(r"arXiv:\d{4}\.\d{5}", inspect.getdoc(getattr(presets, name)) or "")


@pytest.mark.parametrize("name", sorted(set(presets.NAMES) - {"llada_instruct", "llada22"}))
def test_published_settings_are_the_defaults(name):
    assert isinstance(getattr(presets, name)(), SamplerConfig)


@pytest.mark.parametrize("config", CASES)
def test_presets_fill_every_slot_of_ragged_prompts(config):
    block = block_length(config)
    for model in (ToyDenoiser.random(block_length=block), transformer(block)):
        out = generate(model, PROMPTS, config, keys=1)
        assert not out.state.open.any()
        assert not (out.state.finish == RUNNING).any()
        for row, prompt in enumerate(PROMPTS):
            assert out.sequences[row][out.prompt_mask[row]].tolist() == prompt
        assert not (out.sequences == model.mask_id).any()


@pytest.mark.parametrize("config", CASES)
def test_presets_decode_rows_alone_as_in_a_batch(config):
    model = ToyDenoiser.random(block_length=block_length(config))
    keys = torch.tensor([5, 6, 7])
    batch = generate(model, PROMPTS, config, keys=keys)
    for row, prompt in enumerate(PROMPTS):
        alone = generate(model, [prompt], config, keys=keys[row : row + 1])
        length = alone.step_map.shape[1]
        assert torch.equal(alone.step_map[0], batch.step_map[row, :length])
        assert torch.equal(alone.completions[0], batch.completions[row, : alone.completions.shape[1]])


def test_smoothing_needs_a_model_that_mixes():
    config = presets.dinfer(8, 4, "smoothing", 0.3, vicinity=None)
    assert not generate(transformer(None), PROMPTS, config).state.open.any()
    with pytest.raises(ValueError, match="mix"):
        generate(ToyDenoiser.random(), PROMPTS, config)


@pytest.mark.parametrize("kind", ["cap", "rescale", "conf", "loop", "fb"])
def test_remdm_commits_nothing_by_force(kind):
    out = generate(ToyDenoiser.random(), [[1]] * 8, presets.remdm(8, 8, kind, 0.5), keys=3)
    assert not (out.events.kind == FORCED).any()
    assert out.row_nfe.tolist() == [8] * 8


def test_end_token_policies_of_llada():
    assert presets.llada(8, eos="last").scorer == EosLast(Probability())
    assert presets.llada(8, eos="never", eos_ids=[3, 4]).rules == (Suppress((3, 4)),)
    with pytest.raises(ValueError, match="eos_ids"):
        presets.llada(8, eos="never")
    with pytest.raises(ValueError, match="expected one of off, never, last"):
        presets.llada(8, eos="sometimes")


def test_published_settings_of_llada_instruct():
    gsm8k, humaneval = presets.llada_instruct("gsm8k"), presets.llada_instruct("humaneval", pure=True)
    assert (gsm8k.gen_length, gsm8k.block_length, gsm8k.scorer) == (256, 8, Probability())
    assert (humaneval.gen_length, humaneval.blocks, humaneval.rules) == (512, 1, (Suppress((126081, 126348)),))
    assert presets.llada_instruct("math", pure=True).scorer == EosLast(Probability(), (126081, 126348))


def test_caches_by_name():
    assert [presets.fast_dllm(cache=one).cache for one in ("none", "prefix", "dual")] == [NoCache(), Prefix(), Dual()]
    assert presets.dinfer(vicinity=(2, 3, 1)).cache == Vicinity(2, 3, 1)
    assert presets.dinfer(vicinity=None, refresh=2).cache == Dual(2)
    assert presets.dllm_rl(cache=True, further_horizon=32).cache == Horizon(32)
    assert presets.sdar().cache == BlockKV()
    assert presets.sdar(compat=True).cache == BlockKV("separate", final_commit=True)


def test_selectors_and_scores_by_name():
    assert [presets.sdar(strategy=one).selector for one in ("static", "dynamic", "entropy_bounded")] == [
        TopK(),
        Hybrid(0.85),
        EntropyBudget(0.35),
    ]
    assert presets.fast_dllm(factor=1.0).selector == Factor(1.0)
    assert presets.fast_dllm_v2(lead=True).selector == Lead(Threshold(0.95, strict=True))
    assert presets.dinfer(kind="hierarchy").selector == SegmentMax(0.9, 0.4)
    assert presets.dinfer(kind="hierarchy", remask=0.4).reviser == RemaskBelow(0.4, SegmentMax(0.9, 0.4))
    assert presets.dream(8, alg_temp=0.5).selector == SoftTopK(0.5)
    assert presets.dream(8, alg="topk_margin").scorer == Margin()
    assert presets.dllm_rl(pad_penalty=2.0, target="neg_entropy").scorer == PadPenalty(NegEntropy(), 2.0)
    assert presets.eoser(8).scorer == EosScaled(Probability(), 0.4, 1.0)
    assert presets.llada22(3, 5, tau_edit=0.2).reviser == Levenshtein(3, 5, 0.2, 16)


def test_schedules_by_name():
    assert presets.dream(8, alg="origin").schedule == Bernoulli(1e-3)
    assert presets.dream(8, compat=True).schedule == DreamFloor(1e-3, empty_steps=True)
    assert presets.remdm(kind="cap").reviser == ReMDM("cap", 0.02, 1.0, 0.0)


def test_temperature_0_is_greedy():
    assert presets.llada(8).proposer == Greedy()
    assert presets.sdar(temperature=0.0, top_k=1).proposer == Greedy(top_k=1)
    assert presets.dream(8).proposer == Categorical(0.2, None, 0.95, "top_p_first")


def test_ascending_block_sizes():
    assert presets.ascending(128, 4).block_length == (15, 16, 32, 65)
    assert presets.ascending(40, 2).block_length == (15, 25)
    out = generate(ToyDenoiser.random(), [[1, 2]], presets.ascending(16, 3).replace(stop=LengthStop()))
    assert out.nfe == 4  # floor(log2(16))
    with pytest.raises(ValueError, match="`blocks`: expected 1 to 4"):
        presets.ascending(16, 5)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: presets.dream(8, alg="best"), "expected one of origin"),
        (lambda: presets.dream(8, alg="origin", alg_temp=0.1), "`alg_temp`"),
        (lambda: presets.dinfer(remask=0.4), "`remask`"),
        (lambda: presets.dinfer(refresh=2), "`refresh`"),
        (lambda: presets.dllm_rl(further_horizon=8), "`further_horizon`"),
        (lambda: presets.dllm_rl(64, 32, 64, strategy="dynamic"), "`steps`"),
        (lambda: presets.ascending(16, 2, gamma_min=0.1), "`gamma_min`"),
        (lambda: presets.fast_dllm_dream(64, 32, 64), "`steps`"),
        (lambda: presets.sdar(steps_per_block=4, strategy="entropy_bounded"), "`steps`"),
        (lambda: presets.llada_instruct("arc"), "expected one of gsm8k"),
        (lambda: presets.fast_dllm(cache="triple"), "expected one of none, prefix, dual"),
        (lambda: presets.llada21(mode="slow"), "expected one of quality, speed"),
    ],
)
def test_settings_that_exclude_one_another(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def described(**changes):
    return SimpleNamespace(**{"attention": "full", "block_length": None, "generation": {}, **changes})


def test_a_description_names_its_preset():
    assert presets.for_spec(described()) == presets.llada()
    blocks = described(attention="block_causal", block_length=8)
    assert presets.for_spec(blocks) == presets.sdar(block_length=8)
    named = described(generation={"preset": "dream", "gen_length": 8, "alg": "origin"})
    assert presets.for_spec(named) == presets.dream(8, alg="origin")
    blocks.generation = {"preset": "llada2", "block_length": 32, "tau": 0.5, "steps_per_block": 8}
    assert presets.for_spec(blocks) == presets.llada2(block_length=8, tau=0.5, steps_per_block=8)
    blocks.generation = {"preset": "fast_dllm_v2", "small_block_length": 6}
    assert presets.for_spec(blocks) == presets.fast_dllm_v2(small_block_length=2)


def test_a_description_that_names_nothing_known_is_refused():
    with pytest.raises(ValueError, match="`preset`"):
        presets.for_spec(described(generation={"preset": "autoregressive"}))
    with pytest.raises(ValueError, match=r"arguments of presets.llada \(gen_length, .*got \['cfg_scale'\]"):
        presets.for_spec(described(generation={"preset": "llada", "cfg_scale": 0.0}))


def test_configs_say_what_they_need():
    needs = {name: SMALL[name][0].needs for name in presets.NAMES}
    assert needs["llada"] == ("full_attention",)
    assert needs["sdar"] == ("block_cache",)
    assert needs["llada21"] == ("block_cache", "token_editing")
    assert needs["llada22"] == ("block_cache", "insert_delete")
    dual = presets.fast_dllm(8, 4, cache="dual").replace(layout="packed")
    assert dual.needs == ("full_attention", "packed_documents", "window_cache")
    assert presets.fast_dllm(8, 4, cache="prefix").replace(grid="zero").needs == ("prefix_cache",)
