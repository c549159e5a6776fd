"""Samplers of the masked diffusion process itself, without confidence: MDLM, first hitting and ReMDM."""

from typing import Literal

from dare_samplers.caches import BlockKV, NoCache
from dare_samplers.config import SamplerConfig
from dare_samplers.presets.choices import proposer
from dare_samplers.proposers import Categorical
from dare_samplers.revisers import ReMaskLowest, ReMDM
from dare_samplers.schedules import Bernoulli
from dare_samplers.scorers import RandomScore

__all__ = ["first_hitting", "mdlm", "remdm", "remdm_llada"]


def mdlm(
    gen_length: int = 1024,
    steps: int = 1000,
    temperature: float = 1.0,
    top_p: float | None = None,
    eps: float = 1e-5,
) -> SamplerConfig:
    """MDLM's ancestral sampler: each slot comes up by itself with probability 1 - t_{i+1} / t_i (arXiv:2406.07524).

    Steps at which no slot comes up cost no forward.

    Args:
        gen_length: response slots, one block.
        steps: steps of the process, from t = 1 to `eps`.
        temperature: of the proposal.
        top_p: nucleus; None for all tokens.
        eps: last noise level.

    Raises:
        ValueError: for numbers out of range.

    >>> mdlm(64, 10).schedule
    Bernoulli(eps=1e-05)
    """
    return SamplerConfig(
        gen_length=gen_length,
        block_length=gen_length,
        steps=steps,
        schedule=Bernoulli(eps),
        proposer=_nucleus(temperature, top_p),
        scorer=RandomScore(),
    )


def first_hitting(
    gen_length: int = 1024,
    block_length: int | None = None,
    temperature: float = 1.0,
    top_p: float | None = None,
    *,
    block_causal: bool = False,
) -> SamplerConfig:
    """First-hitting sampler: one uniformly random slot per step, which is MDLM in continuous time (arXiv:2409.02908).

    Args:
        gen_length: response slots.
        block_length: slots denoised together; None for all.
        temperature: of the proposal.
        top_p: nucleus; None for all tokens.
        block_causal: blocks on the zero grid with an exact cache, for BD3-LM (arXiv:2503.09573).

    Raises:
        ValueError: for numbers out of range.

    >>> first_hitting(64, 16, block_causal=True).grid
    'zero'
    """
    return SamplerConfig(
        gen_length=gen_length,
        block_length=gen_length if block_length is None else block_length,
        grid="zero" if block_causal else "prompt",
        proposer=_nucleus(temperature, top_p),
        scorer=RandomScore(),
        cache=BlockKV() if block_causal else NoCache(),
    )


def remdm(
    gen_length: int = 1024,
    steps: int = 1024,
    kind: Literal["cap", "rescale", "conf", "loop", "fb"] = "loop",
    eta: float = 0.02,
    t_on: float | None = None,
    t_off: float | None = None,
    alpha: float = 0.9,
    temperature: float = 1.0,
    top_p: float | None = 0.9,
) -> SamplerConfig:
    """ReMDM: MDLM whose committed tokens may fall back to masks (arXiv:2503.00307).

    Args:
        gen_length: response slots, one block.
        steps: steps of the process, each of them a forward.
        kind: how the probability of falling back is made, see `ReMDM`.
        eta: its strength.
        t_on: time from which tokens fall back; None for 0.55 with "loop" and for 1, the start, otherwise.
        t_off: time until which they do; None for 0.05 with "loop" and for 0, the end, otherwise.
        alpha: of the plateau, for "loop".
        temperature: of the proposal.
        top_p: nucleus; None for all tokens.

    Raises:
        ValueError: for numbers out of range.

    >>> remdm(64, 32, "cap").reviser
    ReMDM(kind='cap', eta=0.02, t_on=1.0, t_off=0.0, alpha=0.9)
    """
    on, off = (0.55, 0.05) if kind == "loop" else (1.0, 0.0)
    return SamplerConfig(
        gen_length=gen_length,
        block_length=gen_length,
        steps=steps,
        proposer=_nucleus(temperature, top_p),
        reviser=ReMDM(kind, eta, on if t_on is None else t_on, off if t_off is None else t_off, alpha),
    )


def remdm_llada(
    gen_length: int = 256,
    block_length: int = 256,
    steps: int | None = None,
    number: int = 1,
    start: float = 7 / 8,
    temperature: float = 1.0,
) -> SamplerConfig:
    """ReMDM on LLaDA: late in a block the weakest tokens are masked again, and as many committed (arXiv:2503.00307).

    Args:
        gen_length: response slots.
        block_length: slots denoised together.
        steps: forwards in all, half of them corrections; None for two per token.
        number: tokens masked again per correction.
        start: fraction of the block that is committed before.
        temperature: of the proposal; 0 for the most probable token.

    Raises:
        ValueError: for numbers out of range.

    >>> remdm_llada(64, 32).steps_per_block
    64
    """
    return SamplerConfig(
        gen_length=gen_length,
        block_length=block_length,
        steps=2 * gen_length if steps is None else steps,
        proposer=proposer(temperature),
        reviser=ReMaskLowest(number, start),
    )


def _nucleus(temperature: float, top_p: float | None) -> Categorical:
    return Categorical(temperature, top_p=top_p, nucleus="within")
