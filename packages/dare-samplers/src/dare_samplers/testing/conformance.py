"""What every strategy owes its users, as checks that a new part runs in one line."""

import random
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from dare_samplers.config import SamplerConfig
from dare_samplers.denoiser import Denoises
from dare_samplers.loop import generate
from dare_samplers.output import SamplerOutput
from dare_samplers.parts import LogitsRule, Proposer, Schedule, Scorer, Selector, StopRule
from dare_samplers.testing.toys import AdversarialDenoiser, TableDenoiser, ToyDenoiser

__all__ = ["CHECKS", "Part", "sampler_conformance"]

Part = SamplerConfig | Schedule | Proposer | Scorer | Selector | LogitsRule | StopRule

_EXACT: Final = 1e-10


def sampler_conformance(part: Part) -> None:
    """Run every check on a strategy, or on one part inside a small strategy.

    The toy models have 24 tokens (the adversarial one 8), so token ids in a rule must be small. Keep configs small too.

    Args:
        part: a config, or an instance of a schedule, proposer, scorer, selector, logits rule or stop rule.

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
    if isinstance(part, Schedule):
        return small.replace(schedule=part)
    if isinstance(part, Proposer):
        return small.replace(proposer=part)
    if isinstance(part, Scorer):
        return small.replace(scorer=part)
    if isinstance(part, StopRule):
        return small.replace(stop=part)
    if isinstance(part, LogitsRule):
        return small.replace(rules=(part,))
    raise TypeError(f"`part`: expected a SamplerConfig or one of its parts, got {part!r}")


def _hold(condition: object, claim: str) -> None:
    if not condition:
        raise AssertionError(f"sampler_conformance: expected that {claim}")


def _toy(config: SamplerConfig) -> ToyDenoiser:
    block = config.block_length if config.grid == "zero" else None
    return ToyDenoiser.random(reach=config.gen_length + 16, eos_bias=2.0, block_length=block)


def _prompts(model: Denoises) -> list[list[int]]:
    """Unequal lengths; one prompt holds the mask id."""
    return [[3, 1, 4, 1, 5, 2, 6], [2], [model.mask_id, 5, 6]]


def _equal(a: SamplerOutput, b: SamplerOutput, claim: str) -> None:
    """Ids, steps and counts exactly; log-probabilities to 1e-10."""
    _hold(torch.equal(a.completions, b.completions), f"{claim}: the same completions")
    _hold(torch.equal(a.step_map, b.step_map), f"{claim}: the same step map")
    _hold(torch.equal(a.row_nfe, b.row_nfe), f"{claim}: the same number of forwards")
    for name in ("logprobs", "sample_logprobs"):
        error = (getattr(a, name) - getattr(b, name)).abs().max()
        _hold(error <= _EXACT, f"{claim}: the same {name} (they differ by {float(error):.1e})")


def check_complete(config: SamplerConfig) -> None:
    """Given tokens stay; every slot is sampled once or filled; each forward commits; blocks are in order."""
    for model in (_toy(config), AdversarialDenoiser()):
        prompts = [[token % (model.vocab_size - 1) for token in prompt] for prompt in _prompts(model)[:2]]
        prompts.append([model.mask_id, 1])
        out = generate(model, prompts, config, keys=3)
        for row, prompt in enumerate(prompts):
            given = out.sequences[row][out.prompt_mask[row]].tolist()
            _hold(given == prompt, f"given tokens stay as they are ({given} instead of {prompt})")
        sampled = out.step_map >= 0
        _hold(not bool(out.state.open.any()), "no slot is open at the end")
        _hold(not bool((out.completions == model.mask_id).any()), "the mask id is never written")
        _hold(int(out.row_nfe.max()) <= config.gen_length, "there is at most one forward per slot")
        for row in range(len(prompts)):
            steps = out.step_map[row][sampled[row]]
            used = sorted(set(steps.tolist()))
            _hold(used == list(range(int(out.row_nfe[row]))), f"every forward commits something (steps {used})")
            block = out.block_id[row][sampled[row]]
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
    for until in (0, 1, int(whole.row_nfe.max()) // 2):
        part = generate(model, _prompts(model), config, keys=1, until_step=until)
        open_slots = part.state.open.clone()
        rest = generate(model, None, config, state=part.state)
        _equal(whole, rest, f"stop at step {until} and resume")
        _hold(rest.nfe == whole.nfe, "a resumed decode counts as many forwards")
        _hold(torch.equal(open_slots, part.state.open), "the state that is resumed from is not changed")
        children = generate(model, None, config, state=part.state.fork(2))
        past = (part.step_map >= 0).repeat_interleave(2, 0)
        parents = part.sequences[:, part.state.prompt_width :].repeat_interleave(2, 0)
        tokens = children.sequences[:, part.state.prompt_width :]
        _hold(torch.equal(tokens[past], parents[past]), "children keep their parent's tokens")


def check_record(config: SamplerConfig) -> None:
    """Replaying the record gives the canvases and the raw log-probabilities of every commit."""
    model = _toy(config)
    out = generate(model, _prompts(model), config, keys=2)
    width = out.state.prompt_width
    canvases = list(out.history())
    _hold(torch.equal(canvases[-1], out.sequences), "the last canvas is the final one")
    _hold(bool((canvases[0][:, width:] == model.mask_id).all()), "the first canvas has masks in every slot")
    columns = torch.arange(width, out.sequences.shape[1]).expand(len(out.sequences), -1)
    positions = out.state.positions
    blocks = None if model.block_length is None else positions.div(model.block_length, rounding_mode="floor")
    replayed = torch.zeros_like(out.logprobs)
    for step, canvas in enumerate(canvases[:-1]):
        logits = model(canvas, positions=positions, blocks=blocks, rows=columns)
        logp = logits.log_softmax(-1).gather(-1, out.sequences[:, width:, None]).squeeze(-1)
        replayed = torch.where(out.step_map == step, logp.to(replayed.dtype), replayed)
    error = (replayed - out.logprobs).abs().max()
    _hold(error <= _EXACT, f"recorded log-probabilities are those of a replay (they differ by {float(error):.1e})")
    _hold(bool((out.sample_logprobs <= _EXACT).all()), "sampling log-probabilities are at most 0")
    _hold(_events_rebuild(out), "the events rebuild the final canvases")


def _events_rebuild(out: SamplerOutput) -> bool:
    canvas: Tensor = out.canvas_at(0)
    canvas[out.events.row, out.state.prompt_width + out.events.position] = out.events.new
    return torch.equal(canvas[out.valid], out.sequences[out.valid])


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
