"""What a decode returns."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Final, NamedTuple

import torch
from torch import Tensor

from dare_samplers.config import SamplerConfig
from dare_samplers.denoiser import Denoises
from dare_samplers.state import EOS, LENGTH, RUNNING, State, is_any
from dare_samplers.stops import EosStop
from dare_samplers.trace import FILLED, GIVEN, REOPENED, Writes

__all__ = ["Events", "SamplerOutput", "collect", "events_of"]

_REASONS: Final = {RUNNING: "steps", EOS: "eos", LENGTH: "length"}


class Events(NamedTuple):
    """Writes in the order (step, row, position), as columns `[E]`; edits precede re-masking within a step.

    `step` counts the row's forwards from 0, `position` the response from 0; `old` and `new` are ids, `logp` is the raw
    log-probability of `new` and `score` its selection score. `kind` is SAMPLED, FORCED, EDITED, MOVED or REOPENED.
    """

    step: Tensor
    row: Tensor
    position: Tensor
    old: Tensor
    new: Tensor
    logp: Tensor
    score: Tensor
    kind: Tensor


@dataclass(frozen=True)
class SamplerOutput:
    """Canvases, completions and the complete record of how they came about.

    B rows, G response positions (the largest number of slots of a row), T columns of the canvases. A row's prompt ends
    where its response begins; on the left layout prompts are padded on the left, so that all responses begin at one
    column and T = P + G.

    Attributes:
        sequences: int64 `[B, T]`, final canvases with everything that was sampled, also after an end token.
        valid: bool `[B, T]`, False on pads and on slots filled after a row had stopped.
        prompt_mask: bool `[B, T]`, the given tokens.
        completions: int64 `[B, G]`, the response up to `gen_length` and the first end token without given tokens after,
            then pads.
        completion_mask: bool `[B, G]`, sampled and not after the first end token, which is included.
        step_map: int32 `[B, G]`, 0-based step of the final write of a slot, counted per row; -1 = never sampled.
        first_step_map: int32 `[B, G]`, step of the first write.
        n_writes: int32 `[B, G]`, how often a token was written.
        block_id: int32 `[B, G]`, decoding block, counted from 0 in each row; -1 beyond a row's slots.
        block_step: int32 `[B, G]`, the step inside its block; -1 = never sampled.
        logprobs: float `[B, G]`, log p of the token under the model's own logits at temperature 1, at its commit.
        sample_logprobs: float `[B, G]`, log-probability under the law it was drawn from (rules, temperature, filters).
        scores: float `[B, G]`, the selection score.
        entropies: float `[B, G]` if recorded.
        origin: int8 `[B, G]`, GIVEN (still open), SAMPLED, FORCED, EDITED, MOVED or FILLED.
        finish_reason: `eos`, `length` or `steps` (until_step was reached) per row.
        stop_length: int64 `[B]`, tokens of the completion.
        terminal_block_end: int64 `[B]`, response position after the last block with a sampled token; a replay needs all
            of it, since the tokens of a block saw one another.
        nfe: forward calls in this state's history.
        row_nfe: int64 `[B]`, denoising forwards each row took part in.
        tokens_forwarded: tokens without pads fed to the model in this state's history.
        tpf: tokens committed per denoising forward and row.
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
    first_step_map: Tensor
    n_writes: Tensor
    block_id: Tensor
    block_step: Tensor
    logprobs: Tensor
    sample_logprobs: Tensor
    scores: Tensor
    entropies: Tensor | None
    origin: Tensor
    finish_reason: tuple[str, ...]
    stop_length: Tensor
    terminal_block_end: Tensor
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
        last = int(self.row_nfe.max())
        return self._canvas(next(islice(self._responses(), min(step, last), None)))

    def history(self) -> Iterator[Tensor]:
        """canvas_at(0), canvas_at(1), … up to the final canvases, one at a time."""
        yield from map(self._canvas, self._responses())

    def _responses(self) -> Iterator[Tensor]:
        """The responses `[B, G]` that forward 0, 1, … of each row saw, and the final ones: the events, replayed."""
        state, events, last = self.state, self.events, int(self.row_nfe.max())
        final = state.tokens.gather(1, state.columns)
        response = torch.full_like(final, self.mask_id)
        bounds = torch.searchsorted(events.step, torch.arange(last + 1, device=final.device)).tolist()
        for step in range(last + 1):
            now = slice(bounds[max(step - 1, 0)], bounds[step])
            reopened = events.kind[now] == REOPENED
            for chosen in (~reopened, reopened):  # a slot may be edited and masked again in one step
                row, position, new = (column[now][chosen] for column in (events.row, events.position, events.new))
                response[row, position] = new
            yield torch.where((self.row_nfe <= step).unsqueeze(-1), final, response)

    @cached_property
    def events(self) -> Events:
        """The write log, from which the decode can be replayed."""
        return events_of(self.state.trace.log or [self._writes])

    @cached_property
    def proposals(self) -> Events:
        """With `Record(proposals=True)`: the proposed token and its score at every open slot of each step.

        Columns as in `Events`; `old` is the mask id and `kind` is 1.

        Raises:
            ValueError: if they were not recorded.
        """
        if not self.config.record.proposals:
            raise ValueError("`proposals`: expected Record(proposals=True) in the config, got False; record them")
        return events_of(self.state.trace.proposals)

    def _canvas(self, response: Tensor) -> Tensor:
        """Canvases with these responses `[B, G]`."""
        canvas = torch.where(self.state.block >= 0, response.gather(1, self.state.slot), self.state.tokens)
        return _shown(self.state, self.config.layout, canvas, self.state.pad_id)

    @cached_property
    def _writes(self) -> Writes:
        """All writes of a decode without revision: every sampled slot was written once."""
        index = torch.arange(self.step_map.shape[1], device=self.step_map.device).expand_as(self.step_map)
        new = self.state.tokens.gather(1, self.state.columns)
        old = torch.full_like(new, self.mask_id)
        kind = torch.where(self.step_map >= 0, self.origin, GIVEN)
        return Writes(self.step_map.long(), index, kind, old, new, self.logprobs, self.scores)


def events_of(writes: Sequence[Writes]) -> Events:
    """The sparse form of what several steps wrote."""
    parts = [_sparse(one) for one in writes]
    columns = [torch.cat(column) for column in zip(*parts, strict=True)] if parts else _no_columns()
    for key in ("position", "late", "row", "step"):  # stable sorts, the least significant key first
        at = Events._fields.index(key) if key != "late" else -1
        value = (columns[at] == REOPENED).to(torch.uint8) if key == "late" else columns[at]
        order = value.argsort(stable=True)
        columns = [column.index_select(0, order) for column in columns]
    return Events(*columns)


def _no_columns() -> list[Tensor]:
    whole, number = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    return [whole, whole, whole, whole, whole, number, number, whole.to(torch.int8)]


def _sparse(writes: Writes) -> Events:
    row, place = (writes.kind != GIVEN).nonzero(as_tuple=True)
    flat = row * writes.kind.shape[1] + place

    def at(table: Tensor) -> Tensor:
        return table.expand_as(writes.kind).flatten().index_select(0, flat)

    columns = (writes.old, writes.new, writes.logp, writes.score, writes.kind)
    return Events(at(writes.step), row, at(writes.slot), *map(at, columns))


def _shown(state: State, layout: str, table: Tensor, fill: float) -> Tensor:
    """A table over compact rows as users see it: on the left layout all responses begin at one column."""
    if layout != "left":
        return table
    prompts = torch.tensor(state.prompt_lengths, device=table.device)
    offset = prompts.amax() - prompts
    width = int((offset + (state.positions >= 0).sum(-1)).max())
    source = torch.arange(width, device=table.device) - offset.unsqueeze(-1)
    inside = (source >= 0) & (source < table.shape[1])
    return table.gather(1, source.clamp(0, table.shape[1] - 1)).masked_fill(~inside, fill)


def collect(state: State, model: Denoises, config: SamplerConfig) -> SamplerOutput:
    """Read a state out."""
    trace = state.trace

    def response(table: Tensor, fill: float) -> Tensor:
        return table.gather(1, state.columns).masked_fill(~state.has_slot, fill)

    def shown(table: Tensor, fill: float) -> Tensor:
        return _shown(state, config.layout, table, fill)

    tokens, step_map = response(state.tokens, model.pad_id), response(trace.step_map, -1)
    sampled = step_map >= 0
    stops = config.stop.ids if isinstance(config.stop, EosStop) and config.stop.ids is not None else model.eos_ids
    ends = is_any(tokens, stops) & sampled & response(state.trailing, fill=False)
    kept = sampled & response(state.asked, fill=False) & ((ends.cumsum(-1) - ends.long()) == 0)
    first, writes = _counts(state, step_map)
    real = state.positions >= 0
    block = response(state.block, -1)
    terminal = torch.where(sampled, block, -1).amax(-1, keepdim=True)
    return SamplerOutput(
        sequences=shown(state.tokens, model.pad_id),
        valid=shown(real & (trace.origin != FILLED), fill=False),
        prompt_mask=shown(real & (state.block < 0), fill=False),
        completions=torch.where(kept | (~sampled & state.open.gather(1, state.columns)), tokens, model.pad_id),
        completion_mask=kept,
        step_map=step_map,
        first_step_map=first,
        n_writes=writes,
        block_id=block,
        block_step=response(trace.block_step, -1),
        logprobs=response(trace.logprobs, 0),
        sample_logprobs=response(trace.sample_logprobs, 0),
        scores=response(trace.scores, 0),
        entropies=None if trace.entropies is None else response(trace.entropies, 0),
        origin=response(trace.origin, GIVEN),
        finish_reason=tuple(_REASONS[code] for code in state.finish.tolist()),
        stop_length=kept.sum(-1),
        terminal_block_end=((block <= terminal) & (block >= 0)).sum(-1),
        nfe=state.nfe,
        row_nfe=state.step,
        tokens_forwarded=state.tokens_forwarded,
        tpf=int(sampled.sum()) / max(int(state.step.sum()), 1),
        mask_id=model.mask_id,
        state=state,
        config=config,
    )


def _counts(state: State, step_map: Tensor) -> tuple[Tensor, Tensor]:
    """First step and number of writes of every response position, int32 `[B, G]`."""
    if not state.trace.log:
        return step_map, (step_map >= 0).to(torch.int32)
    first = torch.full_like(step_map, -1)
    count = torch.zeros_like(step_map)
    for writes in state.trace.log:
        written = (writes.kind != GIVEN) & (writes.kind != REOPENED)
        step = torch.where(written, writes.step, -1).to(torch.int32)
        hit = torch.zeros_like(count).scatter_add_(1, writes.slot, written.to(torch.int32))
        at = torch.full_like(first, -1).scatter_reduce_(1, writes.slot, step, "amax")
        first = torch.where((first < 0) & (hit > 0), at, first)
        count = count + hit
    return first, count
