"""Fast-dLLM v2 (7B, 1.5B): Qwen2 that denoises block by block, row i - 1 scoring token i (arXiv 2509.26328).

Experimental: no numbers of the original were at hand to compare with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from dare_models.families.dream import ESSENTIAL
from dare_models.families.facts import Facts, common_tiny_fields
from dare_models.families.family import Denoising, Family, TinySize
from dare_models.families.original import Layout, OriginalConfig, refuse

# Values that the Qwen2 class computes with.
REQUIRED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "tie_word_embeddings": (False,),
    "use_sliding_window": (False,),
    "rope_scaling": (None,),
    "quantization_config": (None,),
}

# config.json of the 7B release, as far as it matters; it does not record the mask id.
FAST_DLLM_V2_7B: dict[str, Any] = {
    "architectures": ["Fast_dLLM_QwenForCausalLM"],
    "model_type": "Fast_dLLM_Qwen",
    "attention_dropout": 0.0,
    "bd_size": 32,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "initializer_range": 0.02,
    "intermediate_size": 18944,
    "layer_types": ["full_attention"] * 28,
    "max_position_embeddings": 32768,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "pad_token_id": 151645,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_sliding_window": False,
    "vocab_size": 152064,
}


def derive(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Derive nothing, but look at every layer.

    Raises:
        ValueError: a layer that does not attend to the whole past.
    """
    layers = ["full_attention"] * fields["num_hidden_layers"]
    if fields.get("layer_types") not in (None, layers):
        refuse("layer_types", repr(layers), fields["layer_types"], fix="the fast_dllm_v2 family has no other layers")
    return {}


class FastDLLMQwenConfig(OriginalConfig, Qwen2Config):
    """Qwen2Config that reads Fast-dLLM v2's fields and writes them back.

    Args:
        fields: config.json of the original, the 7B model's where none is given.

    Raises:
        ValueError: the fields describe an architecture that the Qwen2 class does not compute.
    """

    model_type = "Fast_dLLM_Qwen"
    layout = Layout("fast_dllm_v2", FAST_DLLM_V2_7B, (*ESSENTIAL, "bd_size"), REQUIRED, {}, derive)

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


class Fast_dLLM_QwenForCausalLM(Denoising, Qwen2ForCausalLM):  # noqa: N801 (the original's name)
    """Qwen2ForCausalLM under the original's class name."""

    config_class = FastDLLMQwenConfig


FACTS = Facts(
    family="fast_dllm_v2",
    example="Fast_dLLM_v2_7B",
    example_ids=(151665, 151645),
    mask="|<MASK>|",
    turn_ends=("<|im_end|>",),
    attention="block_causal",
    block_length=32,
    block_field="bd_size",
    logit_offset=1,
    generation={
        "preset": "fast_dllm_v2",
        "gen_length": 512,
        "small_block_length": 8,
        "temperature": 0.0,
        "tau": 0.9,
    },
)


def tiny_fields(size: TinySize, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return config.json of a small model in the original's terms."""
    common = common_tiny_fields(size, tokenizer)
    del common["head_dim"]
    layers = {"layer_types": ["full_attention"] * size.layers, "max_window_layers": size.layers}
    return {**FAST_DLLM_V2_7B, **common, **layers}


FAST_DLLM_V2 = Family(
    name="fast_dllm_v2",
    config_class=FastDLLMQwenConfig,
    model_class=Fast_dLLM_QwenForCausalLM,
    renamings=(),
    describe=FACTS.describe,
    tiny_fields=tiny_fields,
    block_field=FACTS.block_field,
)
