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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_and_resumes_bit_equal(sft_config: Callable[..., SftConfig], number: signal.Signals) -> None:
    straight = run(sft_config("run.name=straight"))
    config = sft_config("run.name=stopped")

    def interrupt(done: int, total: int, metrics: dict[str, float]) -> None:
        if done == 2:
            os.kill(os.getpid(), number)

    with pytest.raises(Interrupted, match=rf"stopped by {number.name} after step 2 of 4; continue with --resume"):
        run(config, observer=interrupt)
    assert damage(config.run.dir / "stopped" / "checkpoints" / "step_000002") == ""
    resumed = run(config, resume=True)
    a, b = load(straight.checkpoint).module.state_dict(), load(resumed.checkpoint).module.state_dict()
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
