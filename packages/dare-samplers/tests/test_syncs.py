"""The host waits for the device once per forward, for the rows' status, whatever the strategy."""

from collections import Counter
from functools import cache

import pytest
import torch
from strategies import CACHES, STRATEGIES, Cell, cells, keys_of
from torch.utils._python_dispatch import TorchDispatchMode

from dare_samplers import generate

NAMES = (
    "_local_scalar_dense",
    "_unique",
    "argwhere",
    "bincount",
    "equal",
    "is_nonzero",
    "masked_select",
    "nonzero",
    "repeat_interleave.Tensor",
    "unique_",
    "unique_consecutive",
    "unique_dim",
)
ROWS = (0, 1)
BEFORE, AFTER = 2, 6
"""Waits outside the loop, at most: to lay out the canvases, and to read the result; on the left layout 3 of them."""


@cache
def kind(func) -> str:
    """What to look at to know whether an operator makes the host wait for a device."""
    name = func.__name__
    if any(name.startswith(one) for one in NAMES):
        return "always"
    if name.startswith(("index.", "index_put", "_index_put_impl", "_unsafe_index")):
        return "mask"
    return name.split(".")[0] if name.startswith(("_to_copy", "copy_")) else "never"


def waits(func, args, kwargs) -> bool:
    """Whether the host waits: the size or a value of the result must be known, or it leaves the device."""
    match kind(func):
        case "mask":
            return any(one is not None and one.dtype in (torch.bool, torch.uint8) for one in args[1])
        case "_to_copy":
            target = kwargs.get("device")
            return args[0].device.type != "cpu" and target is not None and torch.device(target).type == "cpu"
        case "copy_":
            return args[1].device.type != "cpu" and args[0].device.type == "cpu"
        case known:
            return known == "always"


class Waits(TorchDispatchMode):
    """Counts what makes the host wait."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if waits(func, args, kwargs or {}):
            self.seen[func.__name__] += 1
        return func(*args, **(kwargs or {}))


class Watched:
    """A model that notes how often the host has waited when it is called, and when it returns."""

    def __init__(self, model, count) -> None:
        self.model, self.count = model, count
        self.called, self.returned = [], []
        for name in (
            "level",
            "mask_id",
            "eos_ids",
            "pad_id",
            "vocab_size",
            "attention",
            "block_length",
            "left_context",
        ):
            setattr(self, name, getattr(model, name))
        self.device, self.packs, self.version = model.device, model.packs, model.version
        self.new_cache, self.mix = model.new_cache, model.mix

    def __call__(self, ids, **inputs):
        self.called.append(self.count())
        logits = self.model(ids, **inputs)
        self.returned.append(self.count())
        return logits


@pytest.fixture
def lists(monkeypatch):
    """Calls of Tensor.tolist and Tensor.numpy, which no dispatcher sees."""
    calls = []
    for name in ("tolist", "numpy"):
        original = getattr(torch.Tensor, name)

        def noted(self, *args, original=original, **kwargs):
            calls.append(self.shape)
            return original(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, noted)
    return calls


def run(cell, lists, until_step, rows=ROWS):
    """A decode, with the number of waits at each call and return of the model, and at the end."""
    original = cell.model()
    lists.clear()
    with Waits() as mode:
        model = Watched(original, lambda: len(lists) + sum(mode.seen.values()))
        out = generate(model, cell.prompts(rows), cell.config(16), keys=keys_of(rows), until_step=until_step)
    return model, out, len(lists) + sum(mode.seen.values()), mode.seen


def test_the_counter_counts(lists):
    x = torch.arange(4)
    tries = [
        lambda: int(x[0]),
        lambda: bool((x > 9).any()),
        lambda: x[x > 1],
        lambda: x.masked_select(x > 1),
        x.nonzero,
        x.unique,
        lambda: torch.unique_consecutive(x),
        lambda: torch.equal(x, x),
        lambda: x.clone().__setitem__(x > 1, torch.zeros(2, dtype=torch.int64)),
        lambda: torch.repeat_interleave(x, x),
        x.tolist,
        lambda: [1] if x[0] else [],
    ]
    for number, one in enumerate(tries):
        lists.clear()
        with Waits() as mode:
            one()
        assert len(lists) + sum(mode.seen.values()) >= 1, number
    lists.clear()
    with Waits() as mode:
        torch.where(x > 1, x, 0).index_select(0, x).gather(0, x).sort(stable=True)
        x.clone().index_put_((x,), x)
    assert not lists and not mode.seen


PAIRS = [(s, c) for i, s in enumerate(STRATEGIES) for j, c in enumerate(CACHES) if (i + 3 * j) % 7 < 3]


def check(cell, lists):
    """Between two forwards the host waits at most once, and the model itself never does."""
    model, _, total, seen = run(cell, lists, until_step=3)
    assert model.called == model.returned, seen
    assert len(model.called) > 1
    steps = [after - before for before, after in zip(model.called, model.called[1:], strict=False)]
    assert max(steps) <= 1, (str(cell), steps, seen)
    assert model.called[0] <= BEFORE + 1 and total - model.called[-1] <= 1 + AFTER, (model.called, total)


@pytest.mark.parametrize(("strategy", "cached"), PAIRS)
def test_one_wait_per_forward(strategy, cached, lists):
    """Every strategy with three caches, every cache with a dozen strategies, in varying layouts."""
    choices = cells(strategy=strategy, cache=cached)
    check(choices[(5 * list(STRATEGIES).index(strategy) + list(CACHES).index(cached)) % len(choices)], lists)


@pytest.mark.matrix
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_wait_per_forward_in_any_combination(strategy, lists):
    for cell in cells(strategy=strategy):
        check(cell, lists)


@pytest.mark.parametrize("strategy", ["llada", "threshold", "token_edit", "levenshtein"])
def test_more_steps_cost_one_wait_per_forward_for_any_number_of_rows(strategy, lists):
    cell = Cell(strategy, "dual", "left", "full", 0.7)
    for rows in ((1,), (0, 1, 2) * 3):
        waits, forwards = {}, {}
        for until in (1, 4):
            _, out, waits[until], _ = run(cell, lists, until, rows)
            assert out.row_nfe.tolist() == [until] * len(rows)
            forwards[until] = out.nfe  # more than steps where rows wait for one another
        assert waits[4] - waits[1] <= forwards[4] - forwards[1]
