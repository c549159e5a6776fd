"""The command line: exit codes, one-line errors, and that a refused run leaves nothing behind."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dare_eval.cli import commands as eval_commands
from dare_train.cli import app
from dare_train.testing import small_rl, small_sft

runner = CliRunner()


def run_cli(*args: str) -> tuple[int, str, str]:
    result = runner.invoke(app, list(args))
    return result.exit_code, result.stdout, result.stderr


def refused(expected: str, *args: str) -> None:
    code, _, stderr = run_cli(*args)
    assert code == 2, stderr
    assert expected in stderr
    assert stderr.strip().count("\n") == 0


def strip_mask_id(model: Path, target: Path) -> Path:
    target.mkdir()
    for name in ("config.json", "model.safetensors"):  # no tokenizer: it would tell the mask id
        (target / name).write_bytes((model / name).read_bytes())
    config = json.loads((target / "config.json").read_text(encoding="utf-8"))
    config.pop("mask_token_id", None)
    (target / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return target


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("rollout.nn=8", "did you mean `n`?"),
        ("rollout.n=1", "use 2 or more"),
        ("rollout.decode.gen_length=6", "6"),
        ("model.path=nowhere", "nowhere"),
        ("data.task=srot", "sort"),
        ("rewards=[{source: no_such_module:f}]", "cannot be imported"),
        ("rewards=[{source: ':x'}]", "reward ':x'"),
        ("rewards=[{source: 'textwrap:indent'}]", "needs the column 'prefix'"),
        ("model.device=banana", "banana"),
        ("validation={every: 2, n: 100000}", "`validation`"),
        ("objective.name='no_such_module:f'", "no_such_module"),
        ("objective.options.clip_low=much", "clip_low"),
        ("data.task='no_such_module:Task'", "no_such_module"),
    ],
)
def test_bad_rl_input_is_refused(base_model: Path, tmp_path: Path, override: str, expected: str) -> None:
    refused(expected, "rl", "demo/rl", *small_rl(base_model, tmp_path), override)
    assert not list(tmp_path.iterdir()), "a refused run left something behind"


def test_missing_mask_id_is_refused(base_model: Path, tmp_path: Path) -> None:
    model = strip_mask_id(base_model, tmp_path / "model")
    runs = tmp_path / "runs"
    refused("mask_token_id", "sft", "demo/sft", *small_sft(model, runs))
    assert not (runs / "sft").exists()


def test_row_without_a_needed_field_is_refused(base_model: Path, tmp_path: Path) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text('{"prompt": "1234>", "completion": "1234"}\n{"prompt": "4321>"}\n', encoding="utf-8")
    recipe = tmp_path / "sft.yaml"
    recipe.write_text(
        f"kind: sft\nrun: {{name: x, dir: {tmp_path / 'runs'}, steps: 1}}\nmodel: {{path: {base_model}}}\n"
        f"data: {{kind: jsonl, path: {data}}}\noptim: {{lr: 0.1}}\nbatch: 2\n",
        encoding="utf-8",
    )
    refused("rows.jsonl:2: the row needs a text field 'completion'", "sft", str(recipe))
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").iterdir())


def test_existing_run_needs_resume(base_model: Path, tmp_path: Path) -> None:
    args = ("sft", "demo/sft", *small_sft(base_model, tmp_path))
    assert run_cli(*args)[0] == 0
    refused("add --resume", *args)
    refused("`optim.lr` is 0.5 but the run was started with", *args, "optim.lr=0.5", "--resume")
    assert run_cli(*args, "--resume")[0] == 0


def test_nothing_to_resume(base_model: Path, tmp_path: Path) -> None:
    refused("leave out --resume", "sft", "demo/sft", *small_sft(base_model, tmp_path), "--resume")


@pytest.mark.wheel
def test_rl_run_then_sample(base_model: Path, tmp_path: Path) -> None:
    code, stdout, stderr = run_cli("rl", "demo/rl", *small_rl(base_model, tmp_path))
    assert code == 0, stderr
    assert "reward" in stdout
    assert "KL" in stdout
    assert "left" in stdout
    run = tmp_path / "rl"
    assert {p.name for p in run.iterdir()} == {"resolved.json", "metrics.jsonl", "samples", "checkpoints", "lock"}
    for path in (run, run / "checkpoints" / "step_000004", base_model):
        extra = () if path != base_model else ("--gen-length", "4")
        code, stdout, stderr = run_cli("sample", str(path), "-p", "4321>", "-p", "1>", *extra)
        assert code == 0, stderr
        assert stdout.splitlines()[0].startswith("4321>")


def test_evaluation_takes_a_checkpoint(base_model: Path, tmp_path: Path) -> None:
    assert run_cli("sft", "demo/sft", *small_sft(base_model, tmp_path))[0] == 0
    models = {"before": base_model, "after": tmp_path / "sft" / "checkpoints" / "step_000004"}
    for name, model in models.items():
        settings = ["--n", "20", "--options", "digits=4", "--block-length", "4", "--steps", "2"]
        command = ["run", "sort", "--model", str(model), *settings, "--out", str(tmp_path / f"{name}.json")]
        assert runner.invoke(eval_commands, command).exit_code == 0
    compared = runner.invoke(eval_commands, ["compare", str(tmp_path / "before.json"), str(tmp_path / "after.json")])
    assert compared.exit_code == 0, compared.output


def test_sample_refuses_a_folder_without_a_model(tmp_path: Path) -> None:
    code, _, stderr = run_cli("sample", str(tmp_path), "-p", "1")
    assert code == 6
    assert "holds no model" in stderr
