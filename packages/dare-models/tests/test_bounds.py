"""Config fields that no architecture could mean are refused by their original names; on every family."""

import json
import re

import pytest

from dare_models import family_names, get_family, load
from dare_models.families.bounds import COUNTS
from dare_models.testing import example

FIELDS = [
    ("llada", "rope_theta", 0, "a number above 0"),
    ("llada", "rope_theta", "1e6", "a number above 0"),
    ("llada", "rms_norm_eps", -1e-6, "a number above 0"),
    ("llada", "n_kv_heads", 3, "at most `n_heads`="),
    ("llada", "mask_token_id", -1, "an id of at least 0"),
    ("llada", "mask_token_id", True, "an id of at least 0"),
    ("llada", "eos_token_id", [0, "x"], "an id of at least 0"),
    ("llada", "use_cache", "no", "what transformers accepts"),
    ("llada_moe", "num_experts_per_tok", 1000, "at most `num_experts`="),
    ("llada_moe", "norm_topk_prob", "x", "true or false"),
    ("dream", "attention_dropout", 1.5, "a number of at least 0 and below 1"),
    ("dream", "pad_token_id", 1.5, "an id of at least 0"),
    ("sdar_moe", "norm_topk_prob", 1, "true or false"),
    ("sdar_moe", "num_experts_per_tok", 99, "at most `num_experts`="),
    ("llada2", "partial_rotary_factor", [], "a number above 0"),
    ("llada2", "topk_group", 99, "at most `n_group`="),
    ("llada2", "n_group", 0, "a whole number of at least 1"),
    ("fast_dllm_v2", "bd_size", 0, "a whole number of at least 1"),
    ("llama", "hidden_act", "x", "an activation that transformers knows"),
    ("qwen2", "rope_theta", True, "a number above 0"),
    ("qwen3", "block_length", 0, "a whole number of at least 1"),
]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The folder of a tiny checkpoint of a family, made once."""
    made = {}

    def get(family):
        if family not in made:
            made[family] = tmp_path_factory.mktemp("models") / family
            example(family, dtype="float32").save(made[family])
        return made[family]

    return get


def refused(folder, checkpoint_at, name, value):
    """What `load` says to a config with one field changed."""
    config = folder / "config.json"
    text = config.read_text()
    checkpoint_at(folder).config(**{name: value})
    try:
        with pytest.raises(ValueError, match=f"config field `{name}`: expected ") as caught:
            load(folder)
    finally:
        config.write_text(text)
    return str(caught.value)


@pytest.mark.parametrize("family", family_names())
def test_any_size_that_cannot_be_meant_is_named(family, saved, checkpoint_at):
    folder = saved(family)
    natives = getattr(get_family(family).config_class.layout, "names", {})
    fields = json.loads((folder / "config.json").read_text())
    sizes = [name for name, value in fields.items() if natives.get(name, name) in COUNTS and value]
    assert len(sizes) >= 6
    for i, name in enumerate(sizes):
        value = (0, -1, True, 1.5, "x", [])[i % 6]
        assert "expected a whole number of at least 1, got" in refused(folder, checkpoint_at, name, value)


@pytest.mark.parametrize(("family", "name", "value", "expected"), FIELDS)
def test_a_field_that_cannot_be_meant_is_named(family, name, value, expected, saved, checkpoint_at):
    assert re.search(f"expected {re.escape(expected)}", refused(saved(family), checkpoint_at, name, value))
