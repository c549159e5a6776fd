"""Verifiers: pure functions from a completion's text to a `Verdict`. Nothing here loads torch.

A verifier never raises on any text, returns in time linear in its length, and evaluates nothing that a model wrote with
Python. One file per verifier, one line here.
"""

from dare_eval.verify.boundary import Visible as Visible
from dare_eval.verify.boundary import visible as visible
from dare_eval.verify.choice import choice as choice
from dare_eval.verify.code import code_cases as code_cases
from dare_eval.verify.code import code_streams as code_streams
from dare_eval.verify.code import code_tests as code_tests
from dare_eval.verify.code import extract_code as extract_code
from dare_eval.verify.countdown import countdown as countdown
from dare_eval.verify.digits import digits as digits
from dare_eval.verify.gsm8k import gsm8k as gsm8k
from dare_eval.verify.gsm8k import gsm8k_label as gsm8k_label
from dare_eval.verify.instructions import instructions as instructions
from dare_eval.verify.layout import boxed_answer as boxed_answer
from dare_eval.verify.layout import reasoned_answer as reasoned_answer
from dare_eval.verify.math import MathVerifier as MathVerifier
from dare_eval.verify.math import math as math
from dare_eval.verify.phrase import phrase as phrase
from dare_eval.verify.sudoku import sudoku as sudoku
from dare_eval.verify.verdict import Status as Status
from dare_eval.verify.verdict import Verdict as Verdict

__all__ = [
    "MathVerifier",
    "Status",
    "Verdict",
    "Visible",
    "boxed_answer",
    "choice",
    "code_cases",
    "code_streams",
    "code_tests",
    "countdown",
    "digits",
    "extract_code",
    "gsm8k",
    "gsm8k_label",
    "instructions",
    "math",
    "phrase",
    "reasoned_answer",
    "sudoku",
    "visible",
]
