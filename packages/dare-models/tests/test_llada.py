"""LLaDA's config, names and ids."""

import copy
import json

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from dare_models import get_family, load, register
from dare_models.families.llada import LLaDAConfig, LLaDAModelLM


@pytest.mark.wheel
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("alibi", True),
        ("attention_layer_norm", True),
        ("include_bias", True),
        ("include_qkv_bias", True),
        ("bias_for_layer_norm", True),
        ("weight_tying", True),
        ("block_type", "sequential"),
        ("block_group_size", 4),
        ("activation_type", "swiglu"),
        ("layer_norm_type", "default"),
        ("rope", False),
        ("scale_logits", True),
        ("input_emb_norm", True),
        ("multi_query_attention", True),
        ("residual_dropout", 0.1),
        ("rope_scaling", {"type": "yarn", "factor": 2.0}),
        ("embedding_size", 192),
        ("num_experts", 64),
        ("quantization_config", {"bits": 4}),
    ],
)
def test_unsupported_architecture_is_refused_by_name(damaged, field, value):
    damaged.config(**{field: value})
    with pytest.raises(ValueError, match=f"`{field}`"):
        load(damaged.folder)


def test_other_architecture_is_refused(damaged):
    damaged.config(architectures=["LlamaForCausalLM"])
    with pytest.raises(ValueError, match=r"`architectures`.*LLaDAModelLM.*LlamaForCausalLM"):
        load(damaged.folder)


@pytest.mark.parametrize(
    ("field", "tensor"),
    [
        ("mlp_hidden_size", "blocks.0.ff_out"),
        ("n_layers", "blocks.1"),
        ("vocab_size", "transformer.ff_out"),
        ("d_model", "64"),
    ],
)
def test_wrong_size_names_a_tensor(damaged, field, tensor):
    sizes = {"mlp_hidden_size": 128, "n_layers": 1, "vocab_size": 161, "d_model": 128}
    change = {field: sizes[field]}
    damaged.config(**change, **({"embedding_size": 161} if field == "vocab_size" else {}))
    with pytest.raises(ValueError, match=tensor):
        load(damaged.folder)


@pytest.mark.wheel
def test_missing_mask_id_says_what_to_pass_and_is_saved_then(damaged, tmp_path):
    damaged.config(without=("mask_token_id",))
    with pytest.raises(ValueError, match="mask_token_id="):
        load(damaged.folder)
    lm = load(damaged.folder, mask_token_id=157)
    lm.save(tmp_path / "saved")
    assert lm.mask_id == load(tmp_path / "saved").mask_id == 157


@pytest.mark.parametrize(("mask", "message"), [(160, "inside the vocabulary of 160"), (1, "apart from the stop ids")])
def test_impossible_mask_id_is_refused(golden, mask, message):
    with pytest.raises(ValueError, match=message):
        load(golden, mask_token_id=mask)


def test_missing_eos_is_refused(damaged):
    damaged.config(without=("eos_token_id",))
    with pytest.raises(ValueError, match="eos_token_id"):
        load(damaged.folder)


def test_without_fields_it_is_the_8b_model():
    config = LLaDAConfig()
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (4096, 32, 126464)
    assert config.to_dict()["d_model"] == 4096


def test_unset_fields_take_the_originals_defaults(golden):
    fields = json.loads((golden / "config.json").read_text())
    config = LLaDAConfig(**{**fields, "n_kv_heads": None, "mlp_hidden_size": None})
    assert config.num_key_value_heads == 4
    assert config.intermediate_size == 256
    assert config.to_dict()["n_kv_heads"] is None
    assert config.to_dict()["mlp_hidden_size"] is None


def test_values_changed_in_memory_are_written_under_the_original_names(golden):
    config = LLaDAConfig(**json.loads((golden / "config.json").read_text()))
    config.max_position_embeddings = 512
    config.use_cache = True
    assert config.to_dict()["max_sequence_length"] == 512
    assert config.to_dict()["use_cache"] is True
    assert config.to_dict()["rope_theta"] == 500000.0
    assert "rope_parameters" not in config.to_dict()


def test_names_map_one_to_one_and_native_names_stay(golden, damaged):
    family = get_family("llada")
    originals = list(load(golden).module.state_dict())
    assert family.native_names(originals) == {name: (name,) for name in originals}
    weight_map = damaged.shard()
    assert sorted(family.native_names(weight_map).values()) == [(name,) for name in sorted(originals)]


def test_auto_classes_read_the_folder_after_register(golden):
    register()
    register()
    assert type(AutoConfig.from_pretrained(golden)) is LLaDAConfig
    assert type(AutoModelForCausalLM.from_pretrained(golden)) is LLaDAModelLM


def test_a_field_the_original_would_default_is_required(damaged):
    damaged.config(without=("rope_theta",))
    with pytest.raises(ValueError, match="`rope_theta`: expected a value, got none"):
        load(damaged.folder)


def test_changed_rope_is_written_flat_and_scaling_is_not_lost(golden):
    config = LLaDAConfig(**json.loads((golden / "config.json").read_text()))
    config.rope_parameters["rope_theta"] = 10000.0
    assert config.to_dict()["rope_theta"] == 10000.0
    assert "rope_scaling" not in config.to_dict()
    config.rope_parameters.update(rope_type="linear", factor=2.0)
    with pytest.raises(ValueError, match="`rope_scaling`"):
        LLaDAConfig(**config.to_dict())


def test_copies_are_equal_and_apart(golden):
    lm = load(golden)
    other = copy.deepcopy(lm)
    assert other.module.config.to_dict() == lm.module.config.to_dict()
    assert other.fingerprint() == lm.fingerprint()
    other.module.lm_head.weight.data.zero_()
    assert other.fingerprint() != lm.fingerprint()


def test_bfloat16_stays_close(golden, tensors):
    lm = load(golden, dtype="bfloat16")
    assert lm.module.model.rotary_emb.inv_freq.dtype == torch.float32
    error = (lm(tensors["input_ids"]).float() - tensors["logits_full"]).detach().abs().mean()
    assert error < 0.05


@pytest.mark.parametrize(
    ("field", "value"),
    [("is_causal", True), ("hidden_act", "gelu"), ("tie_word_embeddings", True), ("rope_theta", None)],
)
def test_fields_of_transformers_do_not_slip_in(damaged, field, value):
    damaged.config(**{field: value})
    with pytest.raises(ValueError, match=f"config field `{field}`"):
        load(damaged.folder)
