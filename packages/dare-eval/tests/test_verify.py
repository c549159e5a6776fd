"""Verifiers against the golden rows, hostile text and hand-made cases."""

import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dare_eval.testing import check_verdict
from dare_eval.verify import Verdict, countdown, digits, sudoku, visible
from dare_eval.verify.expression import ExpressionError, parse
from dare_eval.verify.sudoku import SYMBOLS, units
from dare_eval.verify.tags import last_answer

pytestmark = pytest.mark.wheel

SOLUTION_9 = "534678912672195348198342567859761423426853791713924856961537284287419635345286179"


def _agrees(verdict: Verdict, expected: dict, why: str) -> None:
    check_verdict(verdict)
    assert (verdict.correct is True) == expected["correct"], why
    assert verdict.status in expected["status"].split("|"), why
    if "score" in expected:
        assert verdict.score == pytest.approx(expected["score"], abs=1e-9), why
    assert verdict.score <= expected.get("score_max", 1) + 1e-9, why
    assert verdict.parts == pytest.approx(expected.get("parts", {}), abs=1e-9), why


def test_golden_countdown(golden: Callable) -> None:
    rows = golden("countdown")
    assert len(rows) == 28
    for row in rows:
        verdict = countdown(row["completion"], row["numbers"], row["target"], **row.get("options", {}))
        _agrees(verdict, row["expected"], row["why"])


def test_golden_sudoku(golden: Callable) -> None:
    rows = golden("sudoku")
    assert len(rows) == 17
    for row in rows:
        _agrees(sudoku(row["completion"], row["puzzle"], row["solution"]), row["expected"], row["why"])


def test_golden_text_boundary(golden: Callable) -> None:
    """Each distinct piece of text is one id; the special tokens have ids of their own."""
    rows = golden("text_boundary")
    assert len(rows) == 9
    special = {"[EOS]": 0, "[PAD]": 1, "[MASK]": 2}
    for row in rows:
        vocabulary = special | {piece: 10 + i for i, piece in enumerate(row["pieces"]) if piece not in special}
        text = {i: piece for piece, i in vocabulary.items()}
        ids = [vocabulary[piece] for piece in row["pieces"]]
        padding = [1] * 2000 if "[PAD]" in row["pieces"][-1:] else []
        if row["expected"].get("error"):
            with pytest.raises(ValueError, match="mask id 2 at position 2"):
                visible(ids, eos_ids=[0], pad_id=1, mask_id=2)
            continue
        seen = visible(ids + padding, eos_ids=[0], pad_id=1, mask_id=2)
        completion = "".join(text[i] for i in seen.ids)
        assert completion == row["expected"]["text"], row["why"]
        assert seen.truncated == (0 not in ids)
        if row["expected"].get("reason_required"):
            assert digits(completion, "7").reason == "empty completion"


def test_padding_that_is_the_end_token_ends_the_text() -> None:
    assert visible([0, 5], eos_ids=[0], pad_id=0, mask_id=2).ids == []
    assert visible([5, 0, 0], eos_ids=[0], pad_id=0, mask_id=2).ids == [5]


def test_a_mask_after_the_end_token_does_not_matter() -> None:
    assert visible([5, 0, 2], eos_ids=[0], mask_id=2).ids == [5]


@pytest.mark.parametrize(
    ("completion", "correct", "reason"),
    [
        ("0337", True, ""),
        (" 0337\r\n", True, ""),
        ("337", False, "expected 0337"),
        ("0337 and more", False, "text after the digits"),
        ("0337<answer>", False, "text after the digits"),
        ("3370", False, "expected 0337"),
        ("0 3 3 7", False, "text after the digits"),
        ("", None, "empty completion"),
        ("\n", None, "empty completion"),
        ("answer: 0337", None, "no digits"),
        ("-0337", None, "no digits"),
        ("٠٣٣٧", None, "no digits"),
    ],
)
def test_digits(completion: str, correct: bool | None, reason: str) -> None:
    verdict = digits(completion, "0337")
    check_verdict(verdict)
    assert (verdict.correct, verdict.reason) == (correct, reason)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer>", "1"),
        ("<answer>\r\n1\r\n</answer>", "1"),
        ("<answer>1</answer><answer>2", "1"),
        ("<answer>1</answer></answer></answer>", "1"),
        ("<answer>0<answer>1</answer></answer>", "1"),
        ("</answer><answer>", None),
        ("<answer>1", None),
        ("1</answer>", None),
        ("<answer></answer>", ""),
        ("", None),
    ],
)
def test_last_answer(text: str, answer: str | None) -> None:
    assert last_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("8-3-2", 3),
        ("2+3*4", 14),
        ("(2+3)*4", 20),
        ("8/4/2", 1),
        ("8/(4/2)", 4),
        ("1/3", Fraction(1, 3)),
        (" ( 1 + 2 ) ", 3),
        ("5/(3-3)", None),
        ("1+5/(3-3)*0", None),
        ("007", 7),
    ],
)
def test_parse(text: str, value: int | Fraction | None) -> None:
    assert parse(text).value == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "ends too early"),
        ("2+", "ends too early"),
        ("(2", "not closed"),
        ("2)", "unexpected '\\)'"),
        ("2 3", "unexpected '3'"),
        ("2(3)", "unexpected"),
        ("2//3", "expected a number"),
        ("+2", "expected a number"),
        ("-2", "expected a number"),
        ("2.5", "unexpected '.'"),
        ("²", "unexpected"),
        ("9" * 13, "12 digits"),
        ("(" * 60 + "1" + ")" * 60, "deeper than 50"),
        ("1+" * 600 + "1", "1000 characters"),
    ],
)
def test_parse_refuses(text: str, why: str) -> None:
    with pytest.raises(ExpressionError, match=why):
        parse(text)


def test_unary_minus_binds_to_its_factor_and_counts_as_depth() -> None:
    assert parse("2--3*-4", allow_unary_minus=True).value == -10
    with pytest.raises(ExpressionError, match="deeper"):
        parse("-" * 60 + "1", allow_unary_minus=True)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 4) -> str:
    """Text of the grammar, with more parentheses and white space than needed."""
    if depth == 0 or draw(st.booleans()):
        return str(draw(st.integers(0, 99)))
    left, right = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    body = f"{left}{draw(st.sampled_from(['+', ' - ', '*', ' /']))}{right}"
    return f"({body})" if draw(st.booleans()) else body


@given(expressions())
def test_parse_agrees_with_python(text: str) -> None:
    """Python's own evaluation over fractions is the oracle; the text was made here, so it is safe."""
    wrapped = "".join(f"Fraction({part})" if part.isdigit() else part for part in _split(text))
    try:
        expected = eval(wrapped, {"Fraction": Fraction})
    except ZeroDivisionError:
        expected = None
    assert parse(text).value == expected


def _split(text: str) -> list[str]:
    return "".join(c if c.isdigit() else f" {c} " for c in text).split()


def test_subset_counts_multiplicity() -> None:
    assert countdown("<answer>3+3</answer>", [3, 3, 5], 6, allow_subset=True).correct is True
    assert countdown("<answer>3+3</answer>", [3, 5], 6, allow_subset=True).correct is False


def test_sudoku_9x9_is_judged_by_the_same_rules() -> None:
    puzzle = "".join(digit if i % 3 else "0" for i, digit in enumerate(SOLUTION_9))
    assert sudoku(f"<answer>{SOLUTION_9}</answer>", puzzle).correct is True
    swapped = SOLUTION_9[3] + SOLUTION_9[1:3] + SOLUTION_9[0] + SOLUTION_9[4:]
    assert sudoku(f"<answer>{swapped}</answer>", puzzle).reason == "a row, column or box is not complete"


def _grid(rows: int, columns: int) -> list[list[int]]:
    """A solved grid with boxes of this shape."""
    side = rows * columns
    return [[(columns * (r % rows) + r // rows + c) % side + 1 for c in range(side)] for r in range(side)]


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (2, 3), (3, 3), (3, 4), (4, 4), (5, 5)])
def test_sudoku_of_any_size_in_symbols_and_in_numbers(rows: int, columns: int) -> None:
    cells = [cell for row in _grid(rows, columns) for cell in row]
    wrong = [*cells[1:2], *cells[:1], *cells[2:]]
    givens = [cell if i % 3 == 2 else 0 for i, cell in enumerate(cells)]
    compact = "".join(SYMBOLS[cell] for cell in cells)
    numbers = "\n".join(str(cell) for cell in cells)
    puzzles = "".join(SYMBOLS[cell] for cell in givens).replace("0", "."), " ".join(map(str, givens))
    for puzzle in puzzles:
        for answer in (compact, compact.lower(), numbers):
            verdict = sudoku(f"<answer>{answer}</answer>", puzzle, numbers)
            check_verdict(verdict)
            assert verdict.correct is True
            assert verdict.parts == {"solved": 1.0, "cell_acc": 1.0}
        swapped = sudoku(f"<answer>{' '.join(map(str, wrong))}</answer>", puzzle, compact)
        assert swapped.reason == "a row, column or box is not complete"
        empty = givens.count(0)
        assert swapped.parts["cell_acc"] == pytest.approx((empty - 2) / empty)


def test_boxes_of_another_shape_are_judged_as_such() -> None:
    wide, tall = ("".join(str(cell) for row in _grid(*shape) for cell in row) for shape in ((2, 3), (3, 2)))
    empty = "0" * 36
    assert sudoku(wide, empty, require_tag=False).correct is True
    assert sudoku(tall, empty, require_tag=False).correct is False
    assert sudoku(tall, empty, box=(3, 2), require_tag=False).correct is True
    rows = "".join(str((r + c) % 5 + 1) for r in range(5) for c in range(5))
    assert sudoku(rows, "0" * 25, box=(1, 5), require_tag=False).correct is True


@pytest.mark.parametrize(
    ("puzzle", "solution", "box", "why"),
    [
        ("0" * 15, None, None, "expected side · side cells"),
        ("", None, None, "expected side · side cells"),
        ("5" + "0" * 15, None, None, "values up to the side"),
        ("x" + "0" * 15, None, None, "expected side · side cells"),
        ("0" * 25, None, None, "no prime, got 5"),
        ("0" * 36, None, (2, 2), r"a box of 6 cells, got \(2, 2\)"),
        ("0204301001404001", "4" * 16, None, "expected a solution with the puzzle's 16 cells and givens"),
        ("0204301001404001", "1" * 15, None, "expected a solution"),
    ],
)
def test_bad_sudoku_puzzles_are_refused(
    puzzle: str, solution: str | None, box: tuple[int, int] | None, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        sudoku("<answer>1</answer>", puzzle, solution, box=box)


def test_units_of_a_4x4_grid() -> None:
    boxes = [unit for unit in units(16) if unit[1] - unit[0] == 1 and unit[2] - unit[1] == 3]
    assert boxes == [[0, 1, 4, 5], [2, 3, 6, 7], [8, 9, 12, 13], [10, 11, 14, 15]]
    assert all(sum(cell in unit for unit in units(16)) == 3 for cell in range(16))


def test_bare_grid_only_where_allowed() -> None:
    grid, puzzle = "1234341221434321", "0204301001404001"
    assert sudoku(grid, puzzle, require_tag=False).correct is True
    assert sudoku(grid, puzzle).status == "unparsable"
    assert sudoku(f"so {grid}", puzzle, require_tag=False).status == "unparsable"
    assert sudoku(f"{grid}<answer>", puzzle, require_tag=False).status == "unparsable"


@given(st.text())
def test_any_text_is_judged(text: str) -> None:
    for completion in (text, f"<answer>{text}</answer>"):
        check_verdict(digits(completion, "7"))
        check_verdict(countdown(completion, [3, 5], 15))
        check_verdict(sudoku(completion, "0204301001404001"))


@pytest.mark.parametrize("module", ["dare_eval", "dare_eval.verify", "dare_eval.tasks", "dare_eval.cli"])
def test_import_loads_no_torch(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'torch', 'transformers', 'numpy'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
