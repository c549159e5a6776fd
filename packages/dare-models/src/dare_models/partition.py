"""Parameters that DeepSpeed ZeRO-3 has cut into pieces, told by what it hangs on them; deepspeed is not imported."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from transformers.integrations.deepspeed import deepspeed_config, is_deepspeed_zero3_enabled

from dare_models.dtypes import dtype_name

__all__ = ["check_partition_dtype", "expect_countable", "expect_engine", "expect_whole", "is_partitioned"]

SWITCHES = {"bf16": torch.bfloat16, "bfloat16": torch.bfloat16, "fp16": torch.float16}


def is_partitioned(module: nn.Module) -> bool:
    """Return whether ZeRO-3 owns parameters of a module, gathered at the moment or not."""
    return any(hasattr(parameter, "ds_numel") for parameter in module.parameters())


def check_partition_dtype(dtype: torch.dtype) -> None:
    """Refuse another dtype than the one in which transformers would build partitioned parameters now.

    Args:
        dtype: asked for.

    Raises:
        ValueError: the DeepSpeed config that is alive decides otherwise.
    """
    if not is_deepspeed_zero3_enabled():
        return
    config: dict[str, Any] = deepspeed_config() or {}
    enabled = (kind for switch, kind in SWITCHES.items() if config.get(switch, {}).get("enabled") is True)
    wanted = next(enabled, torch.float32)
    if dtype is not wanted:
        raise ValueError(
            f"expected dtype={dtype_name(wanted)!r}, in which the DeepSpeed config partitions the parameters, got "
            f"{dtype_name(dtype)!r}; pass that, or change `bf16` or `fp16` of the DeepSpeed config"
        )


def expect_whole(parameters: Iterable[tuple[str, nn.Parameter]], purpose: str) -> None:
    """Refuse to read weights of which this rank holds a piece.

    Args:
        parameters: names and weights.
        purpose: what they are wanted for.

    Raises:
        ValueError: a parameter is not gathered.
    """
    for name, parameter in parameters:
        if parameter.numel() != getattr(parameter, "ds_numel", parameter.numel()):
            raise ValueError(
                f"expected whole parameters {purpose}, got {name!r} partitioned by DeepSpeed; do it on every rank "
                "inside `deepspeed.zero.GatheredParameters(list(lm.module.parameters()))`"
            )


def expect_countable(parameters: Iterable[nn.Parameter]) -> None:
    """Refuse to tell by torch's counts whether weights have changed.

    Args:
        parameters: the weights.

    Raises:
        ValueError: they are partitioned; an engine's step then moves no count.
    """
    if any(hasattr(parameter, "ds_numel") for parameter in parameters):
        raise ValueError(
            "expected `lm.version` to be set for a cache of parameters that DeepSpeed partitions, got None; set it to "
            "a number that changes with every step of the engine"
        )


def expect_engine(module: nn.Module) -> None:
    """Refuse to compute with partitioned parameters that no engine gathers.

    Args:
        module: the model.

    Raises:
        ValueError: no hook brings the weights.
    """
    if is_partitioned(module) and not any(vars(part)["_forward_pre_hooks"] for part in module.modules()):
        raise ValueError(
            "expected an engine around parameters that DeepSpeed has partitioned, got none; call this after "
            "`deepspeed.initialize`"
        )
