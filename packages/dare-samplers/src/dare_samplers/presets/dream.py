"""Dream, and Fast-dLLM's decoding for it."""

from typing import Final, Literal

from dare_samplers.config import SamplerConfig
from dare_samplers.presets.choices import CACHES, CacheName, one_of, proposer
from dare_samplers.schedules import Bernoulli, DreamBudget, DreamFloor
from dare_samplers.scorers import Margin, NegEntropy, Probability, RandomScore
from dare_samplers.selectors import BudgetThreshold, SoftTopK, Threshold, TopK

__all__ = ["dream", "fast_dllm_dream"]

_SCORERS: Final = {
    "origin": RandomScore(),
    "maskgit_plus": Probability(),
    "topk_margin": Margin(),
    "entropy": NegEntropy(),
}


def dream(
    gen_length: int = 512,
    steps: int | None = None,
    alg: Literal["origin", "maskgit_plus", "topk_margin", "entropy"] = "entropy",
    temperature: float = 0.2,
    top_p: float | None = 0.95,
    top_k: int | None = None,
    alg_temp: float = 0.0,
    eps: float = 1e-3,
    *,
    compat: bool = False,
) -> SamplerConfig:
    """Dream: one block, a schedule over noise levels, scores of the tempered and filtered law (arXiv:2508.15487).

    The defaults are those recommended with the model; its code's own are alg="origin" at temperature 0.

    Args:
        gen_length: response slots.
        steps: schedule steps; None for as many as slots.
        alg: `origin` commits each slot with the same chance, the others by probability, by the lead over the second
            token, or by negative entropy.
        temperature: of the proposal; 0 for the most probable token.
        top_p: nucleus; None for all tokens.
        top_k: of these the k most probable ones; None for all.
        alg_temp: softens the choice of slots; 0 for the best ones.
        eps: last noise level.
        compat: run a forward for schedule steps that commit nothing too, as published: the first one where steps are
            as many as slots.

    Raises:
        ValueError: for sizes that do not fit, an unknown `alg`, or `alg_temp` with "origin".

    >>> dream(64).schedule, dream(64, alg="origin").schedule
    (DreamFloor(eps=0.001, empty_steps=False), Bernoulli(eps=0.001))
    """
    scorer = one_of("alg", alg, _SCORERS)
    if alg == "origin" and alg_temp:
        raise ValueError(f'`alg_temp`: expected 0 with alg="origin", which has no scores, got {alg_temp!r}')
    return SamplerConfig(
        gen_length=gen_length,
        block_length=gen_length,
        steps=gen_length if steps is None else steps,
        schedule=Bernoulli(eps) if alg == "origin" else DreamFloor(eps, compat),
        proposer=proposer(temperature, top_p, top_k, "top_p_first"),
        scorer=scorer,
        score_law="proposal",
        selector=SoftTopK(alg_temp) if alg_temp else TopK(),
    )


def fast_dllm_dream(
    gen_length: int = 256,
    block_length: int | None = 32,
    steps: int | None = None,
    tau: float = 0.9,
    temperature: float = 0.0,
    top_p: float | None = None,
    cache: CacheName = "none",
) -> SamplerConfig:
    """Fast-dLLM for Dream (arXiv:2505.22618): by blocks with a threshold, or the whole canvas with a budget as well.

    The published block loop also commits each block's first token from its first forward, since the shift hides that
    slot's logits from a window; a model with `left_context` makes this superfluous.

    Args:
        gen_length: response slots.
        block_length: slots denoised together; None for all, and then at most the budget of a step is committed: what
            `steps` equal shares have left so far.
        steps: of the budget; None for as many as slots. Not with `block_length`.
        tau: threshold on the probability after temperature and nucleus.
        temperature: of the proposal; 0 for the most probable token.
        top_p: nucleus; None for all tokens.
        cache: `none`, `prefix` or `dual`.

    Raises:
        ValueError: for sizes that do not fit, an unknown cache, or `steps` with blocks.

    >>> fast_dllm_dream(64, None, 16).selector
    BudgetThreshold(tau=0.9)
    """
    config = SamplerConfig(
        gen_length=gen_length,
        block_length=gen_length if block_length is None else block_length,
        proposer=proposer(temperature, top_p, order="top_p_first"),
        score_law="proposal",
        selector=Threshold(tau),
        cache=one_of("cache", cache, CACHES),
    )
    if block_length is not None:
        return config if steps is None else config.replace(steps=steps)
    budget = gen_length if steps is None else steps
    return config.replace(steps=budget, schedule=DreamBudget(), selector=BudgetThreshold(tau))
