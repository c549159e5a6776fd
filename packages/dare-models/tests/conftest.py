"""Fixtures: the golden checkpoint, and a copy of it to damage."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

GOLDEN = Path(__file__).parent / "golden" / "llada"


class Checkpoint:
    """A checkpoint folder that a test may damage."""

    def __init__(self, folder):
        self.folder = folder

    def config(self, *, without=(), **changes):
        file = self.folder / "config.json"
        fields = {**json.loads(file.read_text()), **changes}
        file.write_text(json.dumps({name: value for name, value in fields.items() if name not in without}))

    def tensors(self, change):
        file = self.folder / "model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, metadata={"format": "pt"})

    def shard(self):
        """Split the weights into two shards with an index; return the index."""
        file = self.folder / "model.safetensors"
        tensors, names = load_file(file), ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
        file.unlink()
        weight_map = {name: names[i % 2] for i, name in enumerate(tensors)}
        for shard in names:
            part = {name: tensor for name, tensor in tensors.items() if weight_map[name] == shard}
            save_file(part, self.folder / shard, metadata={"format": "pt"})
        self.index(weight_map)
        return weight_map

    def index(self, weight_map):
        text = json.dumps({"metadata": {}, "weight_map": weight_map})
        (self.folder / "model.safetensors.index.json").write_text(text)


@pytest.fixture
def golden():
    return GOLDEN


@pytest.fixture
def tensors():
    return load_file(GOLDEN / "golden.safetensors")


@pytest.fixture
def damaged(tmp_path):
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(GOLDEN / name, folder / name)
    return Checkpoint(folder)
