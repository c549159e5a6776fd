"""The sandbox as a user sees it: limits, levels, jobs."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, Literal

__all__ = ["Judgement", "Level", "Limits", "Sandbox", "SandboxError", "reached_level"]

Level = Literal["namespaces", "rlimits"]
"""`namespaces`: no network, no foreign files or processes, filtered system calls. `rlimits`: limits and, for root,
another user; nothing is claimed for network and foreign files."""

LEVELS: Final[tuple[Level, ...]] = ("namespaces", "rlimits")
SUPERVISOR = Path(__file__).with_name("supervisor.py")
OVERRIDE: Final = "DARE_SANDBOX"
"""Environment variable that names the level to accept."""
FIRST_USER = 61_000
USERS = 1_000


class SandboxError(RuntimeError):
    """The sandbox cannot be as safe as it is asked to be, or not run at all."""


@dataclass(frozen=True)
class Limits:
    """What a program may use.

    Args:
        cpu_seconds: processor time of each of its processes.
        wall_seconds: time in all, from its slot's start; then everything is killed.
        memory: bytes of address space of each process.
        processes: at once.
        file: bytes of a file.
        disk: bytes in its /tmp.
    """

    cpu_seconds: int = 2
    wall_seconds: float = 5.0
    memory: int = 1 << 30
    processes: int = 16
    file: int = 16 << 20
    disk: int = 64 << 20


@dataclass(frozen=True)
class Judgement:
    """What became of a program."""

    verdict: Literal["passed", "wrong", "crash", "timeout"]
    """`wrong`: a test failed; `crash`: another exception, a syntax error, no such function, a limit."""
    reason: str
    level: Level
    """The level it ran at."""

    @property
    def passed(self) -> bool:
        """Whether all tests passed."""
        return self.verdict == "passed"


class Sandbox:
    """Runs jobs in jails, as many at once as there are slots.

    Args:
        slots: jobs at once; None takes the number of cores.
        limits: of each job.
        require: the least level; None takes the one that DARE_SANDBOX names, or namespaces. `rlimits` has to be asked
            for, since it does not keep programs from network and files.
        python: interpreter of the programs; None takes this one.

    Raises:
        SandboxError: the level cannot be reached here.
        ValueError: an unknown level, or no slots.
    """

    def __init__(
        self,
        *,
        slots: int | None = None,
        limits: Limits | None = None,
        require: Level | None = None,
        python: str | None = None,
    ) -> None:
        self.slots = os.cpu_count() or 1 if slots is None else slots
        if self.slots < 1:
            raise ValueError(f"`slots`: expected at least 1, got {slots}")
        required = os.environ.get(OVERRIDE, "namespaces") if require is None else require
        if required not in LEVELS:
            raise ValueError(f"`require`, {OVERRIDE}: expected one of {', '.join(LEVELS)}, got {required!r}")
        self.limits = Limits() if limits is None else limits
        self.python = os.path.realpath(sys.executable) if python is None else python
        self.level: Level | None = reached_level(self.python)
        if self.level is None or (required == "namespaces" and self.level != "namespaces"):
            raise SandboxError(
                f"expected isolation by {required}, got {self.level or 'none'} on this system; allow user namespaces, "
                f"run as root with CAP_SYS_ADMIN, or accept less: require='rlimits' or {OVERRIDE}=rlimits (network and"
                " files stay reachable; as root this wants an interpreter that other users may execute)"
            )
        self._free: SimpleQueue[int] = SimpleQueue()
        for slot in range(self.slots):
            self._free.put(slot)

    def functions(
        self, program: str, tests: Sequence[str], *, entry_point: str | None = None, setup: str = ""
    ) -> Judgement:
        """Run tests, which are trusted Python, against the functions of a program.

        Args:
            program: the code under test.
            tests: asserts, or one text that defines `check(candidate)`.
            entry_point: the function that the tests are about; None puts all of the program's in their reach.
            setup: trusted code that runs before the tests, such as helpers.
        """
        return self._judge(
            {"style": "functions", "program": program, "tests": list(tests), "entry_point": entry_point, "setup": setup}
        )

    def cases(self, program: str, entry_point: str, cases: Iterable[tuple[Sequence[Any], Any]]) -> Judgement:
        """Call one function with arguments and compare its results.

        Args:
            program: the code under test.
            entry_point: a function, or `Class.method` of a class without arguments.
            cases: (arguments, expected result) of plain data.
        """
        listed = [[list(args), expected] for args, expected in cases]
        return self._judge({"style": "cases", "program": program, "entry_point": entry_point, "cases": listed})

    def streams(self, program: str, cases: Iterable[tuple[str, str]]) -> Judgement:
        """Run a program once per case and compare its standard output, without trailing white space.

        Args:
            program: the code under test.
            cases: (standard input, expected output).
        """
        return self._judge({"style": "streams", "program": program, "cases": [list(case) for case in cases]})

    def map(self, jobs: Iterable[tuple[str, tuple[Any, ...], Mapping[str, Any]]]) -> list[Judgement]:
        """Judge many jobs, each by (method, arguments, keyword arguments), in their order."""
        with ThreadPoolExecutor(self.slots) as pool:
            return [
                future.result()
                for future in [pool.submit(getattr(self, name), *args, **options) for name, args, options in jobs]
            ]

    def _judge(self, job: dict[str, Any]) -> Judgement:
        assert self.level is not None, "checked when it was made"
        slot = self._free.get()  # waits for one
        try:
            settings = _settings(self.python, self.level, self.limits, slot)
            result = _supervise({**job, **settings}, self.limits.wall_seconds)
        finally:
            self._free.put(slot)
        return Judgement(result["verdict"], result["reason"], self.level)


@cache
def reached_level(python: str | None = None) -> Level | None:
    """The best level that this system allows: a jail is started to see.

    Args:
        python: interpreter of the programs; None takes this one.
    """
    python = os.path.realpath(sys.executable) if python is None else python
    for level in LEVELS:
        settings = _settings(python, level, Limits(), USERS - 1)
        if _supervise({"style": "probe", **settings}, 30.0)["verdict"] == "passed":
            return level
    return None


def _settings(python: str, level: Level, limits: Limits, slot: int) -> dict[str, Any]:
    """What the supervisor needs beside the job: as root every slot has a user of its own, for limits count by user."""
    user = FIRST_USER + (os.getpid() * 8 + slot) % USERS if os.getuid() == 0 else None
    return {"python": python, "level": level, "user": user, **asdict(limits)}


def _supervise(job: dict[str, Any], seconds: float) -> dict[str, Any]:
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-I", "-S", str(SUPERVISOR)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={"PATH": os.environ.get("PATH", ""), "TMPDIR": os.environ.get("TMPDIR", "/tmp")},  # noqa: S108
    )
    try:
        output = process.communicate(json.dumps(job), timeout=seconds)[0]
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGTERM)
        try:
            process.communicate(timeout=3)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        return {"verdict": "timeout", "reason": f"not done within {seconds:g} s"}
    if not output:
        return {"verdict": "crash", "reason": "the supervisor ended"}
    return json.loads(output)
