"""One letter out of several."""

import re
from collections.abc import Sequence
from typing import Final

from dare_eval.verify.boxes import last_box
from dare_eval.verify.tags import last_answer
from dare_eval.verify.verdict import Verdict

__all__ = ["VERSION", "choice"]

VERSION: Final = "choice/1"
WINDOW: Final = 20_000
"""Only this many characters at the end are read: a letter said long before is no final answer."""

# Marks that carry no meaning become one space before anything is matched, so no pattern below meets two in a row.
_MARKS: Final = re.compile(r"(?:\\(?:text|textbf|mathrm|mathbf|boxed|fbox|left|right|[,;:!()\[\]])|[*`$\"“”{}\s])+")
_WORD: Final = r"[^\W\u4e00-\u9fff]"
_LETTER: Final = rf"(?P<open>[(\['‘]? ?)(?P<letter>[A-Za-z])(?!{_WORD}|['’]\w)"
_IS: Final = r"(?: (?:is|would be|should be|must be))?(?: ?[:：=-])?(?: (?:option|choice|letter))? ?"
_PHRASES: Final = (
    re.compile(rf"\banswer{_IS}{_LETTER}", re.IGNORECASE),
    re.compile(
        rf"\b(?:option|choice)(?: (?:is|would be|should be|must be)| ?[:=])(?: option)? ?{_LETTER}", re.IGNORECASE
    ),
    re.compile(rf"\b(?:choose|select|pick)(?: (?:option|choice|letter|answer))? {_LETTER}", re.IGNORECASE),
    re.compile(rf"(?:答案|选择?)[是为]? ?[:：]? ?{_LETTER}"),
    re.compile(
        rf"(?<!{_WORD})(?<!['’])(?P<open>[(\[]? ?)(?P<letter>[A-Z])[)\]]? (?:is|was)(?: the)?"
        r"(?: (?:only|most|single))? (?:correct|right|best|better|answer|true)\b"
    ),
)
_SECOND: Final = re.compile(rf"[)\].' ]{{0,3}}(?:or|and|nor|/|&) ?[(\[']?([A-Z])(?!{_WORD}|['’]\w)")
_LISTED: Final = re.compile(r"[)\].' ]{0,3}[,;] ?[(\[']?([A-Z])[)\]']?(?= ?(?:[.,;!]|$|or\b|and\b))")
_ALONE: Final = re.compile(rf"(?<!{_WORD})(?<!['’])([A-Z])(?!{_WORD}|['’]\w)(?=[ )\].,:;!/']|$)")
_DENIED: Final = re.compile(
    r"(?:\b(?:not|nor|neither|never|except|than)|n['’]t(?: be)?)(?: (?:option|choice))? [(\[]?$"
)
_REFUTED: Final = re.compile(
    r"[)\]]? (?:is|was)(?: (?:not|never)|n['’]t| (?:also |clearly )?(?:wrong|incorrect|false)\b)"
)


def choice(completion: str, answer: str, options: Sequence[str] = ("A", "B", "C", "D")) -> Verdict:
    """Judge the letter that a completion settles on.

    In this order: the last closed box, or else the last `<answer>` pair; the letter of the last "answer is", "choose",
    "… is correct" and the like; a letter that alone is named at all, not counting those that are denied. Two letters in
    one answer, or several named without such a phrase, are ambiguous.

    Args:
        completion: text before the first end token.
        answer: the right letter.
        options: the letters to choose from, upper case.

    Raises:
        ValueError: for an answer that is no option, or options that are no upper-case letters.

    >>> choice("Both A and B look right. The answer is (b).", "B").correct
    True
    >>> choice("A or B", "B").status
    'ambiguous'
    """
    if answer not in options or not all(re.fullmatch("[A-Z]", option) for option in options):
        raise ValueError(f"expected an answer of the upper-case letters {list(options)}, got {answer!r}")
    text = completion[-WINDOW:]
    marked = last_box(text)
    marked = last_answer(text) if marked is None else marked
    if marked is not None:
        found = re.match(_LETTER, _plain(marked))
        if found is not None and not _is_word(found):
            return _settle(found, answer, options)
    plain = _plain(text)
    phrases = [match for pattern in _PHRASES for match in pattern.finditer(plain) if _says(match)]
    if phrases:
        return _settle(max(phrases, key=lambda match: match.start("letter")), answer, options)
    return _only(plain, answer, options)


def _plain(text: str) -> str:
    return _MARKS.sub(" ", text).strip()


def _says(match: re.Match[str]) -> bool:
    """Whether a phrase names a letter: no article or pronoun, and nothing that is denied."""
    return (
        not _is_word(match) and _DENIED.search(match.string[max(0, match.start() - 20) : match.start("open")]) is None
    )


def _is_word(match: re.Match[str]) -> bool:
    """Whether a lone a, A or I is the English word: no bracket before it, something in lower case behind it."""
    letter, following = match["letter"], match.string[match.end("letter") : match.end("letter") + 2]
    return letter in "aiI" and not match["open"].strip() and re.fullmatch(r" [a-z]", following) is not None


def _settle(found: re.Match[str], answer: str, options: Sequence[str]) -> Verdict:
    """The letter that was found, unless a second one follows it."""
    letter = found["letter"].upper()
    if letter not in options:
        return Verdict.unparsable(f"{letter} is none of {', '.join(options)}")
    end = found.end("letter")
    for pattern in (_SECOND, _LISTED):
        second = pattern.match(found.string, end)
        if second is not None and second[1] in options and second[1] != letter:
            return Verdict.ambiguous(
                f"names {letter} and {second[1]}", pred=found[0] + found.string[end : second.end()]
            )
    return _judge(letter, answer)


def _only(plain: str, answer: str, options: Sequence[str]) -> Verdict:
    """Without a phrase: the only letter that is named and not denied."""
    bare = plain.strip(" .()")
    if len(bare) == 1 and bare.upper() in options:
        return _judge(bare.upper(), answer)
    named = {match[1] for match in _ALONE.finditer(plain) if match[1] in options and _stands(match)}
    if not named:
        return Verdict.unparsable("names no option")
    if len(named) > 1:
        return Verdict.ambiguous(f"names {', '.join(sorted(named))} and settles on none", pred=plain[-80:])
    return _judge(named.pop(), answer)


def _stands(match: re.Match[str]) -> bool:
    """Whether a lone letter is named as an option: neither an English word nor denied."""
    before, after = (
        match.string[max(0, match.start() - 20) : match.start()],
        match.string[match.end() : match.end() + 20],
    )
    if match[1] in "AI" and re.match(r" [a-z]|['’]", after) and not re.match(r" (?:or|and|nor|is|was)\b", after):
        return False
    return _DENIED.search(before) is None and _REFUTED.match(after) is None


def _judge(letter: str, answer: str) -> Verdict:
    return Verdict.right(letter) if letter == answer else Verdict.wrong(f"expected {answer}", pred=letter)
