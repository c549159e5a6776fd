"""One denoising step, after the forward: propose, score, select, revise, commit, advance."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dare_samplers.config import SamplerConfig
from dare_samplers.denoiser import Denoises, Mixes
from dare_samplers.guidance import Smoothing
from dare_samplers.parts import Logits, Proposal, Remembers, RemembersSlots, Revision, Skips, Slots
from dare_samplers.selectors import rank
from dare_samplers.state import State
from dare_samplers.trace import EDITED, FORCED, GIVEN, MOVED, REOPENED, SAMPLED, Commit, Writes, at, put

__all__ = ["Place", "decide"]


@dataclass(frozen=True)
class Place:
    """Where a step may write: `columns` `[b, N]` of the state's rows `rows` `[b]`, filler where not `real`."""

    rows: Tensor
    columns: Tensor
    real: Tensor

    def at(self, table: Tensor) -> Tensor:
        """`[b, N, …]` of a table `[B, T, …]`."""
        return at(table, self.rows, self.columns)

    def row(self, column: Tensor) -> Tensor:
        """`[b]` of a column `[B]`."""
        return column.index_select(0, self.rows)

    def put(self, table: Tensor, where: Tensor, value: Tensor) -> None:
        """Write `value` into a table `[B, T, …]` where `where` `[b, N]`, in place."""
        put(table, self.rows, self.columns, where, value)


def decide(
    model: Denoises, config: SamplerConfig, state: State, place: Place, logits: tuple[Tensor, ...], *, watch: bool
) -> list[Writes]:
    """Commit at `place` what the config makes of the logits, and count the step, in place.

    Args:
        model: for the special ids.
        config: the strategy.
        state: is changed.
        place: where the logits are.
        logits: `[b, N, V]`, one for each branch.
        watch: also return the writes where no token may be revised.

    Returns:
        What was written.
    """
    slots = _slots(model, config, state, place)
    raw = Logits.of(logits[0])
    seen = raw
    if config.guidance is not None and len(logits) == 2:
        seen = Logits(config.guidance.mix(raw.values, Logits.of(logits[1]).values))
    seen = _with_rules(config, state, place, slots, seen)
    allowed = seen.without([model.mask_id])
    proposal = config.proposer.propose(allowed, slots)
    score = config.scorer.score(seen if config.score_law == "model" else proposal.law, proposal.tokens, slots)
    quota = config.schedule.quota(slots)
    pick = config.selector.select(score, slots, quota) & slots.open
    revision = Revision(pick)
    if config.reviser is not None:
        revision = config.reviser.revise(allowed, proposal, score, slots, pick, _stored(state, place))
    if config.smoothing is not None and isinstance(model, Mixes):
        _smooth(model, config.smoothing, state, place, slots, allowed)
    if config.record.proposals:
        kind = place.at(state.open) & place.real
        state.trace.proposals.append(
            _writes(state, place, slots, kind, proposal.tokens, raw.logp(proposal.tokens), score)
        )
    picked = pick if revision.pick is None else revision.pick & slots.open
    kind = _kinds(config, slots, score, quota, picked, revision)
    commit = _commit(config, raw, allowed, proposal, score, kind, revision)
    if revision.moved is not None and revision.source is not None:
        commit = _carried(state, place, slots, raw, proposal, commit, revision.source)
    return _apply(model, config, state, place, slots, commit, revision, watch=watch)


def _slots(model: Denoises, config: SamplerConfig, state: State, place: Place) -> Slots:
    tokens = place.at(state.tokens)
    left = state.tokens.index_select(0, place.rows).gather(1, (place.columns - 1).clamp(min=0))
    block = place.row(state.row_block).unsqueeze(-1)
    memory = state.memory.get("reviser")
    if memory is None and isinstance(config.reviser, RemembersSlots):
        width = config.reviser.width(config.longest)
        memory = state.memory["reviser"] = state.tokens.new_zeros(*state.tokens.shape, width)
    return Slots(
        index=place.at(state.slot),
        open=place.at(state.window) & place.real,
        committed=place.at(state.sampled) & place.real,
        tokens=tokens,
        left=torch.where(place.columns > 0, left, model.mask_id),
        key=place.row(state.key),
        step=place.row(state.step),
        block_step=place.row(state.block_step),
        clock=place.row(state.clock),
        idle=place.row(state.idle),
        size=(place.row(state.block) == block).sum(-1),
        steps=config.steps_per_block,
        total_steps=config.steps,
        mask_id=model.mask_id,
        eos_ids=tuple(model.eos_ids),
        pad_id=model.pad_id,
        memory=None if memory is None else place.at(memory),
    )


def _with_rules(config: SamplerConfig, state: State, place: Place, slots: Slots, logits: Logits) -> Logits:
    for number, rule in enumerate(config.rules):
        if not isinstance(rule, Remembers):
            logits = rule.apply(logits, slots)
            continue
        name = f"rule {number}"
        if name not in state.memory:
            shape = (*state.tokens.shape, rule.width(config.longest))
            state.memory[name] = logits.values.new_zeros(shape)
        logits, memory = rule.recall(logits, slots, place.at(state.memory[name]))
        place.put(state.memory[name], slots.open, memory)
    return logits


def _smooth(model: Mixes, smoothing: Smoothing, state: State, place: Place, slots: Slots, logits: Logits) -> None:
    """Remember the expected embedding of every open slot for the next forward."""
    weight = smoothing.weight(slots.step).view(-1, 1, 1)
    mixed = weight * model.mix((logits.values - logits.log_norm.unsqueeze(-1)).exp())
    if "soft" not in state.memory:
        state.memory["soft"] = mixed.new_zeros(*state.tokens.shape, mixed.shape[-1])
    place.put(state.memory["soft"], slots.open, mixed)


def _stored(state: State, place: Place) -> Tensor:
    """Score that every response position was committed with, NaN where none was: `[b, G]`."""
    scores = torch.where(state.sampled, state.trace.scores, torch.nan).gather(1, state.columns)
    return place.row(scores.masked_fill(~state.has_slot, torch.nan))


def _kinds(
    config: SamplerConfig, slots: Slots, score: Tensor, quota: Tensor, pick: Tensor, revision: Revision
) -> Tensor:
    """int8 `[b, N]`: how each slot is written. A row that would do nothing commits its best slot."""
    none = torch.zeros_like(pick)
    write = none if revision.write is None else revision.write
    moved = none if revision.moved is None else revision.moved & write
    nothing = ~(pick | write).any(-1)
    if revision.reopen is not None:
        nothing = nothing & ~revision.reopen.any(-1)
    if config.selector.uses_quota:
        nothing = nothing & (quota > 0)
    if config.reviser is not None and config.reviser.decides:
        nothing = torch.zeros_like(nothing)
    forced = nothing.unsqueeze(-1) & slots.open & (rank(score, slots.open) == 0)
    kind = SAMPLED * pick.to(torch.int8) + FORCED * forced.to(torch.int8)
    edited = torch.where(slots.open, SAMPLED, EDITED)
    return torch.where(moved, MOVED, torch.where(write, edited, kind)).to(torch.int8)


def _commit(
    config: SamplerConfig,
    raw: Logits,
    allowed: Logits,
    proposal: Proposal,
    score: Tensor,
    kind: Tensor,
    revision: Revision,
) -> Commit:
    tokens, logq = proposal.tokens, proposal.logq
    if revision.write is not None and revision.tokens is not None:
        tokens = torch.where(revision.write, revision.tokens, tokens)
        logq = torch.where(tokens == proposal.tokens, logq, proposal.law.logp(tokens))
    logp = raw.logp(tokens)
    return Commit(
        kind=kind,
        possible=(allowed.at(tokens).isfinite() & ~logp.isnan()) | (kind == MOVED),
        tokens=tokens,
        logp=logp,
        logq=logq,
        score=score,
        entropy=raw.entropy() if config.record.entropies else None,
    )


def _carried(
    state: State, place: Place, slots: Slots, raw: Logits, proposal: Proposal, commit: Commit, source: Tensor
) -> Commit:
    """The commit with the records that moved tokens bring from `source` `[b, N]`.

    A token that stood there before brings the one it was written with; one that was written in this step, the numbers
    of this step at that slot.
    """
    moved = commit.kind == MOVED
    stood = commit.tokens == slots.tokens.gather(1, source)
    flat = source * raw.values.shape[-1] + commit.tokens
    proposed = commit.tokens == proposal.tokens.gather(1, source)

    def there(law: Logits) -> Tensor:
        return law.values.flatten(1).gather(1, flat) - law.log_norm.gather(1, source)

    def bring(table: Tensor, fresh: Tensor, own: Tensor) -> Tensor:
        old = place.at(table).gather(1, source).to(own.dtype)
        return torch.where(moved, torch.where(stood, old, fresh), own)

    fresh_logq = torch.where(proposed, proposal.logq.gather(1, source), there(proposal.law))
    entropy = commit.entropy
    if entropy is not None and state.trace.entropies is not None:
        entropy = bring(state.trace.entropies, entropy.gather(1, source), entropy)
    return replace(
        commit,
        logp=bring(state.trace.logprobs, there(raw), commit.logp),
        logq=bring(state.trace.sample_logprobs, fresh_logq, commit.logq),
        score=bring(state.trace.scores, commit.score.gather(1, source), commit.score),
        entropy=entropy,
    )


def _apply(
    model: Denoises,
    config: SamplerConfig,
    state: State,
    place: Place,
    slots: Slots,
    commit: Commit,
    revision: Revision,
    *,
    watch: bool,
) -> list[Writes]:
    """Write, reopen, count and advance."""
    written = commit.kind != GIVEN
    idle = ~slots.open.any(-1)
    writes: list[Writes] = []
    if watch or config.reviser is not None:
        writes.append(_writes(state, place, slots, commit.kind, commit.tokens, commit.logp, commit.score))
    place.put(state.tokens, written, commit.tokens)
    place.put(state.open, written, torch.zeros_like(written))
    state.trace.write(place.rows, place.columns, commit, slots.step, slots.block_step)
    state.broken.index_copy_(0, place.rows, (written & ~commit.possible).any(-1))
    if revision.memory is not None:
        place.put(state.memory["reviser"], place.real, revision.memory)
    changed = torch.zeros_like(state.open)
    place.put(changed, written, written)
    if revision.reopen is not None:
        reopened = _columns(state, place, revision.reopen)
        writes.append(_reopening(model, state, reopened))
        state.reopen(reopened, model.mask_id)
        changed = changed | reopened
    if config.reviser is not None:
        state.trace.log += writes
        state.forget(changed)
    elapsed = config.schedule.elapsed(slots) if isinstance(config.schedule, Skips) else 1
    for counter, by in ((state.step, 1), (state.block_step, 1), (state.clock, elapsed), (state.idle, idle)):
        counter.index_add_(0, place.rows, torch.ones_like(place.rows) * by)
    active = torch.zeros_like(state.broken).index_fill_(0, place.rows, value=True)
    hold = None
    if revision.hold is not None:
        hold = torch.zeros_like(state.broken).index_copy_(0, place.rows, revision.hold)
    state.advance(active, hold, config.stop, model.eos_ids)
    return writes


def _columns(state: State, place: Place, reopen: Tensor) -> Tensor:
    """bool `[B, T]` of response positions `[b, G]`: sampled slots only."""
    here = reopen.gather(1, place.row(state.slot)) & place.row(state.sampled)
    return torch.zeros_like(state.open).index_copy_(0, place.rows, here)


def _writes(state: State, place: Place, slots: Slots, kind: Tensor, new: Tensor, logp: Tensor, score: Tensor) -> Writes:
    """The step as tables over all rows of the state."""
    rows = len(state)

    def spread(value: Tensor) -> Tensor:
        return value.new_zeros(rows, *value.shape[1:]).index_copy_(0, place.rows, value)

    return Writes(
        *map(spread, (slots.step.unsqueeze(-1), slots.index, kind.to(torch.int8), slots.tokens, new, logp, score))
    )


def _reopening(model: Denoises, state: State, slots: Tensor) -> Writes:
    """The event of masking `slots` `[B, T]` again."""
    here = slots.gather(1, state.columns) & state.has_slot
    index = torch.arange(here.shape[1], device=here.device).expand_as(here)
    zero = torch.zeros_like(here, dtype=state.trace.logprobs.dtype)
    old = state.tokens.gather(1, state.columns)
    new = torch.full_like(old, model.mask_id)
    return Writes(state.step.unsqueeze(-1).clone(), index, REOPENED * here.to(torch.int8), old, new, zero, zero)
