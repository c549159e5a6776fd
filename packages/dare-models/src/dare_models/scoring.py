"""Log-probabilities for training: one forward of the base model, the head only on the rows that are scored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dare_models.attention import Plan
from dare_models.network import sources


class Scores(NamedTuple):
    """What `DiffusionLM.score` returns.

    Args:
        logp: [B, K, S] (or [B, K, S, C]), 0 off target.
        entropy: [B, K, S], 0 off target, if it was wanted.
        topk: [B, K, S, N], the N largest log-probabilities, 0 off target, if wanted.
        topk_ids: [B, K, S, N] int64, their ids.
    """

    logp: Tensor
    entropy: Tensor | None = None
    topk: Tensor | None = None
    topk_ids: Tensor | None = None


class Gathered(Protocol):
    """Values at N rows: `logp` [N] or [N, C], and `entropy` [N], `topk` and `topk_ids` [N, K] if they were wanted."""

    @property
    def logp(self) -> Tensor:
        """Log-probabilities of the labels."""
        ...

    @property
    def entropy(self) -> Tensor | None:
        """Entropies of the rows."""
        ...

    @property
    def topk(self) -> Tensor | None:
        """The largest log-probabilities of each row."""
        ...

    @property
    def topk_ids(self) -> Tensor | None:
        """Their ids."""
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


class Sequences(NamedTuple):
    """What one forward is fed, and where the states of its targets come out.

    Args:
        ids: [R, L] int64.
        positions: [R, L] int64, -1 on padding.
        plan: who sees whom.
        source: [N] columns of the flattened [R · L] states that score the targets, in the targets' order.
    """

    ids: Tensor
    positions: Tensor
    plan: Plan | None
    source: Tensor


Backbone = Callable[[Tensor, Tensor, "Plan | None"], Tensor]
RowScorer = Callable[[Tensor, Tensor], Gathered]
Layout = Callable[[Tensor, Tensor], Sequences]
"""(inputs [B, k, S], target [B, k, S]) -> what is fed for these k streams."""


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
    layout: Layout,
    backbone: Backbone,
    score_rows: RowScorer,
    inputs: Tensor,
    target: Tensor,
    labels: Tensor,
    streams: int,
) -> Scores:
    """Score K streams, at most `streams` of them in one forward, the head on the targets' states alone.

    Args:
        layout: what is fed for some of the streams.
        backbone: (ids [R, L], positions [R, L], plan) -> hidden states [R, L, d].
        score_rows: (hidden [N, d], labels [N] or [N, C]) -> values at these rows.
        inputs: [B, K, S] int64.
        target: [B, K, S] bool.
        labels: [B, K, S] or [B, K, S, C] int64.
        streams: at most this many streams in one forward.

    Returns:
        Scores of the shape of `labels`.
    """
    parts: list[Scores] = []
    for some, at, label in zip(*(x.split(streams, dim=1) for x in (inputs, target, labels)), strict=True):
        fed = layout(some, at)
        hidden = backbone(fed.ids, fed.positions, fed.plan).flatten(0, 1).index_select(0, fed.source)
        slots = at.flatten().nonzero().squeeze(1)
        parts.append(_placed(score_rows(hidden, label.flatten(0, 2).index_select(0, slots)), slots, at))
    return _joined(parts)


def full_layout(valid: Tensor, offset: int) -> Layout:
    """Feed each stream as a row of its own.

    Columns that are padding in every row are left out of the forward; positions keep their count, so this is exact.

    Args:
        valid: [B, S] bool.
        offset: 1 where the state of the token before scores a token.
    """
    columns = some_columns(valid.any(dim=0))
    positions = positions_of(valid).index_select(1, columns)
    at = sources(positions) if offset else torch.arange(len(columns), device=valid.device).expand_as(positions)

    def layout(inputs: Tensor, target: Tensor) -> Sequences:
        k = inputs.shape[1]
        ids = inputs.index_select(2, columns).flatten(0, 1)
        flat = (at.repeat_interleave(k, dim=0) + _starts(ids)).flatten()
        rows = target.index_select(2, columns).flatten().nonzero().squeeze(1)
        return Sequences(ids, positions.repeat_interleave(k, dim=0), None, flat.index_select(0, rows))

    return layout


def some_columns(kept: Tensor) -> Tensor:
    """Return the indices [n] of the True columns of `kept` [S], or of the first where there is none to feed."""
    found = kept.nonzero().squeeze(1)
    return found if len(found) else torch.zeros(1, dtype=torch.int64, device=kept.device)


def check_shapes(inputs: Tensor, target: Tensor, labels: Tensor, valid: Tensor, streams: int | None) -> None:
    """Refuse what does not fit.

    Raises:
        ValueError: shapes that do not fit, targets on padding, or no streams at a time.
    """
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
        raise ValueError(f"expected `streams` of at least 1, got {streams}; None takes the default")


def _starts(ids: Tensor) -> Tensor:
    """Where each row of [R, L] begins once flattened, [R, 1]."""
    return torch.arange(len(ids), device=ids.device)[:, None] * ids.shape[1]


def _placed(scored: Gathered, slots: Tensor, target: Tensor) -> Scores:
    fields = (scored.logp, scored.entropy, scored.topk, scored.topk_ids)
    logp, *others = (None if values is None else _place(values, slots, target) for values in fields)
    assert logp is not None
    return Scores(logp, *others)


def _joined(parts: Sequence[Scores]) -> Scores:
    def join(values: Sequence[Tensor | None]) -> Tensor | None:
        some = [value for value in values if value is not None]
        return torch.cat(some, dim=1) if some else None

    logp, *others = map(join, zip(*parts, strict=True))
    assert logp is not None
    return Scores(logp, *others)


def _place(values: Tensor, slots: Tensor, target: Tensor) -> Tensor:
    """Put values [N, …] at the target slots of [B, K, S, …], zeros elsewhere."""
    zeros = values.new_zeros((target.numel(), *values.shape[1:]))
    return zeros.index_copy(0, slots, values).unflatten(0, target.shape)
