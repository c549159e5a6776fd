"""The run folder: lock, attempts, torn lines."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dare_train import ConfigError, SftConfig, load_config
from dare_train.rundir import RunDir, read_metrics
from dare_train.testing import small_sft


def test_second_process_is_refused(sft_config: Callable[..., SftConfig]) -> None:
    config = sft_config()
    with RunDir(config, resume=False) as folder:
        folder.start()
        with pytest.raises(ConfigError, match=r"is held by process \d+"), RunDir(config, resume=True):
            pass


HOLD_AND_DIE = """
import os, sys
from dare_train import load_config
from dare_train.rundir import RunDir

folder = RunDir(load_config("demo/sft", sys.argv[1:]), resume=False)
folder.__enter__()
folder.start()
folder.log(1, {"x": 1.0})
os._exit(1)
"""


def test_lock_of_a_dead_process_is_no_obstacle(base_model: Path, tmp_path: Path) -> None:
    overrides = small_sft(base_model, tmp_path)
    process = subprocess.run([sys.executable, "-c", HOLD_AND_DIE, *overrides], check=False, timeout=120)
    assert process.returncode == 1
    config = load_config("demo/sft", overrides)
    with RunDir(config, resume=True) as folder:
        folder.start()
        assert folder.attempt == 2


def test_torn_line_is_no_record(sft_config: Callable[..., SftConfig]) -> None:
    config = sft_config()
    with RunDir(config, resume=False) as folder:
        folder.start()
        folder.log(1, {"x": 1.0})
        folder.log(2, {"x": 2.0})
    path = folder.path / "metrics.jsonl"
    path.write_text(path.read_text(encoding="utf-8")[:-8], encoding="utf-8")
    with RunDir(config, resume=True) as again:
        again.start()
        again.log(2, {"x": 3.0})
    assert [(r["step"], r["attempt"], r["x"]) for r in read_metrics(folder.path)] == [(1, 1, 1.0), (2, 2, 3.0)]


def test_refused_run_leaves_no_folder(sft_config: Callable[..., SftConfig], tmp_path: Path) -> None:
    with RunDir(sft_config(), resume=False):
        pass
    assert not (tmp_path / "sft").exists()
