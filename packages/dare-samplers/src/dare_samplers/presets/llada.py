"""LLaDA."""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from dare_samplers.config import SamplerConfig
from dare_samplers.guidance import Guidance
from dare_samplers.presets.choices import one_of, proposer
from dare_samplers.rules import Suppress
from dare_samplers.scorers import EosLast, PositionScore, Probability, RandomScore

__all__ = ["EosPolicy", "Remasking", "llada", "llada_instruct"]

Remasking = Literal["low_confidence", "random", "left_to_right"]
EosPolicy = Literal["off", "never", "last"]

_ORDERS: Final = {"low_confidence": Probability(), "random": RandomScore(), "left_to_right": PositionScore()}


class _Task(NamedTuple):
    """Sizes and end-token policy of one benchmark."""

    gen_length: int
    block_length: int
    eos: EosPolicy


_SEMI_AUTOREGRESSIVE: Final = {
    "gsm8k": _Task(256, 8, "off"),
    "math": _Task(512, 64, "off"),
    "gpqa": _Task(128, 64, "off"),
    "humaneval": _Task(512, 32, "off"),
    "mbpp": _Task(512, 32, "off"),
}
_PURE: Final = {
    "gsm8k": _Task(512, 512, "last"),
    "math": _Task(512, 512, "last"),
    "gpqa": _Task(64, 64, "last"),
    "humaneval": _Task(512, 512, "never"),
    "mbpp": _Task(256, 256, "last"),
}


def llada(
    gen_length: int = 128,
    block_length: int | None = None,
    steps: int | None = None,
    temperature: float = 0.0,
    remasking: Remasking = "low_confidence",
    guidance: float = 0.0,
    eos: EosPolicy = "off",
    eos_ids: Sequence[int] = (),
) -> SamplerConfig:
    """LLaDA, pure or semi-autoregressive diffusion with a fixed number of steps (arXiv:2502.09992).

    Args:
        gen_length: response slots.
        block_length: slots denoised together; None for all.
        steps: forwards in all; None for one per token.
        temperature: of the proposal; 0 for the most probable token.
        remasking: the order of commits.
        guidance: scale of classifier-free guidance; 0 for none.
        eos: `never` proposes none of `eos_ids`; `last` proposes them but commits them after everything else. Both are
            against early ends of instruct models that were trained with end tokens as padding.
        eos_ids: end and end-of-turn tokens, 126081 and 126348 for the released models; with `last` the model's own if
            empty.

    Raises:
        ValueError: for sizes that do not fit, an unknown word, or `never` without ids.

    >>> llada(gen_length=64, block_length=16, steps=32).steps_per_block
    8
    """
    scorer = one_of("remasking", remasking, _ORDERS)
    one_of("eos", eos, {"off": 0, "never": 1, "last": 2})
    if eos == "never" and not eos_ids:
        raise ValueError('`eos_ids`: expected the tokens never to propose with eos="never", got none; name them')
    return SamplerConfig(
        gen_length=gen_length,
        block_length=gen_length if block_length is None else block_length,
        steps=steps,
        proposer=proposer(temperature),
        scorer=EosLast(scorer, tuple(eos_ids) or None) if eos == "last" else scorer,
        rules=(Suppress(tuple(eos_ids)),) if eos == "never" else (),
        guidance=Guidance(guidance) if guidance else None,
    )


def llada_instruct(
    task: Literal["gsm8k", "math", "gpqa", "humaneval", "mbpp"],
    *,
    pure: bool = False,
    eos_ids: Sequence[int] = (126081, 126348),
) -> SamplerConfig:
    """The settings behind LLaDA-8B-Instruct's published scores: greedy, one token per step (arXiv:2502.09992).

    Args:
        task: the benchmark.
        pure: one block for the whole response, with the end-token policy that it needs; otherwise blocks.
        eos_ids: end and end-of-turn tokens.

    Raises:
        ValueError: for an unknown task.

    >>> llada_instruct("gsm8k").sizes[:3], llada_instruct("humaneval", pure=True).rules
    ((8, 8, 8), (Suppress(ids=(126081, 126348)),))
    """
    chosen = one_of("task", task, _PURE if pure else _SEMI_AUTOREGRESSIVE)
    return llada(chosen.gen_length, chosen.block_length, eos=chosen.eos, eos_ids=eos_ids)
