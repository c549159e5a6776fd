"""From a row of a benchmark to a problem. One function per layout of columns.

Each takes a row and the sheet's settings and returns `Fields`, or raises `BadRow` for one that cannot be used.
"""

import base64
import io
import json
import pickle
import string
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from dare_eval.tasks.draws import Draws
from dare_eval.verify.boxes import last_box
from dare_eval.verify.gsm8k import gsm8k_label
from dare_eval.verify.instructions import instructions

__all__ = ["READERS", "BadRow", "Fields", "Reader"]


class BadRow(ValueError):
    """A row that is no problem: what is missing or wrong."""


@dataclass(frozen=True)
class Fields:
    """What a row holds."""

    text: dict[str, str]
    """What the sheet's templates name."""
    answer: str
    """A completion that is right, without the sheet's wrapping; empty where the data shows none."""
    data: dict[str, Any] = field(default_factory=dict)
    """What the verifier needs."""
    options: tuple[str, ...] = ()
    """The texts of the options, for multiple choice."""
    group: str = ""
    """The part of the data."""


Reader = Callable[[Mapping[str, Any]], Fields]


def _text(row: Mapping[str, Any], *names: str) -> str:
    """The first of these columns that is there, as text."""
    for name in names:
        value = row.get(name)
        if isinstance(value, int | float) and not isinstance(value, bool):
            value = str(value)
        if isinstance(value, str) and value.strip():
            return value
    raise BadRow(f"no text in column {' or '.join(names)}")


def _list(row: Mapping[str, Any], name: str) -> list[Any]:
    value = row.get(name)
    if isinstance(value, str):  # how CSV files hold lists
        try:
            value = json.loads(value)
        except ValueError as error:
            raise BadRow(f"no list in column {name}") from error
    if not isinstance(value, Sequence) or not value:
        raise BadRow(f"no list in column {name}")
    return list(value)


def _letters(options: Sequence[object], answer: object) -> tuple[tuple[str, ...], str]:
    """Options and the letter of the right one, which is given as a letter or a number."""
    texts = tuple(str(option).strip() for option in options)
    if not 2 <= len(texts) <= len(string.ascii_uppercase) or not all(texts):
        raise BadRow(f"expected 2 to 26 options with text, got {len(texts)}")
    known = string.ascii_uppercase[: len(texts)]
    letter = str(answer).strip()
    if letter.isdecimal() and int(letter) < len(texts):
        letter = known[int(letter)]
    if len(letter) != 1 or letter not in known:
        raise BadRow(f"expected an answer of {known}, got {answer!r}")
    return texts, letter


def _listed(options: Sequence[str]) -> str:
    return "\n".join(f"{letter}. {option}" for letter, option in zip(string.ascii_uppercase, options, strict=False))


def _choice(question: str, options: Sequence[object], answer: object, group: str = "") -> Fields:
    texts, letter = _letters(options, answer)
    text = {"question": question.strip(), "options": _listed(texts), "letters": ", ".join(_known(texts))}
    return Fields(text, letter, {"letter": letter, "options": len(texts)}, texts, group)


def _known(options: Sequence[object]) -> str:
    return string.ascii_uppercase[: len(options)]


def gsm8k(row: Mapping[str, Any]) -> Fields:
    """`question` and `answer`: a solution that ends with `#### 42`."""
    solution = _text(row, "answer")
    try:
        gsm8k_label(solution)
    except ValueError as error:
        raise BadRow(str(error)) from error
    steps, _, number = solution.rpartition("####")
    return Fields(
        {"question": _text(row, "question").strip()},
        f"{steps.strip()}\n\\boxed{{{number.strip()}}}".strip(),
        {"answer": number.strip()},
    )


def mathematics(row: Mapping[str, Any]) -> Fields:
    r"""`problem` or `question`, and `answer`, `final_answer`, or a `solution` whose last box holds it."""
    given = row.get("answer", row.get("final_answer"))
    solution = row.get("solution")
    if isinstance(solution, list):  # OlympiadBench lists several
        solution = solution[0] if solution else None
    if isinstance(given, list):
        if len(given) != 1:
            raise BadRow(f"expected one final answer, got {len(given)}")
        given = given[0]
    answer = str(given).strip() if given is not None else last_box(str(solution or ""))
    if not answer:
        raise BadRow("no answer, and no closed box in the solution")
    answer = answer.strip("$").strip()
    shown = str(solution).strip() if solution else ""
    closing = "" if last_box(shown) is not None else f"\n\\boxed{{{answer}}}"
    return Fields(
        {"question": _text(row, "problem", "question").strip()}, f"{shown}{closing}".strip(), {"answer": answer}
    )


def olympiad(row: Mapping[str, Any]) -> Fields:
    """As `mathematics`, for questions in words that have one numerical or symbolic answer."""
    if row.get("is_multiple_answer") or row.get("modality", "Text-only") != "Text-only":
        raise BadRow("several answers, or a picture")
    return mathematics(row)


def mmlu(row: Mapping[str, Any]) -> Fields:
    """`question`, `choices`, `answer` 0 to 3, `subject`."""
    subject = str(row.get("subject", "")).replace("_", " ")
    return _choice(_text(row, "question"), _list(row, "choices"), row.get("answer"), subject)


def mmlu_pro(row: Mapping[str, Any]) -> Fields:
    """`question`, `options` (up to ten, fillers are dropped), `answer` as a letter, `category`."""
    options = [option for option in _list(row, "options") if str(option).strip() != "N/A"]
    return _choice(_text(row, "question"), options, row.get("answer"), str(row.get("category", "")))


def hellaswag(row: Mapping[str, Any]) -> Fields:
    """`activity_label`, `ctx`, `endings`, `label` 0 to 3."""
    context = f"{row.get('activity_label') or ''}: {_text(row, 'ctx')}".removeprefix(": ")
    return _choice(_clean(context), [_clean(str(ending)) for ending in _list(row, "endings")], row.get("label"))


def _clean(text: str) -> str:
    """WikiHow's section marks as the published evaluations read them."""
    text = text.replace(" [title]", ". ")
    while "[" in text and "]" in text[text.index("[") :]:
        start = text.index("[")
        text = text[:start] + text[text.index("]", start) + 1 :]
    return " ".join(text.split())


def arc(row: Mapping[str, Any]) -> Fields:
    """`question`, `choices` with `text` and `label`, `answerKey`: a letter or a number."""
    choices = row.get("choices")
    if not isinstance(choices, Mapping):
        raise BadRow("no mapping in column choices")
    labels = [str(label) for label in _list(choices, "label")]
    key = str(row.get("answerKey", "")).strip()
    if key not in labels:
        raise BadRow(f"expected an answer of {labels}, got {key!r}")
    return _choice(_text(row, "question"), _list(choices, "text"), labels.index(key))


def gpqa(row: Mapping[str, Any]) -> Fields:
    """`Question`, `Correct Answer` and three of `Incorrect Answer n`; the order is a hash of the question."""
    question = _text(row, "Question")
    options = [_text(row, name) for name in ("Correct Answer", *(f"Incorrect Answer {n}" for n in (1, 2, 3)))]
    order = Draws("gpqa", question).shuffled(range(4))
    return _choice(question, [options[i] for i in order], order.index(0), str(row.get("High-level domain") or ""))


def humaneval(row: Mapping[str, Any]) -> Fields:
    """`prompt`, `canonical_solution`, `test`, `entry_point`: the function is to be completed."""
    prompt, entry_point = _text(row, "prompt"), _text(row, "entry_point")
    data = {"prompt": prompt, "tests": _text(row, "test"), "entry_point": entry_point, "style": "check"}
    answer = f"```python\n{prompt}{_text(row, 'canonical_solution')}\n```"
    return Fields({"question": prompt, "entry_point": entry_point}, answer, data)


def mbpp(row: Mapping[str, Any]) -> Fields:
    """`text` or `prompt`, `code`, `test_list`; imports of tests in `test_setup_code` or `test_imports`."""
    listed = [str(test) for test in _list(row, "test_list")]
    setup = row.get("test_setup_code") or "\n".join(map(str, row.get("test_imports") or ()))
    tests = [str(row["test"])] if row.get("test") else listed  # MBPP+ has one long test beside the list
    data = {"prompt": "", "tests": [f"{setup}\n{test}".strip() for test in tests], "style": "asserts"}
    question = {"question": _text(row, "text", "prompt").strip(), "tests": "\n".join(listed)}
    return Fields(question, f"```python\n{_text(row, 'code').strip()}\n```", data)


def livecodebench(row: Mapping[str, Any]) -> Fields:
    """`question_content`, `starter_code`, `public_test_cases`, `private_test_cases`, `metadata` with `func_name`."""
    public, private = _cases(row.get("public_test_cases")), _cases(row.get("private_test_cases") or "[]")
    cases = [*public, *private]
    if not cases:
        raise BadRow("no test cases")
    starter = str(row.get("starter_code") or "")
    metadata: Any = row.get("metadata") or "{}"
    name = (json.loads(metadata) if isinstance(metadata, str) else metadata).get("func_name")
    data: dict[str, Any] = {"cases": [[case["input"], case["output"]] for case in cases], "style": "streams"}
    if cases[0].get("testtype") == "functional":
        if not name:
            raise BadRow("functional tests without a func_name in metadata")
        data |= {"style": "calls", "entry_point": f"Solution.{name}" if "class Solution" in starter else str(name)}
    asked = f"Complete this code:\n```python\n{starter}\n```" if starter else "Read from standard input and print."
    return Fields({"question": _text(row, "question_content").strip(), "task": asked}, "", data)


def _cases(value: object) -> list[dict[str, str]]:
    """Test cases as JSON, or as JSON that was pickled, compressed and written in base64."""
    try:
        if isinstance(value, str) and value[:1] not in "[{":
            value = _Plain(io.BytesIO(zlib.decompress(base64.b64decode(value)))).load()
        cases: Any = json.loads(value) if isinstance(value, str) else value
        return [{key: str(case[key]) for key in ("input", "output", "testtype") if key in case} for case in cases]
    except (ValueError, KeyError, TypeError, zlib.error, pickle.UnpicklingError, EOFError) as error:
        raise BadRow(f"unreadable test cases: {error}") from error


class _Plain(pickle.Unpickler):
    """Reads texts and containers, and refuses everything else."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        raise pickle.UnpicklingError(f"expected plain data, got {module_name}.{global_name}")


def ifeval(row: Mapping[str, Any]) -> Fields:
    """`prompt`, `instruction_id_list`, `kwargs`."""
    ids = [str(name) for name in _list(row, "instruction_id_list")]
    arguments = [{k: v for k, v in (one or {}).items() if v is not None} for one in _list(row, "kwargs")]
    if len(ids) != len(arguments):
        raise BadRow(f"expected arguments for {len(ids)} instructions, got {len(arguments)}")
    prompt = _text(row, "prompt")
    try:
        instructions("", ids, arguments, prompt=prompt)
    except ValueError as error:
        raise BadRow(str(error)) from error
    return Fields({"question": prompt}, "", {"ids": ids, "arguments": arguments, "prompt": prompt})


def bbh(row: Mapping[str, Any]) -> Fields:
    """`input` and `target`."""
    target = _text(row, "target").strip()
    return Fields({"question": _text(row, "input").strip()}, f"So the answer is {target}.", {"target": target})


READERS: Final[dict[str, Reader]] = {
    reader.__name__: reader
    for reader in (
        arc, bbh, gpqa, gsm8k, hellaswag, humaneval, ifeval, livecodebench, mathematics, mbpp, mmlu, mmlu_pro, olympiad
    )
}  # fmt: skip
