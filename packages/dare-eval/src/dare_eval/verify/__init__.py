"""Verifiers: pure functions from a completion's text to a `Verdict`. Nothing here loads torch.

A verifier never raises on any text, returns in time linear in its length, and evaluates nothing that a model wrote with
Python. One file per verifier, one line here.
"""

from dare_eval.verify.boundary import Visible as Visible
from dare_eval.verify.boundary import visible as visible
from dare_eval.verify.countdown import countdown as countdown
from dare_eval.verify.digits import digits as digits
from dare_eval.verify.sudoku import sudoku as sudoku
from dare_eval.verify.verdict import Status as Status
from dare_eval.verify.verdict import Verdict as Verdict

__all__ = ["Status", "Verdict", "Visible", "countdown", "digits", "sudoku", "visible"]
