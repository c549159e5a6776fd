"""A row's result depends on the row alone: every strategy x cache x layout, alone or in a batch, with any padding.

Pairs of factors in every run; `-m matrix` (`nox -s matrix`) goes through all combinations.
"""

from functools import cache
from itertools import product

import pytest
import torch
from strategies import CACHES, FACTORS, STRATEGIES, Cell, cells, keys_of, pairs, pairwise, why_not

from dare_samplers import generate

EXACT = ("completions", "completion_mask", "step_map", "first_step_map", "n_writes", "block_id", "block_step", "origin")
CLOSE = ("logprobs", "sample_logprobs", "scores")
PER_ROW = ("stop_length", "terminal_block_end", "row_nfe", "finish_reason")
TWINS = ((0, 1, 0), (2, 2, 1), (0, 2, 2), (1, 0, 1), (2, 0, 2))
ORDERS = ((0, 1, 2, 0), (2, 0, 1, 0), (1, 0, 0, 2))
PADS = ((0, 0), (1, 0), (0, 7), (7, 1))

ALL = [tuple(getattr(cell, name) for name in FACTORS) for cell in cells()]
COVER = [Cell(*row) for row in pairwise(ALL)]


@cache
def alone(cell, row, gen_length):
    """One prompt decoded by itself, with pads nowhere."""
    return generate(cell.model(), cell.prompts([row]), cell.config(gen_length), keys=keys_of([row]))


def assert_same(out, row, single):
    """Row `row` of a batch is the only row of `single`; beyond its slots there is nothing."""
    width = single.step_map.shape[1]
    for name in EXACT:
        mine, own = getattr(out, name)[row], getattr(single, name)[0]
        assert mine[:width].tolist() == own.tolist(), name
    assert bool((out.step_map[row, width:] == -1).all())
    for name in CLOSE:
        mine, own = getattr(out, name)[row, :width], getattr(single, name)[0]
        torch.testing.assert_close(mine, own, rtol=0, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}")
    for name in PER_ROW:
        assert getattr(out, name)[row] == getattr(single, name)[0], name
    if out.config.reviser is None:
        assert set(single.step_map[0].tolist()) - {-1} == set(range(int(single.row_nfe[0]))), "an empty forward"
    assert canvas(out, row) == canvas(single, 0)
    assert events(out, row) == events(single, 0)


def canvas(out, row):
    """The row's tokens without pads."""
    return out.sequences[row][out.valid[row]].tolist()


def events(out, row):
    """The row's writes."""
    here = out.events.row == row
    return [column[here].tolist() for column in (out.events.step, *out.events[2:5], out.events.kind)]


def check(cell, rows, pads, gen_length=8):
    """A batch of these rows, fed with more pad columns, equals each of them alone."""
    out = generate(cell.model(*pads), cell.prompts(rows), cell.config(gen_length), keys=keys_of(rows))
    single = Cell(**{**vars(cell), "layout": "right"})
    for place, row in enumerate(rows):
        assert_same(out, place, alone(single, row, gen_length))


@pytest.mark.parametrize("number", range(len(COVER)), ids=lambda number: str(COVER[number]))
def test_batch_and_padding_change_nothing(number):
    check(COVER[number], TWINS[number % len(TWINS)], PADS[number % len(PADS)])


@pytest.mark.matrix
@pytest.mark.parametrize(("strategy", "cached"), list(product(STRATEGIES, CACHES)))
def test_batch_and_padding_change_nothing_in_any_combination(strategy, cached):
    for number, cell in enumerate(cells(strategy=strategy, cache=cached)):
        check(cell, ORDERS[number % len(ORDERS)], PADS[number % len(PADS)], gen_length=12)
    alone.cache_clear()


def test_the_cover_has_every_pair():
    covered = set().union(*(pairs(tuple(getattr(cell, name) for name in FACTORS)) for cell in COVER))
    assert covered == set().union(*map(pairs, ALL))
    assert len(COVER) < len(ALL) / 10


def test_what_cannot_be_is_refused():
    """The combinations left out of the array are exactly those that `generate` refuses, with a remedy."""
    for values in product(*({"strategy": ["llada"]} | {k: v for k, v in FACTORS.items() if k != "strategy"}).values()):
        cell = Cell(*values)
        if why_not(cell) is None:
            continue
        with pytest.raises(ValueError, match="use Prefix, Dual or Vicinity"):
            generate(cell.model(), cell.prompts([0]), cell.config())
