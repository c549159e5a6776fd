"""What a decode returns."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import torch
from torch import Tensor

from dare_samplers.config import SamplerConfig
from dare_samplers.denoiser import Denoises
from dare_samplers.state import EOS, LENGTH, RUNNING, State, is_any
from dare_samplers.trace import FILLED

__all__ = ["Events", "SamplerOutput", "collect"]

_REASONS: Final = {RUNNING: "steps", EOS: "eos", LENGTH: "length"}


class Events(NamedTuple):
    """Every write of the decode in the order (step, row, position), as columns `[E]`.

    `step` counts the row's forwards from 0, `position` the response from 0; `old` is the mask id; `logp` is the raw
    log-probability of `new`.
    """

    step: Tensor
    row: Tensor
    position: Tensor
    old: Tensor
    new: Tensor
    logp: Tensor


@dataclass(frozen=True)
class SamplerOutput:
    """Canvases, completions and the complete record of how they came about.

    B rows, P prompt columns (left-padded), G response slots, T = P + G.

    Attributes:
        sequences: int64 `[B, T]`, final canvases with everything that was sampled, also after an end token.
        valid: bool `[B, T]`, False on pads and on slots filled after a row had stopped.
        prompt_mask: bool `[B, T]`, the given tokens.
        completions: int64 `[B, G]`, the response up to its first end token, then pads.
        completion_mask: bool `[B, G]`, sampled and not after the first end token, which is included.
        step_map: int32 `[B, G]`, 0-based step at which a slot was committed, counted per row; -1 = never sampled.
        block_id: int32 `[B, G]`, decoding block, counted from 0 in each row.
        block_step: int32 `[B, G]`, the step inside its block; -1 = never sampled.
        logprobs: float `[B, G]`, log p of the token under the model's own logits at temperature 1, at its commit.
        sample_logprobs: float `[B, G]`, log-probability under the law it was drawn from (rules, temperature, no mask).
        scores: float `[B, G]`, the selection score.
        entropies: float `[B, G]` if recorded.
        origin: int8 `[B, G]`, GIVEN (still open), SAMPLED, FORCED or FILLED.
        finish_reason: `eos`, `length` or `steps` (until_step was reached) per row.
        nfe: forward calls in this state's history.
        row_nfe: int64 `[B]`, forwards each row took part in.
        tokens_forwarded: tokens without pads fed to the model in this state's history.
        tpf: tokens committed per forward and row.
        mask_id: what stands on open slots.
        state: to go on (`generate(..., state=...)`) or to branch (`state.fork(n)`).
        config: the strategy.
    """

    sequences: Tensor
    valid: Tensor
    prompt_mask: Tensor
    completions: Tensor
    completion_mask: Tensor
    step_map: Tensor
    block_id: Tensor
    block_step: Tensor
    logprobs: Tensor
    sample_logprobs: Tensor
    scores: Tensor
    entropies: Tensor | None
    origin: Tensor
    finish_reason: tuple[str, ...]
    nfe: int
    row_nfe: Tensor
    tokens_forwarded: int
    tpf: float
    mask_id: int
    state: State
    config: SamplerConfig

    def canvas_at(self, step: int) -> Tensor:
        """The canvases that forward number `step` of each row saw, int64 `[B, T]`; the final ones from its last on.

        Raises:
            ValueError: for a negative step.
        """
        if step < 0:
            raise ValueError(f"`step`: expected at least 0, got {step}; canvas_at(0) is the initial canvas")
        trace = self.state.trace
        written = (trace.step_map >= 0) & (trace.step_map < step)
        ended = (self.row_nfe <= step).unsqueeze(-1)
        slot = self.state.block >= 0
        return torch.where(slot & ~written & ~ended, self.mask_id, self.sequences)

    def history(self) -> Iterator[Tensor]:
        """canvas_at(0), canvas_at(1), … up to the final canvases, one at a time."""
        for step in range(int(self.row_nfe.max()) + 1):
            yield self.canvas_at(step)

    @cached_property
    def events(self) -> Events:
        """The write log, from which the decode can be replayed."""
        row, position = (self.step_map >= 0).nonzero(as_tuple=True)
        step = self.step_map[row, position]
        order = step.argsort(stable=True)  # rows and positions are ascending already
        step, row, position = step[order].long(), row[order], position[order]
        new = self.sequences[row, position + self.state.prompt_width]
        return Events(step, row, position, torch.full_like(new, self.mask_id), new, self.logprobs[row, position])


def collect(state: State, model: Denoises, config: SamplerConfig) -> SamplerOutput:
    """Read a state out."""
    response = slice(state.prompt_width, None)
    trace = state.trace
    filled = trace.origin == FILLED
    sampled = trace.step_map[:, response] >= 0
    tokens = state.tokens[:, response]
    ends = is_any(tokens, model.eos_ids) & sampled
    after = (ends.cumsum(-1) - ends.long()) > 0
    return SamplerOutput(
        sequences=state.tokens,
        valid=(state.positions >= 0) & ~filled,
        prompt_mask=(state.positions >= 0) & (state.block < 0),
        completions=torch.where(after, model.pad_id, tokens),
        completion_mask=sampled & ~after,
        step_map=trace.step_map[:, response],
        block_id=state.block[:, response],
        block_step=trace.block_step[:, response],
        logprobs=trace.logprobs[:, response],
        sample_logprobs=trace.sample_logprobs[:, response],
        scores=trace.scores[:, response],
        entropies=None if trace.entropies is None else trace.entropies[:, response],
        origin=trace.origin[:, response],
        finish_reason=tuple(_REASONS[code] for code in state.finish.tolist()),
        nfe=state.nfe,
        row_nfe=state.step,
        tokens_forwarded=state.tokens_forwarded,
        tpf=int(sampled.sum()) / max(int(state.step.sum()), 1),
        mask_id=model.mask_id,
        state=state,
        config=config,
    )
