"""Revisers: which earlier choices to take back or to edit."""

from dare_samplers.revisers.levenshtein import Levenshtein
from dare_samplers.revisers.lowest import ReMaskLowest
from dare_samplers.revisers.remask_below import RemaskBelow
from dare_samplers.revisers.remdm import ReMDM
from dare_samplers.revisers.running import MasksAfter, RunningConfidence
from dare_samplers.revisers.token_edit import MultiBlockEdit, TokenEdit

__all__ = [
    "Levenshtein",
    "MasksAfter",
    "MultiBlockEdit",
    "ReMDM",
    "ReMaskLowest",
    "RemaskBelow",
    "RunningConfidence",
    "TokenEdit",
]
