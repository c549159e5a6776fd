"""Log-probabilities for training: one forward of the base model, the head only on the rows that are scored."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor


class Scores(NamedTuple):
    """What `DiffusionLM.score` returns.

    Args:
        logp: [B, K, S] (or [B, K, S, C]), 0 off target.
        entropy: [B, K, S], 0 off target, if it was wanted.
    """

    logp: Tensor
    entropy: Tensor | None = None


class Gathered(Protocol):
    """Values at N rows: `logp` [N] or [N, C], and `entropy` [N] if it was wanted."""

    @property
    def logp(self) -> Tensor:
        """Log-probabilities of the labels."""
        ...

    @property
    def entropy(self) -> Tensor | None:
        """Entropies of the rows."""
        ...


class Gather(Protocol):
    """(hidden [N, d], weight [V, d], labels [N] or [N, C]) -> values at these rows, without [B, T, V] logits."""

    def __call__(
        self,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        /,
        *,
        temperature: float = 1.0,
        support: Tensor | None = None,
        want: tuple[str, ...] = (),
    ) -> Gathered:
        """Score the rows."""
        ...


Backbone = Callable[[Tensor, Tensor], Tensor]
RowScorer = Callable[[Tensor, Tensor], Gathered]


def positions_of(valid: Tensor) -> Tensor:
    """Return positions counted from each row's first real token, -1 on padding.

    Args:
        valid: [B, S] bool.

    Returns:
        [B, S] int64.

    >>> positions_of(torch.tensor([[False, True, True, False]])).tolist()
    [[-1, 0, 1, -1]]
    """
    columns = torch.arange(valid.shape[1], device=valid.device)
    first = valid.to(torch.uint8).argmax(dim=1, keepdim=True)
    return torch.where(valid, columns - first, -1)


def score_streams(
    backbone: Backbone,
    score_rows: RowScorer,
    inputs: Tensor,
    target: Tensor,
    labels: Tensor,
    valid: Tensor,
    streams: int | None,
) -> Scores:
    """Score K streams, at most `streams` of them in one forward.

    Columns that are padding in every row are left out of the forward; positions keep their count, so this is exact.

    Args:
        backbone: (ids [R, S], positions [R, S]) -> hidden states [R, S, d].
        score_rows: (hidden [N, d], labels [N] or [N, C]) -> values at these rows.
        inputs: [B, K, S] int64.
        target: [B, K, S] bool.
        labels: [B, K, S] or [B, K, S, C] int64.
        valid: [B, S] bool.
        streams: at most this many streams in one forward; None means all.

    Returns:
        Scores of the shape of `labels`.

    Raises:
        ValueError: shapes that do not fit, or targets on padding.
    """
    _check(inputs, target, labels, valid, streams)
    columns = valid.any(dim=0).nonzero().squeeze(1)
    positions = positions_of(valid)
    size = streams or inputs.shape[1]
    parts = [
        _score_together(backbone, score_rows, *group, positions=positions, columns=columns)
        for group in zip(inputs.split(size, dim=1), target.split(size, dim=1), labels.split(size, dim=1), strict=True)
    ]
    entropies = [part.entropy for part in parts if part.entropy is not None]
    return Scores(torch.cat([part.logp for part in parts], dim=1), torch.cat(entropies, dim=1) if entropies else None)


def _score_together(
    backbone: Backbone,
    score_rows: RowScorer,
    inputs: Tensor,
    target: Tensor,
    labels: Tensor,
    *,
    positions: Tensor,
    columns: Tensor,
) -> Scores:
    k = inputs.shape[1]
    ids = inputs.index_select(2, columns).flatten(0, 1)
    hidden = backbone(ids, positions.index_select(1, columns).repeat_interleave(k, dim=0))
    rows = target.index_select(2, columns).flatten().nonzero().squeeze(1)
    slots = target.flatten().nonzero().squeeze(1)
    scored = score_rows(hidden.flatten(0, 1).index_select(0, rows), labels.flatten(0, 2).index_select(0, slots))
    entropy = None if scored.entropy is None else _place(scored.entropy, slots, target)
    return Scores(_place(scored.logp, slots, target), entropy)


def _place(values: Tensor, slots: Tensor, target: Tensor) -> Tensor:
    """Put values [N, …] at the target slots of [B, K, S, …], zeros elsewhere."""
    zeros = values.new_zeros((target.numel(), *values.shape[1:]))
    return zeros.index_copy(0, slots, values).unflatten(0, target.shape)


def _check(inputs: Tensor, target: Tensor, labels: Tensor, valid: Tensor, streams: int | None) -> None:
    shape = tuple(inputs.shape)
    if len(shape) != 3:
        raise ValueError(f"expected `inputs` [B, K, S], got shape {shape}")
    for name, got, wanted in (
        ("target", target.shape, shape),
        ("labels", labels.shape[:3], shape),
        ("valid", valid.shape, (shape[0], shape[2])),
    ):
        if tuple(got) != wanted:
            raise ValueError(f"expected `{name}` of shape {wanted}, got {tuple(got)}")
    if lost := int((target & ~valid[:, None]).sum()):
        raise ValueError(f"expected targets on valid positions, got {lost} on padding")
    if streams is not None and streams < 1:
        raise ValueError(f"expected `streams` of at least 1, got {streams}; None takes all at once")
