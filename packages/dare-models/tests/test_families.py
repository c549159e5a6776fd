"""Configs, names and ids of the families beside LLaDA-8B; merged and split tensors are accounted for one by one."""

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.core_model_loading import revert_weight_conversion

from dare_models import CheckpointError, family_names, get_family, load, register, tiny, tiny_tokenizer
from dare_models.families.llada_moe import LLaDAMoEConfig, LLaDAMoEModelLM

HERE = Path(__file__).parent / "golden"
MASK = 157
WITH_GOLDEN = ("dream", "sdar", "llada_moe", "sdar_moe", "llada2")
every_family = pytest.mark.parametrize("family", family_names())
others = pytest.mark.parametrize("family", WITH_GOLDEN)


@pytest.fixture
def copied(tmp_path, checkpoint_at):
    """A copy of a golden checkpoint that a test may damage."""

    def copy(family):
        folder = tmp_path / family
        shutil.copytree(HERE / family, folder, ignore=shutil.ignore_patterns("golden*", "meta*"))
        return checkpoint_at(folder)

    return copy


def small(family, **options):
    return tiny(family, tokenizer=tiny_tokenizer("0123456789"), **options)


REFUSED = [
    ("dream", "hidden_act", "gelu"),
    ("dream", "rope_scaling", {"rope_type": "yarn", "factor": 2.0}),
    ("dream", "tie_word_embeddings", True),
    ("dream", "use_mrope", True),
    ("dream", "use_sliding_window", True),
    ("dream", "rope_parameters", {"rope_theta": 1e4, "rope_type": "default"}),
    ("dream", "rope_theta", None),
    ("sdar", "attention_bias", True),
    ("sdar", "head_dim", None),
    ("sdar", "is_causal", True),
    ("sdar", "quantization_config", {"bits": 4}),
    ("sdar", "block_size", 0),
    ("sdar_moe", "num_experts", None),
    ("sdar_moe", "mlp_only_layers", [0]),
    ("sdar_moe", "decoder_sparse_step", 2),
    ("llada_moe", "clip_qkv", 8.0),
    ("llada_moe", "moe_layer_freq", [0, 1]),
    ("llada_moe", "moe_router_enable_expert_bias", True),
    ("llada_moe", "moe_router_score_function", "sigmoid"),
    ("llada_moe", "partial_rotary_factor", 0.5),
    ("llada_moe", "qk_layernorm", False),
    ("llada_moe", "router_num_group", 8),
    ("llada_moe", "routed_scaling_factor", 2.5),
    ("llada_moe", "shared_expert_intermediate_size", 1024),
    ("llada_moe", "intermediate_size", 64),
    ("llada2", "score_function", "softmax"),
    ("llada2", "use_qkv_bias", True),
    ("llada2", "use_bias", True),
    ("llada2", "norm_head", True),
    ("llada2", "router_dtype", "bf16"),
    ("llada2", "moe_router_enable_expert_bias", False),
    ("llada2", "rotary_dim", 32),
    ("llada2", "partial_rotary_factor", None),
    ("llada2", "n_routed_experts", 8),
    ("llada2", "use_sliding_window", True),
    ("llada2", "block_routing", True),
    ("llada2", "num_nextn_predict_layers", 1),
]


@pytest.mark.wheel
@pytest.mark.parametrize(("family", "field", "value"), REFUSED)
def test_unsupported_architecture_is_refused_by_name(copied, family, field, value):
    checkpoint = copied(family)
    checkpoint.config(**{field: value})
    with pytest.raises(ValueError, match=f"`{field}`"):
        load(checkpoint.folder, mask_token_id=MASK)


@pytest.mark.parametrize(
    ("field", "value"),
    [("layer_types", ["sliding_attention"] * 2), ("bd_size", None), ("rope_scaling", {"rope_type": "yarn"})],
)
def test_fast_dllm_refuses_what_it_does_not_implement(field, value):
    fields = dict(small("fast_dllm_v2").module.config.to_dict()) | {field: value}
    with pytest.raises(ValueError, match=f"`{field}`"):
        get_family("fast_dllm_v2").config(fields)


@every_family
def test_without_fields_it_is_a_release(family):
    chosen = get_family(family)
    config = chosen.config({})
    assert config.architectures == [chosen.architecture]
    assert config.to_dict()["model_type"] == chosen.config_class.model_type
    assert not config.is_causal
    assert config.vocab_size >= 126_464


@pytest.mark.parametrize(
    ("family", "tensors", "parameters"),
    [
        ("llada", 291, 8_015_581_184),
        ("dream", 339, 7_615_616_512),
        ("sdar", None, 16_381_470_720 // 2),
        ("sdar_moe", None, 61_064_245_248 // 2),
        ("llada2", 14_813, None),
    ],
)
def test_a_release_has_the_size_that_its_index_says(family, tensors, parameters):
    register()
    chosen = get_family(family)
    with torch.device("meta"):
        module = chosen.model_class(chosen.config({}))
    assert parameters in (None, sum(parameter.numel() for parameter in module.parameters()))
    assert tensors in (None, len(revert_weight_conversion(module, module.state_dict())))


@every_family
def test_fields_are_written_back_as_they_were_read(family):
    fields = {**small(family).module.config.to_dict(), "auto_map": {"AutoModel": "somewhere.Model"}, "unknown": [1]}
    fields |= {"transformers_version": "4.46.0", "attention_dropout": 0.0}
    config = get_family(family).config(fields)
    assert config.to_dict() == fields
    config.max_position_embeddings = 77
    config.rope_parameters["rope_theta"] = 123.0
    changed = {name: value for name, value in config.to_dict().items() if value != fields[name]}
    longest = "max_sequence_length" if family == "llada" else "max_position_embeddings"
    assert changed == {longest: 77, "rope_theta": 123.0}


@pytest.mark.parametrize("family", ["llada_moe", "sdar_moe", "llada2"])
def test_numbers_of_experts_are_written_under_the_originals_names(family):
    written = get_family(family).config({}).to_dict()
    assert not {"num_local_experts", "n_routed_experts", "head_dims", "rope_parameters", "is_causal"} & written.keys()
    assert written["num_experts"] in (64, 128, 256)


def test_what_llada2_ignores_or_fixes_is_kept_in_the_file_and_not_computed_with():
    config = get_family("llada2").config({**get_family("llada2").config({}).to_dict(), "use_qk_norm": False})
    assert config.use_qk_norm is True
    assert config.sliding_window is None
    assert config.to_dict()["use_qk_norm"] is False
    assert config.to_dict()["sliding_window"] == 4096


@pytest.mark.parametrize("name", ["torch_dtype", "dtype"])
def test_dtype_is_written_under_the_name_it_came_by(name):
    fields = {key: value for key, value in get_family("sdar").config({}).to_dict().items() if key != "torch_dtype"}
    config = get_family("sdar").config({**fields, name: "bfloat16"})
    config.dtype = "float32"
    written = config.to_dict()
    assert {key: written[key] for key in ("torch_dtype", "dtype") if key in written} == {name: "float32"}


@others
def test_auto_classes_read_the_folder_after_register(family):
    register()
    register()
    chosen = get_family(family)
    assert type(AutoConfig.from_pretrained(HERE / family)) is chosen.config_class
    assert type(AutoModelForCausalLM.from_pretrained(HERE / family)) is chosen.model_class


def test_llada_and_llada_moe_share_a_model_type_and_are_told_apart():
    register()
    assert type(AutoConfig.from_pretrained(HERE / "llada_moe")) is LLaDAMoEConfig
    assert type(AutoModelForCausalLM.from_pretrained(HERE / "llada_moe")) is LLaDAMoEModelLM
    assert type(AutoConfig.from_pretrained(HERE / "llada")) is get_family("llada").config_class
    assert load(HERE / "llada").spec.family == "llada"
    assert load(HERE / "llada_moe", mask_token_id=MASK).spec.family == "llada_moe"


@pytest.mark.parametrize("family", ["llada_moe", "sdar_moe", "llada2"])
def test_missing_mask_id_says_what_to_pass(family):
    with pytest.raises(ValueError, match=r"pass mask_token_id=… \(15\d+ for "):
        load(HERE / family)


@pytest.mark.parametrize("family", ["sdar", "sdar_moe", "llada2", "fast_dllm_v2"])
def test_block_length_can_be_given_and_is_saved(family, tmp_path):
    lm = small(family, block_length=16)
    assert lm.block_length == lm.spec.block_length == 16
    assert small(family).block_length == (4 if family.startswith("sdar") else 32)
    lm.save(tmp_path / "saved")
    assert load(tmp_path / "saved").block_length == 16
    assert load(tmp_path / "saved", block_length=64).block_length == 64


@pytest.mark.parametrize("family", ["llada", "dream", "llada_moe"])
def test_block_length_of_a_family_without_blocks_is_refused(family):
    with pytest.raises(ValueError, match=f"block_length=None, got 4; the {family} family"):
        small(family, block_length=4)


@every_family
def test_spec_says_what_adapters_attach_to(family):
    lm = small(family)
    modules, parameters = dict(lm.module.named_modules()), dict(lm.module.named_parameters())
    for name in lm.spec.lora_targets:
        found = [module for path, module in modules.items() if path.endswith(f".{name}")]
        assert found
        assert all(type(module) is torch.nn.Linear for module in found)
    for name in lm.spec.lora_parameters:
        assert all(parameter.ndim == 3 for path, parameter in parameters.items() if path.endswith(f".{name}"))
        assert any(path.endswith(f".{name}") for path in parameters)
    assert ("moe" in lm.spec.capabilities) == bool(lm.spec.lora_parameters)
    assert lm.attention == ("block_causal" if "block_causal" in lm.spec.capabilities else "full")


@others
def test_names_cover_the_parameters_exactly_once(family):
    chosen, lm = get_family(family), load(HERE / family, mask_token_id=MASK)
    stored, parameters = load_file(HERE / family / "model.safetensors"), lm.module.state_dict()
    filled = [target for targets in chosen.native_names(stored).values() for target in targets]
    assert set(filled) == parameters.keys()
    sizes = sum(tensor.numel() for tensor in stored.values()), sum(tensor.numel() for tensor in parameters.values())
    assert sizes[0] == sizes[1]
    assert chosen.native_names(parameters) == {name: (name,) for name in parameters}


@others
def test_shards_load_like_one_file(copied, family):
    checkpoint = copied(family)
    checkpoint.shard(3)
    assert (
        load(checkpoint.folder, mask_token_id=MASK).fingerprint()
        == load(HERE / family, mask_token_id=MASK).fingerprint()
    )


BIAS = "model.layers.1.mlp.gate.expert_bias"
EXPERT = "model.layers.1.mlp.experts.5.up_proj.weight"
FUSED = "model.layers.1.attention.query_key_value.weight"
NATIVE = "model.layers.1.self_attn.k_proj.weight"
STACKED = "model.layers.1.mlp.experts.gate_up_proj"


def without(name):
    return lambda tensors: tensors.pop(name)


def with_tensor(name, *shape):
    return lambda tensors: tensors.update({name: torch.zeros(*shape)})


def transposed(name):
    return lambda tensors: tensors.update({name: tensors[name].T.contiguous()})


def renamed(old, new):
    return lambda tensors: tensors.update({new: tensors.pop(old)})


DAMAGES = [
    ("llada_moe", without(EXPERT), rf"1 parameters: .* '{STACKED}' \(tensor '{EXPERT}'\)"),
    ("sdar_moe", with_tensor(EXPERT.replace(".5.", ".8."), 32, 48), r"experts.8.up_proj.weight': expected none"),
    ("llada2", transposed(EXPERT), rf"'{EXPERT}': expected shape \(24, 64\), got \(64, 24\)"),
    ("llada2", renamed(EXPERT, EXPERT.replace(".5.", ".9.")), r"experts.9.up_proj.weight': expected none"),
    ("llada2", without(FUSED), rf"3 parameters: .* '{NATIVE}' \(tensor '{FUSED}'\)"),
    ("llada2", transposed(FUSED), rf"'{FUSED}': expected shape \(256, 64\), got \(64, 256\)"),
    ("llada2", with_tensor(NATIVE, 64, 64), "expected once, but .* is the same parameter"),
    ("llada2", with_tensor(STACKED, 8, 48, 64), "expected once, but .* is the same parameter"),
    ("llada2", without(BIAS), rf"\(tensor '{BIAS}'\)"),
    ("llada2", with_tensor("model.layers.0.mlp.gate.weight", 8, 64), r"layers.0.mlp.gate.weight': expected none"),
    ("llada2", with_tensor("model.layers.46.norm.weight", 64), r"layers.46.norm.weight': expected none"),
    ("dream", without("model.layers.0.self_attn.q_proj.bias"), r"\(tensor 'model.layers.0.self_attn.q_proj.bias'\)"),
    ("sdar", with_tensor("model.layers.0.self_attn.q_proj.bias", 64), r"q_proj.bias': expected none"),
    ("sdar", without("lm_head.weight"), r"\(tensor 'lm_head.weight'\)"),
]


@pytest.mark.wheel
@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize(("family", "damage", "message"), DAMAGES)
def test_damaged_tensor_is_named(copied, family, damage, message, sharded):
    checkpoint = copied(family)
    checkpoint.tensors(damage)
    if sharded:
        checkpoint.shard(3)
    with pytest.raises(CheckpointError, match=message):
        load(checkpoint.folder, mask_token_id=MASK)


@pytest.mark.parametrize(("field", "value"), [("num_experts", 4), ("num_key_value_heads", 4), ("head_dim", 16)])
def test_wrong_size_of_a_merged_tensor_names_it(copied, field, value):
    checkpoint = copied("llada2")
    checkpoint.config(**{field: value}, **({"rotary_dim": 8} if field == "head_dim" else {}))
    with pytest.raises(CheckpointError, match=r"tensor '.*(experts\.4|query_key_value|expert_bias|layernorm|dense)"):
        load(checkpoint.folder, mask_token_id=MASK)


def test_experts_beyond_the_tenth_keep_their_order(tmp_path):
    family = get_family("sdar_moe")
    fields = {**small("sdar_moe").module.config.to_dict(), "num_experts": 12}
    module = family.model_class(family.config(fields)).eval()
    stacked = module.get_parameter("model.layers.0.mlp.experts.down_proj")
    with torch.no_grad():
        stacked.copy_(torch.arange(12.0)[:, None, None].expand_as(stacked))
    module.save_pretrained(tmp_path / "saved")
    stored = load_file(tmp_path / "saved" / "model.safetensors")
    assert [float(stored[f"model.layers.0.mlp.experts.{i}.down_proj.weight"][0, 0]) for i in range(12)] == list(
        range(12)
    )
    again = load(tmp_path / "saved").module.get_parameter("model.layers.0.mlp.experts.down_proj")
    assert torch.equal(again, stacked)


def test_queries_keys_and_values_are_rows_of_one_matrix(tmp_path):
    fused = load_file(HERE / "llada2" / "model.safetensors")[FUSED]
    attention = load(HERE / "llada2", mask_token_id=MASK).module.get_submodule("model.layers.1.self_attn")
    parts = [attention.get_parameter(f"{name}_proj.weight") for name in "qkv"]
    assert [len(part) for part in parts] == [128, 64, 64]
    assert torch.equal(torch.cat(parts), fused)


@pytest.mark.parametrize("name", [BIAS, "model.layers.1.mlp.gate.weight"])
def test_only_the_routing_bias_may_be_float32_in_a_file_of_another_dtype(copied, name):
    checkpoint = copied("llada2")
    checkpoint.config(dtype="bfloat16")
    checkpoint.tensors(lambda tensors: tensors.update({key: t.bfloat16() for key, t in tensors.items() if key != name}))
    if name.endswith("expert_bias"):
        assert load(checkpoint.folder, mask_token_id=MASK).module.get_buffer(
            name.replace("expert_bias", "e_score_correction_bias")
        ).dtype == (torch.float32)
    else:
        with pytest.raises(CheckpointError, match=f"'{name}': expected dtype bfloat16"):
            load(checkpoint.folder, mask_token_id=MASK)


@pytest.mark.parametrize(("value", "dtype"), [(0.25, torch.bfloat16), (0.2501, torch.float32)])
def test_the_routing_bias_is_stored_in_the_dtype_of_the_file_if_it_survives_that(value, dtype, tmp_path):
    lm = small("llada2", dtype="bfloat16")
    bias = lm.module.get_buffer("model.layers.1.mlp.gate.e_score_correction_bias")
    bias.fill_(value)
    lm.save(tmp_path / "saved")
    assert load_file(tmp_path / "saved" / "model.safetensors")[BIAS].dtype is dtype
    again = load(tmp_path / "saved", dtype="bfloat16").module.get_buffer(
        "model.layers.1.mlp.gate.e_score_correction_bias"
    )
    assert again.dtype is torch.float32
    assert torch.equal(again, bias)


def test_the_routing_bias_chooses_experts(copied):
    checkpoint = copied("llada2")
    plain = load(checkpoint.folder, mask_token_id=MASK)
    checkpoint.tensors(lambda tensors: tensors[BIAS].mul_(-50))
    other = load(checkpoint.folder, mask_token_id=MASK)
    ids = torch.arange(8)[None]
    assert float((plain(ids) - other(ids)).detach().abs().max()) > 1e-3


@pytest.mark.parametrize("bias", [0.0, 0.3])
def test_float64_routes_like_float32(bias):
    single, double = (small("llada2", dtype=dtype) for dtype in ("float32", "float64"))
    for lm in (single, double):
        torch.nn.init.constant_(lm.module.get_buffer("model.layers.1.mlp.gate.e_score_correction_bias")[::3], bias)
    ids = torch.arange(12)[None]
    assert float((single(ids) - double(ids)).detach().abs().max()) < 1e-6


@pytest.mark.parametrize("how", ["batched_mm", "grouped_mm"])
@pytest.mark.parametrize("family", ["llada_moe", "sdar_moe", "llada2"])
def test_ways_to_multiply_experts_agree_in_values_and_gradients(family, how):
    ids = torch.arange(24).reshape(2, 12)
    values, gradients = [], []
    for experts in ("eager", how):
        lm = load(HERE / family, mask_token_id=MASK, experts=experts)
        logits = lm(ids)
        stacked = lm.module.get_parameter(STACKED)
        gradients.append(torch.autograd.grad(logits.log_softmax(-1)[..., 3].mean(), stacked)[0])
        values.append(logits.detach())
    assert float((values[0] - values[1]).abs().max()) < 1e-4
    assert float((gradients[0] - gradients[1]).abs().max()) < 1e-4 * float(gradients[0].abs().max())


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("llada2", {"experts": "fast"}, "`experts` to be one of"),
        ("llada2", {"experts": "grouped_mm", "dtype": "float64"}, "in float64, got 'grouped_mm'"),
        ("sdar", {"experts": "grouped_mm"}, "for a model without experts, got 'grouped_mm'"),
    ],
)
def test_impossible_ways_to_multiply_experts_are_refused(family, options, message):
    with pytest.raises(ValueError, match=message):
        load(HERE / family, mask_token_id=MASK, **options)
