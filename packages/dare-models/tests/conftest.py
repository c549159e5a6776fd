"""Fixtures: the golden checkpoint, and a copy of it to damage."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from dare_models import DiffusionLM, ModelSpec, precision

GOLDEN = Path(__file__).parent / "golden" / "llada"


class Checkpoint:
    """A checkpoint folder that a test may damage."""

    def __init__(self, folder):
        self.folder = folder

    def json(self, name, *, without=(), **changes):
        """Change fields of a JSON file."""
        file = self.folder / name
        fields = {**json.loads(file.read_text()), **changes}
        file.write_text(json.dumps({name: value for name, value in fields.items() if name not in without}))

    def config(self, *, without=(), **changes):
        self.json("config.json", without=without, **changes)

    def tensors(self, change):
        file = self.folder / "model.safetensors"
        tensors = load_file(file)
        change(tensors)
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file, metadata={"format": "pt"})

    def shard(self, count=2):
        """Split the weights into shards with an index; return the index."""
        file = self.folder / "model.safetensors"
        tensors = load_file(file)
        file.unlink()
        weight_map = {name: f"model-{i % count + 1:05}-of-{count:05}.safetensors" for i, name in enumerate(tensors)}
        for shard in set(weight_map.values()):
            part = {name: tensor for name, tensor in tensors.items() if weight_map[name] == shard}
            save_file(part, self.folder / shard, metadata={"format": "pt"})
        self.index(weight_map)
        return weight_map

    def index(self, weight_map):
        text = json.dumps({"metadata": {}, "weight_map": weight_map})
        (self.folder / "model.safetensors.index.json").write_text(text)


@pytest.fixture
def checkpoint_at():
    return Checkpoint


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


def stock(*, attention="block_causal", block_length=4, logit_offset=0, backend="sdpa", dtype="float64", layers=2):
    """A tiny Qwen3 as a model of no family at all, with logits of order one and grouped queries."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": layers, "vocab_size": 40}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
    config = Qwen3Config(**sizes, **heads, max_position_embeddings=512, tie_word_embeddings=False)
    config.is_causal = False
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Qwen3ForCausalLM(config)
        for parameter in module.parameters():
            parameter.data.add_(torch.randn(parameter.shape) * 0.15)
    module.set_attn_implementation(backend)
    spec = ModelSpec(
        family="stock",
        vocab_size=40,
        mask_token_id=39,
        pad_token_id=0,
        max_positions=512,
        eos_token_ids=(0,),
        logit_offset=logit_offset,
        attention=attention,
        block_length=block_length if attention == "block_causal" else None,
    )
    return DiffusionLM(precision.place(module, dtype, "cpu").eval(), spec)


@pytest.fixture
def make_stock():
    return stock
