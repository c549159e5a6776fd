"""Random models small enough for a laptop and a test."""

from __future__ import annotations

import torch
from torch import nn
from transformers import PreTrainedTokenizerBase

from dare_models import keyed, precision
from dare_models.families import get_family, register
from dare_models.families.family import TinySize
from dare_models.lm import DiffusionLM


def tiny(
    family: str = "llada",
    *,
    tokenizer: PreTrainedTokenizerBase,
    seed: int = 0,
    hidden_size: int = 64,
    layers: int = 2,
    heads: int = 2,
    intermediate_size: int = 128,
    max_positions: int = 1024,
    block_length: int | None = None,
    dtype: str | torch.dtype = "float32",
    device: str | torch.device = "cpu",
    backend: str = "sdpa",
) -> DiffusionLM:
    """Return a randomly initialised model of a family; nothing is downloaded.

    A parameter's values depend on the seed and its name only, and the global generator is left as it was.

    Args:
        family: which architecture.
        tokenizer: decides the vocabulary and the special ids; see `tiny_tokenizer`.
        seed: of the weights.
        hidden_size: width.
        layers: depth.
        heads: attention heads.
        intermediate_size: width of the feed-forward part.
        max_positions: longest canvas, as recorded in the config.
        block_length: positions per block; None takes the releases'.
        dtype: floating-point type of the parameters.
        device: where the parameters go.
        backend: transformers' attention implementation.

    Raises:
        ValueError: unknown family, sizes that do not divide, or a tokenizer without a mask token.

    >>> from dare_models import tiny_tokenizer
    >>> lm = tiny(tokenizer=tiny_tokenizer("0123456789"))
    >>> lm(torch.tensor([lm.encode("42")])).shape
    torch.Size([1, 2, 17])
    """
    if hidden_size % (2 * heads):
        raise ValueError(f"expected `hidden_size` to be a multiple of 2 x {heads} heads, got {hidden_size}")
    if tokenizer.mask_token_id is None or tokenizer.eos_token_id is None:
        raise ValueError(f"expected a tokenizer with mask and eos tokens, got {tokenizer.special_tokens_map}")
    register()
    chosen = get_family(family)
    size = TinySize(hidden_size, layers, heads, intermediate_size, max_positions)
    config = chosen.config(chosen.with_block_length(chosen.tiny_fields(size, tokenizer), block_length))
    spec = chosen.describe(config, tokenizer)
    with torch.random.fork_rng(devices=[]):
        module = chosen.model_class(config)
    module.set_attn_implementation(backend)
    _fill(module, seed)
    return DiffusionLM(precision.place(module, dtype, device).eval(), spec, tokenizer)


def _fill(module: nn.Module, seed: int, std: float = 0.02) -> None:
    """Draw matrices from N(0, std²) with a generator per parameter name; norms stay at one."""
    for name, parameter in module.named_parameters():
        if parameter.dim() < 2:
            continue
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=keyed.generator(f"{seed}/{name}")) * std)
