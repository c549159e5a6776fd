"""The one loop: feed, propose, score, select, revise, commit, advance."""

from collections.abc import Iterator

import torch

from dare_samplers.checks import check, check_broken, check_resume
from dare_samplers.config import SamplerConfig
from dare_samplers.denoiser import Caches, Denoises
from dare_samplers.forward import Plan, Row, align_cache, forward, make_plan
from dare_samplers.layout import Keys, Prompts, begin
from dare_samplers.output import Events, SamplerOutput, collect, events_of
from dare_samplers.state import RUNNING, State
from dare_samplers.step import Place, decide
from dare_samplers.trace import Writes

__all__ = ["Stream", "generate", "stream"]


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
    The model is called once per step with the rows still running, and its head only at the slots that are asked for.
    (With a cache, a row that waits for the others is fed as padding.)
    Rows with the same prompt, and the children of a fork, share their first forward.

    Args:
        model: a `Denoiser`, or anything that satisfies `Denoises`.
        prompts: token ids per row, of any lengths (of one length for a level-0 model), or `Infill`; None with `state`.
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
    config = check(model, config)
    state = _start(model, prompts, config, keys, state)
    for _ in _steps(model, config, state, until_step, watch=False):
        pass
    return collect(state, model, config)


class Stream:
    """The steps of a decode as they happen: iterate it for `Events`, then read `output`.

    Attributes:
        output: the `SamplerOutput` so far; the complete one after the last step.
    """

    def __init__(self, model: Denoises, config: SamplerConfig, state: State, until_step: int | None) -> None:
        """Made by `stream`."""
        self._model, self._config, self._state = model, config, state
        self._steps = _steps(model, config, state, until_step, watch=True)

    def __iter__(self) -> Iterator[Events]:
        """The stream itself: it can be read once."""
        return self

    def __next__(self) -> Events:
        """The writes of the next forward; none where it only stored keys and values."""
        with torch.no_grad():
            return events_of(next(self._steps))

    @property
    def output(self) -> SamplerOutput:
        """What `generate` returns."""
        return collect(self._state.copy(), self._model, self._config)


def stream(
    model: Denoises,
    prompts: Prompts | None = None,
    config: SamplerConfig | None = None,
    *,
    keys: Keys | None = None,
    state: State | None = None,
    until_step: int | None = None,
) -> Stream:
    """Decode as `generate` does, and yield each forward's writes, for interfaces that show denoising live.

    Args:
        model: as in `generate`, like all that follows.
        prompts: token ids per row.
        config: the strategy.
        keys: randomness.
        state: to go on with.
        until_step: where to end.

    Returns:
        An iterator of `Events`, with `.output`.

    Raises:
        TypeError, ValueError: as `generate`; about the arguments at once.

    >>> from dare_samplers import presets
    >>> from dare_samplers.testing import ToyDenoiser
    >>> live = stream(ToyDenoiser.random(), [[1, 5]], presets.llada(gen_length=4, steps=2))
    >>> [events.position.tolist() for events in live], live.output.nfe
    ([[2, 3], [0, 1]], 2)
    """
    config = check(model, config)
    return Stream(model, config, _start(model, prompts, config, keys, state), until_step)


def _start(
    model: Denoises, prompts: Prompts | None, config: SamplerConfig, keys: Keys | None, state: State | None
) -> State:
    """A state of the loop's own, which it may change."""
    if prompts is not None and state is None:
        return begin(model, prompts, config, 0 if keys is None else keys)
    if prompts is not None or state is None:
        raise ValueError("`prompts`, `state`: expected one of the two, got both or neither; pass None for the other")
    check_resume(state, config, keys)
    state = state.copy()
    if not _usable(model, config, state):
        state.cache, state.cache_rows, state.parts = None, (), config.lasting
        state.stored.zero_()
    if config.smoothing is None:
        state.memory.pop("soft", None)
    return state


def _usable(model: Denoises, config: SamplerConfig, state: State) -> bool:
    """Whether the state's cache holds what this policy would have stored with these weights."""
    if state.cache is None or config.cache != state.parts[0] or not isinstance(model, Caches):
        return False
    return model.new_cache(1, 1).version == state.cache.version


def _steps(
    model: Denoises, config: SamplerConfig, state: State, until_step: int | None, *, watch: bool
) -> Iterator[list[Writes]]:
    """Change `state` forward by forward, and yield what each wrote: all of it with `watch` or a reviser."""
    while True:
        plan = make_plan(model, config, state)
        table = plan.read(state)
        check_broken(table)
        table = _due(table, until_step, wait=config.layout != "packed")
        if not any(row.fed for row in table):
            return
        yield _step(model, config, state, plan, table, watch=watch)


def _due(table: list[Row], until_step: int | None, *, wait: bool) -> list[Row]:
    """The rows, with nothing to feed where one has had all its steps, or waits to be fed whole with the others."""
    late = [until_step is not None and row.finish == RUNNING and row.step >= until_step for row in table]
    some = any(row.fed and not row.refresh for row, over in zip(table, late, strict=True) if not over)
    return [
        row._replace(wanted=0, fed=0, denoise=0) if over or (wait and some and row.refresh) else row
        for row, over in zip(table, late, strict=True)
    ]


def _step(
    model: Denoises, config: SamplerConfig, state: State, plan: Plan, table: list[Row], *, watch: bool
) -> list[Writes]:
    """One forward of the due rows and what follows from it, in place."""
    due = [number for number, row in enumerate(table) if row.fed]
    kept = [n for n, row in enumerate(table) if row.fed or row.finish == RUNNING] if config.cache.stores else due
    fed = tuple(dict.fromkeys(state.twins[row] for row in kept))
    if config.cache.stores:
        align_cache(model, state, fed)
    answer = forward(model, config, state, plan, table, fed)
    device = state.tokens.device
    index = torch.tensor(due).to(device, non_blocking=True)
    state.stored.index_copy_(0, index, plan.feed.stored.index_select(0, index))
    rows = [row for row in due if table[row].denoise]
    source = [fed.index(state.twins[row]) for row in rows]
    if source != list(range(len(fed))):
        answer = answer.select(torch.tensor(source, dtype=torch.int64).to(device, non_blocking=True))
    _part(state, rows)
    if not rows:
        return []
    index = torch.tensor(rows).to(device, non_blocking=True)
    place = Place(index, answer.columns, answer.real)
    return decide(model, config, state, place, answer.logits, watch=watch)


def _part(state: State, rows: list[int]) -> None:
    """Rows that were denoised are nobody's twins any more, and have a cache row of their own."""
    old, parted = state.twins, set(rows)
    first: dict[int, int] = {}
    state.twins = tuple(row if row in parted else first.setdefault(twin, row) for row, twin in enumerate(old))
    sources = {row: old[row] for row in dict.fromkeys(state.twins) if old[row] in state.cache_rows}
    if tuple(sources) != state.cache_rows:
        state.regroup(sources)
