"""What a family knows about its checkpoints that config.json may leave open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from dare_models.families.family import TinySize
from dare_models.spec import ModelSpec
from dare_models.tokenizer import BOS, EOS, TURN_END, token_id

ATTENTION_PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj")
DENSE_PROJECTIONS = (*ATTENTION_PROJECTIONS, "gate_proj", "up_proj", "down_proj")
EXPERT_PARAMETERS = ("mlp.experts.gate_up_proj", "mlp.experts.down_proj")


EVERY = ("prefix_cache", "window_cache", "packed_documents")
BY_ATTENTION: Mapping[str, tuple[str, ...]] = {
    "full": ("full_attention", *EVERY),
    "block_causal": ("block_causal", "concat_training", "block_cache", *EVERY),
}


@dataclass(frozen=True)
class Facts:
    """Facts of a family, from which the spec of one checkpoint is made.

    Args:
        family: its name.
        example: a release, for messages.
        example_ids: its mask and end-of-text ids.
        mask: text of the mask token, where the tokenizer does not declare one.
        turn_ends: texts of tokens that end a chat turn.
        attention: who sees whom.
        block_length: positions per block where neither the checkpoint nor the caller says.
        block_field: config field that records them.
        logit_offset: 1 where row i - 1 scores token i.
        generation: the publisher's sampler: the name of a preset of dare-samplers and its arguments.
        extras: what the family can do beyond what its attention gives, by the names in `dare_models.spec.CAPABILITIES`.
        lora_targets: module names that low-rank adapters attach to.
        lora_parameters: names of parameters, not in a linear layer, that they attach to.
    """

    family: str
    example: str
    example_ids: tuple[int, int]
    mask: str
    turn_ends: tuple[str, ...]
    attention: Literal["full", "block_causal"] = "full"
    block_length: int | None = None
    block_field: str | None = None
    logit_offset: int = 0
    generation: Mapping[str, Any] = field(default_factory=dict[str, Any])
    extras: tuple[str, ...] = ()
    lora_targets: tuple[str, ...] = DENSE_PROJECTIONS
    lora_parameters: tuple[str, ...] = ()

    def describe(self, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase | None) -> ModelSpec:
        """Return the spec of one checkpoint.

        Args:
            config: its config.
            tokenizer: its tokenizer, if there is one; it answers what the config leaves open.

        Raises:
            ValueError: nobody knows the mask id or the end of text, or the block length is none.
        """
        ends = self._ends(config, tokenizer)
        return ModelSpec(
            family=self.family,
            vocab_size=config.vocab_size,
            mask_token_id=self._mask(config, tokenizer),
            pad_token_id=ends[0] if config.pad_token_id is None else config.pad_token_id,
            bos_token_id=token_id(tokenizer, BOS) if config.bos_token_id is None else config.bos_token_id,
            eos_token_ids=ends,
            turn_end_ids=self._turn_ends(tokenizer),
            logit_offset=self.logit_offset,
            attention=self.attention,
            block_length=self._block_length(config),
            max_positions=config.max_position_embeddings,
            generation=self.generation,
            capabilities=(*BY_ATTENTION[self.attention], *self.extras),
            lora_targets=self.lora_targets,
            lora_parameters=self.lora_parameters,
        )

    def _mask(self, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase | None) -> int:
        declared = None if tokenizer is None else tokenizer.mask_token_id
        for known in (config.mask_token_id, declared, token_id(tokenizer, self.mask)):
            if isinstance(known, int):
                return known
        raise ValueError(
            "expected `mask_token_id` in config.json, got none; "
            f"pass mask_token_id=… ({self.example_ids[0]} for {self.example})"
        )

    def _ends(self, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
        end = token_id(tokenizer, EOS) if config.eos_token_id is None else config.eos_token_id
        if end is None:
            raise ValueError(
                f"expected `eos_token_id` in config.json, got none; add it ({self.example_ids[1]} for {self.example})"
            )
        return tuple(end) if isinstance(end, list) else (end,)

    def _turn_ends(self, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
        found = (token_id(tokenizer, text) for text in dict.fromkeys((*self.turn_ends, TURN_END)))
        return tuple(token for token in found if token is not None)

    def _block_length(self, config: PreTrainedConfig) -> int | None:
        recorded = None if self.block_field is None else getattr(config, self.block_field, None)
        length = self.block_length if recorded is None else recorded
        if length is not None and (not isinstance(length, int) or length < 1):
            raise ValueError(f"config field `{self.block_field}`: expected a positive number, got {length!r}")
        return length


def common_tiny_fields(size: TinySize, tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Return the fields of a small config that go by the same name in most families; half as many key heads as heads.

    Args:
        size: how small.
        tokenizer: decides the vocabulary and the special ids.
    """
    return {
        "hidden_size": size.hidden_size,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": max(size.heads // 2, 1) if size.heads % 2 == 0 else size.heads,
        "head_dim": size.hidden_size // size.heads,
        "intermediate_size": size.intermediate_size,
        "max_position_embeddings": size.max_positions,
        "vocab_size": len(tokenizer),
        "mask_token_id": tokenizer.mask_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
