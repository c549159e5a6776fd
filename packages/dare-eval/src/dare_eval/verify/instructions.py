"""Instructions that a program can check: the 25 of IFEval (arXiv:2311.07911)."""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from dare_eval.verify.languages import language_fits
from dare_eval.verify.verdict import Verdict

__all__ = ["SUPPORTED", "VERSION", "instructions"]

VERSION: Final = "instructions/1"

_ABBREVIATIONS: Final = frozenset(
    [
        "mr",
        "mrs",
        "ms",
        "dr",
        "prof",
        "st",
        "jr",
        "sr",
        "inc",
        "ltd",
        "co",
        "corp",
        "vs",
        "etc",
        "e.g",
        "i.e",
        "fig",
        "no",
        "vol",
        "al",
        "u.s",
        "a.m",
        "p.m",
        "approx",
        "dept",
    ]
)
_STOP: Final = re.compile(r"[.!?]+[\"'”’)\]]*(?=\s|$)|\n\s*\n")
_WORD: Final = re.compile(r"\w+(?:['’-]\w+)*")
_DECIDED: Final = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def instructions(
    completion: str,
    ids: Sequence[str],
    arguments: Sequence[Mapping[str, Any]],
    *,
    prompt: str = "",
    loose: bool = False,
) -> Verdict:
    """Judge whether a completion follows all of its instructions; the score is the share that it follows.

    Sentences are split and languages told by rules of our own, not by nltk and langdetect as in the published program:
    rare texts may be judged differently.

    Args:
        completion: text before the first end token.
        ids: names of the instructions, such as `"punctuation:no_comma"`.
        arguments: of each instruction, as in the data set; null ones are left out.
        prompt: the prompt, for instructions that say to repeat it and give no text.
        loose: also accept what holds without the first line, the last line or both, or without asterisks.

    Raises:
        ValueError: for an unknown instruction, or an argument that is missing or of another type.

    >>> instructions("No commas here", ["punctuation:no_comma"], [{}]).correct
    True
    >>> instructions("Yes, it is", ["punctuation:no_comma", "change_case:english_lowercase"], [{}, {}]).score
    0.0
    """
    if not ids or len(ids) != len(arguments):
        raise ValueError(f"expected arguments for each instruction, got {len(ids)} and {len(arguments)}")
    checks = [_bound(name, given, prompt) for name, given in zip(ids, arguments, strict=True)]
    if not completion.strip():
        return Verdict.unparsable("empty completion")
    texts = list(dict.fromkeys(_variants(completion))) if loose else [completion]
    faults = [_fault(check, texts) for check in checks]
    parts: dict[str, float] = {}
    for name, fault in zip(ids, faults, strict=True):
        parts[name if name not in parts else f"{name}#{len(parts) + 1}"] = float(fault is None)
    wrong = [f"{name}: {fault}" for name, fault in zip(ids, faults, strict=True) if fault is not None]
    if not wrong:
        return Verdict.right(completion, parts=parts)
    return Verdict.wrong(wrong[0], pred=completion, score=1 - len(wrong) / len(ids), parts=parts)


def _fault(check: Callable[[str], str | None], texts: Sequence[str]) -> str | None:
    """None if a text follows the instruction, else what is wrong with the first."""
    first: str | None = None
    for text in texts:
        fault = check(text) if text.strip() else "nothing is left"
        if fault is None:
            return None
        first = fault if first is None else first
    return first


def _variants(text: str) -> Iterator[str]:
    lines = text.split("\n")
    for kept in (lines, lines[1:], lines[:-1], lines[1:-1]):
        whole = "\n".join(kept).strip()
        yield whole
        yield whole.replace("*", "")


# ------------------------------------------------------------------- the rules: None, or what was found instead


def _related(found: int, wanted: int, relation: str, what: str) -> str | None:
    holds = found < wanted if relation == "less than" else found >= wanted
    return None if holds else f"expected {relation} {wanted} {what}, got {found}"


def _exactly(found: int, wanted: int, what: str) -> str | None:
    return None if found == wanted else f"expected {wanted} {what}, got {found}"


def _count(text: str, keyword: str) -> int:
    """How often a keyword stands there as a whole word, whatever its case."""
    left = r"(?<!\w)" if keyword[:1].isalnum() else ""
    right = r"(?!\w)" if keyword[-1:].isalnum() else ""
    return len(re.findall(f"{left}{re.escape(keyword)}{right}", text, re.IGNORECASE))


def _existence(text: str, given: Mapping[str, Any]) -> str | None:
    missing = [word for word in given["keywords"] if word.lower() not in text.lower()]
    return f"no {missing[0]!r}" if missing else None


def _frequency(text: str, given: Mapping[str, Any]) -> str | None:
    return _related(_count(text, given["keyword"]), given["frequency"], given["relation"], f"{given['keyword']!r}")


def _forbidden(text: str, given: Mapping[str, Any]) -> str | None:
    found = [word for word in given["forbidden_words"] if _count(text, word)]
    return f"has {found[0]!r}" if found else None


def _letter(text: str, given: Mapping[str, Any]) -> str | None:
    found = text.lower().count(given["letter"].lower())
    return _related(found, given["let_frequency"], given["let_relation"], f"{given['letter']!r}")


def _language(text: str, given: Mapping[str, Any]) -> str | None:
    return None if language_fits(text, given["language"]) else f"not in {given['language']!r}"


def _sentences(text: str, given: Mapping[str, Any]) -> str | None:
    return _related(_count_sentences(text), given["num_sentences"], given["relation"], "sentences")


def _count_sentences(text: str) -> int:
    count, start = 0, 0
    for match in _STOP.finditer(text):
        last = text[max(start, match.start() - 20) : match.start()].split()
        word = last[-1].lower().strip("(\"'“‘[") if last else ""
        initial = match[0] == "." and (word in _ABBREVIATIONS or (len(word) == 1 and word.isalpha()))
        if not initial and _WORD.search(text, start, match.start()):
            count, start = count + 1, match.end()
    return count + bool(_WORD.search(text, start))


def _paragraphs(text: str, given: Mapping[str, Any]) -> str | None:
    parts = [part.strip() for part in re.split(r"\*\*\*", text)]
    inner = [part for part in parts[1:-1] if not part]
    if inner:
        return "two dividers *** with nothing between them"
    return _exactly(sum(bool(part) for part in parts), given["num_paragraphs"], "paragraphs divided by ***")


def _words(text: str, given: Mapping[str, Any]) -> str | None:
    return _related(len(_WORD.findall(text)), given["num_words"], given["relation"], "words")


def _nth_paragraph(text: str, given: Mapping[str, Any]) -> str | None:
    parts = [part.strip() for part in text.split("\n\n") if part.strip()]
    if fault := _exactly(len(parts), given["num_paragraphs"], "paragraphs"):
        return fault
    if not 1 <= given["nth_paragraph"] <= len(parts):
        return f"no paragraph {given['nth_paragraph']}"
    first = parts[given["nth_paragraph"] - 1].split()[0].strip("\"'“‘*(.,!?:;)”’")
    wanted = given["first_word"].lower()
    return None if first.lower() == wanted else f"paragraph {given['nth_paragraph']} begins with {first[:40]!r}"


def _placeholders(text: str, given: Mapping[str, Any]) -> str | None:
    found = len(re.findall(r"\[[^\[\]]*\]", text))
    return _related(found, given["num_placeholders"], "at least", "placeholders in square brackets")


def _postscript(text: str, given: Mapping[str, Any]) -> str | None:
    marker = given["postscript_marker"].strip()
    spaced = r"\s?".join(re.escape(character) for character in marker if not character.isspace())
    return None if re.search(spaced, text, re.IGNORECASE) else f"no {marker!r}"


def _bullets(text: str, given: Mapping[str, Any]) -> str | None:
    found = sum(re.match(r"\s*(?:\*(?!\*)|-(?!-))\s*\S", line) is not None for line in text.split("\n"))
    return _exactly(found, given["num_bullets"], "bullets")


def _constrained(text: str, given: Mapping[str, Any]) -> str | None:
    return None if any(one in text for one in _DECIDED) else f"none of {', '.join(_DECIDED)}"


def _highlights(text: str, given: Mapping[str, Any]) -> str | None:
    bold = [inner for inner in re.findall(r"\*\*([^*\n]+)\*\*", text) if inner.strip()]
    rest = re.sub(r"\*\*[^*\n]+\*\*", " ", text)
    light = [inner for inner in re.findall(r"\*([^*\n]+)\*", rest) if inner.strip()]
    return _related(len(bold) + len(light), given["num_highlights"], "at least", "highlighted parts")


def _sections(text: str, given: Mapping[str, Any]) -> str | None:
    found = len(re.findall(rf"\b{re.escape(given['section_spliter'].strip())}\s?\d+", text))
    return _related(found, given["num_sections"], "at least", f"sections with {given['section_spliter']!r}")


def _json(text: str, given: Mapping[str, Any]) -> str | None:
    inner = re.sub(r"^\s*```(?:json|JSON|Json)?|```\s*$", "", text.strip()).strip()
    try:
        json.loads(inner)
    except (ValueError, RecursionError):
        return "no JSON"
    return None


def _title(text: str, given: Mapping[str, Any]) -> str | None:
    titles = re.findall(r"<<([^<>\n]+)>>", text)
    return None if any(title.strip() for title in titles) else "no title in << >>"


def _two_responses(text: str, given: Mapping[str, Any]) -> str | None:
    parts = [part.strip() for part in text.split("******")]
    if any(not part for part in parts[1:-1]):
        return "two dividers ****** with nothing between them"
    kept = [part for part in parts if part]
    if len(kept) != 2:
        return f"expected 2 responses divided by ******, got {len(kept)}"
    return None if kept[0] != kept[1] else "both responses are the same"


def _repeat(text: str, given: Mapping[str, Any]) -> str | None:
    wanted = given["prompt_to_repeat"].strip().lower()
    return None if text.strip().lower().startswith(wanted) else "does not begin with the request"


def _end(text: str, given: Mapping[str, Any]) -> str | None:
    ending = text.strip().strip('"').lower()
    return None if ending.endswith(given["end_phrase"].strip().lower()) else f"ends with {text.strip()[-40:]!r}"


def _capitals(text: str, given: Mapping[str, Any]) -> str | None:
    found = sum(word.isupper() for word in _WORD.findall(text))
    return _related(found, given["capital_frequency"], given["capital_relation"], "words in capitals")


def _upper(text: str, given: Mapping[str, Any]) -> str | None:
    return (None if language_fits(text, "en") else "not English") if text.isupper() else "not all in capitals"


def _lower(text: str, given: Mapping[str, Any]) -> str | None:
    return (None if language_fits(text, "en") else "not English") if text.islower() else "not all in small letters"


def _no_comma(text: str, given: Mapping[str, Any]) -> str | None:
    return _exactly(text.count(","), 0, "commas")


def _quoted(text: str, given: Mapping[str, Any]) -> str | None:
    bare = text.strip()
    return None if len(bare) > 1 and bare[0] == bare[-1] == '"' else "not in double quotes"


class _Rule(NamedTuple):
    arguments: Mapping[str, type]
    check: Callable[[str, Mapping[str, Any]], str | None]


_RULES: Final[Mapping[str, _Rule]] = {
    "keywords:existence": _Rule({"keywords": list}, _existence),
    "keywords:frequency": _Rule({"keyword": str, "frequency": int, "relation": str}, _frequency),
    "keywords:forbidden_words": _Rule({"forbidden_words": list}, _forbidden),
    "keywords:letter_frequency": _Rule({"letter": str, "let_frequency": int, "let_relation": str}, _letter),
    "language:response_language": _Rule({"language": str}, _language),
    "length_constraints:number_sentences": _Rule({"num_sentences": int, "relation": str}, _sentences),
    "length_constraints:number_paragraphs": _Rule({"num_paragraphs": int}, _paragraphs),
    "length_constraints:number_words": _Rule({"num_words": int, "relation": str}, _words),
    "length_constraints:nth_paragraph_first_word": _Rule(
        {"num_paragraphs": int, "nth_paragraph": int, "first_word": str}, _nth_paragraph
    ),
    "detectable_content:number_placeholders": _Rule({"num_placeholders": int}, _placeholders),
    "detectable_content:postscript": _Rule({"postscript_marker": str}, _postscript),
    "detectable_format:number_bullet_lists": _Rule({"num_bullets": int}, _bullets),
    "detectable_format:constrained_response": _Rule({}, _constrained),
    "detectable_format:number_highlighted_sections": _Rule({"num_highlights": int}, _highlights),
    "detectable_format:multiple_sections": _Rule({"section_spliter": str, "num_sections": int}, _sections),
    "detectable_format:json_format": _Rule({}, _json),
    "detectable_format:title": _Rule({}, _title),
    "combination:two_responses": _Rule({}, _two_responses),
    "combination:repeat_prompt": _Rule({"prompt_to_repeat": str}, _repeat),
    "startend:end_checker": _Rule({"end_phrase": str}, _end),
    "change_case:capital_word_frequency": _Rule({"capital_frequency": int, "capital_relation": str}, _capitals),
    "change_case:english_capital": _Rule({}, _upper),
    "change_case:english_lowercase": _Rule({}, _lower),
    "punctuation:no_comma": _Rule({}, _no_comma),
    "startend:quotation": _Rule({}, _quoted),
}
SUPPORTED: Final = tuple(_RULES)
"""The instructions by name."""


def _bound(name: str, arguments: Mapping[str, Any], prompt: str) -> Callable[[str], str | None]:
    """An instruction with its arguments, which are checked."""
    rule = _RULES.get(name)
    if rule is None:
        raise ValueError(f"expected an instruction of {', '.join(SUPPORTED)}, got {name!r}; drop the row")
    given = {key: value for key, value in arguments.items() if value is not None}
    if name == "combination:repeat_prompt" and prompt:
        given.setdefault("prompt_to_repeat", prompt)
    for key, kind in rule.arguments.items():
        value = given.get(key)
        if kind is int and isinstance(value, float) and value.is_integer():
            value = given[key] = int(value)
        if not isinstance(value, kind) or value in ("", []) or isinstance(value, bool):
            raise ValueError(f"`{key}` of {name!r}: expected {kind.__name__}, got {value!r}; drop the row")
        if "relation" in key and value not in ("at least", "less than"):
            raise ValueError(f"`{key}` of {name!r}: expected 'at least' or 'less than', got {value!r}; drop the row")
    if name == "language:response_language":
        language_fits("", given["language"])
    return lambda text: rule.check(text, given)
