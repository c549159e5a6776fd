"""Keyed random integers without torch: the same on every machine and Python version."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Final, TypeVar

__all__ = ["Draws"]

_T = TypeVar("_T")
_WORD: Final = 1 << 64


class Draws:
    """A stream of random integers that is a pure function of its words.

    The numbers are SplitMix64 (Steele, Lea & Flood, 2014) started at a hash of the words. Python's own generator is not
    used because only its `random()` is promised to stay the same.

    >>> a, b = Draws("sort", 0, 1), Draws("sort", 0, 1)
    >>> [a.below(10) for _ in range(5)] == [b.below(10) for _ in range(5)]
    True
    """

    def __init__(self, *words: int | str) -> None:
        self._state = int.from_bytes(sha256(repr(words).encode()).digest()[:8], "big")

    def below(self, n: int) -> int:
        """A uniform integer of 0 … n−1 (to within n · 2⁻⁶⁴)."""
        self._state = (self._state + 0x9E3779B97F4A7C15) % _WORD
        x = self._state
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % _WORD
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % _WORD
        return (x ^ (x >> 31)) * n >> 64

    def pick(self, options: Sequence[_T]) -> _T:
        """One of the options."""
        return options[self.below(len(options))]

    def shuffled(self, values: Sequence[_T]) -> list[_T]:
        """The values in a random order."""
        result = list(values)
        for i in range(len(result) - 1, 0, -1):
            j = self.below(i + 1)
            result[i], result[j] = result[j], result[i]
        return result
