"""Programs, judged by the data set's tests in the sandbox: HumanEval (arXiv:2107.03374), MBPP (arXiv:2108.07732)."""

import ast
import re
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, Literal

from dare_eval.sandbox import Judgement, Sandbox
from dare_eval.verify.verdict import Verdict

__all__ = ["VERSION", "code_cases", "code_streams", "code_tests", "extract_code", "shared_sandbox"]

VERSION: Final = "code/1"
LONGEST: Final = 100_000

_FENCE: Final = re.compile(r"```[ \t]*(?:python|py|Python)?[ \t]*\r?\n(.*?)```", re.DOTALL)
_LOOKS_LIKE_CODE: Final = re.compile(
    r"^[ \t]*(?:def |class |import |from \w+ import |return\b|print\(|\w+ *[-+*/]?= |for |if |while )", re.MULTILINE
)


def extract_code(completion: str, entry_point: str | None = None) -> str | None:
    r"""The program in a completion, or None.

    What stands between `[BEGIN]` and `[DONE]`; else of the fenced blocks the last that defines the entry point, the
    last that defines anything, the last; else the whole text, if it looks like code.

    >>> extract_code("Here: ```python\ndef f():\n    return 1\n```", "f")
    'def f():\n    return 1\n'
    """
    text = completion[:LONGEST]
    if "[BEGIN]" in text:
        inside = text.rpartition("[BEGIN]")[2].partition("[DONE]")[0]
        return inside.strip("\r\n") or None
    blocks = [match[1] for match in _FENCE.finditer(text)]
    if not blocks and "```" in text:  # opened, and cut off by the length
        blocks = [re.sub(r"^[ \t]*(?:python|py)?[ \t]*\r?\n", "", text.rpartition("```")[2])]
    for wanted in (f"def {entry_point}(", "def ", ""):
        found = [block for block in blocks if wanted in block]
        if found:
            return found[-1] if found[-1].strip() else None
    return text.strip("\r\n") if _LOOKS_LIKE_CODE.search(text) else None


def code_tests(
    completion: str,
    tests: str | Sequence[str],
    *,
    prompt: str = "",
    entry_point: str | None = None,
    sandbox: Sandbox | None = None,
) -> Verdict:
    """Judge a program by tests: asserts, or a text that defines `check(candidate)`.

    The tests run outside the sandbox's jail and see plain data that the program's functions return.

    Args:
        completion: text before the first end token.
        tests: the data set's, trusted.
        prompt: what the program completes: it comes before the code, and its helpers are also the tests'.
        entry_point: the function that the tests are about.
        sandbox: where it runs; None takes one for the process, which wants namespaces.

    Raises:
        SandboxError: where the system does not allow that level.
    """
    code = extract_code(completion, entry_point)
    if code is None:
        return Verdict.unparsable("no code")
    listed = [tests] if isinstance(tests, str) else list(tests)
    helpers = _without(prompt, entry_point)
    body = code[:1] in " \t"  # what a prompt that ends inside a function goes on with
    program = f"{prompt if body or helpers is None else helpers}\n{code}\n"
    box = shared_sandbox() if sandbox is None else sandbox
    return _verdict(box.functions(program, listed, entry_point=entry_point, setup=helpers or ""), code)


def code_cases(
    completion: str, entry_point: str, cases: Sequence[tuple[Sequence[Any], Any]], *, sandbox: Sandbox | None = None
) -> Verdict:
    """Judge a program by calls of one function, as LiveCodeBench's functional problems do.

    Args:
        completion: text before the first end token.
        entry_point: a function, or `Solution.method`.
        cases: (arguments, expected result) of plain data.
        sandbox: where it runs.
    """
    code = extract_code(completion, entry_point.rpartition(".")[2])
    if code is None:
        return Verdict.unparsable("no code")
    return _verdict((shared_sandbox() if sandbox is None else sandbox).cases(code, entry_point, cases), code)


def code_streams(completion: str, cases: Sequence[tuple[str, str]], *, sandbox: Sandbox | None = None) -> Verdict:
    """Judge a program by what it prints, as competitions do.

    Args:
        completion: text before the first end token.
        cases: (standard input, expected output).
        sandbox: where it runs.
    """
    code = extract_code(completion)
    if code is None:
        return Verdict.unparsable("no code")
    return _verdict((shared_sandbox() if sandbox is None else sandbox).streams(code, cases), code)


def _verdict(judgement: Judgement, code: str) -> Verdict:
    kind: Literal["wrong", "crash", "timeout", "passed"] = judgement.verdict
    if kind == "passed":
        return Verdict.right(code)
    return Verdict.wrong(f"{kind}: {judgement.reason}".rstrip(": "), pred=code)


def _without(prompt: str, entry_point: str | None) -> str | None:
    """The prompt's imports and helpers: all but the function to be completed. None where the prompt is no program."""
    try:
        module = ast.parse(prompt)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    module.body = [part for part in module.body if getattr(part, "name", None) != entry_point or entry_point is None]
    return ast.unparse(module)


@cache
def shared_sandbox() -> Sandbox:
    """The sandbox of this process, for verifiers that are given none.

    Raises:
        SandboxError: where the system does not allow its level.
    """
    return Sandbox()
