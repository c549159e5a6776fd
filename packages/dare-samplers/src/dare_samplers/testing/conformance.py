"""What every strategy owes its users, as checks that a new part runs in one line."""

import dataclasses
import random
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from dare_samplers.caches import BlockKV
from dare_samplers.config import SamplerConfig
from dare_samplers.denoiser import Denoises
from dare_samplers.loop import generate
from dare_samplers.output import SamplerOutput
from dare_samplers.parts import (
    CachePolicy,
    LogitsRule,
    Proposer,
    Remembers,
    Reviser,
    Schedule,
    Scorer,
    Selector,
    StopRule,
)
from dare_samplers.testing.toys import AdversarialDenoiser, TableDenoiser, ToyDenoiser
from dare_samplers.trace import FILLED, MOVED, REOPENED

__all__ = ["CHECKS", "Part", "sampler_conformance"]

Part = (
    SamplerConfig | Schedule | Proposer | Scorer | Selector | LogitsRule | Remembers | Reviser | CachePolicy | StopRule
)

_EXACT: Final = 1e-10
_FIELDS: Final = {
    "schedule": Schedule,
    "proposer": Proposer,
    "scorer": Scorer,
    "reviser": Reviser,
    "cache": CachePolicy,
    "stop": StopRule,
}


def sampler_conformance(part: Part) -> None:
    """Run every check on a strategy, or on one part inside a small strategy.

    The toy models have 24 tokens (the adversarial one 8), so token ids in a rule must be small. Keep configs small too.

    Args:
        part: a config, or an instance of a schedule, proposer, scorer, selector, logits rule, reviser, cache policy or
            stop rule.

    Raises:
        AssertionError: naming what does not hold.
        TypeError: for an object that is neither.

    >>> from dare_samplers import Threshold
    >>> sampler_conformance(Threshold(0.3))
    """
    config = _config(part)
    for check in CHECKS:
        check(config)


def _config(part: object) -> SamplerConfig:
    small = SamplerConfig(gen_length=8, block_length=4, steps=4)
    if isinstance(part, SamplerConfig):
        return part
    if isinstance(part, Selector):
        return small.replace(selector=part, steps=4 if part.uses_quota else None)
    if isinstance(part, LogitsRule | Remembers):
        return small.replace(rules=(part,))
    for name, kind in _FIELDS.items():
        if isinstance(part, kind):
            return dataclasses.replace(small, **{name: part})
    raise TypeError(f"`part`: expected a SamplerConfig or one of its parts, got {part!r}")


def _hold(condition: object, claim: str) -> None:
    if not condition:
        raise AssertionError(f"sampler_conformance: expected that {claim}")


def _toy(config: SamplerConfig) -> ToyDenoiser:
    block = config.longest if config.grid == "zero" else None
    return ToyDenoiser.random(reach=config.gen_length + 16, eos_bias=2.0, block_length=block)


def _prompts(model: Denoises) -> list[list[int]]:
    """Unequal lengths; one prompt holds the mask id."""
    return [[3, 1, 4, 1, 5, 2, 6], [2], [model.mask_id, 5, 6]]


def _equal(a: SamplerOutput, b: SamplerOutput, claim: str) -> None:
    """Ids, steps and counts exactly; log-probabilities to 1e-10. Rows of a wider batch end in empty columns."""
    width = min(a.step_map.shape[1], b.step_map.shape[1])
    for out in (a, b):
        _hold(bool((out.block_id[:, width:] < 0).all()), f"{claim}: the same number of slots")
    for name, what in (("completions", "completions"), ("step_map", "step map"), ("n_writes", "number of writes")):
        _hold(torch.equal(getattr(a, name)[:, :width], getattr(b, name)[:, :width]), f"{claim}: the same {what}")
    _hold(torch.equal(a.row_nfe, b.row_nfe), f"{claim}: the same number of forwards")
    for name in ("logprobs", "sample_logprobs"):
        error = (getattr(a, name)[:, :width] - getattr(b, name)[:, :width]).abs().max()
        _hold(error <= _EXACT, f"{claim}: the same {name} (they differ by {float(error):.1e})")


def check_complete(config: SamplerConfig) -> None:
    """Given tokens stay; every slot is sampled or filled; no forward is wasted; blocks are in order."""
    for model in (_toy(config), AdversarialDenoiser()):
        if model.attention != "block_causal" and isinstance(config.cache, BlockKV):
            continue
        prompts = [[token % (model.vocab_size - 1) for token in prompt] for prompt in _prompts(model)[:2]]
        prompts.append([model.mask_id, 1])
        out = generate(model, prompts, config, keys=3)
        for row, prompt in enumerate(prompts):
            given = out.sequences[row][out.prompt_mask[row]].tolist()
            _hold(given == prompt, f"given tokens stay as they are ({given} instead of {prompt})")
        _hold(not bool(out.state.open.any()), "no slot is open at the end")
        _hold(not bool((out.completions == model.mask_id).any()), "the mask id is never written")
        if config.reviser is None:
            for row in range(len(prompts)):
                _check_order(out, row)


def _check_order(out: SamplerOutput, row: int) -> None:
    """Every step commits, and blocks follow one another: where nothing is revised."""
    sampled = out.step_map[row] >= 0
    steps, block = out.step_map[row][sampled], out.block_id[row][sampled]
    used = sorted(set(steps.tolist()))
    _hold(used == list(range(int(out.row_nfe[row]))), f"every forward commits something (steps {used})")
    later, earlier_step = block[:, None] < block, steps[:, None] < steps
    _hold(bool(earlier_step[later].all()), "an earlier block is complete before a later one begins")


def check_batch(config: SamplerConfig) -> None:
    """A row of a batch is the row alone, with any key and padding."""
    model = _toy(config)
    prompts = _prompts(model)
    keys = torch.tensor([5, 6, 7])
    batch = generate(model, prompts, config, keys=keys)
    for row, prompt in enumerate(prompts):
        alone = generate(model, [prompt], config, keys=keys[row : row + 1])
        _equal(_row(batch, row, config, model), alone, f"row {row} of a batch gives what it gives alone")


def _row(out: SamplerOutput, row: int, config: SamplerConfig, model: Denoises) -> SamplerOutput:
    """One row of an output: a finished state is only read out."""
    return generate(model, None, config, state=out.state.select([row]))


def check_repeatable(config: SamplerConfig) -> None:
    """The same keys give the same output, and global generators are left alone."""
    model = _toy(config)
    before = torch.get_rng_state(), random.getstate()
    first = generate(model, _prompts(model), config, keys=1)
    again = generate(model, _prompts(model), config, keys=1)
    _equal(first, again, "the same keys")
    after = torch.get_rng_state(), random.getstate()
    _hold(torch.equal(before[0], after[0]) and before[1] == after[1], "global generators are untouched")


def check_resume(config: SamplerConfig) -> None:
    """Stopping after some steps and going on is the same as not stopping; children share their parent's past."""
    model = _toy(config)
    whole = generate(model, _prompts(model), config, keys=1)
    for until in sorted({0, 1, int(whole.row_nfe.max()) // 2}):
        part = generate(model, _prompts(model), config, keys=1, until_step=until)
        open_slots = part.state.open.clone()
        rest = generate(model, None, config, state=part.state)
        _equal(whole, rest, f"stop at step {until} and resume")
        if not config.cache.stores:  # where rows store at different times, stopping changes who shares a forward
            _hold(rest.nfe == whole.nfe, "a resumed decode counts as many forwards")
        _hold(torch.equal(open_slots, part.state.open), "the state that is resumed from is not changed")
        children = generate(model, None, config, state=part.state.fork(2))
        past = (part.step_map >= 0).repeat_interleave(2, 0)
        if config.reviser is None:
            parents, tokens = (_response(out) for out in (part, children))
            kept = tokens[past] == parents.repeat_interleave(2, 0)[past]
            _hold(bool(kept.all()), "children keep their parent's tokens")


def _response(out: SamplerOutput) -> Tensor:
    """Everything that was sampled, `[B, G]`."""
    return out.state.tokens.gather(1, out.state.columns)


def check_record(config: SamplerConfig) -> None:
    """Replaying the record gives the canvases and the raw log-probabilities of every write.

    Caches that are approximate, and what is fed beyond the canvas, change the numbers: there only the canvases.
    """
    model = _toy(config)
    out = generate(model, _prompts(model), config, keys=2)
    canvases = list(out.history())
    _hold(torch.equal(canvases[-1], out.sequences), "the last canvas is the final one")
    _hold(torch.equal(_rebuilt(out), _response(out)), "the events rebuild the final canvases")
    _hold(bool((out.sample_logprobs <= _EXACT).all()), "sampling log-probabilities are at most 0")
    _hold(int((out.events.kind != REOPENED).sum()) == int(out.n_writes.sum()), "there is one event per write")
    exact = not config.cache.stores or model.attention == "block_causal"
    if not exact or config.smoothing is not None:
        return
    events = out.events
    replayed = torch.zeros_like(events.logp)
    for step, canvas in enumerate(canvases[:-1]):
        here = _score(model, out, canvas)[events.row, events.position, events.new]
        replayed = torch.where(events.step == step, here.to(replayed), replayed)
    drawn = (events.kind != REOPENED) & (events.kind != MOVED)
    error = torch.where(drawn, (replayed - events.logp).abs(), 0.0).max()
    _hold(error <= _EXACT, f"recorded log-probabilities are those of a replay (they differ by {float(error):.1e})")


def _score(model: ToyDenoiser, out: SamplerOutput, canvas: Tensor) -> Tensor:
    """Log-probabilities of all tokens at all response positions of a canvas, from a forward of its own."""
    state = out.state
    prompts = torch.tensor(state.prompt_lengths).unsqueeze(-1)
    shift = prompts.max() - prompts if out.config.layout == "left" else prompts * 0
    positions = torch.arange(canvas.shape[1]) - shift
    length = (state.positions >= 0).sum(-1, keepdim=True)
    positions = torch.where((positions >= 0) & (positions < length), positions, -1)
    blocks = None if model.block_length is None else positions.div(model.block_length, rounding_mode="floor")
    return model(canvas, positions=positions, blocks=blocks, rows=state.columns + shift).log_softmax(-1)


def _rebuilt(out: SamplerOutput) -> Tensor:
    """The responses that the events alone give, and what was filled."""
    response = torch.where(out.origin == FILLED, _response(out), out.mask_id)
    for _, row, position, _, new, *_ in zip(*(column.tolist() for column in out.events), strict=True):
        response[row, position] = new
    return torch.where(out.state.has_slot, response, _response(out))


def check_law(config: SamplerConfig) -> None:
    """Over many keys a token comes up as often as its recorded log-probability says."""
    rows = 2000
    model = TableDenoiser(torch.linspace(-1.0, 1.0, 12, dtype=torch.float64).view(2, 6), mask_id=5)
    once = SamplerConfig(gen_length=1, block_length=1, proposer=config.proposer)
    out = generate(model, [[0]] * rows, once, keys=11)
    tokens, claimed = out.sequences[:, 1], out.sample_logprobs[:, 0].double().exp()
    for token in sorted(set(tokens.tolist())):
        drawn = tokens == token
        share, law = float(drawn.double().mean()), float(claimed[drawn].mean())
        _hold(float((claimed[drawn] - law).abs().max()) <= 1e-6, "equal logits give equal log-probabilities")
        _hold(
            abs(share - law) <= 5 * (max(law * (1 - law), 0.0) / rows) ** 0.5 + 1e-9,
            f"tokens are drawn with the recorded probability (token {token}: {share:.3f} instead of {law:.3f})",
        )


CHECKS: Final[tuple[Callable[[SamplerConfig], None], ...]] = (
    check_complete,
    check_batch,
    check_repeatable,
    check_resume,
    check_record,
    check_law,
)
"""The checks that `sampler_conformance` runs."""
