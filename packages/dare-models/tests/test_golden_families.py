"""The original modelling code of the other families, as recorded numbers."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from dare_models import BlockCausal, Dense, Documents, Full, NoisyClean, load
from dare_models.scoring import positions_of
from dare_models.testing import dense_gather

HERE = Path(__file__).parent / "golden"
# golden/README: float64 against the originals' float32, on any processor
TOLERANCE = {"dream": 3e-5, "sdar": 3e-5, "llada_moe": 1e-4, "sdar_moe": 1e-4, "llada2": 1e-4}
BLOCK_FAMILIES = ("sdar", "sdar_moe", "llada2")
every_family = pytest.mark.parametrize("family", TOLERANCE)
block_families = pytest.mark.parametrize("family", BLOCK_FAMILIES)
block_lengths = pytest.mark.parametrize("length", [4, 8])


def overrides(family):
    """Return what releases leave out of config.json: the mask id."""
    meta = json.loads((HERE / family / "meta.json").read_text())
    return {name: value for name, value in meta.get("overrides_at_load", {}).items() if name != "note"}


def original(family, *, dtype="float64", backend="sdpa", **changes):
    lm = load(HERE / family, dtype=dtype, backend=backend, **overrides(family), **changes)
    return lm, load_file(HERE / family / "golden.safetensors")


def assert_close(family, got, expected):
    assert float((got - expected).detach().abs().max()) < TOLERANCE[family]


def raw(lm, ids, *, positions=None, plan=None):
    """Return the network's logits as they come, before a shift is undone."""
    positions = torch.arange(ids.shape[1]).expand_as(ids) if positions is None else positions
    with torch.no_grad():
        logits = lm(ids, positions=positions, plan=plan)
    if lm.left_context == 0:
        return logits
    with torch.no_grad():
        wide = torch.nn.functional.pad(ids, (0, 1), value=lm.pad_id)
        places = torch.nn.functional.pad(positions, (0, 1), value=-1)
        places[:, -1] = positions[:, -1] + 1
        seen = torch.nn.functional.pad(positions >= 0, (0, 1), value=False)
        return lm(wide, positions=places, plan=Full(seen))[:, 1:]


@pytest.mark.wheel
@pytest.mark.parametrize(("dtype", "backend"), [("float64", "sdpa"), ("float64", "eager"), ("float32", "sdpa")])
@every_family
def test_full_attention(family, dtype, backend):
    lm, golden = original(family, dtype=dtype, backend=backend)
    ids = golden["input_ids"]
    assert_close(family, raw(lm, ids, plan=None if lm.attention == "full" else Full()), golden["logits_full"])


@pytest.mark.parametrize("family", ["dream", "llada_moe"])
def test_left_padding(family):
    lm, golden = original(family)
    valid = golden["leftpad_attention_mask"].bool()
    got = raw(lm, golden["leftpad_input_ids"], positions=positions_of(valid))
    assert_close(family, got[valid], golden["logits_leftpad"][valid])


@pytest.mark.parametrize("prefix", ["", "leftpad_"])
def test_dream_logits_are_aligned(prefix):
    lm, golden = original("dream")
    mask = golden.get(f"{prefix}attention_mask", torch.ones_like(golden["input_ids"]))
    positions = positions_of(mask.bool())
    logits = lm(golden[f"{prefix}input_ids"], positions=positions)
    labels = golden.get(f"{prefix}clean_ids", golden["clean_ids"])[..., None]
    logp = logits.log_softmax(-1).gather(-1, labels)[..., 0]
    scored = positions >= 1
    assert_close("dream", logp[scored], golden[f"{prefix}token_logprobs"][scored])


@block_lengths
@block_families
def test_block_causal(family, length):
    lm, golden = original(family, block_length=length)
    assert lm.block_length == length
    assert_close(family, lm(golden["input_ids"]), golden[f"logits_block{length}"])


@block_families
def test_blocks_count_from_the_first_real_token(family):
    lm, golden = original(family, block_length=4)
    valid = golden["leftpad_attention_mask"].bool()
    got = lm(golden["leftpad_input_ids"], positions=positions_of(valid))
    assert_close(family, got[valid], golden["logits_leftpad_block4"][valid])


@block_lengths
@block_families
def test_noisy_beside_clean(family, length):
    lm, golden = original(family)
    ids, count = torch.cat([golden["input_ids"], golden["clean_ids"]], dim=1), golden["input_ids"].shape[1]
    positions = torch.arange(count).repeat(2).expand_as(ids)
    blocks = (torch.arange(count) // length).expand(2, -1)
    plans = NoisyClean.halves(blocks, blocks), Dense(golden[f"train{length}_mask"])
    for plan in plans:
        got = lm(ids, positions=positions, plan=plan)[:, :count]
        assert_close(family, got, golden[f"logits_train{length}_noisy"])


@block_families
def test_scores_are_those_of_the_noisy_half(family):
    lm, golden = original(family, block_length=4)
    noisy, clean = golden["input_ids"], golden["clean_ids"]
    target, valid = (noisy != clean)[:, None], torch.ones_like(clean, dtype=torch.bool)
    got = lm.score(noisy[:, None], clean, target, clean[:, None], valid, None, gather=dense_gather).logp
    logp = golden["logits_train4_noisy"].double().log_softmax(-1).gather(-1, clean[..., None])[..., 0]
    assert bool(target.any())
    assert_close(family, got[target], logp[target[:, 0]])


@pytest.mark.parametrize("family", ["sdar", "sdar_moe"])
def test_packed_documents(family):
    lm, golden = original(family)
    ids, positions = golden["packed_ids"], golden["packed_position_ids"]
    first, second = json.loads((HERE / family / "meta.json").read_text())["packed_lengths"]
    halves = torch.tensor([1] * first + [0] * first + [1] * second + [0] * second)[None]
    documents = torch.tensor([0] * 2 * first + [1] * 2 * second)[None]
    for plan in (Documents(documents, NoisyClean(positions // 4, halves)), Dense(golden["packed_mask"])):
        assert_close(family, lm(ids, positions=positions, plan=plan), golden["logits_packed"])


@pytest.mark.parametrize(
    ("family", "length", "turns"), [("sdar", 4, 2), ("sdar", 8, 2), ("sdar_moe", 4, 2), ("llada2", 4, 1)]
)
def test_cached_blocks(family, length, turns):
    lm, golden = original(family, block_length=length)
    noisy, clean = golden["input_ids"], golden["clean_ids"]
    cache = lm.new_cache(clean.shape[0], clean.shape[1])
    start = 8

    def feed(ids, begin, *, write):
        positions = torch.arange(begin, begin + ids.shape[1]).expand_as(ids)
        return lm(ids, positions=positions, write=torch.full_like(ids, write, dtype=torch.bool), cache=cache)

    feed(clean[:, :start], 0, write=True)
    for turn in range(turns):
        begin, end = start + turn * length, start + (turn + 1) * length
        assert_close(family, feed(noisy[:, begin:end], begin, write=False), golden[f"cached{length}_denoise_{turn}"])
        stored = feed(clean[:, begin:end], begin, write=True)
        if (name := f"cached{length}_commit_{turn}") in golden:
            assert_close(family, stored, golden[name])


def test_llada2_is_not_causal_without_a_mask():
    lm, golden = original("llada2")
    trap = golden["logits_default_causal"]
    assert float((lm(golden["input_ids"]) - trap).detach().abs().max()) > 1
    assert float((lm(golden["input_ids"], plan=BlockCausal(torch.zeros(2, 24).int())) - trap).detach().abs().max()) > 1


@every_family
def test_ids_come_from_the_checkpoint(family):
    meta, lm = json.loads((HERE / family / "meta.json").read_text()), original(family)[0]
    assert (lm.mask_id, lm.pad_id, lm.eos_ids) == (meta["mask_token_id"], meta["pad_token_id"], (meta["eos_token_id"],))
    assert (lm.vocab_size, lm.left_context) == (meta["vocab_size"], meta["logit_offset"])
    assert lm.attention == ("block_causal" if family in BLOCK_FAMILIES else "full")


@pytest.mark.wheel
@every_family
def test_saving_gives_back_the_original_files(family, tmp_path):
    lm, _ = original(family, dtype="float32")
    lm.save(tmp_path / "saved")
    ours, theirs = load_file(tmp_path / "saved" / "model.safetensors"), load_file(HERE / family / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype
        assert torch.equal(ours[name], tensor), name
    saved, given = (json.loads((folder / "config.json").read_text()) for folder in (tmp_path / "saved", HERE / family))
    assert saved == given | overrides(family)


@every_family
def test_saving_twice_gives_equal_bytes(family, tmp_path):
    original(family, dtype="float32")[0].save(tmp_path / "one")
    load(tmp_path / "one").save(tmp_path / "two")
    names = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert names == sorted(file.name for file in (tmp_path / "two").iterdir())
    assert names == ["config.json", "dare_model.json", "model.safetensors"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float64"])
@every_family
def test_saving_keeps_the_dtype_in_memory(family, dtype, tmp_path):
    lm, _ = original(family, dtype=dtype)
    lm.save(tmp_path / "saved")
    fields = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert fields.get("torch_dtype", fields.get("dtype")) == dtype
    assert load(tmp_path / "saved", dtype=dtype).fingerprint() == lm.fingerprint()
