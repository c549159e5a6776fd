"""SDAR (1.7B, 4B, 8B) and TraDo: Qwen3 that denoises block by block (arXiv 2510.06303)."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase, Qwen3Config, Qwen3ForCausalLM

from dare_models.families.facts import Facts, common_tiny_fields
from dare_models.families.family import Denoising, Family, TinySize
from dare_models.families.original import Layout, OriginalConfig

# Fields without which the original's own defaults, another architecture, would apply.
ESSENTIAL = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("intermediate_size", "vocab_size", "max_position_embeddings", "rope_theta", "rms_norm_eps", "hidden_act"),
)

# Values that the Qwen3 class computes with.
REQUIRED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "attention_bias": (False,),
    "tie_word_embeddings": (False,),
    "use_sliding_window": (False,),
    "rope_scaling": (None,),
    "layer_types": (None,),
    "quantization_config": (None,),
}

# config.json of the 8B release, as far as it matters; it records neither the mask id nor the block length.
SDAR_8B: dict[str, Any] = {
    "architectures": ["SDARForCausalLM"],
    "model_type": "sdar",
    "attention_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 12288,
    "max_position_embeddings": 32768,
    "max_window_layers": 36,
    "num_attention_heads": 32,
    "num_hidden_layers": 36,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": False,
    "use_sliding_window": False,
    "vocab_size": 151936,
}

# Defaults of the published generation function, with the block length of the releases.
GENERATION: dict[str, Any] = {
    "preset": "sdar",
    "gen_length": 128,
    "block_length": 4,
    "strategy": "dynamic",
    "tau": 0.85,
    "temperature": 1.0,
}


class SDARConfig(OriginalConfig, Qwen3Config):
    """Qwen3Config that reads SDAR's fields and writes them back.

    Args:
        fields: config.json of the original, the 8B model's where none is given.

    Raises:
        ValueError: the fields describe an architecture that the Qwen3 class does not compute.
    """

    model_type = "sdar"
    layout = Layout("sdar", SDAR_8B, ESSENTIAL, REQUIRED)

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


class SDARForCausalLM(Denoising, Qwen3ForCausalLM):
    """Qwen3ForCausalLM under the original's class name."""

    config_class = SDARConfig


FACTS = Facts(
    family="sdar",
    example="SDAR-8B",
    example_ids=(151669, 151643),
    mask="<|MASK|>",
    turn_ends=("<|im_end|>",),
    attention="block_causal",
    block_length=4,
    block_field="block_size",
    generation=GENERATION,
)


def tiny_fields(size: TinySize, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return config.json of a small model in the original's terms."""
    return {**SDAR_8B, **common_tiny_fields(size, tokenizer), "max_window_layers": size.layers}


SDAR = Family(
    name="sdar",
    config_class=SDARConfig,
    model_class=SDARForCausalLM,
    renamings=(),
    describe=FACTS.describe,
    tiny_fields=tiny_fields,
    block_field=FACTS.block_field,
)
