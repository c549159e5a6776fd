"""LLaDA2.0, 2.1 and 2.2: block diffusion, then with token editing, then with insertion and deletion."""

from typing import Final, Literal

from dare_samplers.caches import BlockKV
from dare_samplers.config import SamplerConfig
from dare_samplers.presets.choices import one_of, proposer
from dare_samplers.revisers import Levenshtein, MultiBlockEdit, TokenEdit
from dare_samplers.rules import RepeatPenalty
from dare_samplers.schedules import LinearFront
from dare_samplers.selectors import Hybrid, Threshold

__all__ = ["llada2", "llada21", "llada22"]

_MODES: Final = {"quality": (0.7, 0.5), "speed": (0.5, 0.0)}


def llada2(
    gen_length: int = 2048,
    block_length: int = 32,
    steps_per_block: int = 32,
    tau: float = 0.95,
    temperature: float = 0.0,
    top_p: float | None = None,
    top_k: int | None = None,
) -> SamplerConfig:
    """LLaDA2.0: all slots of a block above `tau` where they are at least the step's share (arXiv:2512.15745).

    Args:
        gen_length: response slots; the last block is completed and then cut.
        block_length: the model's.
        steps_per_block: denoising steps of a block.
        tau: threshold on the probability after temperature and filters.
        temperature: of the proposal; 0 for the most probable token (the published code draws at temperature 1 there).
        top_p: nucleus among the `top_k`; None for all tokens.
        top_k: the k most probable tokens; None for all.

    Raises:
        ValueError: for sizes that do not fit.

    >>> llada2(64).selector, llada2(64).steps
    (Hybrid(tau=0.95, strict=True), 64)
    """
    return SamplerConfig(
        gen_length=gen_length,
        block_length=block_length,
        steps=-(-gen_length // block_length) * steps_per_block,
        grid="zero",
        schedule=LinearFront("block"),
        proposer=proposer(temperature, top_p, top_k),
        score_law="proposal",
        selector=Hybrid(tau),
        cache=BlockKV(),
    )


def llada21(
    gen_length: int = 2048,
    block_length: int = 32,
    mode: Literal["quality", "speed"] = "quality",
    tau: float | None = None,
    tau_edit: float | None = None,
    max_post_steps: int = 16,
    temperature: float = 0.0,
    multi_block: bool = False,
) -> SamplerConfig:
    """LLaDA2.1: masks are committed above one threshold, tokens of the block edited above another (arXiv:2602.08676).

    Args:
        gen_length: response slots; the last block is completed and then cut.
        block_length: the model's.
        mode: `quality`, 0.7 and 0.5, or `speed`, 0.5 and 0.
        tau: commits above this; None for the mode's.
        tau_edit: edits above this; None for the mode's.
        max_post_steps: most forwards of a block after its last mask.
        temperature: of the proposal; 0 for the most probable token.
        multi_block: edit earlier blocks too.

    Raises:
        ValueError: for sizes that do not fit, an unknown mode or a threshold out of range.

    >>> llada21(64, mode="speed").reviser
    TokenEdit(tau=0.0, max_post_steps=16)
    """
    commit, edit = one_of("mode", mode, _MODES)
    return SamplerConfig(
        gen_length=gen_length,
        block_length=block_length,
        grid="zero",
        proposer=proposer(temperature),
        selector=Threshold(commit if tau is None else tau, strict=True),
        reviser=(MultiBlockEdit if multi_block else TokenEdit)(edit if tau_edit is None else tau_edit, max_post_steps),
        cache=BlockKV(),
    )


def llada22(
    delete_id: int,
    insert_id: int,
    gen_length: int = 2048,
    block_length: int = 32,
    tau: float = 0.5,
    tau_edit: float = 0.0,
    max_post_steps: int = 16,
    repeat_penalty: float = 0.0,
    temperature: float = 0.0,
) -> SamplerConfig:
    """LLaDA2.2: as LLaDA2.1 (arXiv:2602.08676), and two control tokens delete a slot or insert a mask before one.

    Args:
        delete_id: control token that deletes.
        insert_id: control token that inserts.
        gen_length: response slots; the last block is completed and then cut.
        block_length: the model's.
        tau: commits above this.
        tau_edit: edits above this.
        max_post_steps: most forwards of a block after its last original mask.
        repeat_penalty: nats off the token to the left.
        temperature: of the proposal; 0 for the most probable token.

    Raises:
        ValueError: for sizes that do not fit or a threshold out of range.

    >>> llada22(7, 8, 64).reviser
    Levenshtein(delete_id=7, insert_id=8, tau=0.0, max_post_steps=16)
    """
    config = llada21(gen_length, block_length, "speed", tau, tau_edit, max_post_steps, temperature)
    return config.replace(
        reviser=Levenshtein(delete_id, insert_id, tau_edit, max_post_steps),
        rules=(RepeatPenalty(repeat_penalty),) if repeat_penalty else (),
    )
