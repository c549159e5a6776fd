"""The rules behind `instructions`: one function and one entry of `RULES` each.

A rule gets a text that is not blank and arguments whose types were checked. It returns None where the text keeps the
instruction, else what was found instead.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dare_eval.verify.languages import LANGUAGES, languages

__all__ = ["RULES", "Kind", "Rule", "capital_words", "sentences"]

Arguments = Mapping[str, Any]


@dataclass(frozen=True)
class Kind:
    """What an argument may be."""

    says: str
    accepts: Callable[[Any], bool]


@dataclass(frozen=True)
class Rule:
    """A function that finds what is wrong, and the arguments it needs."""

    find: Callable[[str, Arguments], str | None]
    needs: Mapping[str, Kind] = field(default_factory=dict)


# ------------------------------------------------------------------------------------------------------- kinds


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value.strip() != ""


def _is_texts(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) > 0 and all(map(_is_text, value))


RELATIONS: Final = ("at least", "less than")
_COUNT: Final = Kind("an integer of at least 0", _is_count)
_PLACE: Final = Kind("an integer of at least 1", lambda value: _is_count(value) and value > 0)
_TEXT: Final = Kind("a text that is not blank", _is_text)
_TEXTS: Final = Kind("a list of texts that are not blank", _is_texts)
_LETTER: Final = Kind("one character", lambda value: _is_text(value) and len(value.strip()) == 1)
_RELATION: Final = Kind(f"one of {list(RELATIONS)}", lambda value: value in RELATIONS)
_LANGUAGE: Final = Kind(
    f"one of {', '.join(LANGUAGES)}", lambda value: isinstance(value, str) and _base(value) in LANGUAGES
)


def _base(code: str) -> str:
    """`zh` for `zh-cn`."""
    return code.partition("-")[0].lower()


# ------------------------------------------------------------------------------------------------- small helpers


def _related(count: int, noun: str, relation: str, bound: int) -> str | None:
    kept = count >= bound if relation == "at least" else count < bound
    return None if kept else f"{count} {noun}, expected {relation} {bound}"


def _exactly(count: int, noun: str, bound: int) -> str | None:
    return None if count == bound else f"{count} {noun}, expected {bound}"


def _counted(text: str, word: str) -> int:
    """Occurrences without regard to case, inside other words too."""
    return text.lower().count(word.strip().lower())


def _shown(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:39] + "…")


# ------------------------------------------------------------------------------------------------------ keywords


def _existence(text: str, args: Arguments) -> str | None:
    lower = text.lower()
    missing = [word for word in args["keywords"] if word.lower() not in lower]
    return f"without {', '.join(map(_shown, missing))}" if missing else None


def _frequency(text: str, args: Arguments) -> str | None:
    noun = f"times {_shown(args['keyword'])}"
    return _related(_counted(text, args["keyword"]), noun, args["relation"], args["frequency"])


def _forbidden(text: str, args: Arguments) -> str | None:
    for word in args["forbidden_words"]:
        found = re.search(rf"(?<!\w){re.escape(word.strip())}(?!\w)", text, re.IGNORECASE)
        if found is not None:
            return f"says {_shown(found[0])}"
    return None


def _letter_frequency(text: str, args: Arguments) -> str | None:
    noun = f"times {_shown(args['letter'])}"
    return _related(_counted(text, args["letter"]), noun, args["let_relation"], args["let_frequency"])


# ------------------------------------------------------------------------------------------- language and length


def _language(text: str, args: Arguments) -> str | None:
    code = _base(args["language"])
    found = languages(text)
    return None if code in found else f"in {' or '.join(found) or 'no known language'}, expected {code}"


_END: Final = re.compile(r"(?<![.!?…])([.!?…]++)[\"'”’»)\]}*_]*+(?=\s|\Z)|[。！？।॥؟۔]++[”’」』）]*+")
_NEXT: Final = re.compile(r"\s*+[\"'“‘«(\[*_#-]*+(\w{0,20})")
_INITIALS: Final = re.compile(r"(?:[^\W\d_]\.)*[^\W\d_]")
_TITLES: Final = frozenset({
    "adm", "capt", "cf", "col", "dr", "fig", "figs", "gen", "gov", "hon", "lt", "maj", "mme", "mr", "mrs", "ms", "mt",
    "prof", "rep", "rev", "sen", "sgt", "st", "vol", "vs",
})  # fmt: skip
_ABBREVIATIONS: Final = frozenset({
    "al", "approx", "apr", "aug", "ave", "bros", "co", "corp", "dec", "dept", "etc", "ext", "feb", "inc", "jan", "jr",
    "ltd", "nov", "oct", "pp", "sept", "sr",
})  # fmt: skip
_OPENERS: Final = frozenset({
    "A", "After", "All", "Although", "An", "And", "As", "At", "Because", "But", "For", "From", "He", "Here", "How",
    "However", "I", "If", "In", "It", "Its", "My", "On", "Our", "She", "So", "Some", "That", "The", "Their", "Then",
    "There", "These", "They", "This", "Those", "To", "We", "What", "When", "While", "With", "You", "Your",
})  # fmt: skip


def sentences(text: str) -> int:
    r"""How many sentences a text has.

    One ends at a run of `.`, `!` or `?` before white space, at a full stop of Chinese, Hindi or the like, and with the
    text, never at a line break alone. It must have a letter or digit. A single full stop ends none behind a title; one
    behind an initial or another abbreviation only before a word that often begins a sentence; one behind a number, or
    an ellipsis, not before a lower-case letter. So `1. Go` is two, as with the published splitter.

    >>> sentences("Dr. J. Doe paid $3.50, i.e. too much. Why? He lost the bill..."), sentences("1. Go\n2. Stop")
    (3, 3)
    """
    count = start = 0
    for match in _END.finditer(text):
        if _ends(text, match):
            count += _SAYS.search(text, start, match.start()) is not None
            start = match.end()
    return count + (_SAYS.search(text, start) is not None)


_SAYS: Final = re.compile(r"[^\W_]")


def _ends(text: str, match: re.Match[str]) -> bool:
    marks = match[1]
    if marks is None or marks.strip(".…"):
        return True
    if marks != ".":
        return not _following(text, match)[:1].islower()
    before = text[max(0, match.start() - 20) : match.start()].rpartition(" ")[2]
    before = (before.split() or [""])[-1].lstrip("\"'“‘«([*_")
    if before.isdecimal():
        return not _following(text, match)[:1].islower()
    lower = before.lower()
    if lower in _TITLES:
        return _following(text, match) == ""
    if lower in _ABBREVIATIONS or (before != "I" and _INITIALS.fullmatch(before) is not None):
        following = _following(text, match)
        return following in _OPENERS or following == ""
    return True


def _following(text: str, match: re.Match[str]) -> str:
    found = _NEXT.match(text, match.end())
    return "" if found is None else found[1]


def _sentences(text: str, args: Arguments) -> str | None:
    return _related(sentences(text), "sentences", args["relation"], args["num_sentences"])


def _paragraphs(text: str, args: Arguments) -> str | None:
    parts = [part.strip() for part in text.split("***")]
    if not all(parts[1:-1]):
        return "nothing between two dividers"
    return _exactly(sum(map(bool, parts)), "paragraphs", args["num_paragraphs"])


def _words(text: str, args: Arguments) -> str | None:
    return _related(sum(1 for _ in re.finditer(r"\w+", text)), "words", args["relation"], args["num_words"])


def _nth_paragraph(text: str, args: Arguments) -> str | None:
    total, nth = args["num_paragraphs"], args["nth_paragraph"]
    if nth > total:
        raise ValueError(f"expected nth_paragraph of at most num_paragraphs={total}, got {nth}; correct the row")
    parts = [part.strip() for part in text.split("\n\n")]
    if (wrong := _exactly(sum(map(bool, parts)), "paragraphs", total)) is not None:
        return wrong
    begin = parts[nth - 1].split(maxsplit=1)[:1]
    word = re.split("[.,?!'\"]", begin[0].lstrip("'").lstrip('"'), maxsplit=1)[0].lower() if begin else ""
    return None if word == args["first_word"].lower() else f"paragraph {nth} begins with {_shown(word)}"


# --------------------------------------------------------------------------------------------- content and format


def _placeholders(text: str, args: Arguments) -> str | None:
    count = sum(1 for _ in re.finditer(r"\[[^\[\]\n]*\]", text))
    return _related(count, "placeholders", "at least", args["num_placeholders"])


_POSTSCRIPTS: Final = {"p.s.": re.compile(r"p\.\s?s\."), "p.p.s": re.compile(r"p\.\s?p\.\s?s")}


def _postscript(text: str, args: Arguments) -> str | None:
    marker, lower = args["postscript_marker"].strip(), text.lower()
    pattern = _POSTSCRIPTS.get(marker.lower())
    kept = marker.lower() in lower if pattern is None else pattern.search(lower) is not None
    return None if kept else f"without {_shown(marker)}"


_STAR: Final = re.compile(r"^[^\S\n]*\*[^*].*$", re.MULTILINE)
_DASH: Final = re.compile(r"^[^\S\n]*-", re.MULTILINE)


def _bullets(text: str, args: Arguments) -> str | None:
    count = sum(1 for pattern in (_STAR, _DASH) for _ in pattern.finditer(text))
    return _exactly(count, "bullet points", args["num_bullets"])


_CONSTRAINED: Final = tuple(f"My answer is {word}." for word in ("yes", "no", "maybe"))


def _constrained(text: str, _: Arguments) -> str | None:
    return None if any(option in text for option in _CONSTRAINED) else f"none of {list(_CONSTRAINED)}"


_HIGHLIGHTS: Final = (re.compile(r"\*([^*\n]*)\*"), re.compile(r"\*\*([^*\n]*)\*\*"))


def _highlights(text: str, args: Arguments) -> str | None:
    count = sum(match[1].strip() != "" for pattern in _HIGHLIGHTS for match in pattern.finditer(text))
    return _related(count, "highlighted sections", "at least", args["num_highlights"])


def _sections(text: str, args: Arguments) -> str | None:
    heads = re.finditer(re.escape(args["section_spliter"].strip()) + r"\s?\d+", text)
    return _related(sum(1 for _ in heads), "sections", "at least", args["num_sections"])


def _json(text: str, _: Arguments) -> str | None:
    body = text.strip()
    for fence in ("```json", "```Json", "```JSON", "```"):
        body = body.removeprefix(fence)
    try:
        json.loads(body.removesuffix("```").strip())
    except (ValueError, RecursionError) as error:
        return f"no JSON: {str(error)[:80]}"
    return None


def _title(text: str, _: Arguments) -> str | None:
    for line in text.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if 0 <= start < end - 2 and line[start : end + 2].lstrip("<").rstrip(">").strip():
            return None
    return "no <<title>>"


# ------------------------------------------------------------------------- combination, start and end, case, marks


def _two_responses(text: str, _: Arguments) -> str | None:
    parts = [part.strip() for part in text.split("******")]
    said = [part for part in parts if part]
    if not all(parts[1:-1]):
        return "nothing between two dividers"
    if len(said) != 2:
        return f"{len(said)} responses, expected 2"
    return "the same response twice" if said[0] == said[1] else None


def _repeat(text: str, args: Arguments) -> str | None:
    kept = text.strip().lower().startswith(args["prompt_to_repeat"].strip().lower())
    return None if kept else f"begins with {_shown(text.strip())}"


def _end(text: str, args: Arguments) -> str | None:
    body = text.strip().strip('"')
    return None if body.lower().endswith(args["end_phrase"].strip().lower()) else f"ends with {_shown(body[-40:])}"


_BREAK: Final = re.compile(r"[\s,;:!?()\[\]{}<>\"“”…—@#$%&]+|--+")
_TAIL: Final = re.compile(r"(?<=[^\W_])(?:N'T|'(?:S|M|D|RE|VE|LL))(?=[.*_]*\Z)")


def capital_words(text: str) -> int:
    """How many words are in capitals; one with a hyphen is one, a contraction two, as the published tokens are.

    >>> capital_words("I DON'T read a WELL-KNOWN U.S. paper")
    5
    """
    capitals = [word for word in _BREAK.split(text) if word.isupper()]
    return len(capitals) + sum(_TAIL.search(word) is not None for word in capitals)


def _capital_words(text: str, args: Arguments) -> str | None:
    return _related(capital_words(text), "words in capitals", args["capital_relation"], args["capital_frequency"])


def _capital(text: str, _: Arguments) -> str | None:
    return _language(text, {"language": "en"}) if text.isupper() else "not in capitals alone"


def _lowercase(text: str, _: Arguments) -> str | None:
    return _language(text, {"language": "en"}) if text.islower() else "not in lower case alone"


def _no_comma(text: str, _: Arguments) -> str | None:
    return f"{count} commas" if (count := text.count(",")) else None


def _quotation(text: str, _: Arguments) -> str | None:
    body = text.strip()
    return None if len(body) > 1 and body[0] == body[-1] == '"' else "not within double quotation marks"


# ------------------------------------------------------------------------------------------------------- the table

RULES: Final[Mapping[str, Rule]] = {
    "keywords:existence": Rule(_existence, {"keywords": _TEXTS}),
    "keywords:frequency": Rule(_frequency, {"keyword": _TEXT, "frequency": _COUNT, "relation": _RELATION}),
    "keywords:forbidden_words": Rule(_forbidden, {"forbidden_words": _TEXTS}),
    "keywords:letter_frequency": Rule(
        _letter_frequency, {"letter": _LETTER, "let_frequency": _COUNT, "let_relation": _RELATION}
    ),
    "language:response_language": Rule(_language, {"language": _LANGUAGE}),
    "length_constraints:number_sentences": Rule(_sentences, {"num_sentences": _COUNT, "relation": _RELATION}),
    "length_constraints:number_paragraphs": Rule(_paragraphs, {"num_paragraphs": _COUNT}),
    "length_constraints:number_words": Rule(_words, {"num_words": _COUNT, "relation": _RELATION}),
    "length_constraints:nth_paragraph_first_word": Rule(
        _nth_paragraph, {"num_paragraphs": _PLACE, "nth_paragraph": _PLACE, "first_word": _TEXT}
    ),
    "detectable_content:number_placeholders": Rule(_placeholders, {"num_placeholders": _COUNT}),
    "detectable_content:postscript": Rule(_postscript, {"postscript_marker": _TEXT}),
    "detectable_format:number_bullet_lists": Rule(_bullets, {"num_bullets": _COUNT}),
    "detectable_format:constrained_response": Rule(_constrained),
    "detectable_format:number_highlighted_sections": Rule(_highlights, {"num_highlights": _COUNT}),
    "detectable_format:multiple_sections": Rule(_sections, {"section_spliter": _TEXT, "num_sections": _COUNT}),
    "detectable_format:json_format": Rule(_json),
    "detectable_format:title": Rule(_title),
    "combination:two_responses": Rule(_two_responses),
    "combination:repeat_prompt": Rule(_repeat, {"prompt_to_repeat": _TEXT}),
    "startend:end_checker": Rule(_end, {"end_phrase": _TEXT}),
    "change_case:capital_word_frequency": Rule(
        _capital_words, {"capital_frequency": _COUNT, "capital_relation": _RELATION}
    ),
    "change_case:english_capital": Rule(_capital),
    "change_case:english_lowercase": Rule(_lowercase),
    "punctuation:no_comma": Rule(_no_comma),
    "startend:quotation": Rule(_quotation),
}
"""By the data set's id."""
