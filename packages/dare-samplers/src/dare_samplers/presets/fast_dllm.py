"""Fast-dLLM, parallel decoding with approximate caches for LLaDA, and its block-causal successor."""

from dare_samplers.caches import BlockKV
from dare_samplers.config import SamplerConfig
from dare_samplers.presets.choices import CACHES, CacheName, one_of, proposer
from dare_samplers.selectors import Factor, Lead, Threshold

__all__ = ["fast_dllm", "fast_dllm_v2", "threshold"]


def threshold(
    gen_length: int = 128, block_length: int = 32, tau: float = 0.9, temperature: float = 0.0
) -> SamplerConfig:
    """Fast-dLLM's parallel decoding: every slot whose probability reaches `tau` (arXiv:2505.22618).

    Args:
        gen_length: response slots.
        block_length: slots denoised together.
        tau: the threshold.
        temperature: of the proposal; 0 for the most probable token.

    >>> threshold(gen_length=64, tau=0.8).selector
    Threshold(tau=0.8, strict=False, decay=0.0, ties=None)
    """
    return fast_dllm(gen_length, block_length, tau, temperature=temperature)


def fast_dllm(
    gen_length: int = 256,
    block_length: int = 32,
    tau: float = 0.9,
    factor: float | None = None,
    cache: CacheName = "none",
    temperature: float = 0.0,
) -> SamplerConfig:
    """Fast-dLLM for LLaDA: parallel decoding by threshold or factor, and stale keys and values (arXiv:2505.22618).

    Args:
        gen_length: response slots.
        block_length: slots denoised together; the caches are renewed at every block.
        tau: threshold on the probability; not used with `factor`.
        factor: commit n tokens where the least of their probabilities is at least 1 - factor / (n + 1); None for `tau`.
        cache: `none`, `prefix` (what stands before the block is stale) or `dual` (what stands behind it as well).
        temperature: of the proposal; 0 for the most probable token.

    Raises:
        ValueError: for sizes that do not fit or an unknown cache.

    >>> fast_dllm(cache="dual").cache
    Dual(refresh=None)
    """
    return SamplerConfig(
        gen_length=gen_length,
        block_length=block_length,
        proposer=proposer(temperature),
        selector=Threshold(tau) if factor is None else Factor(factor),
        cache=one_of("cache", cache, CACHES),
    )


def fast_dllm_v2(
    gen_length: int = 2048,
    small_block_length: int = 8,
    tau: float = 0.95,
    temperature: float = 0.0,
    top_p: float | None = 0.95,
    *,
    lead: bool = False,
) -> SamplerConfig:
    """Fast-dLLM v2 for block-causal models with a shift: small blocks inside the attention blocks (arXiv:2509.26328).

    The attention blocks are the model's (32 in the paper); they are stored when the next one begins.

    Args:
        gen_length: response slots.
        small_block_length: slots denoised together; divides the model's block length.
        tau: threshold on the probability after temperature and nucleus.
        temperature: of the proposal; 0 for the most probable token.
        top_p: nucleus; None for all tokens.
        lead: commit the first token of each small block alone, as the published loop does for each attention block.
            It makes up for a window whose first logits are out of reach, which they are not here.

    >>> fast_dllm_v2(64).selector.strict, fast_dllm_v2(64).grid
    (True, 'zero')
    """
    selector = Threshold(tau, strict=True)
    return SamplerConfig(
        gen_length=gen_length,
        block_length=small_block_length,
        grid="zero",
        proposer=proposer(temperature, top_p),
        score_law="proposal",
        selector=Lead(selector) if lead else selector,
        cache=BlockKV(),
    )
