"""Instructions that a program can verify (IFEval, arXiv:2311.07911)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from dare_eval.verify.instruction_rules import RULES
from dare_eval.verify.verdict import Verdict

__all__ = ["SUPPORTED", "VERSION", "instructions"]

VERSION: Final = "instructions/1"
SUPPORTED: Final[tuple[str, ...]] = tuple(RULES)
"""The ids that can be verified: all 25 of the data set."""


def instructions(
    completion: str,
    ids: Sequence[str],
    arguments: Sequence[Mapping[str, Any]],
    *,
    prompt: str = "",
    loose: bool = False,
) -> Verdict:
    """Judge whether a completion keeps every instruction of a prompt.

    `correct` says that all hold (accuracy by prompt), `score` is the share that holds, `parts` has 1.0 or 0.0 for each
    id (accuracy by instruction), where the second of the same id ends with `#2`.

    The rules are those that were published, quirks that decide a verdict included: keywords also count inside other
    words, bullet points and paragraphs are counted exactly, sections and highlights at least. These differ:

    - Language, also for text in capitals or in lower case: no statistical detector but script, telling letters and
      frequent words (`dare_eval.verify.languages`). Where nothing tells two languages apart, both are accepted; a text
      without letters is in none.
    - Sentences and words in capitals are split by rules of our own instead of nltk's; they may differ in rare texts.
    - Keywords, markers and dividers are plain text, never patterns.
    - An argument that is missing is refused instead of drawn at random.

    Args:
        completion: text before the first end token.
        ids: the row's `instruction_id_list`, of `SUPPORTED`.
        arguments: the row's `kwargs`, one mapping for each id; values that are None count as absent.
        prompt: the request that is to be repeated, for `combination:repeat_prompt` without a `prompt_to_repeat`.
        loose: accept an instruction that holds for the text without its first line, its last or both, or for one of
            these or the whole without asterisks.

    Raises:
        ValueError: for an unknown id, or arguments that are missing, of a wrong type or not the instruction's own.

    >>> ids = ["punctuation:no_comma", "length_constraints:number_words"]
    >>> verdict = instructions("Short, but good.", ids, [{}, {"num_words": 3, "relation": "at least"}])
    >>> verdict.correct, verdict.score, verdict.reason
    (False, 0.5, 'punctuation:no_comma: 1 commas')
    """
    if not ids or len(ids) != len(arguments):
        raise ValueError(
            f"expected ids and one mapping of arguments for each, got {len(ids)} and {len(arguments)}; "
            "pass the row's instruction_id_list and kwargs"
        )
    checks = _named([(name, _check(name, row, prompt)) for name, row in zip(ids, arguments, strict=True)])
    if not completion.strip():
        return Verdict.unparsable("empty completion", parts=dict.fromkeys(checks, 0.0))
    texts = _variants(completion) if loose else [completion]
    found: dict[str, str] = {}
    for name, check in checks.items():
        wrong = check(completion)
        if wrong is not None and all(check(text) is not None for text in texts[1:]):
            found[name] = wrong
    parts = {name: float(name not in found) for name in checks}
    if not found:
        return Verdict.right(completion, parts=parts)
    name, wrong = next(iter(found.items()))
    return Verdict.wrong(f"{name}: {wrong}", pred=completion, score=1 - len(found) / len(checks), parts=parts)


_Check = Callable[[str], str | None]


def _check(name: str, row: Mapping[str, Any], prompt: str) -> _Check:
    """The rule of an id with its arguments."""
    rule = RULES.get(name)
    if rule is None:
        raise ValueError(f"expected an id of {', '.join(SUPPORTED)}, got {name!r}; drop the row or add a rule")
    if not isinstance(row, Mapping):
        raise ValueError(f"expected a mapping of arguments for {name}, got {row!r}; pass the row's kwargs")
    given = {key: value for key, value in row.items() if value is not None}
    if prompt and "prompt_to_repeat" in rule.needs:
        given.setdefault("prompt_to_repeat", prompt)
    if foreign := sorted(given.keys() - rule.needs.keys()):
        raise ValueError(
            f"expected arguments of {sorted(rule.needs)} for {name}, got {foreign} too; "
            "keep ids and arguments of a row in the same order"
        )
    for key, kind in rule.needs.items():
        if key not in given:
            raise ValueError(f"expected {key} for {name}, got {sorted(given)}; add {key}, {kind.says}")
        if not kind.accepts(given[key]):
            raise ValueError(f"expected {key} of {name} to be {kind.says}, got {given[key]!r}; correct the row")
    return lambda text: rule.find(text, given)


def _named(checks: Sequence[tuple[str, _Check]]) -> dict[str, _Check]:
    """The checks by id; of several with the same one, the second is `id#2`."""
    named: dict[str, _Check] = {}
    seen: dict[str, int] = {}
    for name, check in checks:
        seen[name] = seen.get(name, 0) + 1
        named[name if seen[name] == 1 else f"{name}#{seen[name]}"] = check
    return named


def _variants(text: str) -> list[str]:
    """The text, then what is left of it without first line, last line, both, and asterisks; nothing blank."""
    lines = text.split("\n")
    whole = [text, *("\n".join(part).strip() for part in (lines[1:], lines[:-1], lines[1:-1]))]
    variants = [*whole, *(variant.replace("*", "") for variant in whole)]
    return [text, *(variant for variant in dict.fromkeys(variants) if variant.strip() and variant != text)]
