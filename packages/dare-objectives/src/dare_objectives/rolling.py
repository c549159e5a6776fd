"""Windows over a long text."""

import torch
from torch import Tensor

from dare_objectives._errors import expect, expect_count
from dare_objectives.batch import Batch
from dare_objectives.keyed import fold

__all__ = ["rolling"]


def rolling(
    tokens: Tensor, window: int, stride: int, *, mask_id: int, key: int = 0, block_length: int | None = None
) -> Batch:
    """A long text as rows of at most `window` tokens, whose maskable positions cover every token exactly once.

    Row 0 scores the first `window` tokens; each further row scores the next `stride` tokens with the `window - stride`
    before them as prompt. So `log_likelihood(score, rolling(...))` adds up to a bound on the log-probability of the
    text: the sum over windows of bounds given the text before them, as far as it fits. Give it some rows at a time.

    Args:
        tokens: int64 `[N]`, one text.
        window: tokens of a row, at most the model's context.
        stride: tokens that a row scores, 1..window; the rest of the window is context.
        mask_id: the mask token.
        key: random key of the text (`make_key`); the rows' keys come from it.
        block_length: for block models: blocks of that length from the start of each row on; it divides `window` and
            `stride`. None: each row is one block.

    Returns:
        Batch of 1 + ceil((N - window) / stride) rows (one if N <= window), in the order of the text, all in group 0.

    Raises:
        ValueError: for an empty text, a stride beyond the window or a block length that does not divide both.

    >>> rolling(torch.arange(7), 4, 2, mask_id=9).tokens.tolist()
    [[0, 1, 2, 3], [2, 3, 4, 5], [4, 5, 6, 9]]
    >>> rolling(torch.arange(7), 4, 2, mask_id=9).maskable.int().tolist()
    [[1, 1, 1, 1], [0, 0, 1, 1], [0, 0, 1, 0]]
    """
    _check(tokens, window, stride, block_length)
    width = min(window, len(tokens))
    rows = torch.arange(1 - (width - len(tokens)) // stride, device=tokens.device)
    column = torch.arange(width, device=tokens.device)
    place = rows[:, None] * stride + column
    valid = place < len(tokens)
    block = torch.zeros_like(place) if block_length is None else (column // block_length).expand_as(place)
    return Batch(
        tokens=torch.where(valid, tokens[place.clamp(max=len(tokens) - 1)], mask_id),
        valid=valid,
        maskable=valid & ((rows[:, None] == 0) | (column >= window - stride)),
        blocks=torch.where(valid, block, -1).to(torch.int32),
        keys=fold(torch.full_like(rows, key), rows),
        group=torch.zeros_like(rows),
        mask_id=mask_id,
    )


def _check(tokens: Tensor, window: int, stride: int, block_length: int | None) -> None:
    expect("tokens", tokens, "N", {}, dtype=torch.int64)
    expect_count("tokens", len(tokens))
    expect_count("window", window)
    if not 1 <= stride <= window:
        raise ValueError(f"`stride`: expected 1..{window}, so that no token is left out, got {stride}")
    if block_length is not None and (block_length < 1 or window % block_length or stride % block_length):
        raise ValueError(f"`block_length`: expected a divisor of {window} and {stride}, got {block_length}")
