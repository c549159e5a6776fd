"""Prompts to a batch of canvases."""

import operator
from collections.abc import Sequence

import torch
from torch import Tensor

from dare_samplers.config import SamplerConfig
from dare_samplers.denoiser import Denoises
from dare_samplers.keyed import row_keys
from dare_samplers.state import RUNNING, State
from dare_samplers.trace import Trace

__all__ = ["Keys", "Prompts", "begin"]

Prompts = Sequence[Sequence[int] | Tensor] | Tensor
Keys = int | Sequence[int] | Tensor


def begin(model: Denoises, prompts: Prompts, config: SamplerConfig, keys: Keys) -> State:
    """Canvases `[B, P + G]`, prompts left-padded to the longest, with every response slot open.

    Args:
        model: for the special ids, the device and the attention grid.
        prompts: one sequence of token ids per row.
        config: for the sizes.
        keys: an int for a hash of it and the row number, or one key per row.

    Raises:
        ValueError: for prompts or keys that cannot be used; the message says what to do.
    """
    ids = [_ids(row, prompt, model.vocab_size) for row, prompt in enumerate(prompts)]
    lengths = tuple(len(prompt) for prompt in ids)
    _check_lengths(lengths, model)
    width = max(lengths)
    pads = [[model.pad_id] * (width - length) for length in lengths]
    slots = [model.mask_id] * config.gen_length
    tokens = torch.tensor([pad + prompt + slots for pad, prompt in zip(pads, ids, strict=True)], dtype=torch.int64)
    column = torch.arange(tokens.shape[1])
    length = torch.tensor(lengths)[:, None]
    positions = (column - width + length).clamp(min=-1)
    opened = (column >= width).expand_as(tokens)
    origin = length if config.grid == "prompt" else length - length % config.block_length
    block = torch.where(opened, (positions - origin) // config.block_length, -1).to(torch.int32)
    count = torch.zeros(len(ids), dtype=torch.int64)
    return State(
        tokens=tokens,
        positions=positions,
        block=block,
        open=opened.clone(),
        key=_keys(keys, len(ids)),
        row_block=block[:, width].long(),
        block_step=count.clone(),
        step=count,
        finish=torch.full_like(count, RUNNING, dtype=torch.int8),
        broken=torch.zeros_like(count, dtype=torch.bool),
        trace=Trace.empty((len(ids), tokens.shape[1]), tokens.device),
        prompt_lengths=lengths,
        prompt_width=width,
        block_length=config.block_length,
        grid=config.grid,
    ).map(lambda tensor: tensor.to(model.device))


def _ids(row: int, prompt: Sequence[int] | Tensor, vocab_size: int | None) -> list[int]:
    """One prompt as a list of ids in the vocabulary."""
    try:
        ids = [operator.index(one) for one in (prompt.tolist() if isinstance(prompt, Tensor) else prompt)]
    except TypeError as error:
        raise ValueError(
            f"`prompts[{row}]`: expected a flat sequence of token ids ({error}); tokenize it first"
        ) from error
    limit = 2**63 if vocab_size is None else vocab_size
    bad = [one for one in ids if not 0 <= one < limit]
    if bad:
        raise ValueError(f"`prompts[{row}]`: expected ids in [0, {limit}), got {bad[0]}; check the tokenizer")
    return ids


def _check_lengths(lengths: tuple[int, ...], model: Denoises) -> None:
    if not lengths:
        raise ValueError("`prompts`: expected at least one row, got none")
    if model.level == 0 and len(set(lengths)) > 1:
        raise ValueError(
            f"`prompts`: expected rows of one length for a level-0 model, got lengths {sorted(set(lengths))}; wrap a "
            "network that takes `attention_mask` and `position_ids` with level=1, or call generate once per length"
        )


def _keys(keys: Keys, rows: int) -> Tensor:
    """int64 `[rows]`."""
    if isinstance(keys, int):
        if not -(2**63) <= keys < 2**63:
            raise ValueError(f"`keys`: expected an int64, got {keys}; make_key folds integers of any size")
        return row_keys(keys, range(rows))
    values = torch.as_tensor(keys)
    if values.dtype != torch.int64 or values.shape != (rows,):
        raise ValueError(
            f"`keys`: expected an int or int64 [{rows}], one per row, got {values.dtype} {list(values.shape)}"
        )
    return values.clone()
