"""Identical canvases and order of commits as the public reference implementations, with the ideal number of forwards.

Forwards that the references waste (empty steps, separate commits) are left out, and there again in a compatible mode.
"""

import json

import pytest
import torch
from torch import Tensor

from dare_samplers import (
    Greedy,
    LengthStop,
    LinearFront,
    Logits,
    NoCache,
    Probability,
    SamplerConfig,
    SamplerOutput,
    Schedule,
    TopK,
    generate,
    presets,
)
from dare_samplers.schedules import Ascending, DreamFloor, MaskGit
from dare_samplers.scorers import Margin, NegEntropy
from dare_samplers.testing import TableDenoiser

LLADA = ["blocks", "left_to_right", "leftpad", "no_eos", "one_token_per_step", "single_block"]
SDAR = ["dynamic_t60_partial_prompt", "dynamic_t90", "sequential", "static", "static_uneven", "topk1_dynamic"]
TARGETS = {"llada": "confidence", "entropy": "neg_entropy", "topk_margin": "margin_confidence"}


def compressed(steps: Tensor) -> list[list[int]]:
    """Ranks of the distinct steps in each row; -1 stays -1."""
    return [[sorted({s for s in row if s >= 0}).index(s) if s >= 0 else -1 for s in row] for row in steps.tolist()]


def decode(case, config: SamplerConfig) -> SamplerOutput:
    """All blocks, whatever end token occurs: no reference but the `stop` cases ends early."""
    return generate(case.model, case.prompts, config.replace(stop=LengthStop()))


def agree(case, config: SamplerConfig, nfe: int, prefills: int = 0) -> SamplerOutput:
    """Canvas, order of final commits and number of forwards; columns beyond the recorded ones are not compared."""
    out = decode(case, config)
    width = case.tensors["prompt"].shape[1]
    canvas = case.tensors.get("final_canvas", case.tensors["sequences"])
    steps = case.tensors["commit_step"][:, width:]
    assert torch.equal(out.sequences[:, : canvas.shape[1]], canvas)
    assert compressed(out.step_map[:, : steps.shape[1]]) == compressed(steps)
    assert out.nfe == nfe
    assert int(out.row_nfe.max()) == nfe - prefills
    assert set(out.finish_reason) == {"length"}
    return out


def blocks(settings) -> int:
    return -(-settings["gen_length"] // settings["block_length"])


@pytest.mark.wheel
@pytest.mark.parametrize("name", LLADA)
def test_llada(golden, name):
    case = golden(f"llada_{name}")
    s = case.settings
    eos = "never" if s.get("logits_eos_inf") else "off"
    config = presets.llada(s["gen_length"], s["block_length"], s["steps"], eos=eos, eos_ids=case.model.eos_ids)
    agree(case, config, nfe=s["steps"])


@pytest.mark.parametrize("name", ["cfg", "leftpad_cfg"])
def test_llada_under_guidance(golden, name):
    case = golden(f"llada_{name}")
    s = case.settings
    config = presets.llada(s["gen_length"], s["block_length"], s["steps"], guidance=s["cfg_scale"])
    agree(case, config, nfe=s["steps"])


@pytest.mark.parametrize("tau", [60, 90])
def test_fast_dllm_without_cache(golden, tau):
    case = golden(f"fastdllm_toy_none_t{tau}")
    s = case.settings
    agree(case, presets.fast_dllm(s["gen_length"], s["block_length"], s["threshold"]), nfe=int(case.tensors["nfe"]))


@pytest.mark.parametrize("name", ["entropy", "entropy_full_steps", "leftpad", "maskgit_plus", "topk_margin"])
@pytest.mark.parametrize("compat", [False, True])
def test_dream(golden, name, compat):
    case = golden(f"dream_{name}")
    s = case.settings
    config = presets.dream(
        s["gen_length"], s["steps"], s["alg"], s["temperature"], None, None, s["alg_temp"], s["eps"], compat=compat
    )
    empty = 1 if s["steps"] == s["gen_length"] else 0
    agree(case, config, nfe=s["steps"] - (0 if compat else empty))
    assert int(case.tensors["nfe"]) == s["steps"]


def test_dream_with_a_budget_and_a_threshold(golden):
    case = golden("dream_confidence_threshold")
    s = case.settings
    config = presets.fast_dllm_dream(s["gen_length"], None, s["steps"], s["threshold"])
    agree(case, config, nfe=int(case.tensors["nfe"]))


@pytest.mark.parametrize("name", ["single_block", "three_blocks"])
def test_ascending_step_sizes(golden, name):
    case = golden(f"ass_{name}")
    s = case.settings
    agree(case, presets.ascending(s["gen_length"], s["block_num"]), nfe=s["steps"])


def test_ascending_step_sizes_with_end_token_rejection(golden):
    case = golden("eoser_ass")
    s = case.settings
    config = presets.ascending(s["gen_length"], gamma_min=s["eos_min_gamma"], gamma_max=s["eos_max_gamma"])
    agree(case, config, nfe=s["steps"])


def test_end_token_rejection(golden):
    case = golden("eoser_single_block")
    s = case.settings
    gamma = s["eos_min_gamma"], s["eos_max_gamma"]
    agree(case, presets.eoser(s["gen_length"], s["block_length"], s["steps"], *gamma), nfe=s["steps"])


def sdar(case, *, compat: bool) -> SamplerConfig:
    s = case.settings
    config = presets.sdar(
        s["gen_length"],
        s["block_length"],
        s["denoising_steps"],
        s["remasking_strategy"].removeprefix("low_confidence_"),
        s.get("confidence_threshold", 0.85),
        compat=compat,
    )
    return config.replace(proposer=Greedy(top_k=s["top_k"] or None))


@pytest.mark.parametrize("name", SDAR)
def test_sdar(golden, name):
    case = golden(f"sdar_{name}")
    denoising = int((case.tensors["forward_is_commit"] == 0).sum())
    agree(case, sdar(case, compat=False).replace(cache=NoCache()), nfe=denoising)
    agree(case, sdar(case, compat=False), nfe=1 + denoising, prefills=1)
    stores = int(case.tensors["forward_is_commit"].sum())
    agree(case, sdar(case, compat=True), nfe=int(case.tensors["nfe"]), prefills=stores)
    assert stores == 1 + blocks(case.settings)


def test_sdar_stops_after_the_block_with_an_end_token(golden):
    case = golden("sdar_stop")
    denoising = int((case.tensors["forward_is_commit"] == 0).sum())
    for config, nfe in ((sdar(case, compat=False), 1 + denoising), (sdar(case, compat=True), int(case.tensors["nfe"]))):
        out = generate(case.model, case.prompts, config)
        steps = case.tensors["commit_step"]
        done = steps[0] >= 0
        assert torch.equal(out.sequences[0, done], case.tensors["sequences"][0, done])
        assert compressed(out.step_map) == compressed(steps[:, case.tensors["prompt"].shape[1] :])
        assert (out.nfe, out.finish_reason) == (nfe, ("eos",))


def llada2(case) -> SamplerConfig:
    s = case.settings
    return presets.llada2(s["gen_length"], s["block_length"], s["steps"], s["threshold"])


@pytest.mark.parametrize("name", ["quota", "threshold"])
def test_llada2(golden, name):
    case = golden(f"llada2_{name}")
    nfe = int(case.tensors["nfe"])
    agree(case, llada2(case).replace(cache=NoCache()), nfe=nfe)
    agree(case, llada2(case), nfe=1 + nfe, prefills=1)


def llada21(case) -> SamplerConfig:
    s = case.settings
    return presets.llada21(
        gen_length=s["gen_length"],
        block_length=s["block_length"],
        tau=s["threshold"],
        tau_edit=s["editing_threshold"],
        max_post_steps=s["max_post_steps"],
    )


@pytest.mark.parametrize("name", ["edit", "edit_partial_prompt", "no_post", "speed"])
def test_llada21(golden, name):
    case = golden(f"llada21_{name}")
    nfe = int(case.tensors["nfe"])
    agree(case, llada21(case).replace(cache=NoCache()), nfe=nfe)
    agree(case, llada21(case), nfe=1 + nfe, prefills=1)


@pytest.mark.parametrize(("name", "config"), [("llada2_stop", llada2), ("llada21_stop", llada21)])
def test_llada2_stops_after_the_block_with_an_end_token(golden, name, config):
    case = golden(name)
    out = generate(case.model, case.prompts, config(case))
    expected = case.tensors["sequences"]
    assert torch.equal(out.completions[:, : expected.shape[1]], expected)
    assert out.stop_length.tolist() == [expected.shape[1]]
    assert int(out.row_nfe) == int(case.tensors["nfe"]) == out.nfe - 1
    assert out.finish_reason == ("eos",)


def running_confidence(case) -> SamplerConfig:
    s = case.settings
    target = TARGETS[s["conf_alg"]]
    return presets.rcr(s["gen_length"], s["block_length"], s["steps"], target, s["mode"], proposals=True)


def same_proposals(case, out: SamplerOutput) -> None:
    """Before any re-masking: the token at every slot, and its score where the reference stores one just proposed."""
    width = case.tensors["prompt"].shape[1]
    for step, (tokens, scores) in enumerate(
        zip(case.tensors["proposals"][:, 0], case.tensors["confidences"][:, 0], strict=True)
    ):
        held = out.canvas_at(step)[0, width:]
        now = out.proposals.step == step
        place = out.proposals.position[now]
        held = held.index_put((place,), out.proposals.new[now])
        assert torch.equal(held, tokens)
        stored = scores[place] != 0
        score = out.proposals.score[now][stored].float()
        torch.testing.assert_close(score, scores[place][stored], rtol=0, atol=1e-6)


def test_maskgit(golden):
    case = golden("maskgit_cosine")
    same_proposals(case, agree(case, running_confidence(case).replace(reviser=None), nfe=case.settings["steps"]))


@pytest.mark.parametrize("name", ["entropy_cosine", "margin_two_blocks", "prob_linear"])
def test_running_confidence_remasking(golden, name):
    case = golden(f"rcr_{name}")
    same_proposals(case, agree(case, running_confidence(case), nfe=case.settings["steps"]))


def observed_quotas(schedule: Schedule, masks: int, steps: int, slots) -> list[int]:
    table, left = [], masks
    while left:
        now = slots(torch.arange(masks)[None] < left, step=len(table), steps=steps)
        table.append(int(schedule.quota(now)))
        left -= table[-1]
    return table


@pytest.mark.parametrize("of", ["left", "block"])
def test_linear_front_tables(golden_path, slots, of):
    for masks, steps, table in json.loads((golden_path / "linear_front.json").read_text())["rows"]:
        assert observed_quotas(LinearFront(of), masks, steps, slots) == table


@pytest.mark.parametrize("gamma", ["linear", "cosine", "pow2"])
def test_maskgit_tables(golden_path, slots, gamma):
    for masks, steps, table in json.loads((golden_path / "schedules.json").read_text())[f"maskgit_{gamma}"]:
        assert observed_quotas(MaskGit(gamma, empty_steps=True), masks, steps, slots) == table


def test_ascending_tables(golden_path, slots):
    for masks, steps, table in json.loads((golden_path / "schedules.json").read_text())["ascending"]:
        assert observed_quotas(Ascending(steps), masks, steps, slots) == table


def test_dream_floor_tables(golden_path, slots):
    for masks, steps, table, eps in json.loads((golden_path / "schedules.json").read_text())["dream_floor"]:
        assert observed_quotas(DreamFloor(eps, empty_steps=True), masks, steps, slots) == table


@pytest.fixture
def unit(golden_path):
    return torch.load(golden_path / "unit_scores.pt", weights_only=True)


@pytest.mark.parametrize(
    ("scorer", "name"), [(Probability(), "prob"), (Margin(), "margin"), (NegEntropy(), "neg_entropy")]
)
def test_scores(unit, slots, scorer, name):
    logits = Logits.of(unit["logits"][None])
    tokens = logits.values.argmax(-1)
    assert torch.equal(tokens[0], unit["proposal"])
    score = scorer.score(logits, tokens, slots(torch.ones_like(tokens, dtype=torch.bool)))
    torch.testing.assert_close(score[0], unit[f"score_{name}"], rtol=0, atol=1e-6)


def test_selection_by_quota(unit, slots):
    logits = Logits.of(unit["sel_logits"])
    opened = slots(unit["sel_canvas"] == 157)
    tokens = logits.without([157]).values.argmax(-1)
    assert torch.equal(tokens[opened.open], unit["sel_proposal"][opened.open])
    pick = TopK().select(Probability().score(logits, tokens, opened), opened, unit["sel_quota"])
    assert torch.equal(pick, unit["sel_by_quota"])


@pytest.mark.parametrize("tau", [30, 60, 90])
def test_selection_by_threshold_with_forced_progress(unit, tau):
    for row in range(4):
        opened = unit["sel_canvas"][row] == 157
        model = TableDenoiser(unit["sel_logits"][row][opened], mask_id=157)
        config = presets.threshold(int(opened.sum()), int(opened.sum()), tau / 100)
        out = generate(model, [[]], config, until_step=1)
        assert torch.equal(out.step_map[0] == 0, unit[f"sel_threshold_{tau}"][row][opened])
