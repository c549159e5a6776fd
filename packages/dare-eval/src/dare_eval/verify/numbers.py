r"""Plain numbers in answers: `1,234`, `-0.50`, `\frac{3}{4}`, with what people write around them."""

import re
from fractions import Fraction
from typing import Final

__all__ = ["alternatives", "first_number", "last_number", "number"]

MAX_DIGITS: Final = 400

_WRAPPED: Final = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_NOISE: Final = re.compile(r"\\(?:left|right|displaystyle|[,;:! ])|\\?[$%]|[€£¥]|\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\?°")
_DIGITS: Final = r"[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+"
_PLAIN: Final = re.compile(rf"([+-]?)\s*({_DIGITS})?(\.[0-9]+)?", re.ASCII)
_RATIO: Final = re.compile(
    r"([+-]?)\s*(?:\\[dt]?frac\s*\{\s*([0-9]+)\s*\}\s*\{\s*([0-9]+)\s*\}|([0-9]+)\s*/\s*([0-9]+))"
)
_UNIT: Final = re.compile(r"\s+[^\W\d_]+(?:[ ./²³-][^\W\d_]+)*\.?")
_BETWEEN: Final = re.compile(
    r"\s*(?:[,;&]|\\q?quad|\\(?:text|mathrm|mbox)\s*\{\s*(?:or|and)\s*\}|(?<![A-Za-z])(?:or|and)(?![A-Za-z]))\s*"
)
_IN_TEXT: Final = re.compile(rf"(?<![\w.])-?(?:{_DIGITS})(?:\.[0-9]+)?(?![0-9])", re.ASCII)


def number(text: str) -> Fraction | None:
    r"""The value of a text that is one number, perhaps with a currency or percent sign or a unit behind it; else None.

    >>> number(r"12 \text{ metres}"), number("$2,125.50"), number(r"\frac{6}{8}"), number("hour5")
    (Fraction(12, 1), Fraction(4251, 2), Fraction(3, 4), None)
    """
    if len(text) > MAX_DIGITS:
        return None
    plain = _NOISE.sub("", _WRAPPED.sub(r"\1", text)).replace("−", "-").strip()
    match = _RATIO.match(plain)
    if match is not None:
        upper, lower = (match[2], match[3]) if match[2] else (match[4], match[5])
        if not _ends(plain[match.end() :]) or int(lower) == 0:
            return None
        return Fraction(int(upper), int(lower)) * (-1 if match[1] == "-" else 1)
    match = _PLAIN.match(plain)
    if match is None or not (match[2] or match[3]) or not _ends(plain[match.end() :]):
        return None
    return Fraction(f"{match[1]}{(match[2] or '0').replace(',', '')}{match[3] or ''}")


def alternatives(text: str) -> list[str]:
    r"""The numbers of a text that names several unlike ones side by side, or nothing.

    >>> alternatives(r"5 \text{ or } 6"), alternatives("1,234"), alternatives("5, 5.0"), alternatives("(1,2)")
    (['5', '6'], [], [], [])
    """
    if len(text) > MAX_DIGITS or number(text) is not None:
        return []
    pieces = _BETWEEN.split(text.strip())
    values = {number(piece) for piece in pieces}
    return pieces if len(values) > 1 and None not in values else []


def first_number(text: str) -> str | None:
    """The first number of a text as it is written there, or None."""
    match = _IN_TEXT.search(text)
    return None if match is None else match[0]


def last_number(text: str) -> str | None:
    """The last number of a text as it is written there, or None.

    >>> last_number("42 pages were read, -1,250.5 remain.")
    '-1,250.5'
    """
    last = None
    for match in _IN_TEXT.finditer(text):
        last = match[0]
    return last


def _ends(rest: str) -> bool:
    return not rest.strip(" .") or _UNIT.fullmatch(rest) is not None
