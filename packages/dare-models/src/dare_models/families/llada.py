"""LLaDA-8B (Base, Instruct, 1.5): a bidirectional Llama under OLMo's names (arXiv 2502.09992)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedConfig, PreTrainedTokenizerBase

from dare_models.families.family import Denoising, Family, TinySize
from dare_models.spec import ModelSpec
from dare_models.tokenizer import BOS, EOS, MASK, TURN_END, token_id

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

# What transformers adds to the fields while it reads a file.
HOW_IT_WAS_READ = ("name_or_path", "_name_or_path", "attn_implementation", "_attn_implementation", "_commit_hash")


def refuse_unsupported(fields: Mapping[str, Any]) -> None:
    """Refuse a config whose architecture is not the one implemented, naming the field.

    Args:
        fields: config.json of the original.

    Raises:
        ValueError: a field asks for something the Llama class does not compute.
    """
    if missing := [name for name in ESSENTIAL if name not in fields]:
        raise ValueError(f"config field `{missing[0]}`: expected a value, got none; take config.json from the original")
    for name, allowed in REQUIRED.items():
        if name in fields and fields[name] not in allowed:
            raise ValueError(
                f"config field `{name}`: expected {' or '.join(map(repr, allowed))}, got {fields[name]!r}; "
                "the llada family does not implement it"
            )
    for name in (*NATIVE_NAMES.values(), "is_causal"):
        if name in fields and name not in NATIVE_NAMES:
            raise ValueError(
                f"config field `{name}`: expected the original's fields alone, got {fields[name]!r} under a name of "
                "transformers; take config.json from the original"
            )
    for name in ("rope_theta", "mlp_hidden_size" if fields.get("mlp_ratio") is None else "mlp_ratio"):
        if fields.get(name) is None:
            raise ValueError(f"config field `{name}`: expected a number, got none; take config.json from the original")
    rows, vocabulary = fields.get("embedding_size"), fields.get("vocab_size")
    if rows is not None and rows != vocabulary:
        raise ValueError(f"config field `embedding_size`: expected `vocab_size`={vocabulary!r}, got {rows!r}")


def native_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Translate original config fields into Llama's, working out what the original leaves open."""
    full: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "mask_token_id": None, **fields}
    if full.get("mlp_hidden_size") is None:
        full["mlp_hidden_size"] = full["mlp_ratio"] * full["d_model"]
    if full.get("n_kv_heads") is None:
        full["n_kv_heads"] = full["n_heads"]
    return {NATIVE_NAMES.get(name, name): value for name, value in full.items() if name != "model_type"}


class LLaDAConfig(LlamaConfig):
    """LlamaConfig that reads LLaDA's field names and writes them back.

    Args:
        fields: config.json of the original, the 8B model's where none is given; fields it does not know are kept and
            written back unchanged.

    Raises:
        ValueError: the fields describe an architecture that the Llama class does not compute.
    """

    model_type = "llada"
    is_causal = False

    def __init__(self, **fields: Any) -> None:
        fields = fields or LLADA_8B
        refuse_unsupported(fields)
        super().__init__(**native_fields(fields))
        self.original = {name: value for name, value in fields.items() if name not in HOW_IT_WAS_READ}

    def to_dict(self) -> dict[str, Any]:
        """Return the original's fields with the values in force now."""
        resolved = native_fields(self.original)
        written = {"model_type": self.model_type, **self.original, "architectures": self.architectures}
        for name in self.original:
            native = NATIVE_NAMES.get(name, name)
            if native in self.__dict__ and self.__dict__[native] != resolved[native]:
                written[name] = self.__dict__[native]
        rope = dict(self.rope_parameters or {})
        written["rope_theta"] = rope.pop("rope_theta")
        if rope.get("rope_type") != "default":
            written["rope_scaling"] = rope
        if self.dtype is not None:
            written.pop("dtype", None)
            written["torch_dtype"] = str(self.dtype).removeprefix("torch.")
        return written

    def to_diff_dict(self) -> dict[str, Any]:
        """Return `to_dict`: the original files list every field."""
        return self.to_dict()


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


def describe(config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase | None) -> ModelSpec:
    """Return the spec of one checkpoint.

    Args:
        config: its config.
        tokenizer: its tokenizer, if there is one; it answers what the config leaves open.

    Raises:
        ValueError: nobody knows the mask id or the end of text.
    """
    mask = token_id(tokenizer, MASK) if config.mask_token_id is None else config.mask_token_id
    end = token_id(tokenizer, EOS) if config.eos_token_id is None else config.eos_token_id
    if mask is None:
        raise ValueError(
            "expected `mask_token_id` in config.json, got none; pass mask_token_id=… (126336 for LLaDA-8B)"
        )
    if end is None:
        raise ValueError("expected `eos_token_id` in config.json, got none; add it (126081 for LLaDA-8B)")
    ends = tuple(end) if isinstance(end, list) else (end,)
    turn_end = token_id(tokenizer, TURN_END)
    return ModelSpec(
        family="llada",
        vocab_size=config.vocab_size,
        mask_token_id=mask,
        pad_token_id=ends[0] if config.pad_token_id is None else config.pad_token_id,
        bos_token_id=token_id(tokenizer, BOS) if config.bos_token_id is None else config.bos_token_id,
        eos_token_ids=ends,
        turn_end_ids=() if turn_end is None else (turn_end,),
        attention="full",
        max_positions=config.max_position_embeddings,
        generation={"gen_length": 128, "block_length": 128, "steps": 128, "temperature": 0.0, "cfg_scale": 0.0},
        capabilities=("full_attention",),
        lora_targets=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
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
    describe=describe,
    tiny_fields=tiny_fields,
)
