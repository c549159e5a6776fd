"""The folder of a run: resolved configuration, metrics, samples, checkpoints, and a lock against a second process."""

import fcntl
import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

from .config import RlConfig, SftConfig
from .errors import ConfigError

__all__ = ["RunDir", "read_metrics", "write_text"]


def write_text(path: Path, text: str) -> None:
    """Write a file under a temporary name, flush it to the disk, then rename it."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as handle:
        handle.write(text)
        handle.flush()
        os.fsync(handle.fileno())
    partial.replace(path)


class RunDir:
    """A run's folder, locked while it is used as a context manager.

    A new run leaves no folder behind until `start` is called, so that a refused one does not take its name.

    Args:
        config: the run's configuration.
        resume: continue an existing run instead of starting a new one.
    """

    def __init__(self, config: SftConfig | RlConfig, *, resume: bool) -> None:
        self.path = config.run.dir / config.run.name
        self.attempt = 1
        self._config = config
        self._resume = resume
        self._lock: IO[str] | None = None
        self._metrics: IO[str] | None = None

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def _config_file(self) -> Path:
        return self.path / "resolved.json"

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            ConfigError: where the name is taken and `resume` is off, where there is nothing to resume, where the
                configuration differs from the one the run was started with, or where another process holds the run.
        """
        self._check()
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = (self.path / "lock").open("a+", encoding="utf-8")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.seek(0)
            holder = self._lock.read().strip() or "another process"
            self._lock.close()
            raise ConfigError(f"run {str(self.path)!r} is held by {holder}; wait for it to end") from error
        self._lock.truncate(0)
        self._lock.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self._lock.flush()
        return self

    def __exit__(self, *exc: object) -> None:
        """Give the lock back; a run that never started leaves nothing."""
        if self._metrics is not None:
            self._metrics.close()
        if self._lock is not None:
            if not self._config_file.exists():
                (self.path / "lock").unlink(missing_ok=True)
                if not any(self.path.iterdir()):
                    self.path.rmdir()
            self._lock.close()

    def start(self) -> None:
        """Write the resolved configuration of a new run and open the metrics."""
        if not self._config_file.exists():
            write_text(self._config_file, self._config.model_dump_json(indent=2) + "\n")
        metrics = self.path / "metrics.jsonl"
        self.attempt = 1 + max((r["attempt"] for r in _records(metrics)), default=0)
        torn = metrics.exists() and metrics.stat().st_size > 0 and not metrics.read_bytes().endswith(b"\n")
        self._metrics = metrics.open("a", encoding="utf-8")
        if torn:
            self._metrics.write("\n")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one step's metrics.

        Raises:
            RuntimeError: before `start`.
        """
        if self._metrics is None:
            raise RuntimeError("the run has not been started; call start() first")
        self._metrics.write(json.dumps({"step": step, "attempt": self.attempt, **metrics}) + "\n")
        self._metrics.flush()

    def write_samples(self, step: int, rows: list[dict[str, Any]]) -> None:
        """Write one step's completions."""
        folder = self.path / "samples"
        folder.mkdir(exist_ok=True)
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        write_text(folder / f"step_{step:06d}.jsonl", lines)

    def _check(self) -> None:
        exists = self._config_file.exists()
        if exists and not self._resume:
            raise ConfigError(
                f"run {str(self.path)!r} exists; add --resume to continue it, or choose another `run.name`"
            )
        if self._resume and not exists:
            raise ConfigError(f"run {str(self.path)!r} does not exist; leave out --resume to start it")
        if exists:
            self._check_same_config()

    def _check_same_config(self) -> None:
        try:
            before = _flat(json.loads(self._config_file.read_text(encoding="utf-8")))
        except ValueError as error:
            raise ConfigError(f"{self._config_file} is damaged ({error}); choose another `run.name`") from error
        now = _flat(json.loads(self._config.model_dump_json()))
        changed = sorted(k for k in before.keys() | now.keys() if before.get(k) != now.get(k))
        if changed:
            name = changed[0]
            raise ConfigError(
                f"`{name}` is {now.get(name)!r} but the run was started with {before.get(name)!r}; "
                "resume with the same settings, or choose another `run.name`"
            )


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The metrics of a run, one record per step: where a resumed run repeated a step, its last record.

    Args:
        path: a run folder or its `metrics.jsonl`.
    """
    last = {record["step"]: record for record in _records(path / "metrics.jsonl" if path.is_dir() else path)}
    return [last[step] for step in sorted(last)]


def _records(path: Path) -> list[dict[str, Any]]:
    """All whole records; a line torn by a crash is no record."""
    records: list[dict[str, Any]] = []
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                records.append(json.loads(line))
            except json.JSONDecodeError:
                continue
    return records


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {prefix: value}
    return {
        k: v for name, part in value.items() for k, v in _flat(part, f"{prefix}.{name}" if prefix else name).items()
    }
