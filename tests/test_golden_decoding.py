"""LLaDA through dare-models and dare-samplers decodes as the public reference loops do on the same checkpoint."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from dare_models import load
from dare_samplers import LengthStop, generate, presets

ROOT = Path(__file__).parents[1]
CHECKPOINT = ROOT / "packages" / "dare-models" / "tests" / "golden" / "llada"
CASES = ("llada_checkpoint_blocks", *(f"fastdllm_none_{name}" for name in ("quota", "t30", "t60", "t90")))


def order(steps: Tensor) -> list[list[int]]:
    """Ranks of the distinct steps in each row; −1 stays −1."""
    return [[sorted({s for s in row if s >= 0}).index(s) if s >= 0 else -1 for s in row] for row in steps.tolist()]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", CASES)
def test_same_sequences_and_commit_order(name: str, dtype: str) -> None:
    folder = ROOT / "tests" / "golden" / name
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    expected = load_file(folder / "tensors.safetensors")
    s = case["settings"]
    if "threshold" in s:
        config = presets.threshold(s["gen_length"], s["block_length"], s["threshold"])
    else:
        config = presets.llada(s["gen_length"], s["block_length"], s["steps"])
    lm = load(CHECKPOINT, dtype=dtype, mask_token_id=case["mask_token_id"])
    with torch.no_grad():
        out = generate(lm, expected["prompt"].tolist(), config.replace(stop=LengthStop()))
    assert torch.equal(out.sequences, expected["sequences"])
    assert order(out.step_map) == order(expected["commit_step"][:, expected["prompt"].shape[1] :])
    assert out.nfe == int(expected["nfe"])
