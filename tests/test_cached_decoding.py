"""Caches, block attention and the shift of real families: the public reference loops, and decoding without a cache."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import dare_models
from dare_models import DiffusionLM, load
from dare_models.testing import example
from dare_samplers import (
    BlockKV,
    Dual,
    Greedy,
    Horizon,
    LengthStop,
    NoCache,
    Prefix,
    SamplerConfig,
    SamplerOutput,
    Vicinity,
    generate,
    presets,
)

ROOT = Path(__file__).parents[1]
CHECKPOINTS = ROOT / "packages" / "dare-models" / "tests" / "golden"
TAUS = ("quota", "t30", "t60", "t90")
Settings = dict[str, Any]


def order(steps: Tensor) -> list[list[int]]:
    """Ranks of the distinct steps in each row; −1 stays −1."""
    return [[sorted({s for s in row if s >= 0}).index(s) if s >= 0 else -1 for s in row] for row in steps.tolist()]


def responses(out: SamplerOutput, length: int) -> Tensor:
    """What was decoded, also behind an end token: [B, length] in any layout."""
    starts = [int(mask.nonzero()[-1]) + 1 for mask in out.prompt_mask]
    return torch.stack([row[start : start + length] for row, start in zip(out.sequences, starts, strict=True)])


def fast_dllm(s: Settings) -> SamplerConfig:
    if "threshold" in s:
        return presets.fast_dllm(s["gen_length"], s["block_length"], s["threshold"], cache=s["cache"])
    cache = {"prefix": Prefix(), "dual": Dual()}[s["cache"]]
    return presets.llada(s["gen_length"], s["block_length"], s["steps"]).replace(cache=cache)


def guided(s: Settings) -> SamplerConfig:
    return presets.llada(s["gen_length"], s["block_length"], s["steps"], guidance=s["cfg_scale"])


def dream(s: Settings) -> SamplerConfig:
    return presets.dream(
        s["gen_length"], s["steps"], s["alg"], s["temperature"], None, None, s["alg_temp"], s["eps"], compat=True
    )


def sdar(s: Settings) -> SamplerConfig:
    strategy = s["remasking_strategy"].removeprefix("low_confidence_")
    tau = s.get("confidence_threshold", 0.85)
    config = presets.sdar(s["gen_length"], s["block_length"], s["denoising_steps"], strategy, tau)
    return config.replace(proposer=Greedy(top_k=s["top_k"] or None))


def llada2(s: Settings) -> SamplerConfig:
    return presets.llada2(s["gen_length"], s["block_length"], s["steps"], s["threshold"])


def llada21(s: Settings) -> SamplerConfig:
    return presets.llada21(
        gen_length=s["gen_length"],
        block_length=s["block_length"],
        tau=s["threshold"],
        tau_edit=s["editing_threshold"],
        max_post_steps=s["max_post_steps"],
    )


CASES: dict[str, Callable[[Settings], SamplerConfig]] = {
    **{f"fastdllm_{cache}_{tau}": fast_dllm for cache in ("prefix", "dual") for tau in TAUS},
    "llada_checkpoint_leftpad_cfg": guided,
    "dream_checkpoint_entropy": dream,
    "dream_checkpoint_leftpad": dream,
    "sdar_checkpoint_static": sdar,
    "sdar_checkpoint_dynamic": sdar,
    "llada2_checkpoint_threshold": llada2,
    "llada21_checkpoint_edit": llada21,
}


def checkpoint(name: str, dtype: str, case: dict[str, Any]) -> DiffusionLM:
    folder, block = CHECKPOINTS / Path(case["model"]["path"]).name, None
    if case["model"]["attention"] == "block-causal":
        block = case["settings"]["block_length"]
    return load(folder, dtype=dtype, mask_token_id=case["mask_token_id"], block_length=block)


def read(name: str) -> tuple[dict[str, Any], dict[str, Tensor], list[list[int]]]:
    folder = ROOT / "tests" / "golden" / name
    tensors = load_file(folder / "tensors.safetensors")
    prompt = tensors["prompt"]
    mask = tensors.get("attention_mask", torch.ones_like(prompt)).bool()
    prompts = [row[real].tolist() for row, real in zip(prompt, mask, strict=True)]
    return json.loads((folder / "case.json").read_text(encoding="utf-8")), tensors, prompts


@pytest.mark.parametrize("layout", ["left", "right", "packed"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_same_canvas_and_commit_order(name: str, dtype: str, layout: str) -> None:
    case, expected, prompts = read(name)
    config = CASES[name](case["settings"]).replace(stop=LengthStop(), layout=layout)
    out = generate(checkpoint(name, dtype, case), prompts, config)
    canvas, width = expected["final_canvas"], expected["prompt"].shape[1]
    length = min(out.step_map.shape[1], canvas.shape[1] - width)  # a last block is completed, then cut
    assert torch.equal(responses(out, length), canvas[:, width : width + length])
    assert order(out.step_map[:, :length]) == order(expected["commit_step"][:, width : width + length])
    assert out.nfe <= int(expected["nfe"]) + (1 if name.startswith("llada2") else 0)  # and a prefill


EXACT = (Prefix(), Dual(refresh=1), Vicinity(), Horizon(ahead=4), BlockKV(), BlockKV("separate", final_commit=True))
"""Where attention is block-causal; under full attention, only what feeds everything at every step."""


@pytest.fixture(params=dare_models.family_names(), scope="module")
def lm(request: pytest.FixtureRequest) -> DiffusionLM:
    return example(request.param, alphabet="0123456789>")


def decode(lm: DiffusionLM, config: SamplerConfig) -> SamplerOutput:
    prompts = [lm.encode(text) for text in ("42>", "7>", "90125>")]
    return generate(lm, prompts, config, keys=torch.tensor([11, 12, 13]))


def settings(lm: DiffusionLM, cache: Any, layout: str) -> SamplerConfig:
    length = lm.block_length or 4
    config = presets.sdar(10, length, 3, "static") if lm.block_length else presets.llada(8, 4, 4, temperature=1.0)
    return config.replace(cache=cache, layout=layout, stop=LengthStop())


@pytest.mark.parametrize("layout", ["left", "packed"])
def test_a_cache_that_is_exact_changes_nothing(lm: DiffusionLM, layout: str) -> None:
    plain = decode(lm, settings(lm, NoCache(), "left"))
    exact = EXACT if lm.attention == "block_causal" else (Dual(refresh=1), Prefix(refresh=1), Vicinity(64, 64))
    for cache in exact:
        out = decode(lm, settings(lm, cache, layout))
        assert torch.equal(responses(out, 8), responses(plain, 8)), cache
        assert torch.equal(out.step_map, plain.step_map), cache
        torch.testing.assert_close(out.logprobs, plain.logprobs, rtol=0, atol=1e-5)
