"""One job: start the jail, run the tests against it from outside, print the verdict. Killed by its parent when late.

python -I supervisor.py, with the job as JSON on standard input; prints one JSON object.

The tests run here and the program in the jail. What they exchange is plain data, so the program can say what its
functions return, and nothing else: not that it passed, not which objects compare equal, not when the tests are over.
"""

import builtins
import contextlib
import io
import json
import os
import resource
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).parent
if TYPE_CHECKING:
    from dare_eval.sandbox import isolate, wire
else:  # by path: loading the package would take longer than most jobs
    sys.path.insert(0, str(HERE))
    import isolate
    import wire

OUTPUT = 64 << 10


class Died(Exception):
    """The jail ended before it answered."""


class Failed(Exception):
    """The program raised."""


class Jail:
    """A process for the program under test.

    Args:
        job: limits, level, user.
        command: what to execute there.
        pipes: descriptors of the parent that become 0, 1, 2, … there; None is /dev/null.
    """

    def __init__(self, job: dict[str, Any], command: list[str], pipes: list[int | None]) -> None:
        self.root = tempfile.mkdtemp(prefix="dare-jail-")
        self.level = str(job["level"])
        self.user: int | None = job["user"]
        self.pid = os.fork()
        if self.pid == 0:
            try:
                self._child(job, command, pipes)
            except BaseException as error:
                os.write(2, f"jail: {error}\n".encode())
            finally:
                os._exit(125)

    def _child(self, job: dict[str, Any], command: list[str], pipes: list[int | None]) -> None:
        os.setsid()
        isolate.die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _arrange(pipes)
        if self.level == "namespaces":
            if os.getuid() != 0:
                isolate.map_user()
            isolate.unshare(
                isolate.NEW_MOUNTS | isolate.NEW_PIDS | isolate.NEW_NETWORK | isolate.NEW_IPC | isolate.NEW_NAMES
            )
            inner = os.fork()
            if inner:
                _, status = os.waitpid(inner, 0)
                os._exit(os.waitstatus_to_exitcode(status) & 127)
            isolate.new_root(self.root, int(job["disk"]), "/tmp/work")
        else:
            os.chmod(self.root, 0o777)
            os.chdir(self.root)
        if self.user is not None:
            isolate.drop(self.user)
        else:
            isolate.no_new_privileges()
        isolate.limit(
            seconds=job["cpu_seconds"],
            memory=job["memory"],
            processes=job["processes"],
            file=job["file"],
            files=64,
        )
        isolate.die_with_parent()
        if self.level == "namespaces":
            isolate.filter_calls()
        os.execve(command[0], command, {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8"})  # noqa: S606

    def end(self) -> None:
        """Kill it and everything it started, and remove its folder."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        until = time.monotonic() + 2
        while (children := _children()) and time.monotonic() < until:
            for child in children:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.002)
        shutil.rmtree(self.root, ignore_errors=True)


def _arrange(pipes: list[int | None]) -> None:
    """Make the given descriptors 0, 1, 2, … and close all others."""
    null = os.open(os.devnull, os.O_RDWR)
    moved = [os.dup2(null if pipe is None else pipe, 200 + i) for i, pipe in enumerate(pipes)]
    for i, descriptor in enumerate(moved):
        os.dup2(descriptor, i, inheritable=True)
    os.closerange(len(pipes), 1024)


def _children() -> list[int]:
    """Every descendant of this process; orphans are adopted."""
    tree: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                tree.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = [], [os.getpid()]
    while todo:
        below = tree.get(todo.pop(), [])
        found += below
        todo += below
    return found


class Program:
    """The functions of the program under test, called across the wall."""

    def __init__(self, job: dict[str, Any]) -> None:
        reads, self._writes = os.pipe()
        self._reads, writes = os.pipe()
        text = (HERE / "wire.py").read_text(encoding="utf-8") + (HERE / "candidate.py").read_text(encoding="utf-8")
        command = [str(job["python"]), "-I", "-c", text.replace("from __future__", "# from __future__")]
        self.jail = Jail(job, command, [None, None, None, reads, writes])
        os.close(reads)
        os.close(writes)
        self._buffer = b""
        try:
            self._send(str(job["program"]))
            self.names: list[str] = list(self._answer()[1])
        except BaseException:
            self.jail.end()
            raise

    def call(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
        """Call a function of the program; lists and dictionaries that it changes in place change here too."""
        self._send((name, args, kwargs))
        answer = self._answer()
        for mine, theirs in zip(args, answer[2] if len(answer) > 2 else (), strict=False):
            if type(mine) is type(theirs) and isinstance(mine, list):
                mine[:] = theirs
            elif type(mine) is type(theirs) and isinstance(mine, dict):
                mine.clear()
                mine.update(theirs)
        return answer[1]

    def _send(self, value: object) -> None:
        try:
            line = wire.encode(value)
            while line:
                line = line[os.write(self._writes, line) :]
        except BrokenPipeError:
            raise Died from None

    def _answer(self) -> Sequence[Any]:
        while b"\n" not in self._buffer:
            more = os.read(self._reads, 1 << 16) if len(self._buffer) <= 2 * wire.LONGEST else b""
            if not more:
                raise Died
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        value = wire.decode(line)
        if not isinstance(value, tuple) or not value or value[0] not in ("ok", "error") or len(value) < 2:
            raise Died
        if value[0] == "error":
            kind = getattr(builtins, str(value[1]), None)
            message = str(value[2:3])
            if isinstance(kind, type) and issubclass(kind, Exception) and kind is not AssertionError:
                raise _like(kind, message)
            raise Failed(f"{value[1]}: {message}")
        return value


def _like(kind: type[Exception], message: str) -> Exception:
    """An exception of the kind."""
    try:
        return kind(message)
    except TypeError:  # some want more arguments
        return Exception(f"{kind.__name__}: {message}")


def run_functions(job: dict[str, Any]) -> dict[str, Any]:
    """Run tests, which are trusted Python, with the program's functions in reach.

    `setup` runs before, so that helpers of the tests are the data set's and not the program's. `check(candidate)` is
    called where the tests define it.
    """
    program = Program(job)
    try:
        namespace: dict[str, Any] = {"__name__": "tests"}
        exec(compile(job["setup"], "setup.py", "exec"), namespace)  # noqa: S102 - the data set's own code
        entry = job["entry_point"]
        wanted = [entry] if entry else program.names
        if entry and entry not in program.names:
            return {"verdict": "crash", "reason": f"no function {entry!r}"}
        for name in wanted:
            namespace[name] = _proxy(program, name)
        tests: list[str] = job["tests"]
        for test in tests:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(test, "tests.py", "exec"), namespace)  # noqa: S102 - the data set's own code
                if entry and "check" in namespace and "def check(" in test:
                    namespace["check"](namespace[entry])
    finally:
        program.jail.end()
    return {"verdict": "passed", "reason": ""}


def _proxy(program: Program, name: str) -> Callable[..., object]:
    def function(*args: object, **kwargs: object) -> object:
        return program.call(name, args, kwargs)

    function.__name__ = name
    return function


def run_cases(job: dict[str, Any]) -> dict[str, Any]:
    """Call one function with each case's arguments and compare with its result."""
    program = Program(job)
    try:
        for i, (args, expected) in enumerate(job["cases"]):
            got = program.call(job["entry_point"], tuple(args), {})
            if not _equal(got, expected):
                return {"verdict": "wrong", "reason": f"case {i}: expected {expected!r:.80}, got {got!r:.80}"}
    finally:
        program.jail.end()
    return {"verdict": "passed", "reason": ""}


def _equal(got: object, expected: object) -> bool:
    """Equality in which a tuple is a list, as JSON has it."""
    if isinstance(got, list | tuple) and isinstance(expected, list):
        return len(got) == len(expected) and all(map(_equal, got, expected))
    numbers = isinstance(got, int | float) and isinstance(expected, int | float)
    return got == expected and (numbers or type(got) is type(expected))


def run_streams(job: dict[str, Any]) -> dict[str, Any]:
    """Run the program once for each case: its standard output is compared here, line by line."""
    for i, (given, expected) in enumerate(job["cases"]):
        output, code = _run(job, given)
        if output is None:
            return {"verdict": "wrong", "reason": f"case {i}: more than {OUTPUT} bytes of output"}
        if _lines(output.decode("utf-8", "replace")) != _lines(expected):
            reason = f"case {i}: expected {expected!r:.80}, got {output[:80]!r}"
            return {"verdict": "crash" if code else "wrong", "reason": reason}
        if code:
            return {"verdict": "crash", "reason": f"case {i}: exit status {code}"}
    return {"verdict": "passed", "reason": ""}


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def _run(job: dict[str, Any], given: str) -> tuple[bytes | None, int]:
    reads, writes = os.pipe()
    with tempfile.TemporaryFile() as standard:
        standard.write(given.encode("utf-8", "surrogatepass"))
        standard.seek(0)
        jail = Jail(job, [str(job["python"]), "-I", "-c", str(job["program"])], [standard.fileno(), writes, None])
        os.close(writes)
        output = b""
        try:
            while len(output) <= OUTPUT:
                select.select([reads], [], [])
                more = os.read(reads, 1 << 14)
                if not more:
                    break
                output += more
            code = 0 if len(output) > OUTPUT else os.waitstatus_to_exitcode(os.waitpid(jail.pid, 0)[1])
        finally:
            jail.end()
            os.close(reads)
    return (None if len(output) > OUTPUT else output), code


def probe(job: dict[str, Any]) -> dict[str, Any]:
    """Whether the level can be reached: a jail starts and answers."""
    program = Program({**job, "program": "def here():\n    import os\n    return os.getpid()"})
    try:
        pid = program.call("here", (), {})
    finally:
        program.jail.end()
    return {"verdict": "passed" if job["level"] == "rlimits" or isinstance(pid, int) else "crash", "reason": ""}


STYLES = {"functions": run_functions, "cases": run_cases, "streams": run_streams, "probe": probe}


def main() -> None:
    """Run the job, whatever the program does."""
    job = json.load(sys.stdin)
    signal.signal(signal.SIGTERM, _late)
    isolate.adopt_orphans()
    memory = int(job["memory"]) + (512 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    answers, sys.stdout = sys.stdout, io.StringIO()
    try:
        result = STYLES[job["style"]](job)
    except Died:
        result = {"verdict": "crash", "reason": "the program ended, or ran out of its limits"}
    except AssertionError as error:
        result = {"verdict": "wrong", "reason": f"a test failed {error!s:.100}".strip()}
    except BaseException as error:
        result = {"verdict": "crash", "reason": f"{type(error).__name__}: {error!s:.200}"}
    print(json.dumps(result), file=answers, flush=True)
    os._exit(0)


def _late(*_: object) -> None:
    """Leave through every `finally`."""
    raise SystemExit


if __name__ == "__main__":
    main()
