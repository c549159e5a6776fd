"""From a folder to a `DiffusionLM`, and nothing in between may go wrong in silence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from dare_models import checkpoint, precision
from dare_models.dtypes import as_dtype
from dare_models.families import family_for, register
from dare_models.families.experts import compute_experts
from dare_models.families.family import Family
from dare_models.lm import DiffusionLM
from dare_models.partition import check_partition_dtype, is_partitioned
from dare_models.probe import check_probe
from dare_models.tokenizer import load_tokenizer


def load(
    path: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    mask_token_id: int | None = None,
    block_length: int | None = None,
    backend: str = "sdpa",
    experts: str = "eager",
    verify: bool = True,
) -> DiffusionLM:
    """Load a checkpoint in the layout of its original repository, without remote code.

    Every tensor of the files is used exactly once and every parameter comes from a file, with the right shape and
    dtype; the architecture fields of the config must describe what the family computes.

    Args:
        path: a folder (then nothing is fetched), or the id of a Hub repository; or the folder of an adapter, whose base
            is then loaded from where the adapter says (see `dare_models.lora.load`).
        dtype: floating-point type of the parameters in memory; under ZeRO-3 that of the DeepSpeed config.
        device: where the parameters go.
        mask_token_id: mask id, where the checkpoint does not record it. Ends of turn are the tokenizer's: without
            its files decoding stops at ends of text alone.
        block_length: positions per block, where the checkpoint was trained with another number than it records or
            than the family's first releases have.
        backend: transformers' attention implementation.
        experts: how the experts of a mixture are multiplied: "eager", "batched_mm" or "grouped_mm" (fast on
            accelerators).
        verify: compare the logits of a probe with those that `DiffusionLM.save` recorded (one forward of some forty
            tokens); folders that others wrote have none. Under ZeRO-3 `DiffusionLM.verify` does it later.

    Returns:
        The model in eval mode.

    Raises:
        CheckpointError: a file, tensor or dtype that does not fit, by name.
        ValueError: a config field that the family does not implement, no mask id, a device or experts that are not
            there, or another dtype than the DeepSpeed config's.
        ProbeError: the model computes something else than when it was saved.
    """
    register()
    check_device(device)
    check_partition_dtype(as_dtype(dtype))
    folder = checkpoint.locate(path)
    if (folder / checkpoint.ADAPTER).exists():
        from dare_models import lora  # noqa: PLC0415 (peft is an extra)

        return lora.load(
            folder,
            dtype=dtype,
            device=device,
            backend=backend,
            experts=experts,
            mask_token_id=mask_token_id,
            block_length=block_length,
            verify=verify,
        )
    sidecar = checkpoint.read_sidecar(folder / checkpoint.SIDECAR)
    fields = checkpoint.original_fields(folder, sidecar)
    family = family_for(fields)
    if mask_token_id is not None:
        fields = {**fields, "mask_token_id": mask_token_id}
    config = family.config(family.with_block_length(fields, block_length))
    tokenizer = load_tokenizer(folder)
    spec = family.describe(config, tokenizer)
    if tokenizer is not None and len(tokenizer) > spec.vocab_size:
        raise checkpoint.CheckpointError(
            f"tokenizer.json: expected at most `vocab_size`={spec.vocab_size} tokens, got {len(tokenizer)}"
        )
    checkpoint.verify(folder, family, config)
    module = load_module(family, folder, config, dtype, backend)
    compute_experts(precision.place(module, dtype, device), experts)
    lm = DiffusionLM(module.eval(), spec, tokenizer)
    lm.source = str(path)
    lm.probe = sidecar.get("probe")
    if verify and lm.probe is not None and not is_partitioned(module):
        given = {"block_length": block_length, "mask_token_id": mask_token_id}
        check_probe(lm, lm.probe, chosen=[name for name, value in given.items() if value is not None])
    return lm


def load_module(
    family: Family, folder: Path, config: PreTrainedConfig, dtype: str | torch.dtype, backend: str
) -> PreTrainedModel:
    """Return the network of a checkpoint that `checkpoint.verify` has accepted.

    Args:
        family: whose layout.
        folder: holds the weights.
        config: its config.
        dtype: floating-point type of the parameters in memory.
        backend: transformers' attention implementation.

    Raises:
        CheckpointError: transformers did not load it whole.
    """
    with checkpoint.quiet():
        loaded: Any = family.model_class.from_pretrained(
            folder,
            config=config,
            dtype=as_dtype(dtype),
            attn_implementation=backend,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    module, info = loaded
    if problems := {name: keys for name, keys in info.items() if keys}:
        raise checkpoint.CheckpointError(f"expected transformers to load {str(folder)!r} whole, got {problems}")
    # It remembers by which names it was read; what is written depends on the layout asked for alone.
    module._weight_conversions = None  # noqa: SLF001
    return module


def check_device(device: str | torch.device) -> None:
    """Refuse a device before anything is read.

    Raises:
        ValueError: this torch cannot use it.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"`device`: expected one that this torch can use, got {str(device)!r} ({reason})") from error
