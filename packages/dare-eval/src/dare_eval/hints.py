"""The second half of an error message: what to write instead."""

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["did_you_mean"]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A suffix for an error about an unknown word.

    >>> did_you_mean("sotr", ["sort", "addition"])
    '; did you mean sort?'
    >>> did_you_mean("x", ["sort", "addition"])
    '; expected one of: addition, sort'
    """
    options = sorted(known)
    near = get_close_matches(word, options, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    return f"; expected one of: {', '.join(options)}" if options else "; it takes none"
