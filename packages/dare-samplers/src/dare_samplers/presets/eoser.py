"""EOS early-rejection and ascending step sizes, the decoding of CJ-GRPO."""

from dare_samplers.config import SamplerConfig
from dare_samplers.presets.choices import proposer
from dare_samplers.presets.llada import llada
from dare_samplers.schedules import Ascending
from dare_samplers.scorers import EosScaled, Probability

__all__ = ["ascending", "eoser"]


def eoser(
    gen_length: int = 128,
    block_length: int | None = None,
    steps: int | None = None,
    gamma_min: float = 0.4,
    gamma_max: float = 1.0,
    temperature: float = 0.0,
) -> SamplerConfig:
    """LLaDA with EOS early-rejection: an end token's score counts little at first (arXiv:2509.23924).

    gamma grows over the steps of the response; the published code never reaches `gamma_max` with several blocks, since
    it counts the steps of the block against those of the response.

    Args:
        gen_length: response slots.
        block_length: slots denoised together; None for all.
        steps: forwards in all; None for one per token.
        gamma_min: factor at the first step.
        gamma_max: factor at the last step.
        temperature: of the proposal; 0 for the most probable token.

    Raises:
        ValueError: for sizes that do not fit or factors out of range.

    >>> eoser(64, steps=32).scorer.gamma_min
    0.4
    """
    config = llada(gen_length, block_length, gen_length if steps is None else steps, temperature)
    return config.replace(scorer=EosScaled(Probability(), gamma_min, gamma_max))


def ascending(
    gen_length: int = 128,
    blocks: int = 1,
    gamma_min: float | None = None,
    gamma_max: float = 1.0,
    temperature: float = 0.0,
) -> SamplerConfig:
    """Ascending step sizes: step i commits 2^i slots, S = floor(log2(gen_length)) steps in all (arXiv:2509.23924).

    Of several blocks, the last has 2^(S-1) + 1 + gen_length - 2^S slots, the ones before it 2^(S-2), 2^(S-3), … and the
    first what is left; all but the first take one step.

    Args:
        gen_length: response slots, at least 2.
        blocks: at most S.
        gamma_min: EOS early-rejection in step with the slots, with one block only: factor at first, 0.01 in the paper;
            None for no rejection.
        gamma_max: factor in the end.
        temperature: of the proposal; 0 for the most probable token.

    Raises:
        ValueError: for sizes that do not fit, or early-rejection with several blocks.

    >>> ascending(128, blocks=4).block_length
    (15, 16, 32, 65)
    """
    steps = gen_length.bit_length() - 1
    if not 1 <= blocks <= steps:
        raise ValueError(f"`blocks`: expected 1 to {steps}, one step each, for `gen_length`={gen_length}, got {blocks}")
    config = SamplerConfig(
        gen_length=gen_length,
        block_length=_sizes(gen_length, blocks, steps),
        schedule=Ascending(steps),
        proposer=proposer(temperature),
    )
    if gamma_min is None:
        return config
    if blocks > 1:
        raise ValueError(f"`gamma_min`: expected None with {blocks} blocks, got {gamma_min!r}; use blocks=1")
    return config.replace(steps=steps, scorer=EosScaled(Probability(), gamma_min, gamma_max, "ascending"))


def _sizes(gen_length: int, blocks: int, steps: int) -> int | tuple[int, ...]:
    if blocks == 1:
        return gen_length
    later = [2 ** (steps - before) for before in range(blocks - 1, 1, -1)]
    later.append(gen_length - 2 ** (steps - 1) + 1)
    return (gen_length - sum(later), *later)
