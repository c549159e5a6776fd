"""Generators: splits, determinism, uniqueness, chance."""

import subprocess
import sys
from collections import Counter
from itertools import permutations, product
from math import comb
from typing import cast

import numpy as np
import pytest

from dare_eval.tasks import SPLITS, GeneratedTask, get_task, split_of, uid_of
from dare_eval.tasks.draws import Draws
from dare_eval.tasks.registry import TASKS
from dare_eval.tasks.sudoku4 import solutions
from dare_eval.testing import check_task

OPTIONS = [
    ("sort", {"digits": 12}),
    ("addition", {"digits": 2, "padded": True}),
    ("countdown", {"numbers": 5, "allow_subset": True, "allow_unary_minus": True}),
    ("sudoku4", {"blanks": 10}),
    ("sudoku9", {"blanks": 50}),
]

# prompts of generate("test", 3, seed=7): a change here needs a new version of the task
PINNED = {
    "addition": ["100+603=", "288+155=", "192+931="],
    "countdown": ["22,22,13=13>", "8,1,24=33>", "8,1,10=18>"],
    "sort": ["44682238>", "05413678>", "94532059>"],
    "sudoku4": ["1040203130240013>", "0031132030420403>", "2103431004210200>"],
    "sudoku9": [
        "920500614406030005080061300000007001165203900009150402058000207340709850090600043>",
        "203701890010096004069234000500000300021567000900312507402170000650429070030005009>",
        "957406000068000975000000000009647318300500607074310500800250700796034001015709004>",
    ],
}


@pytest.mark.wheel
@pytest.mark.parametrize("name", [task.name for task in TASKS])
def test_conformance(name: str) -> None:
    check_task(get_task(name))


@pytest.mark.parametrize(("name", "options"), OPTIONS, ids=str)
def test_conformance_with_options(name: str, options: dict) -> None:
    check_task(get_task(name, options))


@pytest.mark.wheel
@pytest.mark.parametrize("name", [task.name for task in TASKS])
def test_items_of_a_version_are_pinned(name: str) -> None:
    assert [item.prompt for item in get_task(name).generate("test", 3, 7)] == PINNED[name]


@pytest.mark.parametrize("name", [task.name for task in TASKS])
def test_splits_stay_disjoint_for_many_items(name: str) -> None:
    task = get_task(name)
    prompts = {s: {i.uid for seed in (0, 1) for i in task.generate(s, 200, seed)} for s in SPLITS}
    assert not prompts["train"] & prompts["test"]
    assert not prompts["train"] & prompts["validation"]
    assert not prompts["validation"] & prompts["test"]


@pytest.mark.wheel
def test_uids_do_not_depend_on_the_process() -> None:
    code = "from dare_eval.tasks import get_task; print([i.uid for i in get_task('countdown').generate('test', 5, 3)])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str([item.uid for item in get_task("countdown").generate("test", 5, 3)])


@pytest.mark.wheel
def test_split_shares() -> None:
    shares = Counter(split_of(uid_of("x", str(i))) for i in range(20_000))
    assert shares["train"] / 20_000 == pytest.approx(0.8, abs=0.01)
    assert shares["test"] / 20_000 == pytest.approx(0.1, abs=0.01)


@pytest.mark.wheel
def test_a_split_can_be_exhausted_exactly() -> None:
    """Two-digit numbers sort: the three splits together hold all hundred problems."""
    task = get_task("sort", {"digits": 2})
    every = Counter(split_of(uid_of("sort", f"{i:02}")) for i in range(100))
    found = [item.prompt for split in SPLITS for item in task.generate(split, every[split], 0)]
    assert sorted(found) == [f"{i:02}>" for i in range(100)]
    with pytest.raises(ValueError, match=f"too few test problems: expected 100, but after {every['test']} no new"):
        task.generate("test", 100, 0)


@pytest.mark.wheel
def test_other_seeds_give_other_items() -> None:
    task = get_task("sort")
    assert not {i.uid for i in task.generate("test", 50, 0)} & {i.uid for i in task.generate("test", 50, 1)}


@pytest.mark.wheel
def test_numpy_seeds_are_seeds() -> None:
    task = get_task("sort")
    assert task.generate("test", 5, cast(int, np.int64(3))) == task.generate("test", 5, 3)


@pytest.mark.wheel
def test_orders_of_one_problem_share_its_identity() -> None:
    addition = get_task("addition", {"digits": 1})
    items = [item for split in SPLITS for item in addition.generate(split, 2, 0)]
    for item in items:
        a, b = sorted(map(int, item.prompt[:-1].split("+")))
        assert item.uid == uid_of("addition", f"{a}+{b}")
    for item in get_task("countdown").generate("train", 20, 0):
        numbers = ",".join(map(str, sorted(item.data["numbers"])))
        assert item.uid == uid_of("countdown", f"{numbers}={item.data['target']}")


@pytest.mark.wheel
def test_padded_sums_have_one_length() -> None:
    items = get_task("addition", {"digits": 2, "padded": True}).generate("train", 100, 0)
    assert {len(item.answer) for item in items} == {3}
    assert get_task("addition", {"digits": 2}).verify(items[0], items[0].answer.lstrip("0")).correct in (True, False)


def _valid_grids() -> list[tuple[int, ...]]:
    """All 4×4 grids from four permutations as rows, columns and boxes checked one by one."""
    rows = list(permutations((1, 2, 3, 4)))
    grids = []
    for a, b in product(rows, rows):
        if any(x == y for x, y in zip(a, b, strict=True)) or len({*a[:2], *b[:2]}) < 4:
            continue
        for c, d in product(rows, rows):
            grid = (a, b, c, d)
            if len({*c[:2], *d[:2]}) == 4 and all(len({row[i] for row in grid}) == 4 for i in range(4)):
                grids.append((*a, *b, *c, *d))
    return grids


@pytest.mark.wheel
def test_sudoku_uniqueness_by_independent_brute_force() -> None:
    grids = ["".join(map(str, grid)) for grid in _valid_grids()]
    assert sorted(grids) == solutions("0" * 16)
    assert len(grids) == 288
    for blanks in (1, 6, 10):
        for item in get_task("sudoku4", {"blanks": blanks}).generate("test", 40, 5):
            puzzle = item.data["puzzle"]
            assert puzzle.count("0") == blanks
            fitting = [g for g in grids if all(p in ("0", c) for p, c in zip(puzzle, g, strict=True))]
            assert fitting == [item.answer] == solutions(puzzle)


@pytest.mark.wheel
def test_solver_finds_every_solution() -> None:
    assert len(solutions("0000040221434321")) == 2
    assert len(solutions("0" * 16, limit=5)) == 5
    assert solutions("1100" + "0" * 12) == []


@pytest.mark.wheel
def test_chance_levels() -> None:
    """Sort and addition by enumeration of all problems, sudoku by hand."""
    answers = Counter("".join(sorted(digits)) for digits in product("0123456789", repeat=4))
    assert get_task("sort", {"digits": 4}).chance == pytest.approx(max(answers.values()) / 10**4)
    sums = Counter(a + b for a in range(10, 100) for b in range(10, 100))
    assert get_task("addition", {"digits": 2}).chance == pytest.approx(max(sums.values()) / 90**2)
    assert get_task("sudoku4", {"blanks": 1}).chance == 1 / 4
    assert get_task("sudoku4", {"blanks": 6}).chance == 1 / 288
    assert get_task("countdown", {"numbers": 2}).chance == pytest.approx(1 / 4, abs=0.1)


@pytest.mark.wheel
def test_long_sorts_have_a_chance_too() -> None:
    """Eleven digits: one of them occurs twice."""
    assert get_task("sort", {"digits": 11}).chance == pytest.approx(comb(11, 2) * 362880 / 10**11)


@pytest.mark.wheel
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sotr", {}, "unknown task 'sotr'; did you mean sort"),
        ("sort", {"digit": 3}, "no option 'digit'; did you mean digits"),
        ("sort", {"digits": "3"}, "option `digits` of task 'sort': expected int, got '3'"),
        ("sort", {"digits": True}, "expected int, got True"),
        ("sort", {"digits": 0}, "`digits`: expected 1 to 64, got 0"),
        ("sudoku4", {"blanks": 11}, "`blanks`: expected 1 to 10, got 11"),
        ("sudoku9", {"blanks": 51}, "`blanks`: expected 1 to 50, got 51"),
        ("gsm8k", {"promt": "plain"}, "no option 'promt'; did you mean prompt"),
        ("gsm8k", {"prompt": "plian"}, "no prompt 'plian'; did you mean plain"),
        ("gsm8k", {"only": 3}, "option `only` of task 'gsm8k': expected a text, got 3"),
        ("countdown", {"numbers": 7}, "`numbers`: expected 2 to 6, got 7"),
        ("nowhere.to:Be", {}, "cannot import task 'nowhere.to:Be'"),
        ("json:loads", {}, "expected a subclass of GeneratedTask"),
    ],
)
def test_get_task_refuses(name: str, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        get_task(name, options)


@pytest.mark.wheel
def test_a_task_of_your_own_is_found_by_its_address() -> None:
    assert get_task("dare_eval.tasks.sort:Sort", {"digits": 3}) == get_task("sort", {"digits": 3})
    assert isinstance(get_task("dare_eval.tasks.sort:Sort"), GeneratedTask)


@pytest.mark.wheel
@pytest.mark.parametrize(("split", "n"), [("tset", 1), ("test", -1)])
def test_generate_refuses(split: str, n: int) -> None:
    with pytest.raises(ValueError, match=r"did you mean test|expected at least 0"):
        get_task("sort").generate(split, n, 0)


@pytest.mark.wheel
def test_draws_are_uniform_and_keyed() -> None:
    draws = Draws("test", 0)
    counts = Counter(draws.below(5) for _ in range(20_000))
    assert sorted(counts) == [0, 1, 2, 3, 4]
    assert all(count == pytest.approx(4_000, abs=250) for count in counts.values())
    assert sorted(Draws("x").shuffled(range(10))) == list(range(10))
    assert [Draws("a", 1).below(1 << 60), Draws("a", 2).below(1 << 60)] != [Draws("a", 1).below(1 << 60)] * 2
