"""The one loop: propose, score, select, commit, advance."""

import torch
from torch import Tensor

from dare_samplers.config import SamplerConfig
from dare_samplers.denoiser import Denoises
from dare_samplers.layout import Keys, Prompts, begin
from dare_samplers.output import SamplerOutput, collect
from dare_samplers.parts import Logits, Slots
from dare_samplers.selectors import rank
from dare_samplers.state import RUNNING, State, Status
from dare_samplers.trace import Commit

__all__ = ["generate"]


@torch.no_grad()
def generate(
    model: Denoises,
    prompts: Prompts | None = None,
    config: SamplerConfig | None = None,
    *,
    keys: Keys | None = None,
    state: State | None = None,
    until_step: int | None = None,
) -> SamplerOutput:
    """Decode a batch of prompts, or go on with a state.

    Rows do not influence one another: each has its own blocks, key and end, and leaves the batch when it is finished.
    The model is called once per step with the rows still running, and its head only at their open slots.

    Args:
        model: a `Denoiser`, or anything that satisfies `Denoises`.
        prompts: token ids per row, of any lengths (of one length for a level-0 model); None with `state`.
        config: the strategy.
        keys: randomness: an int (row i draws from a hash of it and i; 0 by default) or int64 `[B]`; None with `state`.
        state: `output.state`, or a fork of it. It is not changed.
        until_step: return when every row has had this many forwards, or is finished.

    Returns:
        A `SamplerOutput`.

    Raises:
        TypeError: for a model that is no `Denoises`, or without a config.
        ValueError: for arguments that do not fit together, or if the model returns NaN.

    >>> from dare_samplers import presets
    >>> from dare_samplers.testing import ToyDenoiser
    >>> out = generate(ToyDenoiser.random(), [[1, 5], [9]], presets.llada(gen_length=8, block_length=4, steps=4))
    >>> out.completions.shape, out.nfe, out.finish_reason
    (torch.Size([2, 8]), 4, ('length', 'length'))
    """
    config = _check(model, config)
    state = _start(model, prompts, config, keys, state)
    status = state.status()
    while running := [row for row, one in enumerate(status) if _runs(one, until_step)]:
        _step(model, config, state, running, max(status[row].left for row in running))
        status = state.status()
        _check_broken(status)
    return collect(state, model, config)


def _start(
    model: Denoises, prompts: Prompts | None, config: SamplerConfig, keys: Keys | None, state: State | None
) -> State:
    """A state of the loop's own, which it may change."""
    if prompts is not None and state is None:
        return begin(model, prompts, config, 0 if keys is None else keys)
    if prompts is not None or state is None:
        raise ValueError("`prompts`, `state`: expected one of the two, got both or neither; pass None for the other")
    _check_resume(state, config, keys)
    return state.map(lambda tensor: tensor.clone())


def _step(model: Denoises, config: SamplerConfig, state: State, running: list[int], width: int) -> None:
    """One forward of the running rows and what follows from it, in place."""
    rows = torch.tensor(running, dtype=torch.int64).to(state.tokens.device, non_blocking=True)
    columns, opened = state.window(rows, width)
    slots = _slots(state, config, rows, columns, opened)
    raw = Logits.of(_forward(model, config, state, running, rows, torch.where(opened, columns, columns[:, :1])))
    logits = raw
    for rule in config.rules:
        logits = rule.apply(logits, slots)
    allowed = logits.without([model.mask_id])
    proposal = config.proposer.propose(allowed, slots)
    score = config.scorer.score(logits, proposal.tokens, slots)
    pick = config.selector.select(score, slots, config.schedule.quota(slots)) & opened
    forced = ~pick.any(-1, keepdim=True) & (rank(score, opened) == 0)
    logp = raw.logp(proposal.tokens)
    commit = Commit(
        pick=pick | forced,
        forced=forced,
        possible=allowed.at(proposal.tokens).isfinite() & ~logp.isnan(),
        tokens=proposal.tokens,
        logp=logp,
        logq=proposal.logq,
        score=score,
        entropy=raw.entropy() if config.record.entropies else None,
    )
    state.commit(rows, columns, commit)
    state.advance(config.stop, model.eos_ids, model.pad_id)


def _forward(
    model: Denoises, config: SamplerConfig, state: State, running: list[int], rows: Tensor, columns: Tensor
) -> Tensor:
    """Logits at `columns`, from the running rows' whole canvases without the pads that all of them have."""
    lengths = [state.prompt_lengths[row] for row in running]
    start = state.prompt_width - max(lengths)
    positions = state.positions.index_select(0, rows)[:, start:]
    logits = model(
        state.tokens.index_select(0, rows)[:, start:],
        positions=positions,
        blocks=_attention_blocks(model, config, positions),
        rows=columns - start,
    )
    if logits.shape[:2] != columns.shape or logits.shape[-1] <= model.mask_id:
        raise ValueError(
            f"expected logits [{columns.shape[0]}, {columns.shape[1]}, V] with V > mask_id={model.mask_id} from the "
            f"model, got {list(logits.shape)}; check `rows` and the size of the head"
        )
    state.nfe += 1
    state.tokens_forwarded += sum(lengths) + len(lengths) * state.gen_length
    return logits


def _attention_blocks(model: Denoises, config: SamplerConfig, positions: Tensor) -> Tensor | None:
    """int32 `[b, Q]`, -1 on pads; None for full attention."""
    if model.attention == "full":
        return None
    return positions.div(model.block_length or config.block_length, rounding_mode="floor").to(torch.int32)


def _slots(state: State, config: SamplerConfig, rows: Tensor, columns: Tensor, opened: Tensor) -> Slots:
    return Slots(
        index=columns - state.prompt_width,
        open=opened,
        key=state.key.index_select(0, rows),
        step=state.step.index_select(0, rows),
        block_step=state.block_step.index_select(0, rows),
        steps=config.steps_per_block,
    )


def _runs(status: Status, until_step: int | None) -> bool:
    return status.finish == RUNNING and (until_step is None or status.step < until_step)


def _check(model: object, config: object) -> SamplerConfig:
    if not isinstance(model, Denoises):
        raise TypeError(f"`model`: expected a Denoises, got {type(model).__name__}; wrap it: Denoiser(net, mask_id=…)")
    if not isinstance(config, SamplerConfig):
        raise TypeError(f"`config`: expected a SamplerConfig, got {config!r}; see dare_samplers.presets")
    if model.attention == "block_causal":
        _check_grid(config, model.block_length or config.block_length)
    return config


def _check_grid(config: SamplerConfig, length: int) -> None:
    """A decoding block must lie inside one of the model's attention blocks, which begin at the row's first token."""
    if config.grid != "zero" or length % config.block_length:
        raise ValueError(
            f'`grid`, `block_length`: expected "zero" and a divisor of {length} for this block-causal model, got '
            f'{config.grid!r} and {config.block_length}; use config.replace(grid="zero", block_length={length})'
        )


def _check_resume(state: State, config: SamplerConfig, keys: Keys | None) -> None:
    if keys is not None:
        raise ValueError("`keys`: a state carries its own; leave None, or pass them to state.fork")
    begun, wanted = ((one.gen_length, one.block_length, one.grid) for one in (state, config))
    if begun != wanted:
        raise ValueError(
            f"`state`: expected gen_length, block_length and grid {wanted} as in `config`, got {begun}; resume with "
            "the layout it was begun with"
        )


def _check_broken(status: list[Status]) -> None:
    broken = [row for row, one in enumerate(status) if one.broken]
    if broken:
        raise ValueError(
            f"expected a finite logit for every committed token, got NaN or -inf in rows {broken} at step "
            f"{status[broken[0]].step - 1}; the model returned NaN, or the rules forbid every token"
        )
