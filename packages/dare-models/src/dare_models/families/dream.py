"""Dream-v0 (Base, Instruct) and DiffuCoder: a bidirectional Qwen2 whose row i - 1 scores token i (arXiv 2508.15487)."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from dare_models.families.facts import Facts, common_tiny_fields
from dare_models.families.family import Denoising, Family, TinySize
from dare_models.families.original import Layout, OriginalConfig

# Fields without which the original's own defaults, another architecture, would apply.
ESSENTIAL = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("vocab_size", "max_position_embeddings", "rope_theta", "rms_norm_eps", "hidden_act"),
)

# Values that the Qwen2 class computes with.
REQUIRED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "tie_word_embeddings": (False,),
    "use_sliding_window": (False,),
    "use_mrope": (False,),
    "rope_scaling": (None,),
    "layer_types": (None,),
    "quantization_config": (None,),
}

# config.json of the 7B releases, as far as it matters.
DREAM_7B: dict[str, Any] = {
    "architectures": ["DreamModel"],
    "model_type": "Dream",
    "attention_dropout": 0.0,
    "bos_token_id": 151643,
    "eos_token_id": 151643,
    "hidden_act": "silu",
    "hidden_size": 3584,
    "initializer_range": 0.02,
    "intermediate_size": 18944,
    "mask_token_id": 151666,
    "max_position_embeddings": 131072,
    "max_window_layers": 28,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "pad_token_id": 151643,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 1000000.0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": True,
    "use_mrope": False,
    "use_sliding_window": False,
    "vocab_size": 152064,
}


class DreamConfig(OriginalConfig, Qwen2Config):
    """Qwen2Config that reads Dream's fields and writes them back.

    Args:
        fields: config.json of the original, the 7B model's where none is given.

    Raises:
        ValueError: the fields describe an architecture that the Qwen2 class does not compute.
    """

    model_type = "Dream"
    layout = Layout("dream", DREAM_7B, ESSENTIAL, REQUIRED)

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


class DreamModel(Denoising, Qwen2ForCausalLM):
    """Qwen2ForCausalLM under the original's class name."""

    config_class = DreamConfig


FACTS = Facts(
    family="dream",
    example="Dream-7B",
    example_ids=(151666, 151643),
    mask="<|mask|>",
    turn_ends=("<|im_end|>",),
    logit_offset=1,
    generation={
        "preset": "dream",
        "gen_length": 512,
        "steps": 512,
        "temperature": 0.2,
        "top_p": 0.95,
        "alg": "entropy",
        "alg_temp": 0.0,
        "eps": 1e-3,
    },
)


def tiny_fields(size: TinySize, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return config.json of a small model in the original's terms."""
    common = common_tiny_fields(size, tokenizer)
    common.pop("head_dim")
    return {**DREAM_7B, **common, "max_window_layers": size.layers}


DREAM = Family(
    name="dream",
    config_class=DreamConfig,
    model_class=DreamModel,
    renamings=(),
    describe=FACTS.describe,
    tiny_fields=tiny_fields,
)
