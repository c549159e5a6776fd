r"""Mathematical equality of a boxed answer, by math-verify in a process that can be killed."""

import atexit
import json
import os
import re
import select
import subprocess
import sys
import threading
from functools import cache
from math import ceil
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dare_eval.verify.boxes import last_box
from dare_eval.verify.numbers import alternatives, number
from dare_eval.verify.verdict import Verdict

__all__ = ["VERSION", "MathVerifier", "math"]

VERSION: Final = "math/1"
LONGEST: Final = 600
"""Characters of an answer that are looked at; a longer one is no final answer."""

_TEXT: Final = re.compile(r"\\(?:text|textbf|mathrm|mbox)\s*\{([^{}]*)\}")
_WORDS: Final = re.compile(r"(?:\\(?:text|textbf|mathrm|mbox)\s*\{)?\(?([A-Za-z]|[A-Za-z][a-z]{2,})\)?\}?\.?")
_NESTED: Final = 4
_NOISE: Final = re.compile(r"\\(?:left|right|displaystyle|[,;:! ])|\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\?[$%]|\s")
_FORMULA: Final = re.compile(r"(?<!\\)(?:\$\$?|\\[()\[\]])")
_EQUALS: Final = re.compile(r"(?<![\\<>!:])=")
_DIGITS: Final = re.compile(r"[0-9]{60}")
_TOWER: Final = re.compile(r"[0-9)}]\s*(?:\*\*|\^)\s*[{(]*\s*[0-9]+\s*[)}]*\s*(?:\*\*|\^)")
_LARGE: Final = re.compile(r"(?:\*\*|\^)\s*[({]*\s*[0-9]{6}|[0-9]{5}\s*\)*!|!\s*\)+\s*!")


class MathVerifier:
    """Judges answers in a process of its own; use it in a `with` block, or through `math`.

    Args:
        seconds: for one answer; then the process is killed, and the next answer starts another one.
        memory: bytes of address space of the process.
        start: seconds in which it must be ready.
    """

    def __init__(self, *, seconds: float = 2.0, memory: int = 2 << 30, start: float = 120.0) -> None:
        self.seconds, self.memory, self.start = seconds, memory, start
        self._process: subprocess.Popen[str] | None = None
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process; the next answer starts another one."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def __call__(self, completion: str, answer: str) -> Verdict:
        """Judge one completion; see `math`."""
        box = last_box(completion)
        pred = None if box is None else _inner(box)
        if not pred:
            return Verdict.unparsable("no closed box" if pred is None else "empty box")
        fault = _fault(pred)
        if fault is not None:
            return Verdict.unparsable(fault, pred=pred)
        expected, got = _plain(answer), _plain(pred)
        values = number(answer), number(pred)
        if expected == got or (None not in values and values[0] == values[1]):
            return Verdict.right(pred)
        if several := _several(answer, pred):
            return Verdict.ambiguous(several, pred=pred)
        if None not in values or _TEXT.fullmatch(answer.strip()) or (_is_word(answer) and _is_word(pred)):
            return Verdict.wrong(f"expected {answer}", pred=pred)
        verdict = self._ask(answer, pred)
        if verdict == "True":
            return Verdict.right(pred)
        if verdict == "False":
            return Verdict.wrong(f"expected {answer}", pred=pred)
        return Verdict.unparsable(verdict, pred=pred)

    def _ask(self, answer: str, pred: str) -> str:
        if self._owner != os.getpid():  # after a fork: whoever held the lock is not here
            self._lock, self._owner = threading.Lock(), os.getpid()
        with self._lock:
            process = self._running()
            assert process.stdin is not None and process.stdout is not None, "both are pipes"
            try:
                process.stdin.write(json.dumps([answer, pred]) + "\n")
                process.stdin.flush()
                line = self._line(process, self.seconds)
            except BrokenPipeError:
                line = ""
            if not line.endswith("\n"):
                self.close()
                return f"not decided within {self.seconds:g} s and {self.memory >> 20} MiB"
            return str(json.loads(line))

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            limits = [str(self.memory), str(ceil(self.seconds))]
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", "dare_eval.verify.math_worker", *limits],
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)},
                start_new_session=True,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
            if self._line(self._process, self.start) != "ready\n":
                self.close()
                raise RuntimeError(
                    f"expected math-verify to be ready within {self.start:g} s; run `python -c 'import math_verify'`"
                )
        return self._process

    def _line(self, process: subprocess.Popen[str], seconds: float) -> str:
        """A line of its output, or nothing: it took too long, or ended."""
        assert process.stdout is not None, "a pipe"
        ready, _, _ = select.select([process.stdout], [], [], seconds)
        return process.stdout.readline() if ready else ""


def math(completion: str, answer: str) -> Verdict:
    r"""Judge the expression in the last closed box: equal numbers, fractions, surds, tuples, polynomials, words.

    Texts and numbers are compared here, all else by math-verify (sympy) in a process of its own, within 2 s and 2 GiB;
    towers of exponents, huge numbers and factorials are not evaluated at all. Several formulas, several numbers where
    one is expected, and equations between unlike numbers are ambiguous; of other equations the right side counts.

    Args:
        completion: text before the first end token.
        answer: the expected expression in LaTeX.

    >>> math(r"so \boxed{\frac{6}{8}}", r"\frac{3}{4}").correct, math(r"\boxed{9^{9^9}}", "5").reason
    (True, 'a tower of exponents')
    """
    return _shared()(completion, answer)


@cache
def _shared() -> MathVerifier:
    verifier = MathVerifier()
    atexit.register(verifier.close)
    return verifier


def _inner(pred: str) -> str:
    """Without the boxes and formula signs that enclose all of it."""
    for _ in range(_NESTED):
        box = last_box(pred)
        if box is not None and re.fullmatch(r"\\f?box(?:ed)?\s*\{\s*\}", pred.replace(box, "", 1)):
            pred = box
        elif len(signs := _FORMULA.findall(pred)) == 2 and pred.startswith(signs[0]) and pred.endswith(signs[1]):
            pred = pred[len(signs[0]) : len(pred) - len(signs[1])].strip()
        else:
            break
    return pred


def _several(answer: str, pred: str) -> str | None:
    """Why a prediction is more than one answer, where one number or expression is expected."""
    if _FORMULA.search(pred) or last_box(pred) is not None:
        return "holds more than one formula"
    if number(answer) is not None and (named := alternatives(pred)):
        return f"names {' and '.join(named)}"
    values = {value for part in _EQUALS.split(pred) if (value := number(part)) is not None}
    return "equates unlike numbers" if len(values) > 1 else None


def _is_word(text: str) -> bool:
    return _WORDS.fullmatch(text.strip()) is not None


def _plain(text: str) -> str:
    """Without wrappers, spacing and signs that say nothing; words of a text in small letters, `(A)` as A."""
    word = _WORDS.fullmatch(text.strip())
    if word is not None:
        return word[1] if len(word[1]) == 1 else word[1].lower()
    plain = _NOISE.sub("", _TEXT.sub(r"\1", text)).replace("−", "-").rstrip(".")
    return plain.replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")


def _fault(pred: str) -> str | None:
    """Why an expression must not be evaluated."""
    if len(pred) > LONGEST:
        return f"longer than {LONGEST} characters"
    if _DIGITS.search(pred):
        return "a number of 60 digits or more"
    if _TOWER.search(pred):
        return "a tower of exponents"
    return "a huge power or factorial" if _LARGE.search(pred) else None
