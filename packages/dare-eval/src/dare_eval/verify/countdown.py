"""Countdown: reach a target with given numbers and + - * /."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from dare_eval.verify.expression import ExpressionError, parse
from dare_eval.verify.tags import last_answer
from dare_eval.verify.verdict import Verdict

__all__ = ["SHAPED", "VERSION", "countdown"]

VERSION: Final = "countdown/1"
SHAPED: Final = 0.1
"""Score of a well-formed expression over the right numbers with a wrong value."""


def countdown(
    completion: str,
    numbers: Sequence[int],
    target: int,
    *,
    allow_subset: bool = False,
    allow_unary_minus: bool = False,
) -> Verdict:
    """Judge the expression in the last complete `<answer>` pair, in exact arithmetic.

    Score 1 if it uses the numbers and equals the target, 0.1 if only its value is wrong, else 0.

    Args:
        completion: text before the first end token.
        numbers: the given numbers; each must be used exactly once.
        target: the value to reach.
        allow_subset: let numbers be left unused.
        allow_unary_minus: accept `-2+3`.

    >>> countdown("<answer>8/(3-8/3)</answer>", [3, 3, 8, 8], 24).correct
    True
    >>> countdown("<answer>8*3</answer>", [3, 3, 8, 8], 24).reason
    'uses 3, 8, expected 3, 3, 8, 8'
    """
    answer = last_answer(completion)
    if not answer:
        return Verdict.unparsable("no complete <answer>…</answer>" if answer is None else "empty <answer>")
    try:
        expression = parse(answer, allow_unary_minus=allow_unary_minus)
    except ExpressionError as error:
        return Verdict.unparsable(f"no expression: {error}", pred=answer)
    used, given = Counter(expression.numbers), Counter(numbers)
    if not (used <= given if allow_subset else used == given):
        return Verdict.wrong(f"uses {_listed(used)}, expected {_listed(given)}", pred=answer)
    if expression.value is None:
        return Verdict.wrong("division by zero", pred=answer)
    if expression.value != target:
        return Verdict.wrong(f"equals {expression.value}, expected {target}", pred=answer, score=SHAPED)
    return Verdict.right(answer)


def _listed(numbers: Counter[int]) -> str:
    shown = [str(n) for n in sorted(numbers.elements())]
    return ", ".join(shown[:12]) + (", …" if len(shown) > 12 else "")
