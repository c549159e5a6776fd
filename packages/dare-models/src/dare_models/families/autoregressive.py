"""Llama, Qwen2 and Qwen3 made into diffusion models: a left-to-right checkpoint to be trained on, with a mask token.

The stock network stays; config.json says that it denoises. Class and model type have names of their own, so that no
other software decodes such a checkpoint from left to right. Recipes: arXiv 2410.17891 (DiffuLLaMA), 2508.15487 (Dream);
`dare_models.from_autoregressive` is their start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from dare_models.families.facts import Facts, common_tiny_fields
from dare_models.families.family import Denoising, Family, TinySize
from dare_models.families.original import Layout, OriginalConfig, refuse
from dare_models.spec import ModelSpec
from dare_models.tokenizer import MASK

# Fields without which the stock class's own defaults, another architecture, would apply.
ESSENTIAL = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("vocab_size", "max_position_embeddings", "rope_theta", "rms_norm_eps", "hidden_act"),
)

# What no plan of attention expresses, or no loader here reads.
REQUIRED: dict[str, tuple[Any, ...]] = {"use_sliding_window": (False, None), "quantization_config": (None,)}

COMMON: dict[str, Any] = {
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "tie_word_embeddings": False,
    "use_cache": True,
}

# config.json of small releases, as far as it matters.
LLAMA_3_1B: dict[str, Any] = {
    **COMMON,
    "architectures": ["DiffusionLlamaForCausalLM"],
    "model_type": "diffusion_llama",
    "attention_bias": False,
    "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009],
    "head_dim": 64,
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "max_position_embeddings": 131072,
    "mlp_bias": False,
    "num_attention_heads": 32,
    "num_hidden_layers": 16,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "vocab_size": 128256,
}
QWEN2_05B: dict[str, Any] = {
    **COMMON,
    "architectures": ["DiffusionQwen2ForCausalLM"],
    "model_type": "diffusion_qwen2",
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "max_position_embeddings": 32768,
    "num_attention_heads": 14,
    "num_hidden_layers": 24,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "vocab_size": 151936,
}
QWEN3_06B: dict[str, Any] = {
    **COMMON,
    "architectures": ["DiffusionQwen3ForCausalLM"],
    "model_type": "diffusion_qwen3",
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "head_dim": 128,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "max_position_embeddings": 40960,
    "num_attention_heads": 16,
    "num_hidden_layers": 28,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "vocab_size": 151936,
}


def derive(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Work out attention and shift: a block length means block-causal attention, and the logits are not shifted.

    Raises:
        ValueError: a layer with a window, or attention and block length that contradict one another.
    """
    layers = fields.get("layer_types")
    if layers is not None and set(layers) != {"full_attention"}:
        refuse("layer_types", "'full_attention' alone", layers, fix="layers with a window cannot attend to both sides")
    length = fields.get("block_length")
    attention = "full" if length is None else "block_causal"
    if fields.get("attention", attention) != attention:
        expected = "no `block_length`" if fields["attention"] == "full" else "a `block_length`"
        refuse("attention", f"{fields['attention']!r} with {expected}", f"block_length={length!r}", fix="change one")
    return {"attention": attention, "block_length": length, "logit_offset": fields.get("logit_offset", 0)}


class DiffusionLlamaConfig(OriginalConfig, LlamaConfig):
    """LlamaConfig with mask id, block length and shift, all in config.json.

    Args:
        fields: config.json, a small release's where none is given.

    Raises:
        ValueError: the fields describe what attention to both sides does not allow.
    """

    model_type = "diffusion_llama"
    layout = Layout("llama", LLAMA_3_1B, ESSENTIAL, REQUIRED, {}, derive)

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


class DiffusionQwen2Config(OriginalConfig, Qwen2Config):
    """Qwen2Config with mask id, block length and shift, all in config.json; see `DiffusionLlamaConfig`."""

    model_type = "diffusion_qwen2"
    layout = Layout("qwen2", QWEN2_05B, ESSENTIAL, REQUIRED, {}, derive)

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


class DiffusionQwen3Config(OriginalConfig, Qwen3Config):
    """Qwen3Config with mask id, block length and shift, all in config.json; see `DiffusionLlamaConfig`."""

    model_type = "diffusion_qwen3"
    layout = Layout("qwen3", QWEN3_06B, (*ESSENTIAL, "head_dim"), REQUIRED, {}, derive)

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


class DiffusionLlamaForCausalLM(Denoising, LlamaForCausalLM):
    """LlamaForCausalLM that denoises."""

    config_class = DiffusionLlamaConfig


class DiffusionQwen2ForCausalLM(Denoising, Qwen2ForCausalLM):
    """Qwen2ForCausalLM that denoises."""

    config_class = DiffusionQwen2Config


class DiffusionQwen3ForCausalLM(Denoising, Qwen3ForCausalLM):
    """Qwen3ForCausalLM that denoises."""

    config_class = DiffusionQwen3Config


LLAMA_FACTS = Facts(
    family="llama",
    example="a Llama with a mask token",
    example_ids=(128256, 128001),
    mask=MASK,
    turn_ends=("<|eot_id|>",),
)
QWEN2_FACTS = Facts(
    family="qwen2",
    example="a Qwen2 with a mask token",
    example_ids=(151665, 151643),
    mask=MASK,
    turn_ends=("<|im_end|>",),
)
QWEN3_FACTS = replace(QWEN2_FACTS, family="qwen3", example="a Qwen3 with a mask token")


def described(facts: Facts, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase | None) -> ModelSpec:
    """Return the spec of one checkpoint; attention and shift are the checkpoint's own.

    Args:
        facts: of the family.
        config: of the checkpoint.
        tokenizer: its tokenizer, if there is one.
    """
    own = replace(
        facts,
        attention=config.attention,
        block_length=config.block_length,
        block_field="block_length",
        logit_offset=config.logit_offset,
    )
    return own.describe(config, tokenizer)


def _family(facts: Facts, model_class: type[PreTrainedModel], release: Mapping[str, Any]) -> Family:
    """A family of converted models: stock names, and the checkpoint's own attention, blocks and shift."""

    def tiny_fields(size: TinySize, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
        common = common_tiny_fields(size, tokenizer)
        return {**release, **{name: value for name, value in common.items() if name != "head_dim" or name in release}}

    config_class: Any = model_class.config_class
    return Family(
        name=facts.family,
        config_class=config_class,
        model_class=model_class,
        renamings=(),
        describe=partial(described, facts),
        tiny_fields=tiny_fields,
        block_field="block_length",
    )


AUTOREGRESSIVE: tuple[Family, ...] = (
    _family(LLAMA_FACTS, DiffusionLlamaForCausalLM, LLAMA_3_1B),
    _family(QWEN2_FACTS, DiffusionQwen2ForCausalLM, QWEN2_05B),
    _family(QWEN3_FACTS, DiffusionQwen3ForCausalLM, QWEN3_06B),
)
