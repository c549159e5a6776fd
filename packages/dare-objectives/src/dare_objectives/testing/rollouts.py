"""Toy records of rollouts, for objectives that need more than the answers."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from dare_objectives.batch import Batch
from dare_objectives.keyed import uniform
from dare_objectives.records import NO_NODE, States, Tree, Values
from dare_objectives.testing.trajectories import with_step_map

__all__ = ["toy_states", "toy_tree", "toy_values", "with_records"]


def with_records(batch: Batch, needs: Collection[str]) -> Batch:
    """The batch with a toy record of each kind that is needed and that it does not have.

    Args:
        batch: B sequences, such as `toy_batch()`.
        needs: the `needs` of an objective.

    Returns:
        Batch.
    """
    missing = [name for name in _MAKERS if name in needs and getattr(batch, name) is None]
    return replace(batch, **{name: _MAKERS[name](batch) for name in missing})


def toy_states(batch: Batch, *, steps: int = 3) -> States:
    """`steps` steps from an open response to a closed one, with random predictions, confidences and rewards."""
    key = batch.keys[:, None, None]
    step = torch.arange(steps)[None, :, None]
    opened = uniform(key, "order", batch.columns) * steps >= step
    confidence = uniform(key, "eval", step, batch.columns, dtype=torch.float64)
    return States(
        inputs=batch.tokens[:, None].masked_fill(batch.maskable[:, None] & opened, batch.mask_id),
        tokens=_tokens(batch, "token", step),
        confidence=0.1 + 0.9 * confidence,
        rewards=uniform(batch.keys[:, None], "eval", torch.arange(steps), 3, dtype=torch.float64),
    )


def toy_tree(batch: Batch, *, branch: int = 2, progress: float = 0.5) -> Tree:
    """A tree of two levels with `branch` children each; of every second row only the first branch, with more children.

    Half of the open tokens are set on each level, all of them at the leaves.
    """
    first = 1 + torch.arange(branch)
    below = torch.arange(branch).repeat_interleave(branch) + 1
    even = torch.cat([torch.tensor([-1]), torch.zeros(branch, dtype=torch.int64), below])
    odd = torch.full_like(even, NO_NODE)
    odd[0], odd[1], odd[first.numel() + 1 :] = -1, 0, 1
    parent = torch.where(torch.arange(len(batch))[:, None] % 2 == 0, even, odd)
    node = torch.arange(len(even))
    own = _tokens(batch, "token", node[None, :, None])
    level = torch.where(node == 0, 0, torch.where(node <= branch, 1, 2))
    chance = uniform(batch.keys[:, None, None], "mask", node[None, :, None], batch.columns)
    canvas = batch.tokens[:, None].masked_fill(batch.maskable[:, None], batch.mask_id).repeat(1, len(node), 1)
    for index in range(1, len(node)):
        above = canvas.gather(1, parent[:, index].clamp(min=0)[:, None, None].expand(-1, 1, canvas.shape[2]))[:, 0]
        fill = (above == batch.mask_id) & batch.maskable & ((level[index] == 2) | (chance[:, index] < 0.5))
        canvas[:, index] = torch.where(fill, own[:, index], above)
    return Tree(
        canvas=canvas,
        parent=parent,
        reward=uniform(batch.keys[:, None], "eval", node, 5, dtype=torch.float64),
        progress=progress,
    )


def toy_values(batch: Batch) -> Values:
    """Random values in (-1, 1)."""
    return Values(2 * uniform(batch.keys[:, None], "eval", batch.columns, 7, dtype=torch.float64) - 1)


def _tokens(batch: Batch, purpose: str, step: Tensor) -> Tensor:
    """Random tokens `[B, N, S]` below the mask token."""
    number = uniform(batch.keys[:, None, None], purpose, step, batch.columns) * batch.mask_id
    return number.long().clamp(max=batch.mask_id - 1)


def _toy_step_map(batch: Batch) -> Tensor | None:
    return with_step_map(batch).step_map


_MAKERS: Final[Mapping[str, Callable[[Batch], Any]]] = {
    "step_map": _toy_step_map,
    "states": toy_states,
    "tree": toy_tree,
    "value": toy_values,
}
