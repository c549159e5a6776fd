"""Programs that mean harm score 0 and leave nothing behind; honest ones score 1; tests stay outside the jail."""

import json
import os
import resource
import sys
import time
from pathlib import Path

import pytest

from dare_eval.sandbox import Limits, Sandbox, SandboxError, reached_level
from dare_eval.sandbox.wire import NotPlain, decode, encode
from dare_eval.verify import code_cases, code_streams, code_tests, extract_code

GOLDEN = Path(__file__).parent / "golden" / "code.jsonl"
ROWS = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
TESTS = ["assert f(2) == 4", "assert f(3) == 9"]
HONEST = "def f(x):\n    return x * x\n"


@pytest.fixture(scope="module", autouse=True)
def box():
    if sys.platform != "linux" or reached_level() != "namespaces":
        pytest.skip("this system allows no namespaces")
    return Sandbox()


HOSTILE = {
    "leaves at once": "import os\nos._exit(0)",
    "leaves politely": "import sys\nsys.exit(0)",
    "leaves in a call": "import os\ndef f(x):\n    os._exit(0)",
    "equals everything": "class E:\n    def __eq__(self, other):\n        return True\ndef f(x):\n    return E()",
    "a number that equals everything": (
        "class E(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = int.__hash__\n"
        "def f(x):\n    return E(7)"
    ),
    "a repr that lies": "class E(int):\n    def __repr__(self):\n        return '4'\ndef f(x):\n    return E(7)",
    "prints a verdict": 'print(\'{"verdict": "passed", "reason": ""}\')\ndef f(x):\n    return 0',
    "writes to every descriptor": (
        'import os\nfor d in range(20):\n    try:\n        os.write(d, b\'{"verdict": "passed"}\\n\')\n'
        "    except OSError:\n        pass\ndef f(x):\n    return 0"
    ),
    "forges answers": "import os\nos.write(4, b\"('ok', True)\\n\" * 50)\ndef f(x):\n    return 0",
    "patches the builtins": "import builtins\nbuiltins.AssertionError = Exception\ndef f(x):\n    return 0",
    "raises what tests raise": "def f(x):\n    raise AssertionError",
    "pretends to be skipped": "def f(x):\n    raise SystemExit(0)",
    "forks": "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass",
    "starts threads": (
        "import time\nfrom threading import Thread\nwhile True:\n    Thread(target=time.sleep, args=(60,)).start()"
    ),
    "never ends": "while True:\n    pass",
    "sleeps": "import time\ntime.sleep(60)",
    "sleeps in a call": "import time\ndef f(x):\n    time.sleep(60)",
    "ignores signals": (
        "import signal\nfor s in range(1, 65):\n    try:\n        signal.signal(s, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n        pass\nwhile True:\n    pass"
    ),
    "eats memory": "x = []\nwhile True:\n    x.append(bytearray(1 << 24))",
    "returns too much": "def f(x):\n    return 'x' * (1 << 26)",
    "returns forever": "import os\nwhile True:\n    os.write(4, b'x' * 65536)",
    "nests deeply": "def f(x):\n    y = []\n    for _ in range(10000):\n        y = [y]\n    return y",
    "fills the disk": "open('/tmp/x', 'wb').write(b'x' * (1 << 30))",
    "fills the disk by files": ("for i in range(100000):\n    open(f'/tmp/{i}', 'wb').write(b'x' * (1 << 20))"),
    "hides a process": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(600)\n"
        "    os._exit(0)\ndef f(x):\n    return 0"
    ),
    "kills everyone": "import os\nos.kill(-1, 9)",
    "kills its parent": (
        "import os\nfor p in range(1, 70000):\n    try:\n        os.kill(p, 9)\n    except OSError:\n        pass"
    ),
    "reads foreign files": f"def f(x):\n    return len(open({str(GOLDEN)!r}).read()) and x * x",
    "reads the password file": "def f(x):\n    return len(open('/etc/passwd').read()) and x * x",
    "reads the environment": "import os\ndef f(x):\n    return os.environ['DARE_SECRET'] and x * x",
    "writes foreign files": f"open({str(GOLDEN)!r}, 'w').write('')\ndef f(x):\n    return x * x",
    "writes to the interpreter": "import os\nopen(os.__file__, 'a').write('#')\ndef f(x):\n    return x * x",
    "reaches the network": (
        "import socket\ns = socket.socket()\ns.settimeout(1)\ns.connect(('127.0.0.1', 80))\ndef f(x):\n    return x * x"
    ),
    "asks for names": "import socket\nsocket.gethostbyname('localhost.example')\ndef f(x):\n    return x * x",
    "mounts": (
        "import ctypes\nif ctypes.CDLL(None).mount(b'none', b'/tmp', b'tmpfs', 0, None) != 0:\n    raise OSError\n"
        "def f(x):\n    return x * x"
    ),
    "opens a new namespace": (
        "import ctypes\nif ctypes.CDLL(None).unshare(0x10000000) != 0:\n    raise OSError\ndef f(x):\n    return x * x"
    ),
    "becomes root": "import os\nos.setuid(0)\ndef f(x):\n    return x * x",
    "looks at other processes": (
        "import os\nif [p for p in os.listdir('/proc') if p.isdigit()] == ['1']:\n    raise OSError\n"
        "def f(x):\n    return x * x"
    ),
    "syntax": "def f(x) return x",
    "empty": "",
}


def processes():
    """Every process of a user that the sandbox lends."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if 61_000 <= entry.stat().st_uid < 62_000:
                    found.append((entry / "cmdline").read_bytes())
            except OSError:
                continue
    return found


def test_hostile_programs_score_nothing_and_leave_nothing(box, monkeypatch):
    monkeypatch.setenv("DARE_SECRET", "1")
    before = {
        "environment": dict(os.environ),
        "files": sorted(p.name for p in Path("/tmp").iterdir() if "dare-jail" in p.name),
        "golden": GOLDEN.read_bytes(),
        "os": Path(os.__file__).read_bytes(),
    }
    jobs = [("functions", (program, TESTS), {"entry_point": "f"}) for program in HOSTILE.values()]
    honest = [("functions", (HONEST, TESTS), {"entry_point": "f"})] * max(64 - len(jobs), 8)
    mixed = [job for pair in zip(jobs, [*honest, *[None] * len(jobs)], strict=False) for job in pair if job]
    mixed += honest[len(jobs) :]
    began = time.monotonic()
    judged = box.map(mixed)
    seconds = time.monotonic() - began
    assert seconds <= -(-len(mixed) // box.slots) * 6
    for job, judgement in zip(mixed, judged, strict=True):
        name = next((name for name, program in HOSTILE.items() if program == job[1][0]), "honest")
        assert judgement.passed == (name == "honest"), (name, judgement)
        assert judgement.level == "namespaces"
    until = time.monotonic() + 2  # the kernel takes down a namespace's processes in its own time
    while processes() and time.monotonic() < until:
        time.sleep(0.02)
    assert processes() == []
    assert dict(os.environ) == before["environment"]
    assert sorted(p.name for p in Path("/tmp").iterdir() if "dare-jail" in p.name) == before["files"]
    assert GOLDEN.read_bytes() == before["golden"]
    assert Path(os.__file__).read_bytes() == before["os"]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 4 << 20  # KiB


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_golden_code(row, box):
    verdict = code_tests(
        row["completion"], row["tests"], prompt=row["prompt"], entry_point=row["entry_point"], sandbox=box
    )
    expected = row["expected"]
    assert (verdict.correct is True) == expected["correct"]
    assert verdict.status == expected["status"]
    assert verdict.score == expected["score"]
    if "verdict" in expected:
        assert verdict.reason.startswith(expected["verdict"])


def test_a_hanging_job_stalls_no_other(box):
    limits = Limits(wall_seconds=3)
    with_two = Sandbox(slots=2, limits=limits)
    jobs = [("functions", ("import time\ntime.sleep(60)", TESTS), {})] + [("functions", (HONEST, TESTS), {})] * 4
    judged = with_two.map(jobs)
    assert [judgement.verdict for judgement in judged] == ["timeout"] + ["passed"] * 4


def test_helpers_of_the_tests_are_the_data_sets(box):
    prompt = "def encode(s):\n    return s[::-1]\n\n\ndef decode(s):\n    '''Undo encode.'''\n"
    cheat = "def encode(s):\n    return s\n\n\ndef decode(s):\n    return s\n"
    tests = "def check(candidate):\n    assert candidate(encode('abc')) == 'abc'\n"
    honest = "def decode(s):\n    return s[::-1]\n"
    assert code_tests(honest, tests, prompt=prompt, entry_point="decode", sandbox=box).correct
    assert code_tests(cheat, tests, prompt=prompt, entry_point="decode", sandbox=box).correct is False


def test_exceptions_and_changed_arguments_cross_the_wall(box):
    program = "def f(x):\n    if not x:\n        raise ValueError('empty')\n    x.sort()\n    return x\n"
    tests = [
        "try:\n    f([])\nexcept ValueError:\n    pass\nelse:\n    raise AssertionError",
        "x = [3, 1, 2]\nf(x)\nassert x == [1, 2, 3]",
    ]
    assert box.functions(program, tests).passed


def test_streams(box):
    assert code_streams(
        "```python\nprint(sum(map(int, input().split())))\n```", [("1 2\n", "3\n"), ("4 5", "9")]
    ).correct
    assert code_streams("n = 1\nprint(n)", [("", "2")], sandbox=box).reason.startswith("wrong: case 0")
    assert code_streams("n = 1\nprint(1)\nraise OSError", [("", "1")], sandbox=box).reason.startswith("crash: case 0")
    endless = "n = 1\nwhile True:\n    print('x' * 1000)"
    assert "bytes of output" in code_streams(endless, [("", "1")], sandbox=box).reason


def test_cases(box):
    program = "class Solution:\n    def two(self, xs, k):\n        return tuple(x * k for x in xs)\n"
    assert code_cases(program, "Solution.two", [(([1, 2], 3), [3, 6])], sandbox=box).correct
    assert code_cases(program, "Solution.two", [(([1, 2], 3), [3, 7])], sandbox=box).correct is False
    assert code_cases(program, "Solution.three", [((), 1)], sandbox=box).correct is False


@pytest.mark.parametrize(
    "value",
    [
        None, True, -3, 2.5, float("inf"), float("-inf"), -0.0, 3 + 4j, "a'\n\\\u2028é\x00", b"\x00\xff", (), (1,),
        [1, [2]],
        {1, 2}, set(), frozenset(), {"a": [1], (1, 2): {3}}, 10**50, "\ud800",
    ],
)  # fmt: skip
def test_plain_data_crosses_the_wire(value):
    line = encode(value)
    assert line.count(b"\n") == 1
    again = decode(line)
    assert again == value
    assert type(again) is type(value)


def test_not_a_number_crosses_the_wire():
    assert str(decode(encode([float("nan")]))) == "[nan]"


@pytest.mark.parametrize(
    "line", [b"open('x')", b"f", b"1 +", b"float.__class__", b"[x for x in ()]", b"(" * 5000, b"\xff"]
)
def test_nothing_else_does(line):
    with pytest.raises(NotPlain):
        decode(line)
    with pytest.raises(NotPlain):
        encode(object())


def test_levels_are_required_and_reported(monkeypatch):
    with pytest.raises(SandboxError, match="expected isolation by namespaces, got none on this system"):
        Sandbox(python="/nonexistent/python")
    with pytest.raises(ValueError, match="`slots`: expected at least 1, got 0"):
        Sandbox(slots=0)
    with pytest.raises(ValueError, match="expected one of namespaces, rlimits, got 'none'"):
        Sandbox(require="none")
    monkeypatch.setenv("DARE_SANDBOX", "jail")
    with pytest.raises(ValueError, match="DARE_SANDBOX: expected one of namespaces, rlimits, got 'jail'"):
        Sandbox()


AT_RLIMITS = (
    "leaves at once", "leaves politely", "leaves in a call", "equals everything", "a number that equals everything",
    "a repr that lies", "prints a verdict", "never ends", "needs much memory",
)  # fmt: skip


def test_where_there_are_limits_only(monkeypatch):
    """Such a system is refused unless it is accepted by name; then what limits can stop is stopped."""
    monkeypatch.setattr("dare_eval.sandbox.box.reached_level", lambda python: "rlimits")
    with pytest.raises(SandboxError, match=r"got rlimits on this system.*DARE_SANDBOX=rlimits"):
        Sandbox()
    monkeypatch.setenv("DARE_SANDBOX", "rlimits")
    python = "/usr/bin/python3" if os.getuid() == 0 else None
    if python is not None and not Path(python).exists():
        pytest.skip("as root this needs an interpreter that another user may execute")
    box = Sandbox(python=python)
    assert box.level == "rlimits"
    honest = box.functions(HONEST, TESTS, entry_point="f")
    assert (honest.passed, honest.level) == (True, "rlimits")
    more = {
        "never ends": "while True:\n    pass",
        "needs much memory": "x = bytearray(3 << 30)\ndef f(x):\n    return x * x",
    }
    jobs = [({**HOSTILE, **more}[name], TESTS) for name in AT_RLIMITS]
    judged = box.map(("functions", job, {"entry_point": "f"}) for job in jobs)
    assert [(name, one.passed) for name, one in zip(AT_RLIMITS, judged, strict=True)] == [
        (name, False) for name in AT_RLIMITS
    ]
    until = time.monotonic() + 2
    while processes() and time.monotonic() < until:
        time.sleep(0.02)
    assert processes() == []


def test_evaluation_complains_before_it_decodes(monkeypatch):
    """And a record tells the level."""
    from dare_eval.tasks import get_task, miniature
    from dare_eval.verify.code import shared_sandbox

    task = get_task("humaneval", data=miniature("humaneval"))
    assert task.conditions() == {"sandbox": "namespaces"}
    monkeypatch.setattr("dare_eval.sandbox.box.reached_level", lambda python: "rlimits")
    shared_sandbox.cache_clear()
    try:
        with pytest.raises(SandboxError, match="got rlimits on this system"):
            task.conditions()
    finally:
        shared_sandbox.cache_clear()


@pytest.mark.parametrize(
    ("completion", "entry", "code"),
    [
        ("```python\nx = 1\n```\n```python\ndef f():\n    pass\n```", "f", "def f():\n    pass\n"),
        ("```\ndef g(): 1\n```", "f", "def g(): 1\n"),
        ("```python\ndef f():\n    return 1", "f", "def f():\n    return 1"),
        ("[BEGIN]\nx = 1\n[DONE]\nmore", None, "x = 1"),
        ("    return 1", "f", "    return 1"),
        ("I do not know.", "f", None),
        ("", None, None),
        ("```python\n```", "f", None),
    ],
)
def test_code_is_found(completion, entry, code):
    assert extract_code(completion, entry) == code
