"""Damaged checkpoints are refused by name; writing is all or nothing."""

import json

import pytest
import torch

from dare_models import CheckpointError, checkpoint, load

Q = "model.transformer.blocks.1.q_proj.weight"
UP = "model.transformer.blocks.0.up_proj.weight"


def remove(tensors):
    del tensors[Q]


def add(tensors):
    tensors["model.transformer.blocks.2.q_proj.weight"] = torch.zeros(64, 64)


def add_bias(tensors):
    tensors["model.transformer.blocks.0.q_proj.bias"] = torch.zeros(64)


def transpose(tensors):
    tensors[UP] = tensors[UP].T


def twice(tensors):
    tensors["model.layers.1.self_attn.q_proj.weight"] = tensors[Q].clone()


def half(tensors):
    tensors[UP] = tensors[UP].half()


def quantise(tensors):
    tensors[UP] = tensors[UP].to(torch.int8)


@pytest.mark.wheel
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove, r"1 parameters: .* 'model.layers.1.self_attn.q_proj.weight'"),
        (add, r"'model.transformer.blocks.2.q_proj.weight': expected none"),
        (add_bias, r"'model.transformer.blocks.0.q_proj.bias': expected none"),
        (transpose, rf"'{UP}': expected shape \(96, 64\), got \(64, 96\)"),
        (twice, r"expected once, but '.*q_proj.weight' is the same parameter"),
        (half, rf"'{UP}': expected dtype float32 by `torch_dtype` of config.json, got float16"),
        (quantise, rf"'{UP}': expected one of .*, got I8"),
    ],
)
def test_damaged_tensor_is_named(damaged, damage, message):
    damaged.tensors(damage)
    with pytest.raises(CheckpointError, match=message):
        load(damaged.folder)


@pytest.mark.wheel
@pytest.mark.parametrize("keep", [0, 7, 100, 100_000])
def test_truncated_file_is_named(damaged, keep):
    file = damaged.folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(CheckpointError, match=r"model.safetensors': damaged or truncated"):
        load(damaged.folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file_is_named(damaged, name):
    (damaged.folder / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        load(damaged.folder)


def test_broken_config_is_named(damaged):
    (damaged.folder / "config.json").write_text('{"model_type": ')
    with pytest.raises(CheckpointError, match=r"config.json': expected JSON"):
        load(damaged.folder)


def test_shards_load_like_one_file(golden, damaged):
    damaged.shard()
    assert load(damaged.folder).fingerprint() == load(golden).fingerprint()


def test_missing_shard_is_named(damaged):
    damaged.shard()
    (damaged.folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"'model-00002-of-00002.safetensors', got none"):
        load(damaged.folder)


def test_index_must_list_what_the_shards_hold(damaged):
    weight_map = damaged.shard()
    damaged.index({**weight_map, "model.extra": "model-00001-of-00002.safetensors"})
    with pytest.raises(CheckpointError, match=r"'model.extra': expected in model-00001.* found in None"):
        load(damaged.folder)
    damaged.index({name: shard for name, shard in weight_map.items() if name != Q})
    with pytest.raises(CheckpointError, match=rf"'{Q}': expected in None .* found in model-0000"):
        load(damaged.folder)


def test_tensor_in_two_shards_is_named(damaged):
    damaged.shard()
    first, second = sorted(damaged.folder.glob("*.safetensors"))
    second.write_bytes(first.read_bytes())
    with pytest.raises(CheckpointError, match=r"expected once, got it in model-00001.* and model-00002"):
        load(damaged.folder)


@pytest.mark.parametrize("value", ["bfloat16", "int8"])
def test_wrong_dtype_field_is_named(damaged, value):
    damaged.config(torch_dtype=value)
    with pytest.raises(CheckpointError, match="torch_dtype"):
        load(damaged.folder)


def test_without_a_dtype_field_the_tensors_must_agree(damaged):
    damaged.config(without=("torch_dtype",))
    load(damaged.folder)
    damaged.tensors(half)
    with pytest.raises(CheckpointError, match=f"'{UP}': expected dtype float32 by the tensors before it"):
        load(damaged.folder)


def test_what_is_no_folder_is_refused_without_a_download(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for path in (tmp_path / "nothing", "./nothing", "nothing", "runs/mistyped", "a/b/c", __file__):
        with pytest.raises(CheckpointError, match="expected a folder, or the `owner/name` of a Hub repository, got"):
            load(path)


def test_repository_is_fetched_file_by_file(damaged, monkeypatch):
    damaged.shard()
    asked = []

    def fake(repository, name, *, _raise_exceptions_for_missing_entries):
        asked.append(name)
        file = damaged.folder / name
        assert repository == "someone/model"
        assert file.exists() or not _raise_exceptions_for_missing_entries
        return str(file) if file.exists() else None

    monkeypatch.setattr(checkpoint, "cached_file", fake)
    assert load("someone/model").vocab_size == 160
    assert {"config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"} <= set(asked)


def test_an_unreachable_hub_is_told_with_the_name(monkeypatch):
    def offline(*_, **__):
        raise OSError("no\nroute")

    monkeypatch.setattr(checkpoint, "cached_file", offline)
    with pytest.raises(CheckpointError, match="got 'someone/model': no route"):
        load("someone/model")


@pytest.mark.wheel
def test_save_refuses_an_existing_path(golden, tmp_path):
    with pytest.raises(CheckpointError, match="exists; remove it or choose another"):
        load(golden).save(tmp_path)


def test_failed_save_leaves_nothing(golden, tmp_path, monkeypatch):
    lm = load(golden)
    lm.module.model.norm.register_buffer("extra", torch.zeros(3))
    with pytest.raises(CheckpointError, match="extra"):
        lm.save(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


def test_files_are_readable_like_the_config(golden, tmp_path):
    load(golden).save(tmp_path / "deep" / "saved")
    modes = {file.stat().st_mode for file in (tmp_path / "deep" / "saved").iterdir()}
    assert len(modes) == 1


def test_a_clean_load_says_nothing(golden, capfd):
    load(golden)
    assert json.loads((golden / "config.json").read_text())["torch_dtype"] == "float32"
    assert capfd.readouterr() == ("", "")


def test_shards_beside_a_single_file_are_refused(damaged):
    whole = (damaged.folder / "model.safetensors").read_bytes()
    damaged.shard()
    (damaged.folder / "model.safetensors").write_bytes(whole)
    with pytest.raises(CheckpointError, match="expected shards or one file, got both"):
        load(damaged.folder)


@pytest.mark.parametrize("device", ["foo", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(golden, device):
    with pytest.raises(ValueError, match=f"`device`: expected one that this torch can use, got '{device}'"):
        load(golden, device=device)
