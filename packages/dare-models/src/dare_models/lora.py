"""Low-rank adapters (LoRA, arXiv 2106.09685) through peft: attach, switch off, save, load, merge.

The module stays the stock one: peft puts its layers into it, `lm` decodes and scores as before. Needs the extra `lora`.

>>> import torch
>>> import dare_models as dm
>>> from dare_models import lora
>>> lm = lora.attach(dm.tiny("sdar", tokenizer=dm.tiny_tokenizer("0123456789")), rank=4)
>>> ids = torch.tensor([lm.encode("42")])
>>> with lora.disabled(lm):
...     reference = lm(ids)
>>> bool(torch.equal(reference, lm(ids)))  # a new adapter changes nothing
True
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dare_models import checkpoint, keyed, loading
from dare_models.checkpoint import CheckpointError
from dare_models.dtypes import as_dtype, dtype_name
from dare_models.lm import DiffusionLM
from dare_models.partition import expect_whole, is_partitioned
from dare_models.precision import place

try:
    import peft
except ImportError as error:
    raise ImportError("expected the package `peft`, got none; pip install 'dare-models[lora]'") from error

if TYPE_CHECKING:
    from peft import PeftModel

__all__ = ["attach", "disabled", "load", "merge", "save", "unload"]

WEIGHTS, SIDECAR = checkpoint.ADAPTER_WEIGHTS, checkpoint.ADAPTER_SIDECAR
NAME = "default"


def attach(
    lm: DiffusionLM,
    *,
    rank: int = 16,
    alpha: float = 32,
    dropout: float = 0.0,
    targets: Sequence[str] | None = None,
    rank_stabilised: bool = False,
    seed: int = 0,
) -> DiffusionLM:
    """Freeze a model and put a trainable adapter into it, which changes nothing yet.

    A linear layer with weight W [o, i] computes (W + s B A) x, with A [r, i] drawn and B [o, r] zero, s = alpha / r.

    Args:
        lm: the base, changed in place.
        rank: r.
        alpha: scale of the update.
        dropout: of the adapter's input while training; not with experts, whose parameters have none.
        targets: endings of the names of linear layers and bare parameters; None takes the family's: attention and
            feed-forward layers, in a mixture attention and the stacked experts, never the router.
        rank_stabilised: s = alpha / sqrt(r) (rsLoRA, arXiv 2312.03732).
        seed: of A, whose values depend on it and the parameter's name alone.

    Returns:
        The same object; its adapter is in the parameters' dtype, or float32 where that is half precision.

    Raises:
        ValueError: an adapter is there already, numbers out of range, or a target that matches nothing.
    """
    if lm.adapter is not None:
        raise ValueError("expected a model without an adapter, got one; `merge` or `unload` it first")
    if rank < 1:
        raise ValueError(f"expected `rank` of at least 1, got {rank}")
    if not 0 <= dropout < 1:
        raise ValueError(f"expected `dropout` in [0, 1), got {dropout}")
    modules, parameters = _targets(lm, targets)
    if dropout and parameters:
        raise ValueError(f"expected dropout=0 with parameters as targets ({parameters}), got {dropout}")
    config = peft.LoraConfig(
        r=rank,
        lora_alpha=alpha,  # pyright: ignore[reportArgumentType] (peft computes with a fraction as well)
        lora_dropout=dropout,
        target_modules=modules,
        target_parameters=parameters or None,
        use_rslora=rank_stabilised,
    )
    base = _hashed(lm)
    _inject(lm, config)
    _draw(lm.module, seed)
    lm.base = base
    return lm


@contextmanager
def disabled(lm: DiffusionLM) -> Generator[DiffusionLM]:
    """Give the base model for a while: the reference of preference and reinforcement learning, without a second copy.

    A cache that was made with the adapter on is refused inside, and the other way round.

    Args:
        lm: with an adapter.

    Raises:
        ValueError: there is no adapter.
    """
    adapter, version = _adapter(lm), lm.version
    if version is not None or not is_partitioned(lm.module):
        lm.version = hash((lm.weights_version(), "adapter off"))
    try:
        with adapter.disable_adapter():
            yield lm
    finally:
        lm.version = version


def merge(lm: DiffusionLM) -> DiffusionLM:
    """Add the adapter to the base's weights, for good; `lm.save` then writes an ordinary checkpoint.

    Args:
        lm: with an adapter, changed in place.

    Raises:
        ValueError: there is no adapter, or a merged weight would not be finite.
    """
    _adapter(lm).merge_and_unload(safe_merge=True)
    return _plain(lm)


def unload(lm: DiffusionLM) -> DiffusionLM:
    """Take the adapter out again.

    Args:
        lm: with an adapter, changed in place.

    Raises:
        ValueError: there is no adapter.
    """
    _adapter(lm).unload()
    return _plain(lm)


def save(
    lm: DiffusionLM,
    path: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | None = None,
    notes: Mapping[str, Any] | None = None,
) -> None:
    """Write the adapter alone, as peft lays it out, with the hash of the weights it was trained on.

    It is written to a temporary sibling, which is renamed when complete.

    Args:
        lm: with an adapter.
        path: a folder that does not exist yet.
        base: where to find the base again; None takes where it was loaded from.
        notes: what else to record, as plain data: run, step, hash of the configuration.

    Raises:
        CheckpointError: `path` exists.
        ValueError: there is no adapter, or it is partitioned.
    """
    adapter = _adapter(lm)
    trained = (named for named in lm.module.named_parameters() if named[1].requires_grad)
    expect_whole(trained, "to write the adapter")
    where = lm.source if base is None else os.fspath(base)
    config = {**adapter.peft_config[NAME].to_dict(), "base_model_name_or_path": where, "inference_mode": True}
    tensors = peft.get_peft_model_state_dict(adapter, adapter_name=NAME, save_embedding_layers=False)
    sidecar = {"format": 1, "family": lm.spec.family, "base": lm.base, "notes": dict(notes or {})}
    with checkpoint.new_folder(path) as folder:
        save_file(
            {name: tensor.detach().cpu().contiguous() for name, tensor in sorted(tensors.items())},
            folder / WEIGHTS,
            metadata={"format": "pt"},
        )
        for name, data in ((checkpoint.ADAPTER, config), (SIDECAR, sidecar)):
            text = json.dumps(data, indent=1, sort_keys=True, default=_jsonable)
            (folder / name).write_text(text + "\n", encoding="utf-8")


def load(
    path: str | os.PathLike[str],
    *,
    base: str | os.PathLike[str] | DiffusionLM | None = None,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    backend: str = "sdpa",
    experts: str = "eager",
    mask_token_id: int | None = None,
    block_length: int | None = None,
    verify: bool = True,
) -> DiffusionLM:
    """Load an adapter and the base it was trained on.

    Args:
        path: folder of the adapter.
        base: folder or Hub repository of the base, or the base itself, which is changed in place; None takes what the
            adapter records.
        dtype: floating-point type of the parameters in memory, unless `base` is a model.
        device: where they go.
        backend: transformers' attention implementation.
        experts: how the experts of a mixture are multiplied.
        mask_token_id: mask id, where the base does not record it.
        block_length: positions per block, where the base was trained with another number than it records.
        verify: check that the base is the one that the adapter was trained on. Adapters that peft wrote record none.

    Returns:
        The model in eval mode; the adapter is trainable.

    Raises:
        CheckpointError: other base weights, adapter tensors that are missing or too many, or no base.
    """
    folder = Path(path)
    written = checkpoint.read_json(folder / checkpoint.ADAPTER)
    recorded: Mapping[str, str] | None = checkpoint.read_sidecar(folder / SIDECAR).get("base")
    if isinstance(base, DiffusionLM):
        lm = base
    else:
        where = written.get("base_model_name_or_path") if base is None else base
        if where is None:
            raise CheckpointError(f"{str(folder)!r}: expected the adapter to record its base, got none; pass base=…")
        first = dtype if recorded is None else recorded["dtype"]
        lm = loading.load(
            where,
            dtype=first,
            device=device,
            backend=backend,
            experts=experts,
            mask_token_id=mask_token_id,
            block_length=block_length,
            verify=verify,
        )
    found = _hashed(lm)
    if verify and recorded is not None and found != dict(recorded):
        raise CheckpointError(
            f"expected the base that the adapter was trained on (sha256 {recorded['sha256'][:12]}, "
            f"{recorded['dtype']}), got another (sha256 {found['sha256'][:12]}, {found['dtype']}) from "
            f"{lm.source or 'memory'}; pass base=… with the right one"
        )
    if not isinstance(base, DiffusionLM) and as_dtype(dtype) is not lm.dtype:
        place(lm.module, dtype, device)
    _inject(lm, peft.LoraConfig.from_pretrained(os.fspath(folder)))
    _fill(_adapter(lm), _read_weights(folder))
    lm.base = found if recorded is None else dict(recorded)
    return lm


def _adapter(lm: DiffusionLM) -> PeftModel:
    if not isinstance(lm.adapter, peft.PeftModel):
        raise ValueError("expected a model with an adapter, got one without; `attach` or `load` one")
    return lm.adapter


def _hashed(lm: DiffusionLM) -> dict[str, str]:
    """What tells one base from another."""
    return {"sha256": lm.fingerprint(), "dtype": dtype_name(lm.dtype)}


def _targets(lm: DiffusionLM, targets: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Endings that name linear layers, and endings that name parameters."""
    wanted = (*lm.spec.lora_targets, *lm.spec.lora_parameters) if targets is None else tuple(targets)
    layers = [name for name, module in lm.module.named_modules() if isinstance(module, nn.Linear)]
    stacked = [name for name, parameter in lm.module.named_parameters() if parameter.ndim == 3]
    modules = [target for target in wanted if _matches(target, layers)]
    parameters = [target for target in wanted if _matches(target, stacked)]
    for target in wanted:
        if target not in modules and target not in parameters:
            known = sorted({name.rpartition(".")[2] for name in layers} | set(lm.spec.lora_parameters))
            raise ValueError(f"expected `targets` among {known} or longer endings of names, got {target!r}")
    if not wanted:
        raise ValueError("expected at least one target, got none")
    return modules, parameters


def _matches(ending: str, names: Collection[str]) -> bool:
    return any(name == ending or name.endswith(f".{ending}") for name in names)


def _inject(lm: DiffusionLM, config: Any) -> None:
    config.inference_mode = False
    config.base_model_name_or_path = None  # `save` records where the base was loaded from
    training = lm.module.training
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # peft asks transformers by a name that is about to change
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        lm.adapter = peft.get_peft_model(lm.module, config, adapter_name=NAME)
    lm.module.train(training)


def _draw(module: nn.Module, seed: int) -> None:
    """Draw every A from U(-1/sqrt(i), 1/sqrt(i)), as peft does, with a generator per name."""
    for name, parameter in module.named_parameters():
        if f".lora_A.{NAME}" in name:
            bound = 1 / math.sqrt(parameter.shape[-1])
            generator = keyed.generator(f"{seed}/{name}")
            drawn = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) * 2 - 1
            parameter.data.copy_(drawn * bound)


def _plain(lm: DiffusionLM) -> DiffusionLM:
    lm.adapter, lm.base = None, None
    lm.probe = None
    lm.module.requires_grad_(requires_grad=True)
    return lm


def _fill(adapter: PeftModel, tensors: dict[str, torch.Tensor]) -> None:
    expected = peft.get_peft_model_state_dict(adapter, adapter_name=NAME, save_embedding_layers=False)
    for name in sorted(expected.keys() | tensors.keys()):
        if name not in tensors:
            raise CheckpointError(f"adapter tensor {name!r}: expected in {WEIGHTS}, got none; copy it again")
        if name not in expected:
            raise CheckpointError(
                f"adapter tensor {name!r}: expected none of this name, got one; adapters name modules as transformers "
                "does, those trained with a checkpoint's own code have to be renamed"
            )
        if expected[name].shape != tensors[name].shape:
            shapes = f"{tuple(expected[name].shape)}, got {tuple(tensors[name].shape)}"
            raise CheckpointError(f"adapter tensor {name!r}: expected shape {shapes}")
    peft.set_peft_model_state_dict(adapter, tensors, adapter_name=NAME)


def _read_weights(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint.read_shard(folder / WEIGHTS)
    return load_file(folder / WEIGHTS)


def _jsonable(value: object) -> object:
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    return str(getattr(value, "value", value))
