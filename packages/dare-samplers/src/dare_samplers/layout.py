"""Prompts to a batch of canvases."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dare_samplers.config import SamplerConfig
from dare_samplers.denoiser import Denoises
from dare_samplers.keyed import row_keys
from dare_samplers.state import RUNNING, State
from dare_samplers.trace import Trace

__all__ = ["Infill", "Keys", "Prompts", "begin", "unpad"]

Keys = int | Sequence[int] | Tensor


@dataclass(frozen=True)
class Infill:
    """A row with slots anywhere. Given tokens on both sides are seen and never changed.

    Every run of consecutive slots is cut into blocks of its own, and the blocks are decoded from left to right.

    Args:
        tokens: ids, one per position; what stands on a slot does not matter.
        writable: True on the slots, at least one.

    Raises:
        ValueError: for lengths that differ, or no slot.

    >>> Infill([5, 0, 0, 7], [False, True, True, False]).slots
    2
    """

    tokens: Sequence[int] | Tensor
    writable: Sequence[bool] | Tensor

    def __post_init__(self) -> None:
        """Check the lengths."""
        if len(self.tokens) != len(self.writable) or not self.slots:
            raise ValueError(
                f"`writable`: expected one bool per token and at least one True, got {len(self.writable)} bools with "
                f"{self.slots} True for {len(self.tokens)} tokens"
            )

    @property
    def slots(self) -> int:
        """How many there are."""
        return sum(map(bool, self.writable))


Prompts = Sequence[Sequence[int] | Tensor | Infill] | Tensor


def unpad(ids: Tensor, attention_mask: Tensor) -> list[list[int]]:
    """Rows of a padded batch as prompts of their own lengths, wherever the pads are.

    Args:
        ids: `[B, P]`.
        attention_mask: `[B, P]`, 0 or False on pads.

    Raises:
        ValueError: for shapes that differ.

    >>> unpad(torch.tensor([[0, 0, 7], [5, 6, 7]]), torch.tensor([[0, 0, 1], [1, 1, 1]]))
    [[7], [5, 6, 7]]
    """
    if ids.ndim != 2 or ids.shape != attention_mask.shape:
        raise ValueError(
            f"`attention_mask`: expected the shape [B, P] of `ids`, got {list(attention_mask.shape)} for "
            f"{list(ids.shape)}"
        )
    pairs = zip(ids.tolist(), attention_mask.tolist(), strict=True)
    return [[token for token, keep in zip(row, mask, strict=True) if keep] for row, mask in pairs]


@dataclass(frozen=True)
class _Row:
    """A canvas: tokens, and for each the block of a slot or -1; `prompt` tokens before the first slot."""

    tokens: list[int]
    blocks: list[int]
    prompt: int
    surplus: int = 0


def begin(model: Denoises, prompts: Prompts, config: SamplerConfig, keys: Keys) -> State:
    """Canvases `[B, T]` with every slot open.

    Args:
        model: for the special ids, the device and the attention grid.
        prompts: one sequence of token ids, or `Infill`, per row.
        config: for the sizes.
        keys: an int for a hash of it and the row number, or one key per row.

    Raises:
        ValueError: for prompts or keys that cannot be used; the message says what to do.
    """
    rows = [_row(number, prompt, model, config) for number, prompt in enumerate(prompts)]
    _check_lengths([len(row.tokens) for row in rows], model)
    width = max(len(row.tokens) for row in rows)
    tokens = torch.tensor([row.tokens + [model.pad_id] * (width - len(row.tokens)) for row in rows], dtype=torch.int64)
    block = torch.tensor([row.blocks + [-1] * (width - len(row.blocks)) for row in rows], dtype=torch.int32)
    length = torch.tensor([len(row.tokens) for row in rows]).unsqueeze(-1)
    column = torch.arange(width)
    opened = block >= 0
    count = torch.zeros(len(rows), dtype=torch.int64)
    starts, ends = _bounds(block)
    causal = model.attention == "block_causal"
    first: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    return State(
        tokens=tokens,
        positions=torch.where(column < length, column, -1),
        block=block,
        slot=torch.where(opened, opened.cumsum(-1) - 1, 0),
        columns=_slot_columns(opened),
        starts=starts,
        ends=ends,
        open=opened.clone(),
        key=_keys(keys, len(rows)),
        row_block=torch.zeros_like(count),
        block_step=count.clone(),
        clock=count.clone(),
        idle=count.clone(),
        step=count.clone(),
        finish=torch.full_like(count, RUNNING, dtype=torch.int8),
        broken=torch.zeros_like(count, dtype=torch.bool),
        stored=count,
        surplus=torch.tensor([row.surplus for row in rows]),
        trace=Trace.empty((len(rows), width), tokens.device),
        prompt_lengths=tuple(row.prompt for row in rows),
        gen_length=config.gen_length,
        shape=(config.block_length, config.grid),
        parts=config.lasting,
        attention_block=(model.block_length or config.longest) if causal else None,
        pad_id=model.pad_id,
        branches=1 if config.guidance is None or config.guidance.scale == 0 else 2,
        twins=tuple(
            first.setdefault((tuple(row.tokens), tuple(row.blocks)), number) for number, row in enumerate(rows)
        ),
    ).map(lambda tensor: tensor.to(model.device))


def _row(number: int, prompt: Sequence[int] | Tensor | Infill, model: Denoises, config: SamplerConfig) -> _Row:
    if isinstance(prompt, Infill):
        writable = [bool(one) for one in prompt.writable]
        given = prompt.tokens.tolist() if isinstance(prompt.tokens, Tensor) else prompt.tokens
        pairs = zip(given, writable, strict=True)
        tokens = _ids(number, [model.mask_id if slot else token for token, slot in pairs], model.vocab_size)
        return _Row(tokens, _span_blocks(writable, config), writable.index(True))
    ids = _ids(number, prompt, model.vocab_size)
    surplus = 0
    if config.grid == "zero" and isinstance(config.block_length, int):
        surplus = -(len(ids) + config.gen_length) % config.block_length
    slots = config.gen_length + surplus
    writable = [False] * len(ids) + [True] * slots
    return _Row(ids + [model.mask_id] * slots, _span_blocks(writable, config), len(ids), surplus)


def _span_blocks(writable: list[bool], config: SamplerConfig) -> list[int]:
    """Block number of every slot, -1 elsewhere: runs of slots cut at the grid."""
    blocks: list[int] = []
    number, start, sizes = -1, 0, config.sizes
    for column, slot in enumerate(writable):
        if not slot:
            blocks.append(-1)
            continue
        begins = column == 0 or not writable[column - 1]
        if config.grid == "zero":
            new = begins or column % sizes[0] == 0
        else:
            new = begins or column - start >= sizes[min(number, len(sizes) - 1)]
        if new:
            number, start = number + 1, column
        blocks.append(number)
    return blocks


def _bounds(block: Tensor) -> tuple[Tensor, Tensor]:
    """int64 `[B, K]`: first column of each block, and the one after its last; 0 where a row has fewer."""
    column = torch.arange(block.shape[1]).unsqueeze(-1)
    inside = block.unsqueeze(-1) == torch.arange(int(block.max()) + 1)
    starts = torch.where(inside, column, block.shape[1]).amin(1)
    ends = torch.where(inside, column + 1, 0).amax(1)
    return torch.where(ends > 0, starts, 0), ends


def _slot_columns(opened: Tensor) -> Tensor:
    """int64 `[B, G]`: the columns of the slots, ascending; 0 beyond a row's last."""
    count = opened.sum(-1, keepdim=True)
    order = (~opened).to(torch.uint8).argsort(dim=-1, stable=True)[:, : int(count.max())]
    return torch.where(torch.arange(order.shape[1]) < count, order, 0)


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


def _check_lengths(lengths: Sequence[int], model: Denoises) -> None:
    if not lengths:
        raise ValueError("`prompts`: expected at least one row, got none")
    if model.level == 0 and len(set(lengths)) > 1:
        raise ValueError(
            f"`prompts`: expected rows of one length for a level-0 model, got canvases of {sorted(set(lengths))}; wrap "
            "a network that takes `attention_mask` and `position_ids` with level=1, or call generate once per length"
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
