"""Numbers, mathematics, letters and layout: golden rows, hand-made cases, and text that means harm."""

import json
import random
import time
from pathlib import Path

import pytest

from dare_eval.testing import check_verdict, hostile_texts
from dare_eval.verify import MathVerifier, Verdict, choice, gsm8k, gsm8k_label, math, reasoned_answer
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


def test_a_process_that_hangs_or_swells_is_replaced(tmp_path):
    slow = r"\boxed{" + "+".join(rf"\sqrt{{{p}+\sqrt{{{p + 2}}}}}" for p in range(2, 20)) + "}"
    with MathVerifier(seconds=0.05) as verify:
        first = verify(slow, r"\sqrt{1+\sqrt{3}}+1")
        assert first.status == "unparsable"
        assert "not decided within 0.05 s" in first.reason
    with MathVerifier() as verify:
        assert verify(r"\boxed{x+1}", "1+x").correct
        process = verify._process
        process.kill()
        process.wait()
        assert verify(r"\boxed{x+2}", "2+x").correct
        assert verify._process.pid != process.pid
    assert verify._process is None


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
        ("The answer is apple", "unparsable", None),
        ("", "unparsable", None),
    ],
)
def test_letters(text, status, pred):
    verdict = choice(text, "A")
    check_verdict(verdict)
    assert verdict.status == status
    assert pred is None or verdict.pred == pred


def test_the_answer_of_a_choice_is_an_option():
    with pytest.raises(ValueError, match=r"expected an answer of \['A', 'B', 'C', 'D'\], got 'E'"):
        choice("A", "E")


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
]
PURE = {
    "gsm8k": lambda text: gsm8k(text, "5", mode="flexible"),
    "choice": lambda text: choice(text, "A"),
    "layout": reasoned_answer,
}


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


@pytest.mark.parametrize("piece", PIECES)
def test_a_million_characters_of_one_piece(piece):
    text = (piece * (10**6 // len(piece) + 1))[: 10**6]
    for verify in PURE.values():
        began = time.monotonic()
        check_verdict(verify(text))
        assert time.monotonic() - began < 2


def test_strange_mathematics_gets_a_verdict_in_time():
    with MathVerifier(seconds=1.0, memory=1 << 30) as verify:
        for text in strange("math", 200, longest=12):
            for completion in (text, rf"\boxed{{{text}}}") if len(text) < 1000 else (text,):
                began = time.monotonic()
                verdict = verify(completion, r"\frac{x^2+1}{2}")
                assert time.monotonic() - began < 10  # a killed process starts anew
                check_verdict(verdict)
                assert isinstance(verdict, Verdict)
