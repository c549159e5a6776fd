"""Supervised fine-tuning of block diffusion: BD3-LM (arXiv 2503.09573), SDAR (2510.06303), LLaDA2.0 (2512.15745).

The loss is that of masked SFT. What is new are the plans, and that a block-causal model shows each block the clean
tokens of the earlier ones: the family's business, told by `batch.blocks`.
"""

from functools import partial
from typing import Literal

from dare_objectives._errors import expect_count, expect_range
from dare_objectives.batch import Batch
from dare_objectives.estimators import elbo_seq
from dare_objectives.objective import Objective, Planner, Prepare
from dare_objectives.objectives.masked_sft import NormaliserName, likelihood, normaliser_named
from dare_objectives.plan import Plan, unweighted
from dare_objectives.plans.bernoulli import bernoulli, bernoulli_antithetic, bernoulli_nonempty

__all__ = ["block_sft", "block_sft_llada2", "block_sft_sdar"]


def block_sft(
    *, low: float = 1e-3, high: float = 1.0, streams: int = 1, normaliser: NormaliserName = "token"
) -> Objective:
    """Denoising cross-entropy with one mask rate per block, weighted by 1/t_b (BD3-LM, arXiv 2503.09573).

    loss = sum_b 1/t_b sum_{i masked in b} -log p(y_i | clean blocks before b, masked b) / number of maskable tokens.
    t_b ~ U(low, high), stratified over the blocks of a row. Published: [1e-3, 1] at first, then the range with the
    least variance of the loss on validation data; above 1/2 the weight is 1, as published.

    Args:
        low: least rate; above 1/2 no weight.
        high: largest rate.
        streams: independent masks per sequence and step.
        normaliser: see `masked_sft`.

    Returns:
        Objective without needs; call `prepare` without rewards. One forward over noisy and clean tokens per stream.
    """
    _check_rates(low, high, streams)
    plan = partial(bernoulli_antithetic, low=low, high=high, streams=streams)
    plan = partial(_unweighted, plan=plan) if low > 0.5 else plan
    return _block_sft("block_sft", plan, normaliser_named(normaliser))


def block_sft_sdar(
    *, eps: float = 1e-3, tries: int = 10, streams: int = 1, normaliser: NormaliserName = "token"
) -> Objective:
    """Denoising cross-entropy with one mask rate per sequence, weighted by 1/p (SDAR, arXiv 2510.06303).

    loss = sum_b 1/p_b sum_{i masked} -log p(y_i | clean blocks before, masked own block) / number of maskable tokens,
    p = (1 - eps) t + eps. Rate and mask are drawn again until something is masked, which makes the mean larger by
    (L + 1)/L; `bernoulli_nonempty` says more.

    Args:
        eps: smallest mask rate.
        tries: draws before one token is masked by force.
        streams: independent masks per sequence and step.
        normaliser: see `masked_sft`.

    Returns:
        Objective without needs; call `prepare` without rewards. One forward over noisy and clean tokens per stream.
    """
    _check_rates(eps, 1.0, streams)
    expect_count("tries", tries)
    plan = partial(bernoulli_nonempty, eps=eps, tries=tries, streams=streams)
    return _block_sft("block_sft_sdar", plan, normaliser_named(normaliser))


def block_sft_llada2(
    *,
    low: float = 0.3,
    high: float = 0.8,
    streams: int = 1,
    normaliser: Literal["masked", "token", "sequence", "batch"] = "masked",
) -> Objective:
    """Plain cross-entropy of the masked tokens at one rate t ~ U(0.3, 0.8) per sequence (LLaDA2.0, arXiv 2512.15745).

    loss = sum_{i masked} -log p(y_i | clean blocks before, masked own block) / number of masked tokens. The masked
    tokens are counted on the whole batch; the published code counts those of each micro-batch, so that there a token
    weighs more where fewer are masked.

    Args:
        low: least rate.
        high: largest rate.
        streams: independent masks per sequence and step.
        normaliser: `"masked"`, or see `masked_sft`.

    Returns:
        Objective without needs; call `prepare` without rewards. One forward over noisy and clean tokens per stream.
    """
    _check_rates(low, high, streams)
    plan = partial(_unweighted, plan=partial(bernoulli, low=low, high=high, streams=streams))
    return _block_sft("block_sft_llada2", plan, normaliser_named(normaliser, masked=True))


def _check_rates(low: float, high: float, streams: int) -> None:
    expect_range("low", low, 0.0, high)
    expect_range("high", high, low, 1.0)
    expect_count("streams", streams)


def _block_sft(name: str, plan: Planner, prepare: Prepare) -> Objective:
    return Objective(name=name, plan=plan, estimator=elbo_seq, advantage=None, prepare=prepare, loss=likelihood)


def _unweighted(batch: Batch, *, plan: Planner) -> Plan:
    return unweighted(plan(batch))
