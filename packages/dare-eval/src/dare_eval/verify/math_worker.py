"""The process in which math-verify runs: one JSON line in, one out. It may be killed at any moment.

python -m dare_eval.verify.math_worker MEMORY_BYTES SECONDS
"""

import json
import logging
import resource
import sys
from typing import Final

GRACE: Final = 5
"""Seconds of computing after which the system ends a process that nobody killed: its parent is gone."""


def main(memory: int, seconds: int) -> None:
    """Answer until the input closes."""
    from math_verify import parse, verify  # noqa: PLC0415 - sympy loads slowly, and here alone

    logging.disable(logging.CRITICAL)  # its complaints about strange input are the verdict's business
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    sys.set_int_max_str_digits(10_000)
    answers, sys.stdout = sys.stdout, sys.stderr
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        expected, got = json.loads(line)
        spent = resource.getrusage(resource.RUSAGE_SELF)
        limit = int(spent.ru_utime + spent.ru_stime) + seconds + GRACE
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        try:  # timeouts None: alarms work in the main thread alone, and the caller kills instead
            gold = parse(f"${expected}$", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
            found = parse(f"${got}$", parsing_timeout=None)  # pyright: ignore[reportArgumentType]
            verdict = "unreadable" if not found else str(bool(verify(gold, found, timeout_seconds=None)))
        except (Exception, RecursionError, MemoryError) as error:  # noqa: BLE001 - whatever sympy does, no answer is right
            verdict = f"unreadable: {type(error).__name__}"
        print(json.dumps(verdict), file=answers, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
