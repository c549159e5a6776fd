"""Sudoku with square boxes: 4×4, 9×9."""

import re
from collections.abc import Iterator
from math import isqrt
from typing import Final

from dare_eval.verify.tags import last_answer
from dare_eval.verify.verdict import Verdict

__all__ = ["VERSION", "sudoku", "units"]

VERSION: Final = "sudoku/1"

_SPACE = re.compile(r"\s+")
_GRID = re.compile(r"[0-9]+", re.ASCII)


def sudoku(completion: str, puzzle: str, solution: str | None = None, *, require_tag: bool = True) -> Verdict:
    """Judge a filled grid: givens kept, every row, column and box complete. Any such grid is solved.

    `parts` holds `solved` and, where a solution is given, `cell_acc`: the share of empty cells that equal it (1 for
    another valid grid). The score is `solved`; `cell_acc` alone would reward a constant digit.

    Args:
        completion: text before the first end token; the digits row by row, white space ignored.
        puzzle: one digit per cell, 0 = empty.
        solution: a solution of it, for `cell_acc` only.
        require_tag: the grid stands in the last `<answer>` pair. If False, a completion without a complete pair is
            read as the grid itself.

    >>> sudoku("<answer>1234 3412 2143 4321</answer>", "0204301001404001").correct
    True
    >>> sudoku("1234341221434312", "0204301001404001", require_tag=False).reason
    'overwrites a given'
    """
    answer = last_answer(completion)
    if answer is None and not require_tag:
        answer = completion
    if answer is None:
        return Verdict.unparsable("no complete <answer>…</answer>", parts=_parts(False, 0.0, solution))
    grid = _SPACE.sub("", answer)
    if len(grid) != len(puzzle) or not _GRID.fullmatch(grid):
        reason = f"expected {len(puzzle)} digits and nothing else" if grid else "empty answer"
        return Verdict.unparsable(reason, pred=grid, parts=_parts(False, 0.0, solution))
    fault = _fault(grid, puzzle)
    if fault is None:
        return Verdict.right(grid, parts=_parts(True, 1.0, solution))
    return Verdict.wrong(fault, pred=grid, parts=_parts(False, _cell_accuracy(grid, puzzle, solution), solution))


def units(cells: int) -> Iterator[list[int]]:
    """The cell indices of every row, column and box of a grid with this many cells."""
    side = isqrt(cells)
    box = isqrt(side)
    for i in range(side):
        yield [i * side + j for j in range(side)]
        yield [j * side + i for j in range(side)]
        corner = (i // box) * box * side + (i % box) * box
        yield [corner + r * side + c for r in range(box) for c in range(box)]


def _fault(grid: str, puzzle: str) -> str | None:
    if any(given not in ("0", filled) for given, filled in zip(puzzle, grid, strict=True)):
        return "overwrites a given"
    wanted = [str(d + 1) for d in range(isqrt(len(puzzle)))]
    if any(sorted(grid[i] for i in unit) != wanted for unit in units(len(puzzle))):
        return "a row, column or box is not complete"
    return None


def _cell_accuracy(grid: str, puzzle: str, solution: str | None) -> float:
    empty = [i for i, given in enumerate(puzzle) if given == "0"]
    return sum(grid[i] == solution[i] for i in empty) / len(empty) if solution and empty else 0.0


def _parts(solved: bool, cell_accuracy: float, solution: str | None) -> dict[str, float]:
    return {"solved": float(solved)} | ({"cell_acc": cell_accuracy} if solution else {})
