"""SDAR."""

from typing import Final, Literal

from dare_samplers.caches import BlockKV
from dare_samplers.config import SamplerConfig
from dare_samplers.parts import Scorer, Selector
from dare_samplers.presets.choices import one_of, proposer
from dare_samplers.schedules import LinearFront
from dare_samplers.scorers import NegEntropy, PositionScore, Probability
from dare_samplers.selectors import EntropyBudget, Hybrid, TopK

__all__ = ["sdar"]

_SCORERS: Final[dict[str, Scorer]] = {
    "static": Probability(),
    "dynamic": Probability(),
    "sequential": PositionScore(),
    "entropy_bounded": NegEntropy(),
}


def sdar(
    gen_length: int = 128,
    block_length: int = 4,
    steps_per_block: int | None = None,
    strategy: Literal["static", "dynamic", "sequential", "entropy_bounded"] = "dynamic",
    tau: float = 0.85,
    gamma: float = 0.35,
    temperature: float = 1.0,
    top_p: float | None = None,
    top_k: int | None = None,
    *,
    compat: bool = False,
) -> SamplerConfig:
    """SDAR: block diffusion with an exact cache, scores of the tempered and filtered law (arXiv:2510.06303).

    Args:
        gen_length: response slots; the last block is completed and then cut.
        block_length: the model's.
        steps_per_block: denoising steps of a block; None for as many as slots.
        strategy: `static` commits the most probable slots, as many as a step has to; `dynamic` all above `tau` where
            these are more; `sequential` from left to right; `entropy_bounded` the most certain ones while their
            entropies add up to less than `gamma`, without a number of steps.
        tau: of `dynamic`.
        gamma: of `entropy_bounded`, in nats.
        temperature: of the proposal; 0 for the most probable token.
        top_p: nucleus among the `top_k`; None for all tokens.
        top_k: the k most probable tokens; None for all.
        compat: store every block by a forward of its own, the last one too, as published.

    Raises:
        ValueError: for sizes that do not fit, an unknown strategy, or steps with "entropy_bounded".

    >>> sdar(gen_length=16).steps, sdar(strategy="entropy_bounded").steps
    (16, None)
    """
    scorer = one_of("strategy", strategy, _SCORERS)
    selector: Selector = Hybrid(tau) if strategy == "dynamic" else TopK()
    steps = -(-gen_length // block_length) * (block_length if steps_per_block is None else steps_per_block)
    if strategy == "entropy_bounded":
        selector = EntropyBudget(gamma)
    return SamplerConfig(
        gen_length=gen_length,
        block_length=block_length,
        steps=steps if selector.uses_quota or steps_per_block is not None else None,
        grid="zero",
        schedule=LinearFront("block"),
        proposer=proposer(temperature, top_p, top_k),
        scorer=scorer,
        score_law="proposal",
        selector=selector,
        cache=BlockKV("separate", final_commit=True) if compat else BlockKV(),
    )
