r"""The closed `\boxed{…}` of a text."""

import re
from typing import Final

__all__ = ["boxes", "last_box"]

_TOKEN: Final = re.compile(r"(?P<box>\\(?:boxed|fbox)\s*\{)|\\.|(?P<open>\{)|(?P<close>\})", re.DOTALL)


def last_box(text: str) -> str | None:
    r"""The stripped content of the box that is closed last, or None; `\fbox` is one too, `\{` and `\}` are no braces.

    An unclosed box hides no closed one, before or inside it.

    >>> last_box(r"\boxed{41}, no: \boxed {\frac{1}{2}} or \boxed{3")
    '\\frac{1}{2}'
    """
    found = next(reversed(boxes(text)), None)
    return None if found is None else text[found].strip()


def boxes(text: str) -> list[slice]:
    r"""Where the contents of all closed boxes stand, in the order of their closing; time linear in the text."""
    begun: list[int | None] = []  # where the open braces' contents begin; None for braces that are no box
    found: list[slice] = []
    for token in _TOKEN.finditer(text):
        if token["box"]:
            begun.append(token.end())
        elif token["open"]:
            begun.append(None)
        elif token["close"] and begun:
            start = begun.pop()
            if start is not None:
                found.append(slice(start, token.start()))
    return found
