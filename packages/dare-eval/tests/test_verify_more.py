"""Numbers, mathematics, letters and layout: golden rows, hand-made cases, and text that means harm."""

import json
import random
import time
import tracemalloc
from pathlib import Path

import pytest

from dare_eval.testing import check_verdict, hostile_texts
from dare_eval.verify import (
    boxed_answer,
    choice,
    countdown,
    digits,
    extract_code,
    gsm8k,
    gsm8k_label,
    instructions,
    math,
    phrase,
    reasoned_answer,
    sudoku,
)
from dare_eval.verify.boxes import last_box
from dare_eval.verify.numbers import last_number, number

pytestmark = pytest.mark.wheel

GOLDEN = Path(__file__).parent / "golden"


def rows(name):
    return [json.loads(line) for line in (GOLDEN / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def agrees(verdict, expected):
    check_verdict(verdict)
    assert (verdict.correct is True) == expected["correct"]
    assert verdict.status in expected["status"].split("|")
    if "score" in expected:
        assert verdict.score == pytest.approx(expected["score"], abs=1e-9)
    if expected.get("pred") is not None:
        assert verdict.pred == expected["pred"]


@pytest.mark.parametrize("row", rows("gsm8k"), ids=lambda row: row["id"])
def test_golden_gsm8k(row):
    if "load" in row["expected"]:
        with pytest.raises(ValueError, match=r"expected a label that is a number, got .*; drop the row"):
            gsm8k_label(row["answer"])
        return
    agrees(gsm8k(row["completion"], row["answer"], mode=row["mode"]), row["expected"])


@pytest.mark.parametrize("row", rows("math"), ids=lambda row: row["id"])
def test_golden_math(row):
    math(r"\boxed{x+1}", "1+x")  # the process is there
    began = time.monotonic()
    verdict = math(row["completion"], row["answer"])
    assert time.monotonic() - began < row["expected"].get("max_seconds", 3)
    agrees(verdict, row["expected"])


@pytest.mark.parametrize("row", rows("choice"), ids=lambda row: row["id"])
def test_golden_choice(row):
    agrees(choice(row["completion"], row["answer"], row["options"]), row["expected"])


@pytest.mark.parametrize("row", rows("format"), ids=lambda row: row["id"])
def test_golden_layout(row):
    verdict, expected = reasoned_answer(row["completion"]), row["expected"]
    check_verdict(verdict)
    low, high = expected["score_range"]
    assert low <= verdict.score <= high
    assert (verdict.correct is True) == expected["well_formed"]
    assert (verdict.score == 1) == expected["score_is_max"]
    assert bool(verdict.reason) == expected["reason_required"]


@pytest.mark.parametrize("row", rows("format_relations"), ids=lambda row: row["id"])
def test_golden_layout_relations(row):
    one, other = (reasoned_answer(row[name]).score for name in "ab")
    assert {"equal": one == other, "greater": one > other, "greater_equal": one >= other}[row["relation"]]


@pytest.mark.parametrize(
    ("text", "box"),
    [
        (r"\boxed{1} \boxed{2", "1"),
        (r"\boxed{4 then \boxed{42}", "42"),
        (r"\boxed{a\}b}", r"a\}b"),
        (r"\boxed{\boxed{3}}", r"\boxed{3}"),
        (r"\\boxed{5}", None),
        ("}}}{{{", None),
        (r"\fbox   {7}", "7"),
        (r"\boxed{}", ""),
    ],
)
def test_boxes(text, box):
    assert last_box(text) == box


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1,234.50", 1234.5),
        ("+7", 7),
        (".5", 0.5),
        ("12 km", 12),
        (r"\$ 3", 3),
        ("-3/4", -0.75),
        (r"-\frac{1}{2}", -0.5),
        ("1/0", None),
        ("12,34", None),
        ("3x", None),
        ("1e5", None),
        ("", None),
        ("٣", None),
        ("9" * 500, None),
        ("1 2", None),
    ],
)
def test_numbers(text, value):
    assert number(text) == value


def test_the_last_number_of_a_text():
    assert last_number("x1 has 3.5 of v2.0, or 1,000.") == "1,000"
    assert last_number("none, no٣ne") is None
    assert gsm8k("#### 5 (of 7)", "5", mode="flexible").correct
    assert gsm8k("so 5\n#### 12", "a solution\n#### 12", mode="flexible").correct
    assert gsm8k(r"12 \boxed{3} 12", "12", mode="flexible").correct is False


@pytest.mark.parametrize(
    ("got", "expected", "correct"),
    [
        (r"2^{2024}", r"2^{2024}", True),
        (r"2^{10}", "1024", True),
        (r"x^2y^2", r"y^2x^2", True),
        (r"e^{x^2}", r"e^{x^2}", True),
        (r"\{1,2\}", r"\{2,1\}", True),
        (r"[0,1)", r"[0,1)", True),
        (r"(0,1)", r"[0,1]", False),
        (r"xy", "yx", True),
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}", True),
        (r"10\text{ cm}", "10", True),
    ],
)
def test_math_sees_equality(got, expected, correct):
    assert (math(rf"thus \boxed{{{got}}}", expected).correct is True) == correct


TOWERS = ["9**9**9", "9^{9^9}", "(9)^(9)^9", "2^{999999}", "99999!", "((9!)!)!", "1" * 60]


@pytest.mark.parametrize("tower", TOWERS)
def test_math_refuses_what_grows(tower):
    began = time.monotonic()
    verdict = math(rf"\boxed{{{tower}}}", "5")
    assert verdict.status == "unparsable"
    assert time.monotonic() - began < 0.5


@pytest.mark.parametrize(
    ("text", "status", "pred"),
    [
        ("A", "ok", "A"),
        ("(b)", "ok", "B"),
        (r"\boxed{C}", "ok", "C"),
        (r"\boxed{\text{D}}", "ok", "D"),
        ("A is wrong, so the answer is C", "ok", "C"),
        ("Answer: A. No, wait. Answer: D", "ok", "D"),
        ("The answer is A or B", "ambiguous", None),
        ("B, C", "ambiguous", None),
        ("A good question. I do not know.", "unparsable", None),
        ("answering", "unparsable", None),
        ("The answer is a mammal.", "unparsable", None),
        ("the answer is a", "ok", "A"),
        ("The answer is (a) mammal", "ok", "A"),
        ("I choose a different approach. I choose C", "ok", "C"),
        ("Option B is correct. Option C is incorrect.", "ok", "B"),
        ("So D is the right answer, not A.", "ok", "D"),
        ("I think it is B, not A.", "ok", "B"),
        ("The answer is not A.", "unparsable", None),
        ("The answer isn't A.", "unparsable", None),
        ("A is wrong.", "unparsable", None),
        ("It is neither A nor B.", "unparsable", None),
        ("It is either A or B.", "ambiguous", None),
        ("answer is A/B", "ambiguous", None),
        ("The answer is (A), (B) and (C)", "ambiguous", None),
        (r"\boxed{A, B}", "ambiguous", None),
        (r"The answer is A. \boxed{\mathrm{(C)}}", "ok", "C"),
        (r"\boxed{D. 42}", "ok", "D"),
        (r"\boxed{42}, so the answer is \(B\)", "ok", "B"),
        ("<answer>A</answer>", "ok", "A"),
        ("`C`", "ok", "C"),
        ("The answer is “C”.", "ok", "C"),
        ("答案是C。", "ok", "C"),
        ("The answer is I think B", "ok", "B"),
        ("A's answer differs", "unparsable", None),
        ("The answer is apple", "unparsable", None),
        ("", "unparsable", None),
        ("answer" + " " * 19_000 + "!", "unparsable", None),
    ],
)
def test_letters(text, status, pred):
    began = time.monotonic()
    verdict = choice(text, "A")
    assert time.monotonic() - began < 2
    check_verdict(verdict)
    assert verdict.status == status
    assert pred is None or verdict.pred == pred


def test_the_answer_of_a_choice_is_an_option():
    with pytest.raises(ValueError, match=r"upper-case letters \['A', 'B', 'C', 'D'\], got 'E'"):
        choice("A", "E")
    with pytest.raises(ValueError, match=r"upper-case letters \['a', 'b'\], got 'a'"):
        choice("A", "a", ["a", "b"])


@pytest.mark.parametrize("letter", "ABCDEFGHIJ")
def test_every_letter_of_ten_options(letter):
    for text in (
        f"The answer is ({letter}).",
        f"The answer is {letter}",
        f"Answer: {letter}",
        letter,
        rf"\boxed{{{letter}}}",
    ):
        assert choice(text, letter, "ABCDEFGHIJ").correct is True


@pytest.mark.parametrize(
    ("pred", "reason"),
    [
        ("5 or 6", "names 5 and 6"),
        (r"5 \text{ and } 6", "names 5 and 6"),
        ("5, 6", "names 5 and 6"),
        (r"6 \quad 5", "names 6 and 5"),
    ],
)
def test_several_numbers_are_ambiguous(pred, reason):
    for verdict in (gsm8k(rf"\boxed{{{pred}}}", "5"), math(rf"\boxed{{{pred}}}", "5")):
        check_verdict(verdict)
        assert (verdict.status, verdict.reason) == ("ambiguous", reason)


@pytest.mark.parametrize(
    "pred",
    [
        "1$ $2$ $x+1",
        "$x+2$ or $x+1$",
        r"x+2\) \(x+1",
        r"\boxed{x+2}\boxed{x+1}",
        "x+2=1=2",
    ],
)
def test_several_formulas_are_ambiguous(pred):
    assert math(rf"\boxed{{{pred}}}", "x+1").status == "ambiguous"


@pytest.mark.parametrize(
    ("pred", "answer", "correct"),
    [
        ("$x+1$", "1+x", True),
        (r"\(x+1\)", "1+x", True),
        (r"\boxed{\boxed{x+1}}", "1+x", True),
        (r"\begin{pmatrix}1\\[2pt]2\end{pmatrix}", r"\begin{pmatrix}1\\[2pt]2\end{pmatrix}", True),
        ("2+3=5", "5", True),
        ("5, 6", "6,5", True),
        ("5, 5.0", "5", True),
        ("−5", "-5", True),
        (r"\$5", "5", True),
        ("A", r"\text{(A)}", True),
        ("East", r"\text{east}", True),
        ("B", r"\text{(A)}", False),
        ("x", "X", False),
    ],
)
def test_one_formula_is_read_through_its_wrapping(pred, answer, correct):
    assert math(rf"\boxed{{{pred}}}", answer).correct is correct


def test_layout_with_other_tags():
    text = "<think>add</think>\n<answer>7</answer>"
    assert reasoned_answer(text, reasoning="think").score == 1
    assert reasoned_answer(text).score < 1
    for names in (("answer", "answer"), ("<think>", "answer"), ("", "answer")):
        with pytest.raises(ValueError, match="expected two different tag names without brackets, got"):
            reasoned_answer(text, reasoning=names[0], answer=names[1])


@pytest.mark.parametrize(
    ("text", "score", "reason"),
    [
        (r"so \boxed{7}", 1, ""),
        (r"\boxed{7} \boxed{7}", 0.5, "expected one box, got 2"),
        (r"\boxed{ }", 0, "empty box"),
        (r"\boxed{7", 0, "no closed box"),
    ],
)
def test_a_box_as_form(text, score, reason):
    verdict = boxed_answer(text)
    check_verdict(verdict)
    assert (verdict.score, verdict.reason) == (score, reason)


PIECES = [
    *("\\boxed{", "}", "{", "\\frac", "^", "**", "9" * 50, "\\text{", "<answer>", "</answer>", "<reasoning>"),
    *(
        "The answer is ",
        "A",
        "####",
        "-",
        ",",
        ".",
        "\\sqrt",
        "(",
        ")",
        "\n",
        "\x00",
        "é",
        "𝟗",
        "\u202e",
        "\ud800",
        "!",
    ),
    *(" ", "=", "or ", ", ", "```python\n", "[BEGIN]", "def f(", "1", "$", "\\(", "\\", "option ", " is correct"),
]
PURE = {
    "gsm8k": lambda text: gsm8k(text, "5", mode="flexible"),
    "choice": lambda text: choice(text, "A"),
    "layout": reasoned_answer,
    "box": boxed_answer,
    "digits": lambda text: digits(text, "03334799"),
    "countdown": lambda text: countdown(text, [3, 5, 25], 60, allow_subset=True, allow_unary_minus=True),
    "sudoku": lambda text: sudoku(text, "0204301001404001", "1234341221434321", require_tag=False),
    "sudoku 16": lambda text: sudoku(text, "0" * 256, require_tag=False),
    "phrase": lambda text: phrase(text, "no such words"),
    "instructions": lambda text: instructions(text, ["punctuation:no_comma", "startend:quotation"], [{}, {}]),
}
NEVER_RIGHT = {"digits", "countdown", "sudoku", "sudoku 16"}


def strange(seed, count, longest=40):
    """Adversarial texts; the last one has a million characters."""
    draw = random.Random(seed)
    for _ in range(count - 1):
        yield "".join(draw.choice(PIECES) for _ in range(draw.randrange(longest)))
    piece = draw.choice(PIECES)
    yield (piece * (10**6 // len(piece) + 1))[: 10**6]


@pytest.mark.parametrize("name", PURE)
def test_strange_texts_get_a_verdict_in_time(name, fuzz_count):
    for text in [*hostile_texts(40, seed=1), *strange(name, fuzz_count(2_000))]:
        began = time.monotonic()
        verdict = PURE[name](text)
        assert time.monotonic() - began < 2
        check_verdict(verdict)
        assert verdict.correct is not True or name not in NEVER_RIGHT
        assert verdict.correct is not True or len(text) < 10**6 or name in ("gsm8k", "layout", "box")


def long_texts(piece):
    """A million characters of one piece, bare and where answers stand."""
    long = (piece * (10**6 // len(piece) + 1))[: 10**6]
    return long, f"answer{long}!", rf"\boxed{{{long}}}", f"<answer>{long}</answer>"


@pytest.mark.parametrize("piece", PIECES)
def test_a_million_characters_of_one_piece(piece):
    for text in long_texts(piece):
        for verify in PURE.values():
            began = time.process_time()
            check_verdict(verify(text))
            assert time.process_time() - began < 2
        began = time.process_time()
        extract_code(text)
        assert time.process_time() - began < 2


@pytest.mark.parametrize("piece", ["{", "<answer>", "1+", r"\boxed{}", "A "])
def test_verifiers_need_little_memory(piece):
    for text in long_texts(piece):
        for verify in PURE.values():
            tracemalloc.start()
            verify(text)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 64 << 20
