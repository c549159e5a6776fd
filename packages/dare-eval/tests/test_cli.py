"""The command line: exit codes, one-line errors, files."""

import json
from pathlib import Path
from typing import Any

import pytest

from dare_eval import Record
from dare_eval.cli import app

pytestmark = pytest.mark.wheel


@pytest.fixture(scope="session")
def checkpoint(model: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny model on disk."""
    path = tmp_path_factory.mktemp("model") / "tiny"
    model.save(path)
    return str(path)


def _run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as caught:
        app([str(argument) for argument in arguments])
    return int(caught.value.code or 0)


def _error(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The single line that a refused command prints."""
    assert _run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_run_and_compare(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        out = tmp_path / f"{name}.json"
        assert (
            _run("run", "sort", "--model", checkpoint, "--n", 12, "--block-length", 4, "--steps", 4, "--out", out) == 0
        )
    shown = capsys.readouterr().out
    record = Record.load(tmp_path / "a.json")
    assert record.rows == Record.load(tmp_path / "b.json").rows
    assert record.n == 12
    assert record.protocol_hash[:12] in shown
    assert "accuracy" in shown
    assert _run("compare", tmp_path / "a.json", tmp_path / "b.json") == 0
    assert "no difference shown" in capsys.readouterr().out
    assert _run("compare", tmp_path / "a.json", tmp_path / "b.json", "--json") == 0
    assert json.loads(capsys.readouterr().out)["p_value"] == 1.0


def test_options_and_threshold(checkpoint: str, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    arguments = ("--n", 4, "--options", "digits=6", "--threshold", 0.5, "--split", "validation", "--seed", 3)
    assert _run("run", "sort", "--model", checkpoint, *arguments, "--out", out) == 0
    protocol = Record.load(out).protocol
    assert (protocol.options, protocol.split, protocol.seed) == ({"digits": 6}, "validation", 3)
    assert protocol.sampler.model_dump() == {
        "kind": "threshold",
        "gen_length": 6,
        "block_length": 6,
        "temperature": 0.0,
        "tau": 0.5,
    }


def test_existing_record(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.json"
    out.write_text("mine")
    command = ("run", "sort", "--model", checkpoint, "--n", 2, "--out", out)
    assert "exists; choose another name or pass --force" in _error(capsys, *command)
    assert out.read_text() == "mine"
    assert _run(*command, "--force") == 0
    assert Record.load(out).n == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing command"),
        (("rnu",), "No such command 'rnu'"),
        (("run",), "Missing argument"),
        (("run", "srot", "--model", "M"), "unknown task 'srot'; did you mean sort?"),
        (("run", "sort", "--model", "M", "--bolck-length", 4), "No such option: --bolck-length"),
        (("run", "sort", "--model", "M", "--n", "many"), "Invalid value for '--n'"),
        (("run", "sort", "--model", "M", "--n", 0), "`n`: Input should be greater than or equal to 1"),
        (
            ("run", "sort", "--model", "M", "--split", "tset"),
            "`split`: Input should be 'train', 'validation' or 'test'",
        ),
        (("run", "sort", "--model", "M", "--options", "digit=3"), "no option 'digit'; did you mean digits?"),
        (("run", "sort", "--model", "M", "--options", "digits"), "expected key=value, got 'digits'"),
        (("run", "sort", "--model", "M", "--options", "digits=["), "cannot read the value of 'digits=['"),
        (("run", "sort", "--model", "M", "--options", "digits=six"), "expected int, got 'six'"),
        (("run", "sort", "--model", "M", "--block-length", 3), "`block_length`=3 does not divide `gen_length`=8"),
        (("run", "sort", "--model", "M", "--steps", 4, "--threshold", 0.9), "exclude each other"),
        (("run", "sort", "--model", "M", "--threshold", 0), "`sampler.threshold.tau`: Input should be greater than 0"),
        (
            ("run", "sort", "--model", "M", "--threshold", 1.5),
            "`sampler.threshold.tau`: Input should be less than or equal to 1",
        ),
        (("run", "sort", "--model", "M", "--threshold", "nan"), "`sampler.threshold.tau`: Input should be"),
        (("run", "sort", "--model", "M", "--template", "x"), "expected a template with {prompt}"),
        (("run", "sort", "--model", "no/such/folder"), "no/such/folder"),
        (("run", "sort", "--model", "M", "--out", "no/such/folder/r.json"), "folder no/such/folder does not exist"),
        (("run", "sort", "--model", "M", "--sampler", "core"), "`--sampler`: expected `--gen-length` with it"),
        (("run", "sort", "--model", "M", "--set", "tau=1"), "`--set`: expected it with `--sampler NAME`"),
        (
            ("run", "sort", "--model", "M", "--sampler", "sdar", "--gen-length", 8, "--steps", 4),
            "`--steps`: expected none beside --sampler sdar",
        ),
        (
            ("run", "sort", "--model", "M", "--sampler", "sdra", "--gen-length", 8),
            "unknown preset 'sdra'; did you mean sdar?",
        ),
        (
            ("run", "sort", "--model", "M", "--protocol", "dare-cor"),
            "unknown protocol 'dare-cor'; did you mean dare-core?",
        ),
        (
            ("run", "sort", "--model", "M", "--protocol", "dare-core", "--steps", 3),
            "expected `--gen-length` with sizes",
        ),
        (("run", "sort", "--model", "M", "--data", "."), "`data`: task 'sort' makes its problems itself"),
        (("run", "sort", "--model", "M", "--data", "miniature"), "task 'sort' has no miniature"),
        (("run", "gsm8k", "--model", "no/model", "--data", "miniature"), "no/model"),
        (("run", "gsm8k", "--model", "M", "--data", "."), "expected test.jsonl (or .json, .parquet, .csv)"),
        (("run", "sort", "--model", "M", "--mode", "likelihood"), "no answers to choose from"),
        (("run", "sort", "--model", "M", "--workers", 0), "`workers`: expected at least 1, got 0"),
        (("report", "no.json"), "cannot read no.json"),
        (("opencompass", "gsm8k"), "`--model`: expected the checkpoint"),
        (("opencompass", "a.py", "gsm8k"), "expected configuration files, or names of tasks"),
        (("opencompass", "gsm8k", "--model", "M", "--python", "no/python"), "cannot start 'no/python'"),
        (("compare", "a.json"), "Missing argument"),
        (("compare", "no-a.json", "no-b.json"), "cannot read no-a.json"),
    ],
    ids=str,
)
def test_bad_input_is_one_line(
    arguments: tuple[object, ...], message: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in _error(capsys, *arguments)


def test_unknown_device_is_one_line(checkpoint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "foo" in _error(capsys, "run", "sort", "--model", checkpoint, "--device", "foo")


def test_compare_refuses_unlike_protocols(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = tmp_path / "a.json", tmp_path / "b.json"
    assert _run("run", "sort", "--model", checkpoint, "--n", 2, "--steps", 4, "--out", a) == 0
    assert _run("run", "sort", "--model", checkpoint, "--n", 2, "--steps", 8, "--out", b) == 0
    capsys.readouterr()
    assert "not comparable: sampler.steps (4 ≠ 8)" in _error(capsys, "compare", a, b)


def test_presets_samples_cache_and_report(checkpoint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("sort", "--model", checkpoint, "--n", 6, "--temperature", 1, "--sampler", "core", "--gen-length", 8)
    extra = (
        "--samples",
        2,
        "--stop",
        ">",
        "--cache",
        tmp_path / "cache",
        "--eos",
        "suppress",
        "--protocol",
        "dare-core",
    )
    records = [tmp_path / "a.json", tmp_path / "b.json"]
    for seed, out in enumerate(records):
        assert _run("run", *common, *extra, "--seed", seed, "--out", out) == 0
    made = Record.load(records[0])
    assert (made.n, len(made.rows), made.protocol.stop, made.protocol.eos) == (6, 12, (">",), "suppress")
    assert len(list((tmp_path / "cache").iterdir())) == 2
    assert "pass@2" in capsys.readouterr().out
    assert _run("report", *records) == 0
    assert capsys.readouterr().out.startswith("# Scores")
    page, text = tmp_path / "r.html", tmp_path / "r.md"
    assert _run("report", *records, "--html", page, "--md", text) == 0
    assert page.read_text().startswith("<!doctype html>")
    assert "a.json exists" not in _error(capsys, "report", *records, "--html", page)
    preset = (
        "run",
        "sort",
        "--model",
        checkpoint,
        "--n",
        2,
        "--sampler",
        "llada",
        "--set",
        "steps=4",
        "--gen-length",
        8,
    )
    assert _run(*preset, "--out", tmp_path / "c.json") == 0
    assert Record.load(tmp_path / "c.json").protocol.sampler.model_dump()["settings"] == {"steps": 4}


def test_protocols_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("protocols") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("dare-core", "llada-official", "sdar-4096", "dare-readme"))


def test_help_and_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert _run("--help") == 0
    assert _run("tasks") == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ("sort", "addition", "countdown", "sudoku4"))


def test_interrupt_ends_with_130(monkeypatch: Any) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("dare_eval.cli.Record.load", interrupted)
    assert _run("compare", "a.json", "b.json") == 130
