"""LLaDA2.0 and 2.1 (mini, flash, CAP): GLM-4-MoE that denoises block by block (arXiv 2512.15745)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from transformers import Glm4MoeConfig, Glm4MoeForCausalLM, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.core_model_loading import Concatenate, ConversionOps, WeightConverter

from dare_models.families.experts import stack_experts
from dare_models.families.facts import ATTENTION_PROJECTIONS, EXPERT_PARAMETERS, Facts, common_tiny_fields
from dare_models.families.family import Denoising, Family, TinySize
from dare_models.families.original import Layout, OriginalConfig, refuse

NATIVE_NAMES = {
    "num_experts": "n_routed_experts",
    "num_shared_experts": "n_shared_experts",
    "use_qkv_bias": "attention_bias",
}

# Fields without which the original's own defaults, another architecture, would apply.
ESSENTIAL = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size"),
    *("vocab_size", "max_position_embeddings", "rope_theta", "rms_norm_eps", "hidden_act", "partial_rotary_factor"),
    *("num_experts", "num_experts_per_tok", "num_shared_experts", "moe_intermediate_size", "first_k_dense_replace"),
    *("n_group", "topk_group", "routed_scaling_factor", "score_function"),
)

# Values that the GLM-4-MoE class computes with.
REQUIRED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "use_qkv_bias": (False,),
    "use_bias": (False,),
    "use_rmsnorm": (True,),
    "norm_head": (False,),
    "norm_softmax": (False,),
    "using_split_qkv_in_self_attention": (False,),
    "score_function": ("sigmoid",),
    "router_dtype": ("fp32", "float32"),
    "moe_router_enable_expert_bias": (True,),
    "use_sliding_window": (False,),
    "rope_scaling": (None,),
    "embedding_dropout": (0.0,),
    "output_dropout": (0.0,),
    "num_nextn_predict_layers": (0, None),
    "tie_word_embeddings": (False,),
    "quantization_config": (None,),
}

# config.json of LLaDA2.0-mini, as far as it matters; it records neither the mask id nor the block length.
LLADA2_MINI: dict[str, Any] = {
    **{name: allowed[0] for name, allowed in REQUIRED.items() if allowed[0] is not None},
    "architectures": ["LLaDA2MoeModelLM"],
    "model_type": "llada2_moe",
    "attention_dropout": 0.0,
    "first_k_dense_replace": 1,
    "head_dim": 128,
    "hidden_size": 2048,
    "initializer_range": 0.02,
    "intermediate_size": 5120,
    "max_position_embeddings": 32768,
    "moe_intermediate_size": 512,
    "n_group": 8,
    "norm_topk_prob": True,
    "num_attention_heads": 16,
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 20,
    "num_key_value_heads": 4,
    "num_shared_experts": 1,
    "pad_token_id": 156892,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-6,
    "rope_scaling": None,
    "rope_theta": 600000,
    "rotary_dim": 64,
    "routed_scaling_factor": 2.5,
    "sliding_window": 4096,
    "topk_group": 4,
    "use_cache": False,
    "use_qk_norm": True,
    "vocab_size": 157184,
}


def derive(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Work out what the original fixes in code or leaves open.

    Norms of queries and keys are always there, weights of chosen experts add up to one where there are several, an
    unused window is dropped, and the end of text is the padding where no id is given.

    Raises:
        ValueError: fields that contradict one another, or block routing, which 2.2 describes.
    """
    if routed := sorted(name for name in fields if "block_rout" in name and fields[name]):
        refuse(routed[0], "nothing", fields[routed[0]], fix="the llada2 family does not implement block routing")
    head = fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
    rotary = int(head * fields["partial_rotary_factor"])
    if fields.get("rotary_dim") not in (None, rotary):
        refuse("rotary_dim", f"{rotary} (`partial_rotary_factor` of {head})", fields["rotary_dim"])
    end = fields.get("eos_token_id")
    return {
        "head_dim": head,
        "use_qk_norm": True,
        "norm_topk_prob": fields["num_experts_per_tok"] > 1,
        "sliding_window": None,
        "num_mtp_layers": 0,
        "eos_token_id": fields.get("pad_token_id") if end is None else end,
    }


class LLaDA2MoeConfig(OriginalConfig, Glm4MoeConfig):
    """Glm4MoeConfig that reads LLaDA2's field names and writes them back.

    Args:
        fields: config.json of the original, LLaDA2.0-mini's where none is given.

    Raises:
        ValueError: the fields describe an architecture that the GLM-4-MoE class does not compute.
    """

    model_type = "llada2_moe"
    layout = Layout("llada2", LLADA2_MINI, ESSENTIAL, REQUIRED, NATIVE_NAMES, derive)

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


class LLaDA2MoeModelLM(Denoising, Glm4MoeForCausalLM):
    """Glm4MoeForCausalLM under the original's class name."""

    config_class = LLaDA2MoeConfig


class SplitProjections(ConversionOps):
    """Cut one matrix of stacked query, key and value rows into three, by the sizes that the config gives."""

    def convert(
        self,
        input_dict: dict[str, Any],
        source_patterns: list[str],
        target_patterns: list[str],
        *,
        config: PreTrainedConfig,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """Return the three matrices under their names.

        Args:
            input_dict: the stacked matrix [(heads + 2 key heads) x head_dim, hidden_size], under its pattern.
            source_patterns: that pattern.
            target_patterns: names of query, key and value.
            config: how large they are.
            kwargs: what else transformers tells; not needed.
        """
        del source_patterns, kwargs
        (value,) = input_dict.values()
        stacked: Tensor = value[0] if isinstance(value, list) else value
        heads: Sequence[int] = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
        pieces = stacked.split([count * config.head_dim for count in heads], dim=0)
        return {name: piece.contiguous() for name, piece in zip(target_patterns, pieces, strict=True)}

    @property
    def reverse_op(self) -> ConversionOps:
        """Stack them again."""
        return Concatenate(dim=0)


RENAMINGS = (
    (r"^model\.word_embeddings\.", r"^model\.embed_tokens\."),
    (r"\.attention\.", r"\.self_attn\."),
    (r"\.self_attn\.dense\.", r"\.self_attn\.o_proj\."),
    (r"\.query_layernorm\.", r"\.q_norm\."),
    (r"\.key_layernorm\.", r"\.k_norm\."),
    (r"\.mlp\.gate\.expert_bias", r"\.mlp\.gate\.e_score_correction_bias"),
)


def converters() -> list[WeightConverter]:
    """Stack the experts and split the attention's input projections.

    The patterns are the last parts of names, as older transformers apply the renamings before they put names together.
    """
    projections = [f"{name}_proj.weight" for name in "qkv"]
    return [*stack_experts(), WeightConverter("query_key_value.weight", projections, [SplitProjections()])]


FACTS = Facts(
    family="llada2",
    example="LLaDA2.0-mini",
    example_ids=(156895, 156892),
    mask="<|mask|>",
    turn_ends=("<|role_end|>",),
    attention="block_causal",
    block_length=32,
    block_field="block_size",
    generation={
        "preset": "llada2",
        "gen_length": 2048,
        "block_length": 32,
        "steps_per_block": 32,
        "temperature": 0.0,
        "tau": 0.95,
    },
    extras=("moe", "token_editing"),
    lora_targets=ATTENTION_PROJECTIONS,
    lora_parameters=EXPERT_PARAMETERS,
)


def tiny_fields(size: TinySize, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return config.json of a small model in the original's terms: a dense layer, then layers of eight experts."""
    head = size.hidden_size // size.heads
    experts = {"num_experts": 8, "num_experts_per_tok": 2, "n_group": 4, "topk_group": 2}
    return {
        **LLADA2_MINI,
        **common_tiny_fields(size, tokenizer),
        **experts,
        "moe_intermediate_size": max(size.intermediate_size // 4, 1),
        "rotary_dim": head // 2,
    }


LLADA2 = Family(
    name="llada2",
    config_class=LLaDA2MoeConfig,
    model_class=LLaDA2MoeModelLM,
    renamings=RENAMINGS,
    describe=FACTS.describe,
    tiny_fields=tiny_fields,
    converters=converters,
    block_field=FACTS.block_field,
    float32_tensors=(".mlp.gate.expert_bias",),
)
