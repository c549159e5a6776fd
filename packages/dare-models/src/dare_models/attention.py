"""Attention plans: a small description of who sees whom, turned into a mask as late as possible."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask

__all__ = ["BlockCausal", "Dense", "Documents", "Full", "Mask", "NoisyClean", "Plan", "Varlen", "materialise"]

FLEX_TILE = 128

Rule: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(row, query, key) indices that broadcast -> bool, whether the query sees the key."""


@dataclass(frozen=True, eq=False)
class Full:
    """Every query sees every real key; a row without any sees all of its keys.

    Args:
        key_valid: [B, K] bool, False on padding; None where nothing is padding.
    """

    key_valid: Tensor | None = None

    @property
    def batch(self) -> int:
        """Rows that the plan tells apart."""
        return 1 if self.key_valid is None else self.key_valid.shape[0]

    def rule(self) -> Rule:
        """Return the plan as a function of indices."""
        if self.key_valid is None:
            return lambda row, query, key: key >= 0
        seen = self.key_valid | ~self.key_valid.any(dim=1, keepdim=True)
        return lambda row, query, key: seen[row, key]


@dataclass(frozen=True, eq=False)
class BlockCausal:
    """A query sees the real keys whose block is not later than its own; padding sees padding.

    Args:
        blocks: [B, K] block ids of the keys, -1 on padding.
        queries: [B, Q] block ids of the queries, -1 on padding; None where these are the keys.
    """

    blocks: Tensor
    queries: Tensor | None = None

    @property
    def batch(self) -> int:
        """Rows that the plan tells apart."""
        return self.blocks.shape[0]

    def rule(self) -> Rule:
        """Return the plan as a function of indices."""
        keys, queries = self.blocks, self.blocks if self.queries is None else self.queries

        def sees(row: Tensor, query: Tensor, key: Tensor) -> Tensor:
            own, other = queries[row, query], keys[row, key]
            return (other <= own) & ((other >= 0) | (own < 0))

        return sees


@dataclass(frozen=True, eq=False)
class NoisyClean:
    """Corrupted copies beside the clean sequence: block diffusion trained in one forward (arXiv 2503.09573).

    A corrupted token sees the same block of its own copy, and the clean tokens of earlier blocks; a clean token sees
    the clean tokens whose block is not later. Columns may stand in any order. Padding sees padding of its copy.

    Args:
        blocks: [B, L] block ids, -1 on padding.
        copies: [B, L] 0 on clean tokens, k on those of the k-th corrupted copy.
        streams: number of corrupted copies; several can share the clean one only where attention is block-sparse.
    """

    blocks: Tensor
    copies: Tensor
    streams: int = 1

    @classmethod
    def halves(cls, noisy: Tensor, clean: Tensor, streams: int = 1) -> NoisyClean:
        """Return the plan of the layout [copy 1; …; copy `streams`; clean].

        Args:
            noisy: [B, streams · N] block ids of the corrupted copies, -1 on padding.
            clean: [B, S] block ids of the clean sequence, -1 on padding.
            streams: number of corrupted copies, all of one length.

        Raises:
            ValueError: the copies are not of one length.
        """
        if noisy.shape[1] % streams:
            raise ValueError(f"expected {streams} copies of equal length, got {noisy.shape[1]} columns")
        numbers = torch.arange(1, streams + 1, device=noisy.device).repeat_interleave(noisy.shape[1] // streams)
        copies = torch.cat([numbers, numbers.new_zeros(clean.shape[1])]).expand(noisy.shape[0], -1)
        return cls(torch.cat([noisy, clean], dim=1), copies, streams)

    @property
    def batch(self) -> int:
        """Rows that the plan tells apart."""
        return self.blocks.shape[0]

    def rule(self) -> Rule:
        """Return the plan as a function of indices."""
        blocks, copies = self.blocks, self.copies

        def sees(row: Tensor, query: Tensor, key: Tensor) -> Tensor:
            own, other, copy = blocks[row, query], blocks[row, key], copies[row, key]
            return ((copy == copies[row, query]) & (other == own)) | ((copy == 0) & (other < own) & (other >= 0))

        return sees


@dataclass(frozen=True, eq=False)
class Documents:
    """Several documents in one row: a query sees the keys of its own document that the inner plan shows it.

    Args:
        ids: [B, K] document of each key, -1 on padding; padding sees padding.
        inner: who sees whom inside a document, in terms of the same columns.
        queries: [B, Q] document of each query, -1 on padding; None where these are the keys.

    Raises:
        ValueError: the inner plan is a `Full` with padding of its own.
    """

    ids: Tensor
    inner: Full | BlockCausal | NoisyClean | Dense
    queries: Tensor | None = None

    def __post_init__(self) -> None:
        """Leave one way to say what is padding."""
        if isinstance(self.inner, Full) and self.inner.key_valid is not None:
            raise ValueError("expected `Full()` inside `Documents`, got one with `key_valid`; give padding the id -1")

    @property
    def batch(self) -> int:
        """Rows that the plan tells apart."""
        return self.ids.shape[0]

    def rule(self) -> Rule:
        """Return the plan as a function of indices."""
        keys, queries, inner = self.ids, self.ids if self.queries is None else self.queries, self.inner.rule()

        def sees(row: Tensor, query: Tensor, key: Tensor) -> Tensor:
            own = queries[row, query]
            return (keys[row, key] == own) & (inner(row, query, key) | (own < 0))

        return sees


@dataclass(frozen=True, eq=False)
class Dense:
    """Any visibility, spelled out; a query that sees nothing sees everything.

    Args:
        visible: [B, Q, K] or [Q, K] bool.

    Raises:
        ValueError: another shape or dtype.
    """

    visible: Tensor

    def __post_init__(self) -> None:
        """Check shape and dtype."""
        if self.visible.ndim not in (2, 3) or self.visible.dtype is not torch.bool:
            raise ValueError(
                f"expected `visible` [B, Q, K] or [Q, K] bool, got {self.visible.dtype} {list(self.visible.shape)}"
            )

    @property
    def batch(self) -> int:
        """Rows that the plan tells apart."""
        return 1 if self.visible.ndim == 2 else self.visible.shape[0]

    def rule(self) -> Rule:
        """Return the plan as a function of indices."""
        seen = self.visible | ~self.visible.any(dim=-1, keepdim=True)
        if seen.ndim == 2:
            return lambda row, query, key: seen[query + 0 * row, key]
        return lambda row, query, key: seen[row, query, key]


Plan: TypeAlias = Full | BlockCausal | NoisyClean | Documents | Dense


class Varlen(NamedTuple):
    """What flash attention wants to know about documents in one row, under transformers' names.

    Args:
        cu_seq_lens_q: [D + 1] int32, where documents begin and end.
        cu_seq_lens_k: the same.
        max_length_q: the longest one.
        max_length_k: the same.
    """

    cu_seq_lens_q: Tensor
    cu_seq_lens_k: Tensor
    max_length_q: int
    max_length_k: int


Mask: TypeAlias = Tensor | BlockMask | Varlen | None


def materialise(
    plan: Plan, *, backend: str, dtype: torch.dtype, queries: int, keys: int, device: torch.device | str = "cpu"
) -> Mask:
    """Turn a plan into what one attention backend expects.

    Every query sees something, so that no softmax is taken over nothing.

    Args:
        plan: who sees whom.
        backend: transformers' name of the attention implementation.
        dtype: type of an additive mask.
        queries: number of queries Q in a row.
        keys: number of keys K in a row.
        device: where attention runs.

    Returns:
        None (everything visible); [B, 1, Q or 1, K] bool for sdpa, in `dtype` and to be added for eager; a `BlockMask`
        for flex; [B, K] bool or a `Varlen` for flash.

    Raises:
        ValueError: the backend cannot express the plan.

    >>> mask = materialise(BlockCausal(torch.tensor([[0, 1]])), backend="sdpa", dtype=torch.float32, queries=2, keys=2)
    >>> mask.tolist()
    [[[[True, False], [True, True]]]]
    """
    if backend == "flex_attention":
        return _flex(plan, queries, keys, torch.device(device))
    if isinstance(plan, Full) and plan.key_valid is None:
        return None
    if backend.startswith("flash"):
        return _flash(plan, backend, queries, keys)
    if backend not in ("sdpa", "eager"):
        raise _refusal(plan, backend)
    if shared := _streams(plan):
        raise ValueError(
            f"expected one corrupted copy per clean one under {backend!r} attention, got {shared}, which costs the "
            "square of their number; give each copy a row of its own, or load with backend='flex_attention'"
        )
    row, query, key = (torch.arange(size, device=device) for size in (plan.batch, queries, keys))
    visible = plan.rule()(row[:, None, None], query[:, None], key)[:, None]
    if backend == "sdpa":
        return visible
    return torch.zeros_like(visible, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)


def _streams(plan: Plan) -> int:
    """Corrupted copies that share a clean one, 0 where none does."""
    inner = plan.inner if isinstance(plan, Documents) else plan
    return inner.streams if isinstance(inner, NoisyClean) and inner.streams > 1 else 0


def _flex(plan: Plan, queries: int, keys: int, device: torch.device) -> BlockMask | None:
    if device.type == "cpu" and (queries % FLEX_TILE or keys % FLEX_TILE):
        raise ValueError(
            f"expected multiples of {FLEX_TILE} queries and keys for flex attention on the CPU, got {queries} and "
            f"{keys}, for which torch computes garbage; load with backend='sdpa'"
        )
    if isinstance(plan, Full) and plan.key_valid is None:
        return None
    rule = plan.rule()

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        del head
        return rule(row, query, key)

    return create_block_mask(sees, plan.batch, None, queries, keys, device=str(device))


def _flash(plan: Plan, backend: str, queries: int, keys: int) -> Tensor | Varlen:
    if isinstance(plan, Full) and queries == keys:
        assert plan.key_valid is not None
        return plan.key_valid
    if isinstance(plan, Documents) and isinstance(plan.inner, Full) and plan.queries is None and plan.batch == 1:
        ids, lengths = plan.ids[0].unique_consecutive(return_counts=True)
        if ids.unique().numel() == ids.numel():
            ends = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
            longest = int(lengths.max())
            return Varlen(ends, ends, longest, longest)
    raise _refusal(plan, backend)


def _refusal(plan: Plan, backend: str) -> ValueError:
    return ValueError(
        f"expected an attention backend that can express {type(plan).__name__}, got {backend!r}; "
        "load with backend='sdpa' (or 'flex_attention' on a GPU), or give rows of equal length"
    )
