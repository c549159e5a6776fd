"""Integer arithmetic as models write it, read by a recursive-descent parser into exact fractions.

    sum    = term  { ("+" | "-") term }
    term   = factor { ("*" | "/") factor }
    factor = integer | "(" sum ")" | "-" factor        (the last only with allow_unary_minus)

No powers, no floor division, no names; length, depth and digits are bounded before anything is computed.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

__all__ = ["MAX_DEPTH", "MAX_DIGITS", "MAX_LENGTH", "Expression", "ExpressionError", "parse"]

MAX_LENGTH: Final = 1_000
MAX_DEPTH: Final = 50
MAX_DIGITS: Final = 12

_TOKEN = re.compile(r"\s*([0-9]+|[-+*/()])", re.ASCII)


class ExpressionError(ValueError):
    """The text is no expression of the grammar."""


@dataclass(frozen=True)
class Expression:
    """A parsed expression."""

    value: Fraction | None
    """None where it divides by zero."""
    numbers: tuple[int, ...]
    """The integers in the order of writing."""


def parse(text: str, *, allow_unary_minus: bool = False) -> Expression:
    """Parse and evaluate an expression exactly.

    Raises:
        ExpressionError: for anything outside the grammar or the limits, saying what.

    >>> parse("8/(3-8/3)")
    Expression(value=Fraction(24, 1), numbers=(8, 3, 8, 3))
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters")
    parser = _Parser(list(_tokens(text)), allow_unary_minus)
    value = parser.sum(depth=0)
    if parser.tokens:
        raise ExpressionError(f"unexpected {parser.tokens[-1]!r}")
    return Expression(value, tuple(parser.numbers))


def _tokens(text: str) -> Iterator[str]:
    at, text = 0, text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ExpressionError(f"unexpected {text[at:].lstrip()[:1]!r}")
        if len(found[1]) > MAX_DIGITS:
            raise ExpressionError(f"a number of more than {MAX_DIGITS} digits")
        yield found[1]
        at = found.end()


class _Parser:
    """One pass over the tokens, which are kept reversed so that the next one is popped from the end."""

    def __init__(self, tokens: list[str], allow_unary_minus: bool) -> None:
        self.tokens = tokens[::-1]
        self.allow_unary_minus = allow_unary_minus
        self.numbers: list[int] = []

    def _take(self, allowed: str) -> str | None:
        return self.tokens.pop() if self.tokens and self.tokens[-1] in tuple(allowed) else None

    def sum(self, depth: int) -> Fraction | None:
        value = self.term(depth)
        while operator := self._take("+-"):
            value = _apply(operator, value, self.term(depth))
        return value

    def term(self, depth: int) -> Fraction | None:
        value = self.factor(depth)
        while operator := self._take("*/"):
            value = _apply(operator, value, self.factor(depth))
        return value

    def factor(self, depth: int) -> Fraction | None:
        if depth > MAX_DEPTH:
            raise ExpressionError(f"nested deeper than {MAX_DEPTH}")
        if self._take("("):
            value = self.sum(depth + 1)
            if not self._take(")"):
                raise ExpressionError("a parenthesis is not closed")
            return value
        if self.allow_unary_minus and self._take("-"):
            return _apply("-", Fraction(0), self.factor(depth + 1))
        if not self.tokens or not self.tokens[-1].isdigit():
            raise ExpressionError(f"expected a number, got {self.tokens[-1]!r}" if self.tokens else "it ends too early")
        self.numbers.append(int(self.tokens.pop()))
        return Fraction(self.numbers[-1])


def _apply(operator: str, left: Fraction | None, right: Fraction | None) -> Fraction | None:
    if left is None or right is None or (operator == "/" and right == 0):
        return None
    match operator:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case _:
            return left / right
