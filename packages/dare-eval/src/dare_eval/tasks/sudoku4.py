"""Sudoku on a 4×4 grid."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from dare_eval.tasks.base import GeneratedTask, Item, check_range, uid_of
from dare_eval.tasks.draws import Draws
from dare_eval.verify.sudoku import VERSION, sudoku, units
from dare_eval.verify.verdict import Verdict

__all__ = ["Sudoku4", "solutions"]

_CELLS: Final = 16
_MAX_BLANKS: Final = 10  # with fewer than six givens a single solution is too rare to be found by drawing


@dataclass(frozen=True)
class Sudoku4(GeneratedTask):
    """`0204301001404001>` → `1234341221434321`: fill the zeros, keep the other digits.

    Every puzzle has exactly one solution, proved by exhaustive search. The verifier takes the 16 digits bare or inside
    an `<answer>` pair.
    Canonical form: the puzzle grid. Only 288 solution grids exist, so splits share solutions; they never share puzzles.
    Chance: filling the blanks at random (4^−blanks) or one fixed grid (1/288), whichever is better.

    >>> Sudoku4().generate("test", 1, seed=0)[0].prompt
    '0024241301424000>'
    """

    blanks: int = 6

    name = "sudoku4"
    version = "1"
    verifier = VERSION
    alphabet = "01234>"

    def __post_init__(self) -> None:
        check_range("blanks", self.blanks, 1, _MAX_BLANKS)

    @property
    def max_prompt_chars(self) -> int:
        """The grid and `>`."""
        return _CELLS + 1

    @property
    def max_answer_chars(self) -> int:
        """The grid."""
        return _CELLS

    @property
    def chance(self) -> float:
        """The better of two blind strategies."""
        return max(4.0**-self.blanks, 1 / len(_grids()))

    def draw(self, draws: Draws) -> Item:
        """A uniform solution grid, then blanks until only this grid fits."""
        solution = draws.pick(_grids())
        while True:
            blank = set(draws.shuffled(range(_CELLS))[: self.blanks])
            puzzle = "".join("0" if i in blank else digit for i, digit in enumerate(solution))
            if len(solutions(puzzle, limit=2)) == 1:
                data = {"puzzle": puzzle, "solution": solution}
                return Item(uid_of(self.name, puzzle), f"{puzzle}>", solution, data)

    def verify(self, item: Item, completion: str) -> Verdict:
        """Any complete grid that keeps the givens."""
        return sudoku(completion, item.data["puzzle"], item.data["solution"], require_tag=False)


def solutions(puzzle: str, limit: int | None = None) -> list[str]:
    """Solve a 4×4 puzzle by exhaustive search.

    Args:
        puzzle: 16 digits, 0 = empty.
        limit: stop after so many solutions; two are enough to disprove uniqueness.

    Returns:
        Solutions in ascending order: all of them, or the first `limit`.

    >>> solutions("0000040221434321")
    ['1234341221434321', '3214143221434321']
    """
    found: list[str] = []
    for grid in _search([int(digit) for digit in puzzle]):
        found.append("".join(map(str, grid)))
        if len(found) == limit:
            break
    return found


def _search(grid: list[int]) -> Iterator[list[int]]:
    """Every completion: fill the first empty cell with each digit that none of its peers has, and go on."""
    if 0 not in grid:
        yield grid
        return
    cell = grid.index(0)
    taken = {grid[peer] for peer in _peers()[cell]}
    for digit in (1, 2, 3, 4):
        if digit not in taken:
            yield from _search([*grid[:cell], digit, *grid[cell + 1 :]])


@cache
def _peers() -> list[set[int]]:
    return [set().union(*(unit for unit in units(_CELLS) if cell in unit)) - {cell} for cell in range(_CELLS)]


@cache
def _grids() -> list[str]:
    return solutions("0" * _CELLS)
