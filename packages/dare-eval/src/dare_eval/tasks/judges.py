"""From a benchmark's item to its verifier: one function per kind of answer."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, Final

from dare_eval.verify import Verdict, choice, code_cases, code_streams, code_tests, gsm8k, instructions, math, phrase
from dare_eval.verify.choice import VERSION as CHOICE
from dare_eval.verify.code import VERSION as CODE
from dare_eval.verify.code import shared_sandbox
from dare_eval.verify.gsm8k import VERSION as GSM8K
from dare_eval.verify.instructions import VERSION as INSTRUCTIONS
from dare_eval.verify.math import VERSION as MATH
from dare_eval.verify.numbers import number
from dare_eval.verify.phrase import VERSION as PHRASE

__all__ = ["JUDGES", "Judge"]

Verify = Callable[[Mapping[str, Any], str], Verdict]
"""From an item's data and a completion to a verdict."""


@dataclass(frozen=True)
class Judge:
    """How the answers of a kind are judged.

    Args:
        version: of the verifier.
        strict: the verifier.
        lenient: a filter that forgives form, if there is one: is the answer right?
        conditions: what of this machine a verdict depends on.
    """

    version: str
    strict: Verify
    lenient: Callable[[Mapping[str, Any], str], bool | None] = lambda data, completion: None
    conditions: Callable[[], dict[str, str]] = dict


def _number(data: Mapping[str, Any], completion: str) -> Verdict:
    return gsm8k(completion, data["answer"])


def _last_number(data: Mapping[str, Any], completion: str) -> bool | None:
    """Boxed or not, the last number."""
    if number(str(data["answer"])) is None:
        return None
    return gsm8k(completion, data["answer"], mode="flexible").correct is True


def _mathematics(data: Mapping[str, Any], completion: str) -> Verdict:
    return math(completion, data["answer"])


def _letter(data: Mapping[str, Any], completion: str) -> Verdict:
    return choice(completion, data["letter"], ascii_uppercase[: data["options"]])


def _code(data: Mapping[str, Any], completion: str) -> Verdict:
    """Programs by what their data set tests: a check function, asserts, calls or printed output."""
    match data["style"]:
        case "streams":
            return code_streams(completion, [(given, printed) for given, printed in data["cases"]])
        case "calls":
            cases = [(_lines(given), json.loads(expected)) for given, expected in data["cases"]]
            return code_cases(completion, data["entry_point"], cases)
        case _:
            return code_tests(completion, data["tests"], prompt=data["prompt"], entry_point=data.get("entry_point"))


def _lines(text: str) -> list[Any]:
    """LiveCodeBench gives a call's arguments as one JSON value per line."""
    return [json.loads(line) for line in text.split("\n") if line.strip()]


def _instructions(data: Mapping[str, Any], completion: str) -> Verdict:
    return instructions(completion, data["ids"], data["arguments"], prompt=data["prompt"])


def _loosely(data: Mapping[str, Any], completion: str) -> bool | None:
    found = instructions(completion, data["ids"], data["arguments"], prompt=data["prompt"], loose=True)
    return found.correct is True


def _phrase(data: Mapping[str, Any], completion: str) -> Verdict:
    return phrase(completion, data["target"])


JUDGES: Final[dict[str, Judge]] = {
    "number": Judge(GSM8K, _number, _last_number),
    "mathematics": Judge(MATH, _mathematics, _last_number),
    "letter": Judge(CHOICE, _letter),
    "code": Judge(CODE, _code, conditions=lambda: {"sandbox": str(shared_sandbox().level)}),
    "instructions": Judge(INSTRUCTIONS, _instructions, _loosely),
    "phrase": Judge(PHRASE, _phrase),
}
