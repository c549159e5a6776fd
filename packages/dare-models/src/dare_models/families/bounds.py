"""What any config has to say, whatever its architecture: sizes of at least one, ids, angles and rates in range."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

from transformers.activations import ACT2FN

__all__ = ["find_fault"]

COUNTS = (
    *("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size"),
    *("intermediate_size", "moe_intermediate_size", "max_position_embeddings", "num_experts", "n_routed_experts"),
    *("num_experts_per_tok", "n_shared_experts", "n_group", "topk_group", "block_size", "bd_size", "block_length"),
)
IDS = ("mask_token_id", "pad_token_id", "bos_token_id", "eos_token_id")
POSITIVE = ("rope_theta", "rms_norm_eps", "partial_rotary_factor")

# Native names: the first cannot be more than the second.
LIMITS = (
    ("num_experts_per_tok", "num_experts"),
    ("num_experts_per_tok", "n_routed_experts"),
    ("topk_group", "n_group"),
    ("num_key_value_heads", "num_attention_heads"),
)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def _is_id(value: object) -> bool:
    several = cast("list[object]", value) if isinstance(value, list) else [value]
    return all(type(one) is int and one >= 0 for one in several)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _is_rate(value: Any) -> bool:
    return _is_number(value) and 0 <= value < 1


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


def _is_activation(value: object) -> bool:
    return isinstance(value, str) and value in ACT2FN


RULES: tuple[tuple[tuple[str, ...], Callable[[Any], bool], str], ...] = (
    (COUNTS, _is_count, "a whole number of at least 1"),
    (IDS, _is_id, "an id of at least 0"),
    (POSITIVE, _is_positive, "a number above 0"),
    (("attention_dropout",), _is_rate, "a number of at least 0 and below 1"),
    (("norm_topk_prob",), _is_flag, "true or false"),
    (("hidden_act",), _is_activation, "an activation that transformers knows"),
)


def find_fault(fields: Mapping[str, Any], names: Mapping[str, str]) -> tuple[str, str, object] | None:
    """Return the first field that no architecture could mean: its name, what was expected, what it says.

    Fields that are absent or null are left to the family.

    Args:
        fields: config.json of the original.
        names: original -> stock names, where they differ.

    Returns:
        None where all fields could be meant.

    >>> find_fault({"n_layers": -1}, {"n_layers": "num_hidden_layers"})
    ('n_layers', 'a whole number of at least 1', -1)
    """
    given = {names.get(name, name): (name, value) for name, value in fields.items() if value is not None}
    for natives, holds, expected in RULES:
        for native in natives:
            if native in given and not holds(given[native][1]):
                return given[native][0], expected, given[native][1]
    for part, whole in LIMITS:
        if part in given and whole in given and given[part][1] > given[whole][1]:
            return given[part][0], f"at most `{given[whole][0]}`={given[whole][1]}", given[part][1]
    return None
