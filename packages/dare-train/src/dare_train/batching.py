"""From token lists to the tensors that objectives read."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from dare_objectives import Batch

__all__ = ["collate", "micro_batches"]


def collate(
    prompts: Sequence[Sequence[int]],
    responses: Sequence[Sequence[int]],
    *,
    keys: Tensor,
    group: Sequence[int],
    block_length: int,
    pad_id: int,
    mask_id: int,
    step_maps: Sequence[Sequence[int]] | None = None,
    grid: Literal["prompt", "zero"] = "prompt",
) -> Batch:
    """Right-padded batch `[prompt; response; pad]`.

    Args:
        prompts: token ids per row.
        responses: token ids per row; all of them may be masked and scored.
        keys: int64 `[B]`.
        group: which rows are samples of one prompt.
        block_length: positions of a block.
        pad_id: id of padding.
        mask_id: id of the mask token.
        grid: where blocks begin: at the response, with the prompt as block 0, or at the row's first token, as
            block-causal models count.
        step_maps: per row the step at which each response token was committed, for objectives of trajectories.
    """
    width = max(len(p) + len(r) for p, r in zip(prompts, responses, strict=True))
    shape = (len(prompts), width)
    tokens = torch.full(shape, pad_id, dtype=torch.int64)
    starts = torch.tensor([len(p) for p in prompts])[:, None]
    ends = starts + torch.tensor([len(r) for r in responses])[:, None]
    steps = torch.full(shape, -1, dtype=torch.int32)
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        ids = [*prompt, *response]
        tokens[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
        if step_maps is not None:
            steps[row, len(prompt) : len(ids)] = torch.tensor(step_maps[row], dtype=torch.int32)
    column = torch.arange(width)[None]
    valid = column < ends
    if grid == "zero":
        blocks = column.expand(shape) // block_length
    else:
        blocks = torch.where(column < starts, 0, 1 + (column - starts).div(block_length, rounding_mode="floor"))
    return Batch(
        tokens=tokens.to(keys.device),
        valid=valid.to(keys.device),
        maskable=(valid & (column >= starts)).to(keys.device),
        blocks=torch.where(valid, blocks, -1).to(torch.int32).to(keys.device),
        keys=keys,
        group=torch.as_tensor(group, dtype=torch.int64, device=keys.device),
        mask_id=mask_id,
        step_map=None if step_maps is None else steps.to(keys.device),
    )


def micro_batches(rows: Tensor, size: int) -> list[Tensor]:
    """Split row indices into chunks of at most `size`, in order."""
    return list(rows.split(size)) if rows.numel() else []
