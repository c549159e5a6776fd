"""Supervised fine-tuning of Dream (arXiv 2508.15487): context-adaptive token weights in place of 1/t."""

from functools import partial
from typing import Literal

import torch
from torch import Tensor

from dare_objectives._errors import expect_count, expect_range
from dare_objectives.batch import Batch
from dare_objectives.estimators import cart_weights, elbo_seq
from dare_objectives.objective import Objective
from dare_objectives.objectives.masked_sft import likelihood, normaliser_named
from dare_objectives.plan import Plan, mask_plan
from dare_objectives.plans.bernoulli import bernoulli

__all__ = ["cart_masks", "cart_sft"]


def cart_sft(
    *,
    p: float = 0.3,
    eps: float = 1e-3,
    streams: int = 1,
    normaliser: Literal["sequence", "token", "batch", "masked"] = "sequence",
) -> Objective:
    """Denoising cross-entropy with w_i = 1/2 sum_{j visible} p (1 - p)^{|i - j| - 1} for each masked token i.

    loss = 1/B sum_b 1/L_b sum_{i masked} -w_i log p(y_i | masked sequence), masks as in `masked_sft` (Dream, arXiv
    2508.15487). The more unmasked tokens stand near i, prompt included, the more it counts; there is no 1/t, so the
    weights stay below 1 without a least rate. Padding counts for nothing (in the published code it does).

    Args:
        p: parameter of the geometric distribution, in (0, 1].
        eps: smallest mask rate.
        streams: independent masks per sequence and step.
        normaliser: see `masked_sft`; `"token"` as in the dllm library; `"masked"`: the masked tokens of the batch, as
            in Dream's own trainer.

    Returns:
        Objective without needs; call `prepare` without rewards.
    """
    expect_range("p", p, 1e-6, 1.0)
    expect_range("eps", eps, 0.0, 1.0)
    expect_count("streams", streams)
    return Objective(
        name="cart_sft",
        plan=partial(_plan, p=p, eps=eps, streams=streams),
        estimator=elbo_seq,
        advantage=None,
        prepare=normaliser_named(normaliser, masked=True),
        loss=likelihood,
    )


def cart_masks(batch: Batch, masked: Tensor, p: float = 0.3, *, dtype: torch.dtype = torch.float32) -> Plan:
    """The plan of given masks with `cart_weights`, in which visible tokens are those neither masked nor padding.

    Args:
        batch: B sequences.
        masked: bool `[B, K, S]`.
        p: see `cart_sft`.
        dtype: of the weights.

    Returns:
        Plan of K streams.
    """
    return mask_plan(batch, masked, cart_weights(masked, p, visible=batch.valid[:, None], dtype=dtype))


def _plan(batch: Batch, *, p: float, eps: float, streams: int) -> Plan:
    return cart_masks(batch, bernoulli(batch, eps=eps, streams=streams).target, p)
