"""LLaDA-MoE-7B-A1B (arXiv 2509.24389; Base, Instruct, Instruct-TD): a bidirectional Qwen3-MoE."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase, Qwen3MoeConfig, Qwen3MoeForCausalLM

from dare_models.families.experts import stack_experts
from dare_models.families.facts import ATTENTION_PROJECTIONS, EXPERT_PARAMETERS, Facts, common_tiny_fields
from dare_models.families.family import Denoising, Family, TinySize
from dare_models.families.original import Layout, OriginalConfig, refuse

NATIVE_NAMES = {"dense_intermediate_size": "intermediate_size", "expert_intermediate_size": "moe_intermediate_size"}

# Fields without which the original's own defaults, another architecture, would apply.
ESSENTIAL = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "expert_intermediate_size"),
    *("vocab_size", "max_position_embeddings", "rope_theta", "rms_norm_eps", "hidden_act"),
    *("num_experts", "num_experts_per_tok", "qk_layernorm"),
)

# Values that the Qwen3-MoE class computes with.
REQUIRED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "qk_layernorm": (True,),
    "attention_bias": (False,),
    "clip_qkv": (None,),
    "partial_rotary_factor": (1, None),
    "rope_scaling": (None,),
    "moe_router_score_function": ("softmax", None),
    "moe_router_enable_expert_bias": (False, None),
    "routed_scaling_factor": (1, None),
    "router_num_group": (None, -2, -1, 0, 1),
    "router_topk_group": (None, -2, -1, 0, 1),
    "shared_expert_intermediate_size": (None, 0),
    "tie_word_embeddings": (False,),
    "use_sliding_window": (False, None),
    "quantization_config": (None,),
}

# config.json of the 7B releases, as far as it matters; it does not record the mask id.
LLADA_MOE_7B: dict[str, Any] = {
    "architectures": ["LLaDAMoEModelLM"],
    "model_type": "llada",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "clip_qkv": None,
    "dense_intermediate_size": 8192,
    "eos_token_id": 156892,
    "expert_intermediate_size": 1024,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "max_position_embeddings": 8192,
    "moe_layer_freq": [1] * 16,
    "moe_router_enable_expert_bias": False,
    "moe_router_score_function": "softmax",
    "norm_topk_prob": None,
    "num_attention_heads": 16,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 16,
    "num_key_value_heads": 16,
    "output_router_logits": False,
    "pad_token_id": 156892,
    "partial_rotary_factor": 1,
    "qk_layernorm": True,
    "rms_norm_eps": 1e-5,
    "rope_scaling": None,
    "rope_theta": 50000,
    "routed_scaling_factor": 1,
    "shared_expert_intermediate_size": None,
    "tie_word_embeddings": False,
    "use_cache": False,
    "vocab_size": 157184,
}


def derive(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Work out what the original fixes in code: weights of chosen experts as they are, experts in every layer.

    Raises:
        ValueError: a layer without experts.
    """
    frequency = fields.get("moe_layer_freq")
    layers = [1] * fields["num_hidden_layers"]
    if frequency is not None and frequency not in (1, layers):
        refuse("moe_layer_freq", repr(layers), frequency, fix="the llada_moe family has experts in every layer")
    factor = fields.get("partial_rotary_factor")
    return {
        "norm_topk_prob": False,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "partial_rotary_factor": 1.0 if factor is None else factor,
        "intermediate_size": fields.get("dense_intermediate_size") or fields["expert_intermediate_size"],
    }


class LLaDAMoEConfig(OriginalConfig, Qwen3MoeConfig):
    """Qwen3MoeConfig that reads LLaDA-MoE's field names and writes them back.

    Args:
        fields: config.json of the original, the 7B model's where none is given.

    Raises:
        ValueError: the fields describe an architecture that the Qwen3-MoE class does not compute.
    """

    model_type = "llada"
    layout = Layout("llada_moe", LLADA_MOE_7B, ESSENTIAL, REQUIRED, NATIVE_NAMES, derive)

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


class LLaDAMoEModelLM(Denoising, Qwen3MoeForCausalLM):
    """Qwen3MoeForCausalLM under the original's class name."""

    config_class = LLaDAMoEConfig


FACTS = Facts(
    family="llada_moe",
    example="LLaDA-MoE-7B-A1B",
    example_ids=(156895, 156892),
    mask="<|mask|>",
    turn_ends=("<|role_end|>",),
    generation={"preset": "llada", "gen_length": 128, "block_length": 32, "steps": 128, "temperature": 0.0},
    extras=("moe",),
    lora_targets=ATTENTION_PROJECTIONS,
    lora_parameters=EXPERT_PARAMETERS,
)


def tiny_fields(size: TinySize, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return config.json of a small model in the original's terms."""
    common = common_tiny_fields(size, tokenizer)
    common["dense_intermediate_size"] = common.pop("intermediate_size")
    del common["head_dim"]
    return {
        **LLADA_MOE_7B,
        **common,
        "num_key_value_heads": size.heads,
        "expert_intermediate_size": max(size.intermediate_size // 2, 1),
        "moe_layer_freq": [1] * size.layers,
        "num_experts": 4,
        "num_experts_per_tok": 2,
    }


LLADA_MOE = Family(
    name="llada_moe",
    config_class=LLaDAMoEConfig,
    model_class=LLaDAMoEModelLM,
    renamings=(),
    describe=FACTS.describe,
    tiny_fields=tiny_fields,
    converters=stack_experts,
)
