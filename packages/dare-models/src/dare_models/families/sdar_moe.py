"""SDAR-30B-A3B (Chat, Sci): Qwen3-MoE that denoises block by block (arXiv 2510.06303)."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase, Qwen3MoeConfig, Qwen3MoeForCausalLM

from dare_models.families.experts import stack_experts
from dare_models.families.facts import ATTENTION_PROJECTIONS, EXPERT_PARAMETERS, Facts, common_tiny_fields
from dare_models.families.family import Denoising, Family, TinySize
from dare_models.families.original import Layout, OriginalConfig
from dare_models.families.sdar import GENERATION
from dare_models.families.sdar import REQUIRED as REQUIRED_OF_SDAR

# Fields without which the original's own defaults, another architecture, would apply.
ESSENTIAL = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("vocab_size", "max_position_embeddings", "rope_theta", "rms_norm_eps", "hidden_act"),
    *("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob", "decoder_sparse_step"),
)

# Values that the Qwen3-MoE class computes with and the releases have.
REQUIRED: dict[str, tuple[Any, ...]] = {
    **REQUIRED_OF_SDAR,
    "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None),
}

# config.json of the release, as far as it matters; it records neither the mask id nor the block length.
SDAR_30B: dict[str, Any] = {
    "architectures": ["SDARMoeForCausalLM"],
    "model_type": "sdar_moe",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "decoder_sparse_step": 1,
    "eos_token_id": 151643,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 6144,
    "max_position_embeddings": 32768,
    "max_window_layers": 48,
    "mlp_only_layers": [],
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
    "num_attention_heads": 32,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 48,
    "num_key_value_heads": 4,
    "output_router_logits": False,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "router_aux_loss_coef": 0.001,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 151936,
}


class SDARMoeConfig(OriginalConfig, Qwen3MoeConfig):
    """Qwen3MoeConfig that reads SDAR-MoE's fields and writes them back.

    Args:
        fields: config.json of the original, the 30B model's where none is given.

    Raises:
        ValueError: the fields describe an architecture that the Qwen3-MoE class does not compute.
    """

    model_type = "sdar_moe"
    layout = Layout("sdar_moe", SDAR_30B, ESSENTIAL, REQUIRED)

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


class SDARMoeForCausalLM(Denoising, Qwen3MoeForCausalLM):
    """Qwen3MoeForCausalLM under the original's class name."""

    config_class = SDARMoeConfig


FACTS = Facts(
    family="sdar_moe",
    example="SDAR-30B-A3B",
    example_ids=(151669, 151643),
    mask="<|MASK|>",
    turn_ends=("<|im_end|>",),
    attention="block_causal",
    block_length=4,
    block_field="block_size",
    generation=GENERATION,
    extras=("moe",),
    lora_targets=ATTENTION_PROJECTIONS,
    lora_parameters=EXPERT_PARAMETERS,
)


def tiny_fields(size: TinySize, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return config.json of a small model in the original's terms."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": max(size.intermediate_size // 2, 1)}
    return {**SDAR_30B, **common_tiny_fields(size, tokenizer), **experts, "max_window_layers": size.layers}


SDAR_MOE = Family(
    name="sdar_moe",
    config_class=SDARMoeConfig,
    model_class=SDARMoeForCausalLM,
    renamings=(),
    describe=FACTS.describe,
    tiny_fields=tiny_fields,
    converters=stack_experts,
    block_field=FACTS.block_field,
)
