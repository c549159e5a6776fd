"""Rollouts of reinforcement-learning papers, where they are more than LLaDA's loop with other numbers."""

from typing import Final, Literal

from dare_samplers.caches import Horizon, NoCache, Prefix
from dare_samplers.config import SamplerConfig
from dare_samplers.parts import CachePolicy
from dare_samplers.presets.choices import one_of, proposer
from dare_samplers.presets.llada import llada
from dare_samplers.revisers import RunningConfidence
from dare_samplers.schedules import MaskGit
from dare_samplers.scorers import Margin, NegEntropy, PadPenalty, Probability, RandomScore
from dare_samplers.selectors import Threshold, TopK
from dare_samplers.stops import PadBlockStop
from dare_samplers.trace import Record

__all__ = ["d1", "d_tree_rpo", "dllm_rl", "espo", "just_grpo", "rcr", "spg"]

_TARGETS: Final = {
    "confidence": Probability(),
    "margin_confidence": Margin(),
    "neg_entropy": NegEntropy(),
    "random": RandomScore(),
}


def d1(
    gen_length: int = 256, block_length: int = 64, steps: int | None = None, temperature: float = 0.9
) -> SamplerConfig:
    """d1's rollout for diffu-GRPO: LLaDA by blocks, four tokens per step (arXiv:2504.12216).

    Args:
        gen_length: response slots.
        block_length: slots denoised together.
        steps: forwards in all; None for a quarter of the slots.
        temperature: of the proposal.

    >>> d1().steps
    64
    """
    return llada(gen_length, block_length, gen_length // 4 if steps is None else steps, temperature)


def espo(
    gen_length: int = 256, block_length: int = 32, steps: int | None = None, temperature: float = 1.0
) -> SamplerConfig:
    """ESPO's rollout: LLaDA by blocks of 32, two tokens per step (arXiv:2512.03759).

    Args:
        gen_length: response slots.
        block_length: slots denoised together.
        steps: forwards in all; None for half of the slots.
        temperature: of the proposal.

    >>> espo().steps_per_block
    16
    """
    return llada(gen_length, block_length, gen_length // 2 if steps is None else steps, temperature)


def spg(
    gen_length: int = 256, block_length: int = 32, steps: int | None = None, temperature: float = 0.9
) -> SamplerConfig:
    """SPG's rollout: LLaDA by blocks of 32, two tokens per step (arXiv:2510.09541).

    Args:
        gen_length: response slots.
        block_length: slots denoised together.
        steps: forwards in all; None for half of the slots.
        temperature: of the proposal.

    >>> spg().steps_per_block
    16
    """
    return llada(gen_length, block_length, gen_length // 2 if steps is None else steps, temperature)


def just_grpo(gen_length: int = 256, temperature: float = 1.0) -> SamplerConfig:
    """JustGRPO's rollout: strictly from left to right, one token per forward (arXiv:2601.15165).

    The recorded log-probabilities then add up to the exact one of the response.

    Args:
        gen_length: response slots.
        temperature: of the proposal.

    >>> just_grpo(8).blocks
    8
    """
    return llada(gen_length, 1, temperature=temperature)


def d_tree_rpo(
    gen_length: int = 256, block_length: int = 32, steps: int = 128, temperature: float = 0.9
) -> SamplerConfig:
    """d-TreeRPO's rollout: the segments of a tree over denoising time are parts of one decode (arXiv:2512.09675).

    Between branch points decode up to a step, then fork; children draw apart and share the first forward. With c
    contractions the branch points are every steps / c steps (c = 4 and 2 children in the paper):

    >>> from dare_samplers import generate
    >>> from dare_samplers.testing import ToyDenoiser
    >>> model, config = ToyDenoiser.random(), d_tree_rpo(gen_length=8, block_length=4, steps=4)
    >>> nodes = generate(model, [[1, 5]], config, until_step=2)
    >>> leaves = generate(model, config=config, state=nodes.state.fork(2))
    >>> leaves.sequences.shape, leaves.finish_reason
    (torch.Size([2, 10]), ('length', 'length'))

    Args:
        gen_length: response slots.
        block_length: slots denoised together.
        steps: forwards from root to leaf.
        temperature: of the proposal.
    """
    return llada(gen_length, block_length, steps, temperature)


def dllm_rl(
    gen_length: int = 512,
    block_length: int = 32,
    steps: int | None = None,
    target: Literal["confidence", "margin_confidence", "neg_entropy", "random"] = "confidence",
    strategy: Literal["static", "dynamic"] = "static",
    tau: float = 0.95,
    further_horizon: int | None = None,
    temperature: float = 0.8,
    pad_penalty: float = 1.0,
    *,
    cache: bool = False,
) -> SamplerConfig:
    """dLLM-RL's rollout for full-attention models, from TraceRL (arXiv:2509.06949).

    Its `neg_entropy` for LLaDA commits the most uncertain slot first by a wrong sign; here it is the most certain one.
    Dream scores the tempered law: `.replace(score_law="proposal")`.

    Args:
        gen_length: response slots.
        block_length: slots denoised together.
        steps: of `static`, in all; None for one per token.
        target: the score.
        strategy: `static` commits equal shares, `dynamic` everything with a score of at least `tau`.
        tau: of `dynamic`; it is a probability, so the target should be one.
        further_horizon: columns behind the block that cached steps still see (128 for LLaDA, 32 for Dream); None for
            all. Needs `cache`.
        temperature: of the proposal.
        pad_penalty: divides the score of pad proposals; 1 for none.
        cache: keep keys and values of what stands before the block.

    Raises:
        ValueError: for sizes that do not fit, unknown words, or settings that exclude one another.

    >>> dllm_rl(64, strategy="dynamic", further_horizon=32, cache=True).cache
    Horizon(ahead=32, refresh=None)
    """
    scorer = one_of("target", target, _TARGETS)
    if further_horizon is not None and not cache:
        raise ValueError(f"`further_horizon`: expected None without a cache, got {further_horizon}; pass cache=True")
    cached: CachePolicy = Prefix() if further_horizon is None else Horizon(further_horizon)
    return SamplerConfig(
        gen_length=gen_length,
        block_length=block_length,
        steps=steps,
        proposer=proposer(temperature),
        scorer=scorer if pad_penalty == 1 else PadPenalty(scorer, pad_penalty),
        selector=one_of("strategy", strategy, {"static": TopK(), "dynamic": Threshold(tau)}),
        cache=cached if cache else NoCache(),
        stop=PadBlockStop(),
    )


def rcr(
    gen_length: int = 256,
    block_length: int | None = None,
    steps: int | None = None,
    target: Literal["confidence", "margin_confidence", "neg_entropy", "random"] = "confidence",
    gamma: str = "linear",
    temperature: float = 0.0,
    *,
    proposals: bool = False,
) -> SamplerConfig:
    """MDPO's running confidence re-masking: whatever is held with least confidence is decided again (arXiv:2508.13148).

    Without the reviser, `.replace(reviser=None)`, it is MaskGIT (arXiv:2202.04200).

    Args:
        gen_length: response slots.
        block_length: slots denoised together; None for all. Earlier blocks are decided again too.
        steps: forwards in all; None for a quarter of the slots.
        target: the score, of the tempered law.
        gamma: share of masks over time, see `MaskGit`.
        temperature: of the proposal; 0 for the most probable token.
        proposals: record each step's proposals and their scores, for MDPO's intermediate rewards.

    Raises:
        ValueError: for sizes that do not fit or unknown words.

    >>> rcr(64, steps=16, gamma="cosine").schedule
    MaskGit(gamma='cosine', empty_steps=False)
    """
    schedule = MaskGit(gamma)
    return SamplerConfig(
        gen_length=gen_length,
        block_length=gen_length if block_length is None else block_length,
        steps=max(gen_length // 4, 1) if steps is None else steps,
        schedule=schedule,
        proposer=proposer(temperature),
        scorer=one_of("target", target, _TARGETS),
        score_law="proposal",
        reviser=RunningConfidence(schedule),
        record=Record(proposals=proposals),
    )
