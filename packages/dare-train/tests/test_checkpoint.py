"""Checkpoints: verified, atomic, and never lost to a damaged or failed one."""

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import ones

from dare_models import load
from dare_train import CheckpointError
from dare_train.checkpoint import CheckpointStore, DiskStorage, damage, newest_model


def store_with(folder: Path, model: Path, steps: int, keep_last: int = 5) -> CheckpointStore:
    store = CheckpointStore(folder, DiskStorage(), keep_last)
    lm = load(model)
    for step in range(1, steps + 1):
        store.save(step, lm, lambda: {"exp_avg/x": ones(2)}, {"updates": 3})
    return store


def test_round_trip(tmp_path: Path, base_model: Path) -> None:
    checkpoint = store_with(tmp_path, base_model, 1).newest()
    assert checkpoint is not None
    assert checkpoint.step == 1
    assert checkpoint.counters() == {"step": 1, "updates": 3}
    assert checkpoint.optimizer()["exp_avg/x"].tolist() == [1.0, 1.0]
    written = load_file(checkpoint.path / "model.safetensors")
    original = load_file(base_model / "model.safetensors")
    assert written.keys() == original.keys()
    assert all(written[name].equal(original[name]) for name in written)


def test_keeps_the_newest(tmp_path: Path, base_model: Path) -> None:
    store_with(tmp_path, base_model, 4, keep_last=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_000003", "step_000004"]


def test_nothing_intact_is_an_error_not_a_new_start(tmp_path: Path, base_model: Path) -> None:
    store = store_with(tmp_path, base_model, 2)
    for step in (1, 2):
        (tmp_path / f"step_{step:06d}" / "model.safetensors").write_bytes(b"")
    with pytest.raises(
        CheckpointError, match=r"no checkpoint in .* is intact \(step_000002: model.safetensors is missing"
    ):
        store.newest()


def test_an_interrupted_prune_is_finished(tmp_path: Path, base_model: Path) -> None:
    store_with(tmp_path, base_model, 4)
    (tmp_path / "step_000003" / "manifest.json").unlink()
    CheckpointStore(tmp_path, DiskStorage(), 2).tidy()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step_000002", "step_000004"]


def test_steps_are_ordered_as_numbers(tmp_path: Path, base_model: Path) -> None:
    store = store_with(tmp_path, base_model, 1)
    for step in (999_999, 1_000_000):
        store.save(step, load(base_model), dict, {})
    assert newest_model(tmp_path).name == "step_1000000"


@pytest.mark.parametrize("name", ["model.safetensors", "trainer/state.json", "manifest.json"])
@pytest.mark.parametrize("how", ["truncated", "removed", "changed"])
def test_damaged_checkpoint_is_passed_over(
    tmp_path: Path, base_model: Path, name: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = store_with(tmp_path, base_model, 2)
    victim = tmp_path / "step_000002" / name
    content = victim.read_bytes()
    if how == "removed":
        victim.unlink()
    else:
        victim.write_bytes(content[:-5] if how == "truncated" else b"{" + content[1:-1] + b"x")
    assert damage(tmp_path / "step_000002")
    found = store.newest()
    assert found is not None
    assert found.step == 1
    assert "passed over" in caplog.text
    assert newest_model(tmp_path) == found.path


def test_damaged_checkpoint_is_written_again(tmp_path: Path, base_model: Path) -> None:
    store = store_with(tmp_path, base_model, 2)
    (tmp_path / "step_000002" / "model.safetensors").write_bytes(b"")
    store.save(2, load(base_model), dict, {})
    assert damage(tmp_path / "step_000002") == ""


class FullDisk(DiskStorage):
    """Refuses to write one file, as the operating system or as safetensors does."""

    def __init__(self, name: str) -> None:
        self._name = name

    def write(self, path: Path, writer: Callable[[Path], object]) -> None:
        if path.name == self._name:
            message = "No space left on device"
            raise SafetensorError(message) if path.suffix == ".safetensors" else OSError(errno.ENOSPC, message)
        super().write(path, writer)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "manifest.json"])
def test_full_disk_keeps_the_earlier_checkpoint(tmp_path: Path, base_model: Path, name: str) -> None:
    store_with(tmp_path, base_model, 1)
    store = CheckpointStore(tmp_path, FullDisk(name), 1)
    with pytest.raises(CheckpointError, match="No space left"):
        store.save(2, load(base_model), dict, {})
    found = store.newest()
    assert found is not None
    assert found.step == 1
    assert [p.name for p in tmp_path.iterdir()] == ["step_000001"]


def test_newest_model_accepts_run_checkpoints_and_model(tmp_path: Path, base_model: Path) -> None:
    store_with(tmp_path / "checkpoints", base_model, 2)
    newest = tmp_path / "checkpoints" / "step_000002"
    assert newest_model(tmp_path) == newest_model(tmp_path / "checkpoints") == newest_model(newest) == newest
    with pytest.raises(CheckpointError, match="holds no model"):
        newest_model(tmp_path / "elsewhere")
