"""Experts of a mixture: one tensor each in a checkpoint, stacked in transformers' classes."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightConverter

IMPLEMENTATIONS = ("eager", "batched_mm", "grouped_mm")


def stack_experts() -> list[WeightConverter]:
    """Return transformers' own converters from one tensor per expert and projection to two stacked ones."""
    mapping = get_checkpoint_conversion_mapping("qwen2_moe")
    assert mapping is not None, "transformers stacks the experts of every mixture by this entry"
    return [entry for entry in mapping if isinstance(entry, WeightConverter)]


def compute_experts(module: PreTrainedModel, how: str) -> None:
    """Choose how the experts of a mixture are multiplied; results agree within rounding.

    Args:
        module: a model with stacked experts, or without any (then only "eager" is accepted).
        how: "eager" (one after the other, any dtype), "batched_mm" (a copy of the weights per token: few tokens),
            "grouped_mm" (one kernel: fast on accelerators, not in float64).

    Raises:
        ValueError: an unknown name, experts that are not there, or a dtype that the kernel lacks.
    """
    if how not in IMPLEMENTATIONS:
        raise ValueError(f"expected `experts` to be one of {list(IMPLEMENTATIONS)}, got {how!r}")
    if how != "eager" and not any(name.endswith(".mlp.experts") for name, _ in module.named_modules()):
        raise ValueError(f"expected experts='eager' for a model without experts, got {how!r}")
    if how == "grouped_mm" and module.dtype is torch.float64:
        raise ValueError("expected experts='eager' or 'batched_mm' in float64, got 'grouped_mm'")
    # transformers has a setter, which finds out by reading this package's source that it does not apply.
    module.config._experts_implementation = how  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
