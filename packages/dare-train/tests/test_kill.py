"""A run that is killed at any point and resumed is bit-equal to one that never was."""

import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from dare_train import RlConfig, load_config, run
from dare_train.checkpoint import damage
from dare_train.rundir import read_metrics
from dare_train.testing import small_rl

SCRIPT = Path(__file__).with_name("kill_run.py")
FILES = (
    "chat_template.jinja",
    "dare_model.json",
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "trainer/optimizer.safetensors",
    "trainer/state.json",
    "manifest.json",
)
POINTS = (
    "generate",
    "update",
    "update-after",
    *(f"save:{f}" for f in FILES),
    "save:before-rename",
    "save:after-rename",
)


def settings(model: Path, runs: Path) -> tuple[str, ...]:
    return (*small_rl(model, runs), "objective.options.beta=0.01", "update.iterations=2", "run.seed=3")


def outcome(folder: Path) -> tuple[list[dict[str, Any]], dict[str, torch.Tensor]]:
    """What must be bit-equal: every recorded number that is no time, the weights and the optimiser."""
    last = folder / "checkpoints" / "step_000004"
    assert damage(last) == ""
    metrics = [
        {k: v for k, v in record.items() if not k.startswith("time/") and not k.endswith("_per_s") and k != "attempt"}
        for record in read_metrics(folder)
    ]
    tensors = load_file(last / "model.safetensors") | load_file(last / "trainer" / "optimizer.safetensors")
    return metrics, tensors


def test_every_file_of_a_checkpoint_is_a_named_point(uninterrupted: Path) -> None:
    checkpoint = uninterrupted / "checkpoints" / "step_000004"
    assert {p.relative_to(checkpoint).as_posix() for p in checkpoint.rglob("*") if p.is_file()} == set(FILES)


def assert_equal(found: Path, expected: Path) -> None:
    metrics, tensors = outcome(found)
    expected_metrics, expected_tensors = outcome(expected)
    assert metrics == expected_metrics
    assert tensors.keys() == expected_tensors.keys()
    assert all(torch.equal(tensors[name], expected_tensors[name]) for name in tensors)
    names = sorted(path.name for path in (found / "checkpoints").iterdir())
    assert names == ["step_000003", "step_000004"], "leftovers of the crash were not removed"


def start(point: str, overrides: Sequence[str]) -> subprocess.Popen[str]:
    command = [sys.executable, str(SCRIPT), point, "demo/rl", *overrides]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))


def finish(overrides: Sequence[str], folder: Path) -> None:
    config = load_config("demo/rl", overrides)
    assert isinstance(config, RlConfig)
    run(config, resume=(folder / "resolved.json").exists())


@pytest.fixture(scope="module")
def uninterrupted(base_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    runs = tmp_path_factory.mktemp("uninterrupted")
    finish(settings(base_model, runs), runs / "rl")
    metrics, _ = outcome(runs / "rl")
    assert any(record["opt/skipped"] == 0 for record in metrics), "no step trained: the comparison would prove nothing"
    return runs / "rl"


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_a_named_point(point: str, base_model: Path, tmp_path: Path, uninterrupted: Path) -> None:
    overrides = settings(base_model, tmp_path)
    process = start(point, overrides)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL, stderr
    finish(overrides, tmp_path / "rl")
    assert_equal(tmp_path / "rl", uninterrupted)


def test_killed_at_a_random_moment(base_model: Path, tmp_path: Path, uninterrupted: Path) -> None:
    seed = secrets.randbits(32)
    print(f"seed of the moment: {seed}")
    overrides = settings(base_model, tmp_path)
    process = start("none", overrides)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    time.sleep(random.Random(seed).uniform(0.0, sum(record["time/step"] for record in read_metrics(uninterrupted)) + 1))
    process.kill()
    process.communicate(timeout=120)
    finish(overrides, tmp_path / "rl")
    assert_equal(tmp_path / "rl", uninterrupted)
