"""What a sampler, a trainer or an evaluation must know about a checkpoint, as plain data."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

CAPABILITIES: Mapping[str, str] = MappingProxyType(
    {
        "full_attention": "every position sees every other one",
        "block_causal": "a position sees its block and the blocks before it",
        "concat_training": "corrupted and clean copies side by side in one training forward",
        "prefix_cache": "what stands before the block is stored",
        "window_cache": "any window is fed, the rest stored",
        "block_cache": "finished blocks are stored for good, and exactly",
        "packed_documents": "several documents share a row",
        "token_editing": "committed tokens may be replaced by better ones",
        "insert_delete": "tokens for insertion and deletion",
        "block_routing": "experts are chosen per block",
        "moe": "a mixture of experts",
    }
)
"""What a checkpoint may be able to do, by name."""


@dataclass(frozen=True)
class ModelSpec:
    """Facts about one diffusion language model: ids, attention, block length, defaults.

    Args:
        family: name of the family that reads the checkpoint.
        vocab_size: number of logits.
        mask_token_id: id of the mask.
        pad_token_id: id used to fill rows up to equal length.
        max_positions: longest canvas the checkpoint was made for.
        bos_token_id: id of the start token, if there is one.
        eos_token_ids: ids that end a text.
        turn_end_ids: ids that end a chat turn; decoding stops at these too.
        logit_offset: 1 where the network's row i - 1 scores token i; undone inside the family.
        attention: "full" or "block_causal".
        block_length: positions per block; None where any block length is legal.
        generation: the publisher's sampler: `preset`, its name in dare-samplers, and its arguments.
        capabilities: what the family can do, by the names in `CAPABILITIES`; empty where nobody has said.
        lora_targets: names of linear modules that low-rank adapters attach to.
        lora_parameters: names of bare parameters (the experts of a mixture) that they attach to as well.

    Raises:
        ValueError: an id outside the vocabulary, an unknown attention kind, a missing block length.

    >>> spec = ModelSpec("llada", vocab_size=8, mask_token_id=7, pad_token_id=0, max_positions=64, eos_token_ids=(0,))
    >>> ModelSpec.from_json(spec.to_json()) == spec
    True
    """

    family: str
    vocab_size: int
    mask_token_id: int
    pad_token_id: int
    max_positions: int
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    turn_end_ids: tuple[int, ...] = ()
    logit_offset: int = 0
    attention: Literal["full", "block_causal"] = "full"
    block_length: int | None = None
    generation: Mapping[str, Any] = field(default_factory=dict, hash=False)
    capabilities: tuple[str, ...] = ()
    lora_targets: tuple[str, ...] = ()
    lora_parameters: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check every field once, here."""
        for name, token in self._ids():
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"expected `{name}` inside the vocabulary of {self.vocab_size}, got {token}")
        if self.mask_token_id in self.stop_ids:
            raise ValueError(f"expected a mask id apart from the stop ids {self.stop_ids}, got {self.mask_token_id}")
        if self.logit_offset not in (0, 1):
            raise ValueError(f"expected `logit_offset` 0 or 1, got {self.logit_offset!r}")
        if self.attention not in ("full", "block_causal"):
            raise ValueError(f"expected `attention` 'full' or 'block_causal', got {self.attention!r}")
        if self.attention == "block_causal" and not self.block_length:
            raise ValueError(f"expected a `block_length` with block-causal attention, got {self.block_length!r}")
        if unknown := [name for name in self.capabilities if name not in CAPABILITIES]:
            raise ValueError(f"expected `capabilities` among {list(CAPABILITIES)}, got {unknown}")

    def require(self, names: Iterable[str], what: str) -> None:
        """Refuse something that the checkpoint cannot do, before any work is done.

        Args:
            names: capabilities, such as `dare_samplers.SamplerConfig.needs`.
            what: who needs them, for the message.

        Raises:
            ValueError: naming those that are missing.
        """
        missing = [name for name in names if name not in self.capabilities]
        if missing:
            meanings = "; ".join(f"{name}: {CAPABILITIES.get(name, 'unknown')}" for name in missing)
            raise ValueError(
                f"expected a family with {missing} for {what} ({meanings}), got {self.family} with "
                f"{list(self.capabilities)}"
            )

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids at which decoding stops: ends of text, then ends of turn."""
        return tuple(dict.fromkeys((*self.eos_token_ids, *self.turn_end_ids)))

    def to_json(self) -> str:
        """Return the spec as one line of JSON."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ModelSpec:
        """Read what `to_json` wrote.

        Raises:
            ValueError: a field this version does not know.
        """
        fields: dict[str, Any] = json.loads(text)
        unknown = sorted(fields.keys() - {known.name for known in dataclasses.fields(cls)})
        if unknown:
            raise ValueError(f"expected the fields of ModelSpec, got also {unknown}; use a newer dare-models")
        values: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()
        }
        return cls(**values)

    def _ids(self) -> list[tuple[str, int]]:
        single = [("mask_token_id", self.mask_token_id), ("pad_token_id", self.pad_token_id)]
        if self.bos_token_id is not None:
            single.append(("bos_token_id", self.bos_token_id))
        return [
            *single,
            *(("eos_token_ids", token) for token in self.eos_token_ids),
            *(("turn_end_ids", token) for token in self.turn_end_ids),
        ]
