"""One letter out of several."""

import re
from collections.abc import Sequence
from typing import Final

from dare_eval.verify.boxes import last_box
from dare_eval.verify.verdict import Verdict

__all__ = ["VERSION", "choice"]

VERSION: Final = "choice/1"
WINDOW: Final = 20_000
"""Only this many characters at the end are read: a letter said long before is no final answer."""

_OPENERS: Final = r"[\s*_(\[{$\"'`]*(?:\\(?:text|mathrm|mathbf|boxed)\{)?\(?"
_PHRASE: Final = re.compile(
    rf"(?:answer|choice|option|choose|select|pick)(?:\s+is|\s+would\s+be|\s*:|\s+should\s+be)*\s*:?{_OPENERS}"
    r"(?:option\s+|choice\s+)?([A-Za-z])(?![\w'’])",
    re.IGNORECASE,
)
_SECOND: Final = re.compile(r"[\s*_)\]}.\"'`]{0,4}(?:or|and|/|,|&)[\s*_(\[{\"'`]{0,4}([A-Z])(?![\w'’])")
_ALONE: Final = re.compile(r"(?<![\w'’])\(?([A-Z])(?![\w'’])(?=[\s)\].,:;*!]|$)")


def choice(completion: str, answer: str, options: Sequence[str] = ("A", "B", "C", "D")) -> Verdict:
    """Judge the letter that a completion settles on.

    In this order: the last closed box; the letter behind the last "answer is", "answer:", "choose", …; a letter that
    alone is named at all. Two letters in one answer, or several named without such a phrase, are ambiguous.

    Args:
        completion: text before the first end token.
        answer: the right letter.
        options: the letters to choose from, upper case.

    Raises:
        ValueError: for an answer that is no option.

    >>> choice("Both A and B look right. The answer is (b).", "B").correct
    True
    >>> choice("A or B", "B").status
    'ambiguous'
    """
    if answer not in options:
        raise ValueError(f"expected an answer of {list(options)}, got {answer!r}")
    text = completion[-WINDOW:]
    box = last_box(text)
    letter = None if box is None else re.sub(r"\\text\s*\{|[(){}.\s]", "", box)
    if letter is None or len(letter) != 1:
        phrases = list(_PHRASE.finditer(text))
        phrase = phrases[-1] if phrases else None
        if phrase is None:
            return _only(text, answer, options)
        letter = phrase[1]
        second = _SECOND.match(text, phrase.end())
        if second is not None and second[1] in options and second[1] != letter.upper():
            return Verdict.ambiguous(f"names {letter.upper()} and {second[1]}", pred=phrase[0] + second[0])
    letter = letter.upper()
    if letter not in options:
        return Verdict.unparsable(f"{letter} is none of {', '.join(options)}")
    return _judge(letter, answer)


def _only(text: str, answer: str, options: Sequence[str]) -> Verdict:
    """Without a phrase: the only letter named."""
    named = {match[1] for match in _ALONE.finditer(text) if match[1] in options and not _is_word(text, match)}
    stripped = text.strip(" \n\t.()*")
    if len(stripped) == 1 and stripped.upper() in options:
        named = {stripped.upper()}
    if not named:
        return Verdict.unparsable("names no option")
    if len(named) > 1:
        return Verdict.ambiguous(f"names {', '.join(sorted(named))} and settles on none", pred=text[-80:])
    return _judge(named.pop(), answer)


def _is_word(text: str, match: re.Match[str]) -> bool:
    """Whether a lone A or I is the English word: something in lower case follows."""
    following = text[match.end() : match.end() + 2]
    return match[1] in "AI" and len(following) == 2 and following[0] in " '’" and following[1].islower()


def _judge(letter: str, answer: str) -> Verdict:
    return Verdict.right(letter) if letter == answer else Verdict.wrong(f"expected {answer}", pred=letter)
