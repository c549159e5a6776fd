"""The demo's machinery at toy size; its claims are measured by the demo itself (docs/demo.md)."""

import json
import shutil
from pathlib import Path

import pytest

from dare_eval import Record
from dare_train import ConfigError
from dare_train.checkpoint import damage
from dare_train.demo import demo

SFT = ("run.steps=6", "batch=8", "data.size=6", "data.options.digits=3", "validation.n=8")
DECODE = ("gen_length=3", "block_length=3", "steps=3")
SFT = (*SFT, *(f"validation.decode.{d}" for d in DECODE))
RL = (
    "run.steps=3",
    "rollout.prompts=2",
    "rollout.n=4",
    "data.size=16",
    "data.options.digits=3",
    "validation.n=8",
    "rewards=[{source: 'dare_train.testing:digit_reward'}]",
    *(f"rollout.decode.{d}" for d in DECODE),
)


def toy(out: Path, *, resume: bool = False) -> dict[str, object]:
    demo(out, n=40, resume=resume, sft_overrides=SFT, rl_overrides=RL)
    return json.loads((out / "results.json").read_text(encoding="utf-8"))


def test_demo_is_repeatable_resumable_and_fair(tmp_path: Path) -> None:
    first = toy(tmp_path / "a")
    assert toy(tmp_path / "b") == first, "the same seed gives the same numbers"
    assert list(first["rows"]) == ["base", "sft", "control", "rl"]  # type: ignore[arg-type]
    used, given = first["rl_gradient_sequences"], first["control_gradient_sequences"]
    assert 0 <= given - used < 8, "the control gets what RL used, rounded up to a batch"  # type: ignore[operator]
    with pytest.raises(ConfigError, match="exists; add --resume"):
        toy(tmp_path / "a")
    stamp = (tmp_path / "a" / "rl" / "metrics.jsonl").stat().st_mtime_ns
    (tmp_path / "a" / "eval" / "rl.json").unlink()
    assert toy(tmp_path / "a", resume=True) == first
    assert (tmp_path / "a" / "rl" / "metrics.jsonl").stat().st_mtime_ns == stamp, "a finished stage is not run again"


def test_a_stage_killed_in_its_last_save_is_finished(tmp_path: Path) -> None:
    expected = toy(tmp_path / "a")
    last = tmp_path / "a" / "rl" / "checkpoints" / "step_000003"
    last.rename(last.with_name("step_000003.partial"))
    shutil.rmtree(tmp_path / "a" / "eval")
    assert toy(tmp_path / "a", resume=True) == expected
    assert damage(last) == ""


def test_a_resumed_demo_keeps_its_settings(tmp_path: Path) -> None:
    toy(tmp_path / "a")
    with pytest.raises(ConfigError, match=r"was started with .*'seed': 0"):
        demo(tmp_path / "a", seed=1, n=40, resume=True, sft_overrides=SFT, rl_overrides=RL)


def test_the_control_goes_on_with_noise_of_its_own(tmp_path: Path) -> None:
    toy(tmp_path / "a")
    seeds = [json.loads(file.read_text(encoding="utf-8"))["run"]["seed"] for file in tmp_path.glob("a/*/resolved.json")]
    assert sorted(seeds) == [0, 0, 2_000_000, 2_000_000]


def test_records_are_comparable_and_on_one_set(tmp_path: Path) -> None:
    toy(tmp_path / "a")
    records = [Record.load(tmp_path / "a" / "eval" / f"{name}.json") for name in ("base", "sft", "control", "rl")]
    assert len({record.protocol.hash() for record in records}) == 1
    assert all(record.protocol.split == "test" and record.n == 40 for record in records)
