"""Identical sequences and commit order as the public reference implementations, with the ideal number of forwards."""

import json

import pytest
import torch
from torch import Tensor

from dare_samplers import (
    LengthStop,
    LinearFront,
    Logits,
    PositionScore,
    Probability,
    SamplerConfig,
    Suppress,
    TopK,
    generate,
    presets,
)
from dare_samplers.testing import TableDenoiser

LLADA = ["blocks", "left_to_right", "leftpad", "no_eos", "one_token_per_step", "single_block"]


def compressed(steps: Tensor) -> list[list[int]]:
    """Ranks of the distinct steps in each row; -1 stays -1."""
    return [[sorted({s for s in row if s >= 0}).index(s) if s >= 0 else -1 for s in row] for row in steps.tolist()]


def agree(case, config: SamplerConfig, nfe: int) -> None:
    out = generate(case.model, case.prompts, config.replace(stop=LengthStop()))
    width = case.tensors["prompt"].shape[1]
    assert torch.equal(out.sequences, case.tensors["sequences"])
    assert compressed(out.step_map) == compressed(case.tensors["commit_step"][:, width:])
    assert out.nfe == nfe == int(out.row_nfe.max())
    assert set(out.finish_reason) == {"length"}


@pytest.mark.wheel
@pytest.mark.parametrize("name", LLADA)
def test_llada(golden, name):
    case = golden(f"llada_{name}")
    s = case.settings
    config = presets.llada(s["gen_length"], s["block_length"], s["steps"])
    if s.get("logits_eos_inf"):
        config = config.replace(rules=(Suppress(case.model.eos_ids),))
    agree(case, config, nfe=int(case.tensors["nfe"]))


@pytest.mark.parametrize("tau", [60, 90])
def test_fast_dllm_without_cache(golden, tau):
    case = golden(f"fastdllm_toy_none_t{tau}")
    s = case.settings
    agree(case, presets.threshold(s["gen_length"], s["block_length"], s["threshold"]), nfe=int(case.tensors["nfe"]))


@pytest.mark.parametrize("name", ["static", "static_uneven", "sequential"])
def test_sdar_on_the_zero_grid(golden, name):
    case = golden(f"sdar_{name}")
    s = case.settings
    blocks = s["gen_length"] // s["block_length"]
    config = SamplerConfig(
        gen_length=s["gen_length"],
        block_length=s["block_length"],
        steps=blocks * s["denoising_steps"],
        grid="zero",
        scorer=PositionScore() if name == "sequential" else Probability(),
    )
    denoising = int((~case.tensors["forward_is_commit"].bool()).sum())
    agree(case, config, nfe=denoising)


def test_linear_front_tables(golden_path, slots):
    for masks, steps, table in json.loads((golden_path / "linear_front.json").read_text())["rows"]:
        assert observed_quotas(masks, steps, slots) == table


def observed_quotas(masks: int, steps: int, slots) -> list[int]:
    table, left = [], masks
    while left:
        now = slots(torch.arange(masks)[None] < left, step=len(table), steps=steps)
        table.append(int(LinearFront().quota(now)))
        left -= table[-1]
    return table


@pytest.fixture
def unit(golden_path):
    return torch.load(golden_path / "unit_scores.pt", weights_only=True)


def test_probability_of_the_proposal(unit, slots):
    logits = Logits.of(unit["logits"][None])
    tokens = logits.values.argmax(-1)
    assert torch.equal(tokens[0], unit["proposal"])
    score = Probability().score(logits, tokens, slots(torch.ones_like(tokens, dtype=torch.bool)))
    torch.testing.assert_close(score[0], unit["score_prob"], rtol=0, atol=1e-6)


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
