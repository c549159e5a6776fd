"""What holds for attention, cache, packing and training forward of any model, as functions of the model.

Each raises an `AssertionError` that says what does not hold. They want float64 and weights large enough to matter;
`dare_models.testing` runs them on every family.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_models.attention import NoisyClean
from dare_models.lm import DiffusionLM

__all__ = ["blocks_in_order", "cached_equals_uncached", "conditionals", "halves_agree", "packed_equals_separate"]

EXACT = 1e-10


def canvas(lm: DiffusionLM, rows: int = 2) -> Tensor:
    """Return ids [rows, T] over two and a half blocks, some of them masks.

    Args:
        lm: decides the block length; 4 where any is legal.
        rows: B.
    """
    length = lm.block_length or 4
    columns = 2 * length + max(length // 2, 1)
    ids = (torch.arange(rows * columns).reshape(rows, columns) * 7 + 3) % lm.vocab_size
    ids[:, 2::3] = lm.mask_id
    return ids


def blocks_in_order(lm: DiffusionLM) -> None:
    """A later block has no influence on an earlier one, an earlier one has; inside a block all see all.

    Args:
        lm: block-causal.
    """
    length = lm.block_length
    assert length is not None, "expected a block-causal model"
    ids = canvas(lm, rows=1)
    plain = lm(ids)
    for changed in (0, length - 1, length, ids.shape[1] - 1):
        other = ids.clone()
        other[0, changed] = (other[0, changed] + 1) % lm.vocab_size
        moved = (lm(other) - plain)[0].detach().abs().amax(-1)
        first = changed // length * length
        # Under a shift the first token of a block is scored by the block before.
        seen = moved[first + lm.left_context * (first > 0) :]
        _true(bool((moved[:first] <= EXACT).all()), f"column {changed} has no influence on the blocks before its own")
        _true(bool((seen > EXACT).all()), f"column {changed} is seen from its own block on")


def cached_equals_uncached(lm: DiffusionLM) -> None:
    """Views, commits, windows of different rows and selected rows give the logits of the whole canvas where exact.

    Args:
        lm: any.
    """
    if lm.attention == "block_causal":
        _append(lm)
    ids = canvas(lm)
    size = ids.shape[1]
    positions, cache = torch.arange(size).expand_as(ids), lm.new_cache(2, size)
    plain, other = lm(ids), (ids + 5) % lm.vocab_size
    lm(other, positions=positions, write=torch.ones_like(ids, dtype=torch.bool), cache=cache)
    for write in (None, ids == lm.mask_id, ids != lm.mask_id):  # everything fed: nothing stored is seen
        _close(lm(ids, positions=positions, write=write, cache=cache), plain, "a forward of the whole canvas")
    windows = torch.stack([torch.arange(1, 4), torch.arange(3, 6)])
    both = lm(ids.gather(1, windows), positions=windows, cache=cache)
    for b in range(2):
        alone, row = cache.select(torch.tensor([b])), windows[b : b + 1]
        _close(both[b : b + 1], lm(ids[b : b + 1].gather(1, row), positions=row, cache=alone), f"the window of row {b}")
    cache.truncate(torch.tensor([0, 0]))
    _close(lm(ids[:, :3], positions=positions[:, :3], cache=cache), lm(ids[:, :3]), "a forward after truncation")


def _append(lm: DiffusionLM) -> None:
    ids, length, context = canvas(lm), lm.block_length or 1, lm.left_context
    positions, cache, plain = torch.arange(ids.shape[1]).expand_as(ids), lm.new_cache(2, ids.shape[1]), lm(ids)
    for start in range(0, ids.shape[1], length):
        first = max(start - context, 0)
        fed, at = ids[:, first : start + length], positions[:, first : start + length]
        rows = torch.arange(start - first, fed.shape[1]).expand(2, -1)
        for write in (None, at >= start):
            logits = lm(fed, positions=at, write=write, cache=cache, rows=rows)
            _close(logits, plain[:, start : start + length], f"the block at {start}")


def packed_equals_separate(lm: DiffusionLM) -> None:
    """Documents in one row score as they do alone, with and without a cache.

    Args:
        lm: any.
    """
    ids, lengths = canvas(lm), (canvas(lm).shape[1], 3)
    parts = [ids[n, :size] for n, size in enumerate(lengths)]
    packed = pad(torch.cat(parts), (0, 2))[None]
    positions = pad(torch.cat([torch.arange(size) for size in lengths]), (0, 2), value=-1)[None]
    documents = pad(torch.arange(2).repeat_interleave(torch.tensor(lengths)), (0, 2), value=-1)[None]
    expected = torch.cat([lm(part[None]) for part in parts], dim=1)
    cache = lm.new_cache(2, lengths[0])
    for store, write in ((None, None), (cache, positions >= 0), (cache, None)):
        logits = lm(packed, positions=positions, documents=documents, cache=store, write=write)
        _true(bool(logits.isfinite().all()), "packed padding is finite")
        _close(logits[:, : sum(lengths)], expected, f"packed documents, {store is not None=}, {write is not None=}")


def halves_agree(lm: DiffusionLM) -> None:
    """In one forward over [corrupted ; clean], the clean half is the plain forward of the clean tokens.

    Args:
        lm: block-causal.
    """
    noisy = canvas(lm)
    clean = noisy.masked_fill(noisy == lm.mask_id, 1)
    positions = torch.arange(noisy.shape[1]).expand_as(noisy)
    grid = positions // (lm.block_length or 1)
    logits = lm(torch.cat([noisy, clean], dim=1), positions=positions.repeat(1, 2), plan=NoisyClean.halves(grid, grid))
    _close(logits[:, noisy.shape[1] :], lm(clean), "the clean half")


def conditionals(lm: DiffusionLM, noisy: Tensor, clean: Tensor) -> Tensor:
    """Return the log-probabilities [S, V] that a sampler sees: a corrupted block after the clean blocks before it.

    Args:
        lm: any; under full attention the whole canvas is corrupted.
        noisy: [S] int64, without padding.
        clean: [S] int64.
    """
    length = lm.block_length or len(noisy)
    parts: list[Tensor] = []
    for start in range(0, len(noisy), length):
        end = min(start + length, len(noisy))
        ids = torch.cat([clean[:start], noisy[start:end]])[None]
        parts.append(lm(ids, rows=torch.arange(start, end)[None])[0].log_softmax(-1))
    return torch.cat(parts)


def _close(got: Tensor, expected: Tensor, what: str) -> None:
    error = float((got - expected).detach().abs().max())
    _true(error <= EXACT, f"{what}: expected within {EXACT}, got {error}")


def _true(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)
