"""Published strategies, as values to use or to `.replace` parts of."""

from typing import Final, Literal

from dare_samplers.config import SamplerConfig
from dare_samplers.parts import Proposer
from dare_samplers.proposers import Categorical, Greedy
from dare_samplers.scorers import PositionScore, Probability, RandomScore
from dare_samplers.selectors import Threshold

__all__ = ["llada", "threshold"]

_ORDERS: Final = {"low_confidence": Probability(), "random": RandomScore(), "left_to_right": PositionScore()}


def llada(
    gen_length: int = 128,
    block_length: int | None = None,
    steps: int | None = None,
    temperature: float = 0.0,
    remasking: Literal["low_confidence", "random", "left_to_right"] = "low_confidence",
) -> SamplerConfig:
    """LLaDA, pure or semi-autoregressive diffusion with a fixed number of steps (arXiv:2502.09992).

    Args:
        gen_length: response slots.
        block_length: slots denoised together; None for all.
        steps: forwards in all; None for one per token.
        temperature: of the proposal; 0 for the most probable token.
        remasking: the order of commits.

    Raises:
        ValueError: for sizes that do not fit, or an unknown `remasking`.

    >>> llada(gen_length=64, block_length=16, steps=32).steps_per_block
    8
    """
    if remasking not in _ORDERS:
        raise ValueError(f"`remasking`: expected one of {', '.join(_ORDERS)}, got {remasking!r}")
    return SamplerConfig(
        gen_length=gen_length,
        block_length=gen_length if block_length is None else block_length,
        steps=steps,
        proposer=_proposer(temperature),
        scorer=_ORDERS[remasking],
    )


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
    Threshold(tau=0.8)
    """
    return SamplerConfig(
        gen_length=gen_length,
        block_length=block_length,
        proposer=_proposer(temperature),
        selector=Threshold(tau),
    )


def _proposer(temperature: float) -> Proposer:
    return Greedy() if temperature == 0 else Categorical(temperature)
