"""Sudoku of any size: 4×4, 6×6, 9×9, 16×16."""

import re
from collections.abc import Iterator, Sequence
from math import isqrt
from typing import Final

from dare_eval.verify.tags import last_answer
from dare_eval.verify.verdict import Verdict

__all__ = ["VERSION", "sudoku", "units"]

VERSION: Final = "sudoku/1"
SYMBOLS: Final = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
"""The values of cells that are one character each; 0 = empty."""

_NINE: Final = 81
"""Up to this many cells, values are digits."""
_SPACE: Final = re.compile(r"\s+")
_NUMBERS: Final = re.compile(r"[0-9]{1,4}(?:\s+[0-9]{1,4})+", re.ASCII)
_DIGITS: Final = re.compile(r"[0-9]+", re.ASCII)
_LETTERS: Final = re.compile(r"[0-9A-Z]+", re.ASCII | re.IGNORECASE)


def sudoku(
    completion: str,
    puzzle: str,
    solution: str | None = None,
    *,
    box: tuple[int, int] | None = None,
    require_tag: bool = True,
) -> Verdict:
    """Judge a filled grid: givens kept, every row, column and box complete. Any such grid is solved.

    Cells stand row by row, white space ignored: one character each (1–9, then A–Z), or numbers with white space
    between. The size is the puzzle's. `parts` holds `solved` and, where a solution is given, `cell_acc`: the share of
    empty cells that equal it (1 for another valid grid). The score is `solved`; `cell_acc` alone would reward a
    constant digit.

    Args:
        completion: text before the first end token.
        puzzle: side · side cells, 0 or . = empty.
        solution: a solution of it, for `cell_acc` only.
        box: rows and columns of a box; None takes the squarest, 2×3 for 6×6.
        require_tag: the grid stands in the last `<answer>` pair. If False, a completion without a complete pair is
            read as the grid itself.

    Raises:
        ValueError: for a puzzle that is no square, boxes that do not fill it, or a solution of another puzzle.

    >>> sudoku("<answer>1234 3412 2143 4321</answer>", "0204301001404001").correct
    True
    >>> sudoku("1234341221434312", "0204301001404001", require_tag=False).reason
    'overwrites a given'
    """
    givens = _puzzle(puzzle)
    shape = _box(isqrt(len(givens)), box)
    wanted = None if solution is None else _solution(solution, givens)
    answer = last_answer(completion)
    if answer is None and not require_tag:
        answer = completion
    if answer is None:
        return Verdict.unparsable("no complete <answer>…</answer>", parts=_parts(False, 0.0, solution))
    grid = _cells(answer, len(givens))
    shown = _SPACE.sub("", answer)
    if grid is None:
        kind = "digits" if len(givens) <= _NINE else "symbols"
        reason = f"expected {len(givens)} {kind} and nothing else" if shown else "empty answer"
        return Verdict.unparsable(reason, pred=shown, parts=_parts(False, 0.0, solution))
    fault = _fault(grid, givens, shape)
    if fault is None:
        return Verdict.right(shown, parts=_parts(True, 1.0, solution))
    return Verdict.wrong(fault, pred=shown, parts=_parts(False, _cell_accuracy(grid, givens, wanted), solution))


def units(cells: int, box: tuple[int, int] | None = None) -> Iterator[list[int]]:
    """The cell indices of every row, column and box of a grid with this many cells.

    Args:
        cells: side · side.
        box: rows and columns of a box; None takes the squarest.

    Raises:
        ValueError: for boxes that do not fill the grid.
    """
    side = isqrt(cells)
    rows, columns = _box(side, box)
    for i in range(side):
        yield [i * side + j for j in range(side)]
        yield [j * side + i for j in range(side)]
        across = side // columns
        corner = (i // across) * rows * side + (i % across) * columns
        yield [corner + r * side + c for r in range(rows) for c in range(columns)]


def _box(side: int, box: tuple[int, int] | None) -> tuple[int, int]:
    """Rows and columns of a box."""
    if box is None:
        rows = next(r for r in range(isqrt(side), 0, -1) if side % r == 0)
        if rows == 1 and side > 1:
            raise ValueError(f"expected a side that is no prime, got {side}; give box=(rows, columns)")
        return rows, side // rows
    if min(box) < 1 or box[0] * box[1] != side:
        raise ValueError(f"expected a box of {side} cells, got {box}; give box=(rows, columns)")
    return box


def _cells(text: str, count: int) -> list[int] | None:
    """The values of so many cells, or None."""
    if _NUMBERS.fullmatch(text.strip()) and len(numbers := text.split()) == count:
        return [int(number) for number in numbers]
    compact = _SPACE.sub("", text)
    pattern = _DIGITS if count <= _NINE else _LETTERS
    if len(compact) != count or not pattern.fullmatch(compact):
        return None
    return [SYMBOLS.index(symbol) for symbol in compact.upper()]


def _puzzle(puzzle: str) -> list[int]:
    text = puzzle.replace(".", "0")
    numbers = text.split()
    square = [n for n in (len(numbers), sum(len(number) for number in numbers)) if n > 1 and isqrt(n) ** 2 == n]
    read = (_cells(text, count) for count in square)
    givens = next((cells for cells in read if cells is not None and max(cells) <= isqrt(len(cells))), None)
    if givens is None:
        raise ValueError(f"expected side · side cells with values up to the side, 0 or . = empty, got {puzzle!r}")
    return givens


def _solution(solution: str, givens: Sequence[int]) -> list[int]:
    cells = _cells(solution, len(givens))
    if cells is None or any(given not in (0, cell) for given, cell in zip(givens, cells, strict=True)):
        raise ValueError(f"expected a solution with the puzzle's {len(givens)} cells and givens, got {solution!r}")
    return cells


def _fault(grid: Sequence[int], givens: Sequence[int], box: tuple[int, int]) -> str | None:
    if any(given not in (0, filled) for given, filled in zip(givens, grid, strict=True)):
        return "overwrites a given"
    wanted = list(range(1, isqrt(len(givens)) + 1))
    if any(sorted(grid[i] for i in unit) != wanted for unit in units(len(givens), box)):
        return "a row, column or box is not complete"
    return None


def _cell_accuracy(grid: Sequence[int], givens: Sequence[int], solution: Sequence[int] | None) -> float:
    empty = [i for i, given in enumerate(givens) if given == 0]
    return sum(grid[i] == solution[i] for i in empty) / len(empty) if solution and empty else 0.0


def _parts(solved: bool, cell_accuracy: float, solution: str | None) -> dict[str, float]:
    return {"solved": float(solved)} | ({"cell_acc": cell_accuracy} if solution else {})
