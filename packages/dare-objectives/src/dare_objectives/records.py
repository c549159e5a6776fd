"""What a rollout records for the objectives that need more than its result; each record has one entry per row."""

from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from dare_objectives._errors import expect, expect_range
from dare_objectives._rows import Rows, select_rows
from dare_objectives.batch import Batch

__all__ = ["NO_NODE", "Branches", "States", "Tree", "Values", "states_of", "tree_of", "values_of"]

_FLOATS: Final = (torch.float32, torch.float64)

NO_NODE: Final = -2
"""The `parent` of an unused node of a `Tree`."""


@dataclass(frozen=True, eq=False)
class States:
    """The intermediate states of T denoising steps: `Batch.states`.

    A row that took fewer steps has its final canvas, which has nothing open, and its last reward in the others.

    Args:
        inputs: int64 `[B, T, S]`, the canvas before each step.
        tokens: int64 `[B, T, S]`, the token predicted at each open position; elsewhere ignored.
        confidence: floating `[B, T, S]`, the predictions' probabilities; elsewhere ignored.
        rewards: floating `[B, T]`, the reward of each step's complete prediction.

    Raises:
        ValueError: for shapes or dtypes other than these.
    """

    inputs: Tensor
    tokens: Tensor
    confidence: Tensor
    rewards: Tensor

    def __post_init__(self) -> None:
        """Check shapes, dtypes and values."""
        sizes: dict[str, int] = {}
        expect("inputs", self.inputs, "B T S", sizes, dtype=torch.int64)
        expect("tokens", self.tokens, "B T S", sizes, dtype=torch.int64)
        expect("confidence", self.confidence, "B T S", sizes, dtype=_FLOATS)
        expect("rewards", self.rewards, "B T", sizes, dtype=_FLOATS)
        _check_finite("rewards", self.rewards)

    def __len__(self) -> int:
        """B, the number of rows."""
        return self.inputs.shape[0]

    def __getitem__(self, rows: Rows) -> "States":
        """The same record for some rows."""
        return select_rows(self, rows)

    def padded(self, columns: int, token: int = 0) -> "States":
        """The same record with more padding columns on the right, which hold `token`."""
        inputs, tokens = (functional.pad(x, (0, columns), value=token) for x in (self.inputs, self.tokens))
        return replace(self, inputs=inputs, tokens=tokens, confidence=functional.pad(self.confidence, (0, columns)))


class Branches(NamedTuple):
    """The inner nodes of a tree in their order, and their children."""

    parent: Tensor  # int64 [B, K], the k-th inner node, -1 beyond the last one
    child: Tensor  # int64 [B, K, C], its children, -1 beyond the last one


@dataclass(frozen=True, eq=False)
class Tree:
    """A tree of partly denoised canvases for each row's prompt: `Batch.tree`.

    The tokens of the batch are those of any leaf, its `maskable` positions the whole response window.

    Args:
        canvas: int64 `[B, N, S]`, the nodes' canvases; a child keeps what its parent has set.
        parent: int64 `[B, N]`, number of the parent, which stands before its children; -1 = root, `NO_NODE` = unused.
        reward: floating `[B, N]`, rewards of the leaves; elsewhere ignored.
        end: int64 `[B, N]`, how many columns the node's text has through its first end token (S without one): what
            stands behind is not scored. None = all columns.
        progress: share of the training that is done, for schedules; belongs to all rows.

    Raises:
        ValueError: for shapes, dtypes or values that break these rules.
    """

    canvas: Tensor
    parent: Tensor
    reward: Tensor
    end: Tensor | None = None
    progress: float = 0.0

    def __post_init__(self) -> None:
        """Check shapes, dtypes and values."""
        sizes: dict[str, int] = {}
        expect("canvas", self.canvas, "B N S", sizes, dtype=torch.int64)
        expect("parent", self.parent, "B N", sizes, dtype=torch.int64)
        expect("reward", self.reward, "B N", sizes, dtype=_FLOATS)
        if self.end is not None:
            expect("end", self.end, "B N", sizes, dtype=torch.int64)
        expect_range("progress", self.progress, 0.0, 1.0)
        _check_finite("reward", torch.where(self.leaves, self.reward, 0.0))
        order = torch.arange(self.parent.shape[1], device=self.parent.device)
        if bool(((self.parent >= order) | (self.parent < NO_NODE)).any()):
            raise ValueError("`parent`: expected -2, -1 or the number of an earlier node; sort the nodes by depth")

    def __len__(self) -> int:
        """B, the number of rows."""
        return self.canvas.shape[0]

    def __getitem__(self, rows: Rows) -> "Tree":
        """The same record for some rows."""
        return select_rows(self, rows)

    def padded(self, columns: int, token: int = 0) -> "Tree":
        """The same record with more padding columns on the right, which hold `token`."""
        return replace(self, canvas=functional.pad(self.canvas, (0, columns), value=token))

    @property
    def leaves(self) -> Tensor:
        """bool `[B, N]`: nodes without children."""
        return (self.parent > NO_NODE) & (_child_count(self.parent) == 0)

    def branches(self) -> Branches:
        """The inner nodes and their children, K and C being the largest numbers in the batch (at least 1)."""
        nodes = torch.arange(self.parent.shape[1], device=self.parent.device).expand_as(self.parent)
        inner = _child_count(self.parent) > 0
        number = inner.cumsum(1) - 1
        most = torch.cat([inner.sum(1), torch.ones(1, device=inner.device, dtype=torch.int64)]).amax()
        above = self.parent.clamp(min=0)
        place = torch.where(self.parent >= 0, number.gather(1, above), int(most))
        elder = (self.parent[:, :, None] == self.parent[:, None]) & (nodes[:, :, None] > nodes[:, None])
        rank = torch.where(self.parent >= 0, elder.sum(2), 0)
        width = int(torch.cat([rank.flatten(), rank.new_zeros(1)]).amax()) + 1
        parent = self.parent.new_full((len(self), int(most) + 1), -1)
        parent = parent.scatter(1, torch.where(inner, number, int(most)), nodes)
        child = self.parent.new_full((len(self), (int(most) + 1) * width), -1)
        child = child.scatter(1, place * width + rank, nodes).unflatten(1, (-1, width))
        return Branches(parent[:, :-1], child[:, :-1])


@dataclass(frozen=True, eq=False)
class Values:
    """What a critic said: `Batch.value`.

    Args:
        value: floating `[B, S]`, the value at each maskable token that was sampled; elsewhere ignored.

    Raises:
        ValueError: for another shape or dtype.
    """

    value: Tensor

    def __post_init__(self) -> None:
        """Check shapes, dtypes and values."""
        expect("value", self.value, "B S", {}, dtype=_FLOATS)

    def __len__(self) -> int:
        """B, the number of rows."""
        return self.value.shape[0]

    def __getitem__(self, rows: Rows) -> "Values":
        """The same record for some rows."""
        return select_rows(self, rows)

    def padded(self, columns: int, token: int = 0) -> "Values":
        """The same record with more padding columns on the right."""
        return Values(functional.pad(self.value, (0, columns)))


def states_of(batch: Batch) -> States:
    """`batch.states`, checked against the batch."""
    if not isinstance(batch.states, States):
        raise _missing("states", batch.states, "States")
    _check_shape("states", batch, batch.states.inputs)
    return batch.states


def tree_of(batch: Batch) -> Tree:
    """`batch.tree`, checked against the batch."""
    if not isinstance(batch.tree, Tree):
        raise _missing("tree", batch.tree, "Tree")
    _check_shape("tree", batch, batch.tree.canvas)
    return batch.tree


def values_of(batch: Batch) -> Values:
    """`batch.value`, checked against the batch."""
    if not isinstance(batch.value, Values):
        raise _missing("value", batch.value, "Values")
    _check_shape("value", batch, batch.value.value)
    return batch.value


def _missing(name: str, found: object, kind: str) -> ValueError:
    got = "None" if found is None else type(found).__name__
    return ValueError(f"`{name}`: expected the rollout's record, a dare_objectives.{kind}, got {got}; record it")


def _check_shape(name: str, batch: Batch, tensor: Tensor) -> None:
    wanted, found = tuple(batch.tokens.shape), (tensor.shape[0], tensor.shape[-1])
    if found != wanted:
        raise ValueError(f"`{name}`: expected rows and columns of the batch, {wanted}, got {found}; pad it with it")


def _check_finite(name: str, tensor: Tensor) -> None:
    if len(bad := (~tensor.isfinite()).nonzero()):
        place = tuple(bad[0].tolist())
        raise ValueError(f"`{name}`: expected finite numbers, got {float(tensor[place])} at {place}; mend the reward")


def _child_count(parent: Tensor) -> Tensor:
    """int64 `[B, N]`: how many children each node has."""
    place = parent.clamp(min=0)
    return torch.zeros_like(parent).scatter_add(1, place, (parent >= 0).long())
