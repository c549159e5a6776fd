"""Whether greedy decoding would write an answer."""

from dataclasses import replace

import torch
from torch import Tensor

from dare_objectives.batch import Batch
from dare_objectives.plan import mask_plan
from dare_objectives.score import Score, evaluate

__all__ = ["greedy_match"]


def greedy_match(score: Score, batch: Batch, *, support: Tensor | None = None) -> Tensor:
    """Whether decoding one token per step, always the most confident one, writes exactly the answer.

    Each step shows the answer's tokens committed so far, takes the position with the largest top log-prob (the leftmost
    of equal ones) and compares its top token with the answer's. A row that differs is not computed further. Costs up
    to L forwards per row. The answer is one block; with several, ask block by block (`maskable` one block, the earlier
    ones in the prompt).

    Args:
        score: a model's score function; it has to return the plan's `topk:1`.
        batch: B sequences.
        support: bool `[V]`, tokens that may be proposed; None = all.

    Returns:
        bool `[B]`; True for rows without maskable tokens.
    """
    masked, match = batch.maskable.clone(), torch.ones_like(batch.lengths, dtype=torch.bool)
    while len(rows := (match & masked.any(1)).nonzero().squeeze(1)):
        some, still = batch[rows], masked.index_select(0, rows)
        column, token = _most_confident(score, some, still, support)
        match[rows] = token == some.tokens.gather(1, column[:, None]).squeeze(1)
        masked[rows, column] = False
    return match


def _most_confident(score: Score, batch: Batch, masked: Tensor, support: Tensor | None) -> tuple[Tensor, Tensor]:
    """int64 `[B]` each: the column of the most confident proposal, and its token."""
    plan = replace(mask_plan(batch, masked[:, None], torch.ones((), device=masked.device)), want=("topk:1",))
    with torch.no_grad():
        found = evaluate(score, plan, support=support)
    assert found.topk is not None and found.topk_ids is not None
    confidence = torch.where(masked, found.topk[:, 0, :, 0], -torch.inf)
    best = masked & (confidence == confidence.amax(1, keepdim=True))
    column = torch.where(best, batch.columns, best.shape[1]).amin(1)
    return column, found.topk_ids[:, 0, :, 0].gather(1, column[:, None]).squeeze(1)
