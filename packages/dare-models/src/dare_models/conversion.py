"""From a left-to-right checkpoint to a diffusion model that is ready to be trained."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dare_models import checkpoint, keyed, precision
from dare_models.families import register
from dare_models.families.autoregressive import AUTOREGRESSIVE
from dare_models.families.family import Family
from dare_models.lm import DiffusionLM
from dare_models.loading import check_device, load_module
from dare_models.tokenizer import load_tokenizer

__all__ = ["from_autoregressive"]

NEW_MASK, NOISE = "<|mask|>", 0.1


def from_autoregressive(
    source: str | os.PathLike[str] | PreTrainedModel,
    *,
    attention: Literal["full", "block_causal"] = "full",
    block_length: int | None = None,
    mask_token: str | int = NEW_MASK,
    logit_offset: Literal[0, 1] = 0,
    tokenizer: PreTrainedTokenizerBase | None = None,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    backend: str = "sdpa",
    seed: int = 0,
) -> DiffusionLM:
    """Turn a Llama, Qwen2 or Qwen3 that was trained from left to right into a diffusion model to be trained.

    All weights are kept. A mask token that the tokenizer already has keeps its embedding. Another takes a spare row, or
    a new one, which starts at the mean of all rows plus a little noise: so the network meets a state of the usual size
    and the softmax hardly moves (https://nlp.stanford.edu/~johnhew/vocab-expansion.html).
    What comes out denoises nothing yet: fine-tune it, as DiffuLLaMA (arXiv 2410.17891), Dream (2508.15487) and SDAR
    (2510.06303) did. `save` and `load` treat it like any other family.

    Args:
        source: a folder, the id of a Hub repository, or a model in memory, which is copied.
        attention: "full", or "block_causal".
        block_length: positions per block, needed with "block_causal".
        mask_token: text of the mask token, which is added where the tokenizer lacks it; or the id of a token.
        logit_offset: 1 keeps the habit of the source that the row before scores a token (Dream, Fast-dLLM v2).
        tokenizer: in place of the source's; a model in memory has none of its own.
        dtype: floating-point type of the parameters in memory.
        device: where the parameters go.
        backend: transformers' attention implementation.
        seed: of the noise in a new embedding.

    Returns:
        The model in eval mode.

    Raises:
        CheckpointError: a file, tensor or dtype that does not fit, by name.
        ValueError: an architecture without a family here, attention and block length that contradict one another, or a
            mask token that nobody can resolve.
    """
    register()
    check_device(device)
    if (attention == "block_causal") != (block_length is not None):
        raise ValueError(
            "expected a `block_length` with attention='block_causal' and none with 'full', got "
            f"attention={attention!r}, block_length={block_length!r}"
        )
    own = {"attention": attention, "block_length": block_length, "logit_offset": logit_offset}
    if isinstance(source, PreTrainedModel):
        family = _family([type(source).__name__])
        module = _copied(family, source, own)
    else:
        folder = checkpoint.locate(source)
        written = checkpoint.read_config(folder)
        family = _family(written.get("architectures"))
        config = family.config(_fields(family, written, own))
        checkpoint.verify(folder, family, config)
        module = load_module(family, folder, config, dtype, backend)
        tokenizer = load_tokenizer(folder) if tokenizer is None else tokenizer
    mask_id, new = _mask_id(mask_token, tokenizer, int(module.config.vocab_size))
    _make_room(module, mask_id, new, seed)
    module.config.mask_token_id = mask_id
    module.set_attn_implementation(backend)
    spec = family.describe(module.config, tokenizer)
    return DiffusionLM(precision.place(module, dtype, device).eval(), spec, tokenizer)


def _family(names: object) -> Family:
    stock = {family.stock_class.__name__: family for family in AUTOREGRESSIVE}
    for name in names if isinstance(names, list) else []:
        if name in stock:
            return stock[name]
    raise ValueError(f"expected one of the architectures {sorted(stock)}, got {names!r}")


def _fields(family: Family, written: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Config fields of the source, without what only transformers knows, and our own.

    Raises:
        ValueError: the source is no left-to-right model.
    """
    if written.get("is_causal", True) is not True:
        raise ValueError(f"config field `is_causal`: expected none, got {written['is_causal']!r}; load it with `load`")
    rope: dict[str, Any] = dict(written.get("rope_parameters") or {})
    fields = {name: value for name, value in written.items() if name not in ("rope_parameters", "is_causal")}
    if rope:
        fields["rope_theta"] = rope.pop("rope_theta", None)
        fields["rope_scaling"] = rope if rope.get("rope_type", "default") != "default" else None
    names = {"architectures": [family.architecture], "model_type": family.config_class.model_type}
    return {**fields, **names, **own, "mask_token_id": None}


def _copied(family: Family, source: PreTrainedModel, own: Mapping[str, Any]) -> PreTrainedModel:
    written: dict[str, Any] = source.config.to_dict()
    config = family.config(_fields(family, written, own))
    with torch.random.fork_rng(devices=[]):
        module = family.model_class(config)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(source.dtype)
    module.load_state_dict(source.state_dict())
    return module


def _mask_id(mask_token: str | int, tokenizer: PreTrainedTokenizerBase | None, rows: int) -> tuple[int, bool]:
    """The id of the mask token, and whether it is a new one."""
    if tokenizer is None:
        if isinstance(mask_token, str):
            raise ValueError(f"expected a tokenizer that resolves mask_token={mask_token!r}, got none; pass an id")
        if not 0 <= mask_token <= rows:
            raise ValueError(f"expected `mask_token` in 0 … {rows}, got {mask_token}")
        return mask_token, mask_token == rows
    known: dict[str, int] = dict(tokenizer.get_vocab())
    if isinstance(mask_token, int):
        texts = [text for text, token in known.items() if token == mask_token]
        if not texts:
            raise ValueError(f"expected the id of a token that the tokenizer knows, got mask_token={mask_token}")
        mask_token = texts[0]
    tokenizer.add_special_tokens({"mask_token": mask_token})
    token: Any = tokenizer.mask_token_id
    return int(token), mask_token not in known or int(token) >= rows


@torch.no_grad()
def _make_room(module: PreTrainedModel, mask_id: int, new: bool, seed: int) -> None:
    """Give a new mask token its rows in the embedding and the head; the number of rows stays a round one."""
    rows = int(module.config.vocab_size)
    if mask_id >= rows:
        step = math.gcd(rows, 128)
        with torch.random.fork_rng(devices=[]):
            module.resize_token_embeddings(-(-(mask_id + 1) // step) * step, mean_resizing=False)
    if not new:
        return
    for name, layer in (("embedding", module.get_input_embeddings()), ("head", module.get_output_embeddings())):
        assert layer is not None, "every family has both"
        weight = layer.get_parameter("weight")
        for row in {mask_id, *range(rows, len(weight))}:
            weight[row] = _typical(weight[:rows], f"{seed}/{name}/{row}")


def _typical(rows: Tensor, key: str) -> Tensor:
    """The mean row plus noise of a tenth of the spread, drawn by the key."""
    noise = torch.randn(rows.shape[1], generator=keyed.generator(key)).to(rows)
    return rows.mean(0) + NOISE * rows.std() * noise
