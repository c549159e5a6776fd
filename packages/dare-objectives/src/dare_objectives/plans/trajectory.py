"""Replay of a denoising trajectory from its step map."""

from typing import Literal

import torch
from torch import Tensor

from dare_objectives._errors import expect, expect_count
from dare_objectives._order import dense_rank, largest, step_ranks
from dare_objectives.batch import Batch
from dare_objectives.plan import Plan, mask_plan

__all__ = ["segment_steps", "shrink_steps", "trajectory"]


def trajectory(
    batch: Batch,
    *,
    shrink: int = 1,
    segments: int | None = None,
    per: Literal["sequence", "block"] = "sequence",
    parallel_blocks: bool = False,
) -> Plan:
    """One stream per denoising step: what was open before the step is masked, what it committed is scored.

    CJ-GRPO (arXiv 2509.23924), TraceRL (2509.06949). Round r masks the tokens with step >= s_r, the r-th distinct step
    at which a maskable token was committed, and scores those with step = s_r. The targets of all rounds partition the
    maskable tokens that were sampled. Sampled tokens that are not maskable (after the end token) are hidden as long as
    they were open, and never scored; positions with step -1 keep their token. K is the largest number of rounds in the
    batch; rows with fewer have empty streams at the end, which need no forward.

    Args:
        batch: B sequences with `step_map`.
        shrink: merge every so many consecutive distinct steps (TraceRL).
        segments: instead, cut the row's T steps into so many equal parts, one round each (d2, arXiv 2509.21474);
            1 is diffu-GRPO without prompt masks.
        per: whether `shrink` counts the steps of a sequence or those of each block.
        parallel_blocks: for block-causal models: round r of all blocks in one stream, each with its own r-th distinct
            step; a finished block stays clean. `shrink` then counts per block.

    Returns:
        Plan of K >= 1 streams with weights 1.

    Raises:
        ValueError: without a step map, or with `segments` and another way to merge.
    """
    if batch.step_map is None:
        raise ValueError("`step_map`: expected the rollout's record, got None; record it, or use `left_to_right`")
    if segments is not None and (shrink != 1 or parallel_blocks):
        raise ValueError("`segments`: expected None together with `shrink` or `parallel_blocks`; choose one of them")
    sampled = batch.valid & (batch.step_map >= 0)
    block = dense_rank(batch.blocks, batch.valid).clamp(min=0)
    together = torch.zeros_like(block)
    own = block if per == "block" or parallel_blocks else together
    step = shrink_steps(batch.step_map, sampled, shrink, own) if shrink != 1 else batch.step_map
    step = segment_steps(step, sampled, segments) if segments is not None else step
    scored = sampled & batch.maskable
    rank = step_ranks(step, sampled, scored, block if parallel_blocks else together)
    turn = torch.arange(int(largest(torch.where(scored, rank, 0))) + 1, device=rank.device)[None, :, None]
    masked, target = rank[:, None] >= turn, scored[:, None] & (rank[:, None] == turn)
    return mask_plan(batch, masked, torch.ones((), device=rank.device), target=target)


def shrink_steps(step_map: Tensor, sampled: Tensor, shrink: int, block: Tensor | None = None) -> Tensor:
    """Merge every `shrink` consecutive distinct steps of a row, or of each of its blocks, and keep the last one's id.

    TraceRL (arXiv 2509.06949).

    Args:
        step_map: `[B, S]`.
        sampled: bool `[B, S]`, the steps that count.
        shrink: at least 1; as many as there are steps merges all.
        block: int64 `[B, S]`, numbers 0..S - 1 of the blocks; None = whole rows.

    Returns:
        `[B, S]` with the dtype of `step_map`, unchanged where not sampled.

    >>> step_map = torch.tensor([[0, 1, 1, 0, 2, 3, 5, 4]])
    >>> shrink_steps(step_map, step_map >= 0, 2).tolist()
    [[1, 1, 1, 1, 3, 3, 5, 5]]
    """
    expect("step_map", step_map, "B S", {"B": len(sampled)})
    expect_count("shrink", shrink)
    block = torch.zeros_like(step_map, dtype=torch.int64) if block is None else block
    merged = step_ranks(step_map, sampled, sampled, block) // shrink
    return _last_of(merged, step_map, sampled, block)


def segment_steps(step_map: Tensor, sampled: Tensor, segments: int) -> Tensor:
    """Cut the steps 0..T - 1 of a row into N equal parts, part floor(step N / T), and keep the last sampled id of each.

    d2 (arXiv 2509.21474). T is the row's last step plus one.

    Args:
        step_map: `[B, S]`.
        sampled: bool `[B, S]`, the steps that count.
        segments: N >= 1; T or more leaves every step alone.

    Returns:
        `[B, S]` with the dtype of `step_map`, unchanged where not sampled.
    """
    expect("step_map", step_map, "B S", {"B": len(sampled)})
    expect_count("segments", segments)
    steps = torch.where(sampled, step_map.long(), 0).amax(1, keepdim=True) + 1
    part = torch.where(sampled, step_map.long() * segments // steps, 0)
    return _last_of(part, step_map, sampled, torch.zeros_like(part))


def _last_of(part: Tensor, step_map: Tensor, sampled: Tensor, block: Tensor) -> Tensor:
    """The largest step among the sampled columns of the same block and part."""
    place = dense_rank(block * (largest(part) + 1) + part, sampled).clamp(min=0)
    last = torch.full_like(step_map, -1).scatter_reduce(1, place, torch.where(sampled, step_map, -1), "amax")
    return torch.where(sampled, last.gather(1, place), step_map)
