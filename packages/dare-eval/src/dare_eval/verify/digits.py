"""Exact digits, for tasks whose whole completion is one number."""

import re
from typing import Final

from dare_eval.verify.verdict import Verdict

__all__ = ["VERSION", "digits"]

VERSION: Final = "digits/1"

_ANSWER = re.compile(r"\s*([0-9]+)\s*", re.ASCII)


def digits(completion: str, answer: str) -> Verdict:
    """Judge a completion that must be these digits and nothing else.

    White space around them is ignored. Leading zeros count (`"07"` is not `"7"`). Digits followed by other text are
    wrong; a completion that does not begin with a digit is unparsable.

    Args:
        completion: text before the first end token.
        answer: the expected digits.

    >>> digits(" 03334799", "03334799").correct
    True
    >>> digits("03334799 or so", "03334799").reason
    'text after the digits'
    """
    found = _ANSWER.match(completion)
    if found is None:
        return Verdict.unparsable("no digits" if completion.strip() else "empty completion")
    pred = found[1]
    if found.end() < len(completion):
        return Verdict.wrong("text after the digits", pred=pred)
    if pred != answer:
        return Verdict.wrong(f"expected {answer}", pred=pred)
    return Verdict.right(pred)
