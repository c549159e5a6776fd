"""Supervised fine-tuning of masked diffusion: LLaDA (arXiv 2502.09992), MDLM (2406.07524)."""

from collections.abc import Mapping
from functools import partial
from typing import Final, Literal

import torch
from torch import Tensor

from dare_objectives._errors import expect_count, expect_range, suggest
from dare_objectives.batch import Batch
from dare_objectives.estimators import elbo_seq
from dare_objectives.losses.nll import weighted_nll
from dare_objectives.metrics import Mean, Metrics, masked_mean
from dare_objectives.objective import Coefficients, Objective, Prepare, at_least_one
from dare_objectives.plan import Plan
from dare_objectives.plans.bernoulli import bernoulli
from dare_objectives.score import Scored, logp_of

__all__ = [
    "NormaliserName",
    "likelihood",
    "masked_sft",
    "masked_sft_dare_compat",
    "normaliser_named",
    "per_batch",
    "per_masked",
    "per_sequence",
    "per_token",
]

NormaliserName = Literal["sequence", "token", "batch"]
"""What an average over a batch may count; the names of the dllm library."""


def masked_sft(*, eps: float = 1e-3, streams: int = 1, normaliser: NormaliserName = "sequence") -> Objective:
    """Denoising cross-entropy: mask at rate p = (1 - eps) t + eps, t ~ U(0, 1), and weight each masked token by 1/p.

    loss = 1/B sum_b 1/L_b sum_{i masked} -log p(y_i | masked sequence) / p_b. L_b counts the maskable tokens, not the
    masked ones: dividing by those as well would weight twice by 1/t.

    Args:
        eps: smallest mask rate.
        streams: independent masks per sequence and step.
        normaliser: `"sequence"`: mean over L_b, then over sequences (LLaDA); `"token"`: mean over all maskable tokens
            (MDLM); `"batch"`: sum over the tokens of a sequence, mean over sequences.

    Returns:
        Objective without needs; call `prepare` without rewards.
    """
    return _masked_sft("masked_sft", eps=eps, streams=streams, normaliser=normaliser)


def masked_sft_dare_compat() -> Objective:
    """Masked SFT with the numbers of the DARE reference: a mean over the tokens of the batch.

    Its mistakes are not reproduced: a normaliser that counts the masked tokens although each is weighted by 1/p
    already, and gradients that add up over micro-batches while the log shows their mean.

    Returns:
        Objective.
    """
    return _masked_sft("masked_sft_dare_compat", eps=1e-3, streams=1, normaliser="token")


def _masked_sft(name: str, *, eps: float, streams: int, normaliser: str) -> Objective:
    expect_range("eps", eps, 0.0, 1.0)
    expect_count("streams", streams)
    return Objective(
        name=name,
        plan=partial(bernoulli, eps=eps, streams=streams),
        estimator=elbo_seq,
        advantage=None,
        prepare=normaliser_named(normaliser),
        loss=likelihood,
    )


def normaliser_named(name: str, *, masked: bool = False) -> Prepare:
    """The `prepare` of that normaliser; `"masked"` only for plans without 1/p, which would weight twice by it."""
    rules = _RULES if masked else {key: rule for key, rule in _RULES.items() if key != "masked"}
    if name not in rules:
        raise ValueError(suggest("normaliser", name, rules))
    return rules[name]


def per_sequence(
    batch: Batch, plan: Plan, rewards: Tensor | None = None, detached: Tensor | None = None
) -> Coefficients:
    """Weight 1 / L_b and the number of sequences with something to learn as normaliser."""
    weight = 1 / batch.lengths.clamp(min=1).to(plan.weight.dtype)
    return Coefficients(torch.ones_like(weight), weight, at_least_one((batch.lengths > 0).sum()))


def per_token(batch: Batch, plan: Plan, rewards: Tensor | None = None, detached: Tensor | None = None) -> Coefficients:
    """Weight 1 and the number of maskable tokens of the batch as normaliser."""
    one = torch.ones_like(batch.lengths, dtype=plan.weight.dtype)
    return Coefficients(one, one, at_least_one(batch.lengths.sum()))


def per_batch(batch: Batch, plan: Plan, rewards: Tensor | None = None, detached: Tensor | None = None) -> Coefficients:
    """Weight 1 and the number of sequences with something to learn as normaliser."""
    one = torch.ones_like(batch.lengths, dtype=plan.weight.dtype)
    return Coefficients(one, one, at_least_one((batch.lengths > 0).sum()))


def per_masked(batch: Batch, plan: Plan, rewards: Tensor | None = None, detached: Tensor | None = None) -> Coefficients:
    """A mean over the masked tokens of all streams of the batch: weight K, for the mean over streams in the loss."""
    one = torch.ones_like(batch.lengths, dtype=plan.weight.dtype)
    return Coefficients(one, one * plan.streams, at_least_one(plan.target.sum()))


_RULES: Final[Mapping[str, Prepare]] = {
    "sequence": per_sequence,
    "token": per_token,
    "batch": per_batch,
    "masked": per_masked,
}


def likelihood(
    scored: Tensor | Scored,
    plan: Plan,
    coefficients: Coefficients,
    *,
    old: Tensor | Scored | None = None,
    ref: Tensor | Scored | None = None,
) -> tuple[Tensor, Metrics]:
    """Negative evidence lower bound of some rows; `old` and `ref` play no part."""
    logp = logp_of(scored)
    loss = weighted_nll(elbo_seq(logp, plan), coefficients.row_weight, normaliser=coefficients.normaliser)
    metrics: Metrics = {
        "nll": masked_mean(-logp, plan.target),
        "masked_tokens": Mean(plan.target.sum(), len(plan) * plan.streams),
    }
    return loss, metrics
