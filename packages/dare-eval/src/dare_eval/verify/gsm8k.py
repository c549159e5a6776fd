"""A number as the answer to a word problem (GSM8K, arXiv:2110.14168)."""

from fractions import Fraction
from typing import Final, Literal

from dare_eval.verify.boxes import last_box
from dare_eval.verify.numbers import alternatives, first_number, last_number, number
from dare_eval.verify.verdict import Verdict

__all__ = ["VERSION", "gsm8k", "gsm8k_label"]

VERSION: Final = "gsm8k/1"


def gsm8k_label(answer: str | None) -> Fraction:
    """The value of a label, which may be a whole solution that ends with `#### 42`.

    Raises:
        ValueError: for a missing label or one that is no number: drop the row when the data is read.
    """
    value = None if answer is None else number(answer.rpartition("####")[2].strip())
    if value is None:
        raise ValueError(f"expected a label that is a number, got {answer!r}; drop the row")
    return value


def gsm8k(completion: str, answer: str, *, mode: Literal["strict", "flexible"] = "strict") -> Verdict:
    r"""Judge the number in the last closed box, in exact arithmetic.

    Args:
        completion: text before the first end token.
        answer: the expected number, or a solution that ends with it behind `####`.
        mode: `strict` wants a box; `flexible` takes the number behind the last `####`, or the last one of the text,
            where there is none.

    Raises:
        ValueError: for a label that is no number.

    >>> gsm8k(r"so \boxed{2,125}", "2125").correct, gsm8k("it is 42", "42").status
    (True, 'unparsable')
    """
    expected = gsm8k_label(answer)
    pred = last_box(completion)
    if pred is None and mode == "flexible":
        marked = completion.rpartition("####")
        pred = first_number(marked[2]) if marked[1] else None
        pred = last_number(completion) if pred is None else pred
    if not pred:
        missing = "no closed box" if mode == "strict" else "no number"
        return Verdict.unparsable(missing if pred is None else "empty box")
    value = number(pred)
    if several := alternatives(pred):
        return Verdict.ambiguous(f"names {' and '.join(several)}", pred=pred)
    if value is None:
        return Verdict.wrong("not a number", pred=pred)
    if value != expected:
        return Verdict.wrong(f"expected {expected}", pred=pred)
    return Verdict.right(pred)
