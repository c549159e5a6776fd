"""Reading and writing a checkpoint folder so that nothing is lost without a word."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.core_model_loading import revert_weight_conversion
from transformers.utils import logging
from transformers.utils.hub import cached_file

from dare_models.dtypes import FLOATS, dtype_name
from dare_models.families.family import Family

CONFIG, WEIGHTS, INDEX, TOKENIZER = "config.json", "model.safetensors", "model.safetensors.index.json", "tokenizer.json"
SIDECAR, ADAPTER = "dare_model.json", "adapter_config.json"
ADAPTER_WEIGHTS, ADAPTER_SIDECAR = "adapter_model.safetensors", "dare_adapter.json"
TOKENIZER_FILES = (
    *(TOKENIZER, "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
    *("vocab.json", "merges.txt"),
)
DTYPES: dict[str, str] = dict(zip(("F64", "F32", "F16", "BF16"), FLOATS, strict=True))


class CheckpointError(ValueError):
    """A checkpoint that cannot be loaded whole, or not be written here."""


@dataclass(frozen=True)
class TensorHeader:
    """What a file says about one tensor without reading its values."""

    file: str
    shape: tuple[int, ...]
    dtype: str


def locate(path: str | os.PathLike[str]) -> Path:
    """Return the folder of a checkpoint, fetching a Hub repository if `path` is no folder.

    Args:
        path: a folder, or the id `owner/name` of a repository, unless a local folder is called `owner`.

    Raises:
        CheckpointError: it is neither, or the Hub cannot be reached.
    """
    folder = Path(path)
    if folder.is_dir():
        return folder
    owner = folder.parts[0] if len(folder.parts) == 2 and not folder.is_absolute() else "."
    if Path(owner).exists():
        raise CheckpointError(f"expected a folder, or the `owner/name` of a Hub repository, got {str(path)!r}")
    try:
        return _fetch(str(path))
    except OSError as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"expected a folder or a Hub repository, got {str(path)!r}: {reason}") from error


def _fetch(repository: str) -> Path:
    def get(name: str, *, needed: bool) -> str | None:
        return cached_file(repository, name, _raise_exceptions_for_missing_entries=needed)

    adapter = get(ADAPTER, needed=False)
    if adapter is not None:
        get(ADAPTER_WEIGHTS, needed=True)
        get(ADAPTER_SIDECAR, needed=False)
        return Path(adapter).parent
    config = get(CONFIG, needed=True)
    assert config is not None
    folder = Path(config).parent
    index = get(INDEX, needed=False)
    for shard in [WEIGHTS] if index is None else sorted(set(read_json(Path(index))["weight_map"].values())):
        get(shard, needed=True)
    for name in (SIDECAR, *TOKENIZER_FILES):
        get(name, needed=False)
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """Return the fields of config.json.

    Raises:
        CheckpointError: the file is missing or no JSON.
    """
    return read_json(folder / CONFIG)


def read_sidecar(file: Path) -> dict[str, Any]:
    """Return what this package wrote beside the files that others read, of a model or of an adapter.

    Returns:
        Nothing for a folder that somebody else wrote.

    Raises:
        CheckpointError: the file is no JSON, or of a later format.
    """
    if not file.exists():
        return {}
    sidecar = read_json(file)
    if sidecar.get("format") != 1:
        raise CheckpointError(f"{file.name}: expected format 1, got {sidecar.get('format')!r}; use a newer dare-models")
    return sidecar


def original_fields(folder: Path, sidecar: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the original's config.json: that file, or what `write` kept of it beside a native one.

    Args:
        folder: holds config.json.
        sidecar: what `write` wrote beside it.

    Raises:
        CheckpointError: a file is missing or damaged, or a native config.json says something else than it was written
            with.
    """
    written = read_config(folder)
    if sidecar.get("layout") != "native":
        return written
    for name in sorted(written.keys() | sidecar["native"].keys()):
        if written.get(name) != sidecar["native"].get(name):
            raise CheckpointError(
                f"config field `{name}`: expected {sidecar['native'].get(name)!r} by {SIDECAR}, got "
                f"{written.get(name)!r}; change the model in Python and save it again"
            )
    return dict(sidecar["config"])


def declared_dtype(fields: Mapping[str, Any]) -> str | None:
    """Return the dtype that config.json declares.

    Raises:
        CheckpointError: it is no floating-point dtype.
    """
    value = fields.get("torch_dtype", fields.get("dtype"))
    if value is not None and value not in DTYPES.values():
        raise CheckpointError(f"config field `torch_dtype`: expected one of {sorted(DTYPES.values())}, got {value!r}")
    return value


def read_headers(folder: Path) -> dict[str, TensorHeader]:
    """Return what the weight files say about each tensor, by original name.

    Raises:
        CheckpointError: a shard is missing or truncated, or the index and the shards disagree.
    """
    index = folder / INDEX
    if index.exists() and (folder / WEIGHTS).exists():
        raise CheckpointError(f"expected shards or one file, got both {INDEX} and {WEIGHTS}; remove what is not meant")
    weight_map: dict[str, str] = read_json(index)["weight_map"] if index.exists() else {}
    headers: dict[str, TensorHeader] = {}
    for shard in sorted(set(weight_map.values())) or [WEIGHTS]:
        for name, header in read_shard(folder / shard).items():
            if name in headers:
                raise CheckpointError(f"tensor {name!r}: expected once, got it in {headers[name].file} and {shard}")
            headers[name] = header
    if weight_map:
        _check_index(weight_map, headers)
    return headers


def verify(folder: Path, family: Family, config: PreTrainedConfig) -> None:
    """Check that the weight files fill the model exactly, without reading a value.

    Each tensor is used once, none is missing, all have the right shape and the dtype that config.json declares.

    Args:
        folder: holds config.json and the weights.
        family: knows the key mapping and the model.
        config: says how large the model is.

    Raises:
        CheckpointError: naming the file, field or tensor that does not fit.
    """
    headers = read_headers(folder)
    with torch.device("meta"):
        skeleton = family.model_class(config)
    _check_names_and_shapes(family, skeleton, headers)
    _check_tied(folder, family, skeleton, headers)
    _check_dtypes(headers, declared_dtype(read_config(folder)), family.float32_tensors)


def _check_names_and_shapes(family: Family, skeleton: PreTrainedModel, headers: Mapping[str, TensorHeader]) -> None:
    """Compare with what saving the model would write; a parameter may also come whole, under its native name."""
    parameters = skeleton.state_dict()
    tied = skeleton.all_tied_weights_keys
    originals = revert_weight_conversion(skeleton, dict(parameters))
    shapes = {name: tuple(tensor.shape) for name, tensor in (parameters | originals).items()}
    source: dict[str, str] = {}  # parameter -> one of the tensors that fill it
    whole = {name for name in headers if name in parameters}
    for name, targets in family.native_names(headers).items():
        if name not in shapes:
            raise CheckpointError(f"tensor {name!r}: expected none of this name in the {family.name} family, got one")
        if headers[name].shape != shapes[name]:
            raise CheckpointError(f"tensor {name!r}: expected shape {shapes[name]}, got {headers[name].shape}")
        for target in targets:
            if target in source and (name in whole or target in whole):
                raise CheckpointError(f"tensor {name!r}: expected once, but {source[target]!r} is the same parameter")
            source[target] = name
    _check_nothing_is_missing(family, originals, headers.keys(), tied)


def _check_nothing_is_missing(
    family: Family, originals: Iterable[str], found: Collection[str], tied: Collection[str]
) -> None:
    missing: dict[str, str] = {}
    for name, targets in family.native_names(originals).items():
        if name not in found:
            missing.update({target: name for target in targets if target not in found and target not in tied})
    if missing:
        first = min(missing)
        raise CheckpointError(
            f"{len(missing)} parameters: expected in the checkpoint, got none, or not all of them, "
            f"first {first!r} (tensor {missing[first]!r})"
        )


def _check_tied(folder: Path, family: Family, skeleton: PreTrainedModel, headers: Mapping[str, TensorHeader]) -> None:
    """A tensor that the config ties to another may be left out of the files, but not differ there."""
    by_target = {target: name for name, targets in family.native_names(headers).items() for target in targets}
    for copy, source in skeleton.all_tied_weights_keys.items():
        if copy in by_target and source in by_target:
            one, other = (_read_tensor(folder, headers, by_target[name]) for name in (copy, source))
            if not torch.equal(one, other):
                raise CheckpointError(
                    f"tensor {by_target[copy]!r}: expected the values of {by_target[source]!r}, to which "
                    "`tie_word_embeddings` of config.json ties it, got others; set the field to false if they are meant"
                )


def _read_tensor(folder: Path, headers: Mapping[str, TensorHeader], name: str) -> torch.Tensor:
    with safe_open(folder / headers[name].file, framework="pt") as tensors:
        return tensors.get_tensor(name)


@contextmanager
def new_folder(path: str | os.PathLike[str]) -> Generator[Path, None, None]:
    """Give a temporary sibling folder that becomes `path` if the body succeeds and vanishes if it does not.

    Raises:
        CheckpointError: `path` exists already.
    """
    target = Path(path)
    if target.exists():
        raise CheckpointError(f"expected a new path, got {str(target)!r}, which exists; remove it or choose another")
    partial = target.with_name(f".{target.name}.partial-{os.getpid()}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        yield partial
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial)
        raise


def write(
    path: str | os.PathLike[str],
    family: Family,
    module: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    layout: Literal["original", "native"] = "original",
    max_shard_size: str | int = "5GB",
    probe: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint, whole or not at all, and check that it loads.

    Args:
        path: a folder that does not exist yet.
        family: whose layout.
        module: config and weights.
        tokenizer: written beside them, if there is one.
        layout: "original" as the original repository, "native" as the stock transformers class.
        max_shard_size: bytes per weight file, or a text like "5GB".
        probe: logits to compare with after loading.

    Raises:
        CheckpointError: `path` exists, or the module holds tensors that the layout has no place for.
    """
    with new_folder(path) as folder, quiet():
        sidecar: dict[str, Any] = {"format": 1, "family": family.name, "layout": layout}
        written = module if layout == "original" else family.stock(module)
        state = _as_stored(module, written)
        written.save_pretrained(folder, state_dict=state, max_shard_size=max_shard_size, save_original_format=False)
        if layout == "native":
            sidecar |= {"native": read_config(folder), "config": _plain(module)}
        if probe is not None:
            sidecar["probe"] = dict(probe)
        (folder / SIDECAR).write_text(json.dumps(sidecar, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        if tokenizer is not None:
            tokenizer.save_pretrained(folder)
        for file in folder.iterdir():  # safetensors keeps its files private; others may read the config, so these too
            file.chmod((folder / CONFIG).stat().st_mode)
        verify(folder, family, family.config(original_fields(folder, sidecar)))


def _plain(module: PreTrainedModel) -> dict[str, Any]:
    """The original's config fields as config.json would hold them."""
    module.config.dtype = dtype_name(module.dtype)
    module.config.architectures = [type(module).__name__]
    return json.loads(json.dumps(module.config.to_dict()))


def _as_stored(module: PreTrainedModel, written: PreTrainedModel) -> dict[str, torch.Tensor]:
    """Return the state under the names of the layout, in a fixed order, without what is tied to something else.

    Routing biases are float32 in memory; releases store them either way. So float32 tensors of a half-precision model
    are stored like its parameters if all of them survive that.

    Args:
        module: holds the values.
        written: its class decides the names.
    """
    state = {name: tensor for name, tensor in module.state_dict().items() if name not in module.all_tied_weights_keys}
    if module.dtype in (torch.float16, torch.bfloat16):
        wide = {name: tensor for name, tensor in state.items() if tensor.dtype is torch.float32}
        narrow = {name: tensor.to(module.dtype) for name, tensor in wide.items()}
        if all(torch.equal(narrow[name].float(), wide[name]) for name in wide):
            state |= narrow
    return dict(sorted(revert_weight_conversion(written, state).items()))


@contextmanager
def quiet() -> Generator[None, None, None]:
    """Hide transformers' progress bars for a while."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def read_json(file: Path) -> dict[str, Any]:
    """Return the content of a JSON file.

    Raises:
        CheckpointError: it is missing or no JSON.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"expected the file {file.name!r}, got none in {str(file.parent)!r}") from None
    except json.JSONDecodeError as error:
        raise CheckpointError(f"file {str(file)!r}: expected JSON, got {error}; copy it again") from error


def read_shard(file: Path) -> dict[str, TensorHeader]:
    """Return what one weight file says about each tensor.

    Raises:
        CheckpointError: it is missing, damaged or truncated.
    """
    if not file.exists():
        raise CheckpointError(
            f"expected the weight file {file.name!r}, got none in {str(file.parent)!r}; copy it again"
        )
    try:
        with safe_open(file, framework="pt") as tensors:
            slices = {name: tensors.get_slice(name) for name in tensors.keys()}  # noqa: SIM118 (no iterator)
            return {
                name: TensorHeader(file.name, tuple(part.get_shape()), part.get_dtype())
                for name, part in slices.items()
            }
    except SafetensorError as error:
        raise CheckpointError(f"weight file {str(file)!r}: damaged or truncated ({error}); copy it again") from error


def _check_index(weight_map: Mapping[str, str], headers: Mapping[str, TensorHeader]) -> None:
    for name in sorted(weight_map.keys() | headers.keys()):
        listed, found = weight_map.get(name), headers[name].file if name in headers else None
        if listed != found:
            raise CheckpointError(f"tensor {name!r}: expected in {listed} by {INDEX}, found in {found}")


def _check_dtypes(headers: Mapping[str, TensorHeader], declared: str | None, float32_tensors: tuple[str, ...]) -> None:
    wanted = declared
    for name, header in headers.items():
        dtype = DTYPES.get(header.dtype)
        if dtype is None:
            raise CheckpointError(f"tensor {name!r}: expected one of {sorted(DTYPES)}, got {header.dtype}")
        if dtype == "float32" and name.endswith(float32_tensors):
            continue
        wanted = wanted or dtype
        if dtype != wanted:
            origin = "`torch_dtype` of config.json" if declared else "the tensors before it"
            raise CheckpointError(f"tensor {name!r}: expected dtype {wanted} by {origin}, got {dtype}")
