"""Sudoku on a 9×9 grid."""

from dataclasses import dataclass
from functools import cache
from typing import Final

from dare_eval.tasks.base import GeneratedTask, Item, check_range, uid_of
from dare_eval.tasks.draws import Draws
from dare_eval.verify.sudoku import VERSION, sudoku, units
from dare_eval.verify.verdict import Verdict

__all__ = ["Sudoku9", "count_solutions"]

_SIDE: Final = 9
_CELLS: Final = 81
_MAX_BLANKS: Final = 50  # beyond that, emptying cells in one random order often gets stuck
_ALL: Final = 0b1111111110


@dataclass(frozen=True)
class Sudoku9(GeneratedTask):
    """81 digits and `>` → 81 digits: fill the zeros, keep the other digits.

    Every puzzle has exactly one solution, proved by exhaustive search. The verifier takes the digits bare or inside an
    `<answer>` pair.
    Canonical form: the solution grid, so splits share no solutions.
    Chance: filling the blanks at random, 9^−blanks.

    >>> item = Sudoku9(blanks=30).generate("test", 1, seed=0)[0]
    >>> item.prompt.count("0"), count_solutions(item.prompt.rstrip(">"))
    (30, 1)
    """

    blanks: int = 40

    name = "sudoku9"
    version = "1"
    verifier = VERSION
    alphabet = "0123456789>"

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
        """Of filling the blanks at random."""
        return 9.0**-self.blanks

    def draw(self, draws: Draws) -> Item | None:
        """A random solution grid, emptied cell by cell in a random order as long as only it fits."""
        solution = _solution(draws)
        grid, blanks = list(solution), 0
        for cell in draws.shuffled(range(_CELLS)):
            if blanks == self.blanks:
                break
            grid[cell] = 0
            if count_solutions("".join(map(str, grid)), limit=2) == 1:
                blanks += 1
            else:
                grid[cell] = solution[cell]
        if blanks < self.blanks:
            return None
        puzzle, solved = "".join(map(str, grid)), "".join(map(str, solution))
        return Item(uid_of(self.name, solved), f"{puzzle}>", solved, {"puzzle": puzzle, "solution": solved})

    def foretell(self, draws: Draws) -> int:
        """Of the solution, which is drawn first."""
        return uid_of(self.name, "".join(map(str, _solution(draws))))

    def verify(self, item: Item, completion: str) -> Verdict:
        """Any complete grid that keeps the givens."""
        return sudoku(completion, item.data["puzzle"], item.data["solution"], require_tag=False)


def count_solutions(puzzle: str, limit: int = 2) -> int:
    """How many grids complete a 9×9 puzzle, counted up to a limit, by exhaustive search.

    Args:
        puzzle: 81 digits, 0 = empty.
        limit: stop there; two are enough to disprove uniqueness.

    >>> count_solutions("0" * 81, limit=3)
    3
    """
    grid = [int(digit) for digit in puzzle]
    return _count(grid, [_free(grid, cell) if digit == 0 else 0 for cell, digit in enumerate(grid)], limit)


def _count(grid: list[int], free: list[int], limit: int) -> int:
    """Fill the cell with the fewest candidates with each of them, and go on."""
    empty = [cell for cell in range(_CELLS) if grid[cell] == 0]
    if not empty:
        return 1
    cell = min(empty, key=lambda cell: free[cell].bit_count())
    found = 0
    for digit in range(1, _SIDE + 1):
        if free[cell] >> digit & 1 and found < limit:
            changed = [peer for peer in _peers()[cell] if grid[peer] == 0 and free[peer] >> digit & 1]
            grid[cell] = digit
            for peer in changed:
                free[peer] ^= 1 << digit
            found += _count(grid, free, limit - found)
            for peer in changed:
                free[peer] ^= 1 << digit
            grid[cell] = 0
    return found


def _free(grid: list[int], cell: int) -> int:
    """The digits that no peer has, as bits."""
    taken = 0
    for peer in _peers()[cell]:
        taken |= 1 << grid[peer]
    return _ALL & ~taken


def _solution(draws: Draws) -> list[int]:
    """A solution grid: the standard one with digits, and rows and columns within and between bands, shuffled."""
    digits = draws.shuffled(range(1, _SIDE + 1))
    rows, columns = _lines(draws), _lines(draws)
    return [digits[(3 * (row % 3) + row // 3 + column) % _SIDE] for row in rows for column in columns]


def _lines(draws: Draws) -> list[int]:
    """Rows, or columns, in a random order that keeps bands together."""
    return [3 * band + i for band in draws.shuffled(range(3)) for i in draws.shuffled(range(3))]


@cache
def _peers() -> list[set[int]]:
    return [set().union(*(unit for unit in units(_CELLS) if cell in unit)) - {cell} for cell in range(_CELLS)]
