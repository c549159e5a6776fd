"""The program under test, in the jail: loads the code, then answers calls with plain data. Nothing here is trusted.

Run as text by `python -I -c`, after the text of wire.py; the standard library only.
"""

import io
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # its text comes first
    from dare_eval.sandbox.wire import decode, encode

CALL_READS, CALL_WRITES = 3, 4


def serve() -> None:
    """Load the program, then answer a request per line: (name, args, kwargs) -> ("ok", value, args) or ("error", …)."""
    requests, answers = os.fdopen(CALL_READS, "rb"), os.fdopen(CALL_WRITES, "wb")
    namespace: dict[str, Any] = {"__name__": "program"}

    def answer(*values: object) -> None:
        try:
            line = encode(values)
        except Exception as error:
            line = encode(("error", "TypeError", f"the result is {error}"))
        answers.write(line)
        answers.flush()

    program: Any = decode(requests.readline())
    sys.stdin = io.StringIO()
    try:
        exec(compile(program, "program.py", "exec"), namespace)  # noqa: S102 - that is what the jail is for
    except BaseException as error:
        answer("error", type(error).__name__, str(error)[:500])
        return
    answer("ok", sorted(name for name, value in namespace.items() if callable(value) and not name.startswith("__")))
    for line in requests:
        request: Any = decode(line)
        name, args, kwargs = request
        try:
            first, *rest = name.split(".")
            target = namespace[first]
            for part in rest:
                target = getattr(target() if isinstance(target, type) else target, part)
            answer("ok", target(*args, **kwargs), args)
        except BaseException as error:
            answer("error", type(error).__name__, str(error)[:500])


if __name__ == "__main__":
    serve()
