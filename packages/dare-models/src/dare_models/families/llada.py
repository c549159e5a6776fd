"""LLaDA-8B (Base, Instruct, 1.5): a bidirectional Llama under OLMo's names (arXiv 2502.09992)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase

from dare_models.families.facts import Facts
from dare_models.families.family import Denoising, Family, TinySize
from dare_models.families.llada_moe import LLaDAMoEConfig
from dare_models.families.original import Layout, OriginalConfig, refuse
from dare_models.tokenizer import MASK

NATIVE_NAMES = {
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "mlp_hidden_size": "intermediate_size",
    "max_sequence_length": "max_position_embeddings",
    "activation_type": "hidden_act",
    "weight_tying": "tie_word_embeddings",
}

# Fields without which the original's own defaults, another architecture, would apply.
ESSENTIAL = (
    *("d_model", "n_layers", "n_heads", "vocab_size", "max_sequence_length", "rope_theta", "rms_norm_eps"),
    *("activation_type", "block_type", "layer_norm_type", "rope", "include_bias", "weight_tying"),
)

# Values that the Llama class computes with; an original field that says otherwise is refused.
REQUIRED: dict[str, tuple[Any, ...]] = {
    "block_type": ("llama",),
    "activation_type": ("silu",),
    "layer_norm_type": ("rms",),
    "layer_norm_with_affine": (True,),
    "block_group_size": (1,),
    "rope": (True,),
    "rope_full_precision": (True,),
    "alibi": (False,),
    "attention_layer_norm": (False,),
    "include_bias": (False,),
    "include_qkv_bias": (False, None),
    "bias_for_layer_norm": (False, None),
    "weight_tying": (False,),
    "scale_logits": (False,),
    "input_emb_norm": (False,),
    "multi_query_attention": (False, None),
    "clip_qkv": (None,),
    "rope_scaling": (None,),
    "embedding_dropout": (0.0,),
    "residual_dropout": (0.0,),
    "sliding_window": (None,),
    "num_experts": (None,),
    "quantization_config": (None,),
}

# config.json of the 8B releases, as far as it matters.
LLADA_8B: dict[str, Any] = {
    **{name: allowed[0] for name, allowed in REQUIRED.items() if allowed[0] is not None},
    "architectures": ["LLaDAModelLM"],
    "d_model": 4096,
    "n_layers": 32,
    "n_heads": 32,
    "n_kv_heads": 32,
    "mlp_hidden_size": 12288,
    "max_sequence_length": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "vocab_size": 126464,
    "embedding_size": 126464,
    "mask_token_id": 126336,
    "eos_token_id": 126081,
    "pad_token_id": 126081,
    "use_cache": False,
}


def derive(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Work out what the original leaves open.

    Raises:
        ValueError: the embedding has rows that no id uses, or nothing gives the width of the feed-forward part.
    """
    rows, vocabulary = fields.get("embedding_size"), fields["vocab_size"]
    if rows is not None and rows != vocabulary:
        refuse("embedding_size", f"`vocab_size`={vocabulary!r}", rows)
    width, heads = fields.get("mlp_hidden_size"), fields.get("n_kv_heads")
    if width is None and fields.get("mlp_ratio") is None:
        refuse("mlp_ratio", "a number", None)
    return {
        "intermediate_size": fields["mlp_ratio"] * fields["d_model"] if width is None else width,
        "num_key_value_heads": fields["n_heads"] if heads is None else heads,
    }


class LLaDAConfig(OriginalConfig, LlamaConfig):
    """LlamaConfig that reads LLaDA's field names and writes them back.

    Args:
        fields: config.json of the original, the 8B model's where none is given; fields it does not know are kept and
            written back unchanged.

    Raises:
        ValueError: the fields describe an architecture that the Llama class does not compute.
    """

    model_type = "llada"
    layout = Layout("llada", LLADA_8B, ESSENTIAL, REQUIRED, NATIVE_NAMES, derive)

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Return the config that the fields are for: LLaDA-MoE has the same model type."""
        if config_dict.get("num_experts"):
            return LLaDAMoEConfig.from_dict(config_dict, **kwargs)
        return super().from_dict(config_dict, **kwargs)


class LLaDAModelLM(Denoising, LlamaForCausalLM):
    """LlamaForCausalLM under the original's class name."""

    config_class = LLaDAConfig


# The head comes before the blocks' `ff_out`, and a name that is already native is left alone.
RENAMINGS = (
    (r"^model\.transformer\.wte\.", r"^model\.embed_tokens\."),
    (r"^model\.transformer\.ln_f\.", r"^model\.norm\."),
    (r"^model\.transformer\.ff_out\.", r"^lm_head\."),
    (r"^model\.transformer\.blocks\.", r"^model\.layers\."),
    (r"\.attn_norm\.", r"\.input_layernorm\."),
    (r"\.ff_norm\.", r"\.post_attention_layernorm\."),
    (r"(?<!self_attn)\.q_proj\.", r"\.self_attn\.q_proj\."),
    (r"(?<!self_attn)\.k_proj\.", r"\.self_attn\.k_proj\."),
    (r"(?<!self_attn)\.v_proj\.", r"\.self_attn\.v_proj\."),
    (r"\.attn_out\.", r"\.self_attn\.o_proj\."),
    (r"\.ff_proj\.", r"\.mlp\.gate_proj\."),
    (r"(?<!mlp)\.up_proj\.", r"\.mlp\.up_proj\."),
    (r"\.ff_out\.", r"\.mlp\.down_proj\."),
)


FACTS = Facts(
    family="llada",
    example="LLaDA-8B",
    example_ids=(126336, 126081),
    mask=MASK,
    turn_ends=("<|eot_id|>",),
    generation={"preset": "llada", "gen_length": 128, "block_length": 128, "steps": 128, "temperature": 0.0},
)


def tiny_fields(size: TinySize, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return config.json of a small model in the original's terms."""
    return {
        **LLADA_8B,
        "d_model": size.hidden_size,
        "n_layers": size.layers,
        "n_heads": size.heads,
        "n_kv_heads": size.heads,
        "mlp_hidden_size": size.intermediate_size,
        "max_sequence_length": size.max_positions,
        "vocab_size": len(tokenizer),
        "embedding_size": len(tokenizer),
        "mask_token_id": tokenizer.mask_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }


LLADA = Family(
    name="llada",
    config_class=LLaDAConfig,
    model_class=LLaDAModelLM,
    renamings=RENAMINGS,
    describe=FACTS.describe,
    tiny_fields=tiny_fields,
)
