"""Supervised fine-tuning as in d1 (arXiv 2504.12216): a mean over a window of fixed length."""

from functools import partial

import torch
from torch import Tensor

from dare_objectives._errors import expect_count, expect_range
from dare_objectives.batch import Batch
from dare_objectives.estimators import elbo_seq
from dare_objectives.objective import Coefficients, Objective, at_least_one
from dare_objectives.objectives.masked_sft import likelihood
from dare_objectives.plan import Plan
from dare_objectives.plans.bernoulli import bernoulli

__all__ = ["d1_sft"]


def d1_sft(*, window: int = 4096, eps: float = 1e-3, streams: int = 1) -> Objective:
    """Denoising cross-entropy weighted by 1/p, over the number of all columns of the window that hold no prompt.

    loss = sum_b sum_{i masked} -log p(y_i | masked sequence) / p_b / sum_b (W - prompt tokens of b), p as in
    `masked_sft` (d1, arXiv 2504.12216). The published code pads every sequence to W = 4096 columns and divides by the
    columns that it finds; here W is an option, so the loss does not depend on the padding of the batch. With filler
    that is trained on up to the window, both equal `masked_sft` with the normaliser `"token"`.

    Args:
        window: W, columns per sequence, prompt included.
        eps: smallest mask rate.
        streams: independent masks per sequence and step.

    Returns:
        Objective without needs; call `prepare` without rewards. Its `prepare` raises ValueError for a sequence that is
        longer than the window.
    """
    expect_count("window", window)
    expect_count("streams", streams)
    expect_range("eps", eps, 0.0, 1.0)
    return Objective(
        name="d1_sft",
        plan=partial(bernoulli, eps=eps, streams=streams),
        estimator=elbo_seq,
        advantage=None,
        prepare=partial(_per_window, window=window),
        loss=likelihood,
    )


def _per_window(
    batch: Batch, plan: Plan, rewards: Tensor | None = None, detached: Tensor | None = None, *, window: int
) -> Coefficients:
    """Weight 1 and the columns of the windows without their prompts as normaliser."""
    if len(batch) and (longest := int(batch.valid.sum(1).max())) > window:
        raise ValueError(f"`window`: expected at least {longest}, the longest sequence, got {window}; enlarge it")
    one = torch.ones_like(batch.lengths, dtype=plan.weight.dtype)
    return Coefficients(one, one, at_least_one((window - batch.prompt.sum(1)).sum()))
