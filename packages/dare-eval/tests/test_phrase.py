"""Short answers in words."""

import pytest

from dare_eval.testing import check_verdict
from dare_eval.verify import phrase

pytestmark = pytest.mark.wheel


@pytest.mark.parametrize(
    ("text", "answer", "status", "correct"),
    [
        ("Think. So the answer is (B).", "(B)", "ok", True),
        ("So the answer is B.", "(B)", "ok", True),
        ("The answer is: **Yes**", "Yes", "ok", True),
        ("Answer: no\nThe answer is yes.", "yes", "ok", True),
        ("the answer is not clear. The answer is 3.14", "3.14", "ok", True),
        ("The answer is apple pear. That is all.", "apple pear", "ok", True),
        (r"so \boxed{\text{False}}", "False", "ok", True),
        ("True", "True", "ok", True),
        ("false", "True", "ok", False),
        ("The answer is (A) or (B).", "(A)", "ok", False),
        ("> ) }", "> ) }", "ok", True),
        ("a line\nand another", "a line", "unparsable", None),
        ("The answer is ", "x", "unparsable", None),
        ("", "x", "unparsable", None),
        ("word " * 200, "word", "unparsable", None),
    ],
)
def test_phrases(text: str, answer: str, status: str, correct: bool | None) -> None:
    verdict = phrase(text, answer)
    check_verdict(verdict)
    assert (verdict.status, verdict.correct) == (status, correct)


def test_an_empty_answer_is_a_bad_row() -> None:
    with pytest.raises(ValueError, match="expected an answer of at least one word"):
        phrase("yes", " . ")
