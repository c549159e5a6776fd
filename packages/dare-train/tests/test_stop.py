"""Ctrl-C and SIGTERM save first, exit 130, and lose nothing."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dare_models import load
from dare_train import Interrupted, SftConfig, run
from dare_train.checkpoint import damage
from dare_train.testing import small_sft


@pytest.mark.parametrize(
    ("number", "dtype"), [(signal.SIGINT, "float32"), (signal.SIGTERM, "float32"), (signal.SIGTERM, "float64")]
)
def test_signal_saves_and_resumes_bit_equal(
    sft_config: Callable[..., SftConfig], number: signal.Signals, dtype: str
) -> None:
    settings = (f"model.dtype={dtype}", "run.steps=20", "optim.lr=0.01", "optim.warmup=0")
    straight = run(sft_config("run.name=straight", *settings))
    config = sft_config("run.name=stopped", *settings)

    def interrupt(done: int, total: int, metrics: dict[str, float]) -> None:
        if done == 2:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match=rf"stopped by {number.name} after step 2 of 20; continue with --resume"):
        run(config, observer=interrupt)
    assert damage(config.run.dir / "stopped" / "checkpoints" / "step_000002") == ""
    resumed = run(config, resume=True)
    a, b = (load(r.checkpoint, dtype="float64").module.state_dict() for r in (straight, resumed))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_handlers_are_given_back(sft_config: Callable[..., SftConfig]) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    run(sft_config("run.steps=1"))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_command_exits_130(base_model: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "dare_train",
        "sft",
        "demo/sft",
        *small_sft(base_model, tmp_path),
        "run.steps=100000",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = tmp_path / "sft" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text(encoding="utf-8").count("\n") > 2):
        try:
            process.wait(0.1)
        except subprocess.TimeoutExpired:
            continue
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    assert "stopped by SIGINT after step" in stderr
    assert "--resume" in stderr
    assert len(list((tmp_path / "sft" / "checkpoints").glob("step_*"))) == 1
