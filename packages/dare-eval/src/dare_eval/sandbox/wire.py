"""Plain data as one line of text, for the pipe between the tests and the program under test.

The receiver builds new objects of the plain types alone, whatever the sender meant: nothing that compares equal to
everything gets through. This module is also read as text into the jail, so it imports the standard library only.
"""

import ast
import math
from collections.abc import Callable

LONGEST = 1 << 20
PLAIN = (type(None), bool, int, float, complex, str, bytes)


class NotPlain(TypeError):
    """A value that is no plain data."""


def plain(value: object, depth: int = 0) -> object:
    """Return a copy made of plain types only.

    Raises:
        NotPlain: for any other type, or nesting beyond 50.
    """
    kind = type(value)
    if kind in PLAIN:
        return value
    if depth > 50:
        raise NotPlain("nested too deeply")
    if isinstance(value, (list, tuple, set, frozenset)) and kind in (list, tuple, set, frozenset):
        return kind(plain(item, depth + 1) for item in value)
    if isinstance(value, dict) and kind is dict:
        return {plain(key, depth + 1): plain(item, depth + 1) for key, item in value.items()}
    raise NotPlain(f"a {kind.__name__}")


def encode(value: object) -> bytes:
    """Return a value as one line.

    Raises:
        NotPlain: it is no plain data, or more than a mebibyte of it.
    """
    line = _text(plain(value)).encode("utf-8", "surrogatepass").replace(b"\n", b"\\n")
    if len(line) > LONGEST:
        raise NotPlain(f"more than {LONGEST} bytes")
    return line + b"\n"


def decode(line: bytes) -> object:
    """Return the value of a line.

    Raises:
        NotPlain: it is none.
    """
    try:
        return _value(ast.parse(line.decode("utf-8", "surrogatepass").strip(), mode="eval").body)
    except NotPlain:
        raise
    except Exception as error:
        raise NotPlain(f"an unreadable line ({type(error).__name__})") from error


def _text(value: object) -> str:
    """The value in Python's own notation; what that cannot write, as a call."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, complex):
        return f"complex({_text(value.real)}, {_text(value.imag)})"
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if isinstance(value, tuple):
        return f"({', '.join(map(_text, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}([{', '.join(map(_text, value))}])"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(key)}: {_text(item)}" for key, item in value.items()) + "}"
    return repr(value)


CALLS: dict[str, Callable[..., object]] = {"float": float, "complex": complex, "set": set, "frozenset": frozenset}


def _value(node: ast.expr) -> object:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS and not node.keywords:
        return CALLS[node.func.id](*map(_value, node.args))
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Tuple):
        return tuple(_value(item) for item in node.elts)
    if isinstance(node, ast.Dict):
        return {_value(key): _value(item) for key, item in zip(node.keys, node.values, strict=True) if key}
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        number = node.operand.value
        if isinstance(number, int | float):
            return -number
    if isinstance(node, ast.Constant) and type(node.value) in PLAIN:
        return node.value
    raise NotPlain(f"a {type(node).__name__}")
