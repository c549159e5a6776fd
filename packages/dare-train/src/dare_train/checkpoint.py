"""Checkpoints that survive a crash at any moment.

A checkpoint is the model's own folder (so every tool that loads models loads it) plus `trainer/` with the optimiser and
the counters, and a `manifest.json` that is written last. Everything goes to a temporary name first; one rename makes
it real. What has no manifest, or does not match it, is not a checkpoint.
"""

import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dare_models import DiffusionLM

from .errors import CheckpointError
from .protocols import Storage

__all__ = ["Checkpoint", "CheckpointStore", "DiskStorage", "damage", "newest_intact", "newest_model", "sync_folder"]

_SCHEMA = 1
_LOG = logging.getLogger("dare_train")
_NAME = re.compile(r"^step_(\d{6,})$")
_VERSIONED = ("dare-train", "dare-models", "dare-objectives", "dare-samplers", "torch", "transformers")


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries, so that a rename inside it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class DiskStorage:
    """Checkpoint files on a local or mounted file system."""

    def write(self, path: Path, writer: Callable[[Path], object]) -> None:
        """Have `writer` create the file and flush it to the disk."""
        path.parent.mkdir(parents=True, exist_ok=True)
        writer(path)
        with path.open("rb") as handle:
            os.fsync(handle.fileno())

    def rename(self, source: Path, target: Path) -> None:
        """Give a finished folder its final name, atomically."""
        for folder in (source, *(p for p in source.rglob("*") if p.is_dir())):
            sync_folder(folder)
        source.rename(target)
        sync_folder(target.parent)

    def remove(self, folder: Path) -> None:
        """Delete a folder and everything in it."""
        shutil.rmtree(folder)


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint on disk."""

    path: Path
    step: int

    def optimizer(self) -> dict[str, Tensor]:
        """The engine's tensors."""
        return load_file(self.path / "trainer" / "optimizer.safetensors")

    def counters(self) -> dict[str, Any]:
        """The pipeline's counters."""
        return json.loads((self.path / "trainer" / "state.json").read_text(encoding="utf-8"))


class CheckpointStore:
    """The `checkpoints/` folder of a run.

    Args:
        folder: where the checkpoints live.
        storage: file operations.
        keep_last: how many of the newest to keep.
    """

    def __init__(self, folder: Path, storage: Storage, keep_last: int) -> None:
        self.folder = folder
        self._storage = storage
        self._keep_last = keep_last

    def save(
        self, step: int, lm: DiffusionLM, optimizer: Callable[[], dict[str, Tensor]], counters: dict[str, Any]
    ) -> Path:
        """Write the checkpoint of a finished step, then drop those that are no longer kept.

        Raises:
            CheckpointError: where the disk refuses; earlier checkpoints are untouched.
        """
        final = self.folder / f"step_{step:06d}"
        if final.exists() and not damage(final):
            return final
        partial = self.folder / f"{final.name}.partial"
        staging = self.folder / f"{final.name}.staging"
        try:
            self._clear(partial, staging)
            self.folder.mkdir(parents=True, exist_ok=True)
            lm.save(staging)
            for file in sorted(p for p in staging.rglob("*") if p.is_file()):
                self._storage.write(partial / file.relative_to(staging), file.rename)
            self._clear(staging)
            trainer = partial / "trainer"
            self._storage.write(trainer / "optimizer.safetensors", lambda p: save_file(optimizer(), p))
            self._storage.write(trainer / "state.json", lambda p: _write_json(p, {"step": step, **counters}))
            manifest = {
                "schema": _SCHEMA,
                "step": step,
                "versions": {name: version(name) for name in _VERSIONED},
                "files": dict(_digests(partial)),
            }
            self._storage.write(partial / "manifest.json", lambda p: _write_json(p, manifest))
            self._clear(final)  # only ever a damaged one
            self._storage.rename(partial, final)
        except (OSError, SafetensorError) as error:
            self._clear(partial, staging)
            raise CheckpointError(f"cannot write {final}: {error}; earlier checkpoints are kept") from error
        self._prune()
        return final

    def tidy(self) -> None:
        """Remove what a crash left half-written or half-removed."""
        if self.folder.is_dir():
            self._clear(*self.folder.glob("*.partial"), *self.folder.glob("*.staging*"))
            self._clear(*(path for _, path in steps_in(self.folder) if not (path / "manifest.json").exists()))
            self._prune()

    def newest(self) -> Checkpoint | None:
        """The newest intact checkpoint; None before the first.

        Raises:
            CheckpointError: where there are checkpoints but none is intact.
        """
        return newest_intact(self.folder)

    def _prune(self) -> None:
        self._clear(*(path for _, path in steps_in(self.folder)[: -self._keep_last]))

    def _clear(self, *folders: Path) -> None:
        for folder in folders:
            if folder.exists():
                self._storage.remove(folder)


def damage(path: Path) -> str:
    """What is wrong with a checkpoint, or an empty string."""
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        expected = dict(manifest["files"])
    except (OSError, ValueError, KeyError) as error:
        return f"no readable manifest ({error})"
    found = dict(_digests(path))
    odd = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
    return f"{odd[0]} is missing or changed" if odd else ""


def steps_in(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a folder by step, intact or not."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted((int(match.group(1)), path) for path in paths if (match := _NAME.match(path.name)))


def newest_intact(folder: Path) -> Checkpoint | None:
    """The newest checkpoint of a folder that matches its manifest; damaged ones are reported and passed over.

    Raises:
        CheckpointError: where there are checkpoints but none is intact.
    """
    damaged: list[str] = []
    for step, path in reversed(steps_in(folder)):
        fault = damage(path)
        if not fault:
            return Checkpoint(path, step)
        damaged.append(f"{path.name}: {fault}")
        _LOG.warning("passed over %s: %s", path, fault)
    if damaged:
        raise CheckpointError(f"no checkpoint in {folder} is intact ({'; '.join(damaged)}); restore one or start anew")
    return None


def newest_model(path: Path) -> Path:
    """The model folder that a path stands for: itself, or the newest intact checkpoint of a run.

    Raises:
        CheckpointError: where there is none.
    """
    if (path / "config.json").is_file():
        return path
    for folder in (path / "checkpoints", path):
        if (found := newest_intact(folder)) is not None:
            return found.path
    raise CheckpointError(f"{path} holds no model and no checkpoint; give a model folder, a checkpoint or a run folder")


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    for file in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != "manifest.json"):
        with file.open("rb") as handle:
            yield file.relative_to(folder).as_posix(), hashlib.file_digest(handle, "sha256").hexdigest()


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
