"""How a completion came about, as text."""

from collections.abc import Sequence

__all__ = ["step_picture"]

OPEN = "░"


def step_picture(picture: Sequence[tuple[str, int]], *, lines: int = 12) -> str:
    """The canvas after some of the steps, one line each; open positions are `░`.

    Args:
        picture: the tokens and the step at which each was committed, -1 = never.
        lines: at most so many, evenly spaced, the last one always among them.

    >>> print(step_picture([("a", 1), ("b", 0), ("c", 2)]))
     0 ░b░
     1 ab░
     2 abc
    """
    last = max((step for _, step in picture), default=-1)
    count = min(max(lines, 1), last + 1)
    shown = sorted({last - i * (last + 1) // count for i in range(count)}) if count else []
    width = max(len(str(last)), 2)
    rows: list[str] = []
    for now in shown:
        canvas = "".join(text if 0 <= step <= now else OPEN * max(len(text), 1) for text, step in picture)
        rows.append(f"{now:>{width}} {canvas}".replace("\n", "⏎"))
    return "\n".join(rows)
