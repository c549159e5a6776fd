"""LLaDA's original modelling code, as recorded numbers."""

import json

import pytest
import torch
from safetensors.torch import load_file

from dare_models import load
from dare_models.scoring import positions_of

TOLERANCE = 3e-5  # golden/README: float64 against the original's float32


@pytest.mark.wheel
@pytest.mark.parametrize(("dtype", "backend"), [("float64", "sdpa"), ("float64", "eager"), ("float32", "sdpa")])
def test_logits_equal_the_original(golden, tensors, dtype, backend):
    lm = load(golden, dtype=dtype, backend=backend)
    with torch.no_grad():
        full = lm(tensors["input_ids"])
        valid = tensors["leftpad_attention_mask"].bool()
        padded = lm(tensors["leftpad_input_ids"], positions=positions_of(valid))
    assert (full - tensors["logits_full"]).abs().max() < TOLERANCE
    assert (padded - tensors["logits_leftpad"])[valid].abs().max() < TOLERANCE
    assert lm.dtype == full.dtype == getattr(torch, dtype)


def test_ids_come_from_the_checkpoint(golden):
    meta, lm = json.loads((golden / "meta.json").read_text()), load(golden)
    assert lm.mask_id == meta["mask_token_id"]
    assert lm.eos_ids == (meta["eos_token_id"],)
    assert lm.pad_id == meta["pad_token_id"]
    assert lm.vocab_size == meta["vocab_size"]
    assert lm.left_context == meta["logit_offset"]
    assert lm.tokenizer is None


@pytest.mark.wheel
def test_saving_gives_back_the_original_files(golden, tmp_path):
    load(golden).save(tmp_path / "saved")
    ours, theirs = load_file(tmp_path / "saved" / "model.safetensors"), load_file(golden / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype
        assert torch.equal(ours[name], tensor), name
    fields = [json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "saved", golden)]
    assert fields[0] == fields[1]


def test_saving_twice_gives_equal_bytes(golden, tmp_path):
    load(golden).save(tmp_path / "one")
    load(tmp_path / "one").save(tmp_path / "two")
    names = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert names == sorted(file.name for file in (tmp_path / "two").iterdir())
    assert names == ["config.json", "dare_model.json", "model.safetensors"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
def test_saving_keeps_the_dtype_in_memory(golden, tmp_path, dtype):
    lm = load(golden, dtype=dtype)
    lm.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["torch_dtype"] == dtype
    assert load(tmp_path / "saved", dtype=dtype).fingerprint() == lm.fingerprint()
