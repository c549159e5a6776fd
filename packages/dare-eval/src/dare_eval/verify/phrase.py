"""A short answer in words: what a completion says after "the answer is", compared without regard to form."""

import re
from typing import Final

from dare_eval.verify.boxes import last_box
from dare_eval.verify.verdict import Verdict

__all__ = ["VERSION", "phrase"]

VERSION: Final = "phrase/1"
WINDOW: Final = 20_000
"""Only this many characters at the end are read."""
LONGEST: Final = 400
"""A completion without a phrase is the answer itself where it is one line of at most so many characters."""

_SAYS: Final = re.compile(r"\banswer(?: is|:|：)[ \t]*:?[ \t]*", re.IGNORECASE)
_END: Final = re.compile(r"[.!?](?:\s|$)")
_FORM: Final = re.compile(r"[\s*_`\"'“”‘’$]+|\\(?:text|mathrm|mathbf|boxed)|[{}]")


def phrase(completion: str, answer: str) -> Verdict:
    """Judge the words behind the last "the answer is", in the last closed box, or of a completion of one line.

    Case, quotes, spacing, brackets around the whole and a final full stop do not matter.

    Args:
        completion: text before the first end token.
        answer: the expected words.

    Raises:
        ValueError: for an empty answer.

    >>> phrase("They differ. So the answer is (B).", "(B)").correct, phrase("No.", "Yes").reason
    (True, 'expected Yes')
    """
    expected = _plain(answer)
    if not expected:
        raise ValueError("expected an answer of at least one word, got none; drop the row")
    text = completion[-WINDOW:].strip()
    said = [text[match.end() :].partition("\n")[0] for match in list(_SAYS.finditer(text))[-1:]]
    found = last_box(text)
    if found is None and said:
        found = said[-1] if _plain(said[-1]) == expected else _END.split(said[-1], maxsplit=1)[0]
    if found is None and "\n" not in text and len(text) <= LONGEST:
        found = text
    if found is None or not _plain(found):
        return Verdict.unparsable("no final answer")
    return Verdict.right(found) if _plain(found) == expected else Verdict.wrong(f"expected {answer}", pred=found)


def _plain(text: str) -> str:
    plain = _FORM.sub(" ", text).strip().rstrip(".!").strip().lower()
    inner = plain[1:-1]
    if plain[:1] == "(" and plain[-1:] == ")" and not set("()") & set(inner):
        plain = inner
    return " ".join(plain.split())
