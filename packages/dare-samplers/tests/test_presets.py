"""Every preset is a config with published defaults, and decodes."""

import inspect
import re

import pytest
import torch

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

SMALL: dict[str, list[SamplerConfig]] = {
    "ascending": [presets.ascending(12), presets.ascending(16, 3), presets.ascending(8, gamma_min=0.01)],
    "d1": [presets.d1(8, 4)],
    "d_tree_rpo": [presets.d_tree_rpo(8, 4, 4)],
    "dinfer": [
        presets.dinfer(8, 4, tau=0.3, vicinity=(1, 1, 1)),
        presets.dinfer(8, 4, "credit", 0.3, vicinity=None),
        presets.dinfer(8, 4, "hierarchy", 0.5, 0.1, vicinity=None, refresh=1),
        presets.dinfer(8, 4, "hierarchy", 0.5, 0.1, 0.3, vicinity=None, refresh=2),
        presets.dinfer(8, 4, "threshold", 0.3, compat=True),
    ],
    "dllm_rl": [
        presets.dllm_rl(8, 4, 4, "margin_confidence"),
        presets.dllm_rl(8, 4, strategy="dynamic", tau=0.3, further_horizon=2, cache=True),
        presets.dllm_rl(8, 4, 4, "neg_entropy", pad_penalty=2.0, cache=True),
    ],
    "dream": [
        presets.dream(8, 4, "origin", 1.0),
        presets.dream(8, 8, "maskgit_plus", top_k=3),
        presets.dream(8, 8, "topk_margin", 0.0, None),
        presets.dream(8, 8, alg_temp=0.5, compat=True),
    ],
    "eoser": [presets.eoser(8, 4, 4, temperature=1.0)],
    "espo": [presets.espo(8, 4)],
    "fast_dllm": [presets.fast_dllm(8, 4, 0.3, None, cache) for cache in ("none", "prefix", "dual")]
    + [presets.fast_dllm(8, 4, factor=1.0)],
    "fast_dllm_dream": [presets.fast_dllm_dream(8, 4, tau=0.3, cache="dual"), presets.fast_dllm_dream(8, None, 4)],
    "fast_dllm_v2": [presets.fast_dllm_v2(8, 2, 0.3), presets.fast_dllm_v2(8, 2, 0.3, 1.0, lead=True)],
    "first_hitting": [presets.first_hitting(8, 4, top_p=0.9), presets.first_hitting(8, 4, block_causal=True)],
    "just_grpo": [presets.just_grpo(8)],
    "llada": [
        presets.llada(8, 4, 4, guidance=1.5),
        presets.llada(8, 4, 4, 1.0, "random", eos="never", eos_ids=(22,)),
        presets.llada(8, 8, 4, 1.0, "left_to_right", eos="last"),
    ],
    "llada2": [presets.llada2(10, 4, 4, 0.3)],
    "llada21": [presets.llada21(10, 4, max_post_steps=2), presets.llada21(10, 4, "speed", max_post_steps=3)],
    "llada22": [presets.llada22(3, 5, 10, 4, max_post_steps=3, repeat_penalty=1.0, temperature=1.0)],
    "llada_instruct": [presets.llada_instruct("gsm8k").replace(gen_length=8, block_length=8)],
    "mdlm": [presets.mdlm(8, 5)],
    "rcr": [presets.rcr(8, 4, 4), presets.rcr(8, None, 4, "neg_entropy", "cosine", 1.0, proposals=True)],
    "remdm": [presets.remdm(8, 8, kind, 0.5) for kind in ("cap", "rescale", "conf", "loop", "fb")],
    "remdm_llada": [presets.remdm_llada(8, 4)],
    "sdar": [
        presets.sdar(10, 4, 2, "static"),
        presets.sdar(10, 4, None, "dynamic", 0.3),
        presets.sdar(10, 4, 2, "sequential", top_k=3, top_p=0.9),
        presets.sdar(10, 4, None, "entropy_bounded", compat=True),
    ],
    "spg": [presets.spg(8, 4)],
    "threshold": [presets.threshold(8, 4, 0.3)],
}
CASES = [pytest.param(config, id=f"{name}-{number}") for name in SMALL for number, config in enumerate(SMALL[name])]


def block_length(config: SamplerConfig) -> int | None:
    """The attention block that the preset is for: 4 throughout, also where smaller blocks are decoded."""
    return 4 if config.grid == "zero" else None


def transformer(block: int | None) -> TinyTransformer:
    attention = "full" if block is None else "block_causal"
    return TinyTransformer.random(width=16, layers=1, heads=1, attention=attention, block_length=block)


def test_every_preset_is_tried():
    assert set(SMALL) == set(presets.__all__)


@pytest.mark.parametrize("name", presets.__all__)
def test_docstrings_name_a_paper(name):
    assert re.search(r"arXiv:\d{4}\.\d{5}", inspect.getdoc(getattr(presets, name)) or "")


@pytest.mark.parametrize("name", sorted(set(presets.__all__) - {"llada_instruct", "llada22"}))
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
