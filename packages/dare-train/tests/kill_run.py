"""Run a configuration with implementations that kill the process at a named point. Used by test_kill.py.

The faults live in implementations of the trainer's protocols; the trainer itself has no hooks for them.
"""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from dare_models import DiffusionLM
from dare_train import Engine, Parts, Request, Rollout, RolloutBackend, StepStats, load_config, run
from dare_train.checkpoint import DiskStorage
from dare_train.config import OptimConfig, RolloutConfig
from dare_train.engines.torch import TorchEngine
from dare_train.rollout import TorchRollout


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class FaultyRollout(TorchRollout):
    """Dies in its `fatal`-th generation."""

    fatal = 0

    def generate(self, requests: Sequence[Request]) -> list[Rollout]:
        self.fatal -= 1
        rollouts = super().generate(requests)
        if self.fatal == 0:
            die()
        return rollouts


class FaultyEngine(TorchEngine):
    """Dies in its `fatal`-th optimiser step, before or after it is applied."""

    fatal = 0
    after = False

    def step(self, lr: float) -> StepStats:
        self.fatal -= 1
        if self.fatal == 0 and not self.after:
            die()
        stats = super().step(lr)
        if self.fatal == 0 and self.after:
            die()
        return stats


class FaultyStorage(DiskStorage):
    """Dies after writing a named file of a named checkpoint, or around its rename."""

    def __init__(self, checkpoint: str, point: str) -> None:
        self._checkpoint = checkpoint
        self._point = point

    def write(self, path: Path, writer: Callable[[Path], object]) -> None:
        super().write(path, writer)
        if f"{self._checkpoint}.partial" in path.parts and path.as_posix().endswith(f".partial/{self._point}"):
            die()

    def remove(self, folder: Path) -> None:
        if self._point == "prune" and folder.name == "step_000001":
            (folder / "manifest.json").unlink()
            die()
        super().remove(folder)

    def rename(self, source: Path, target: Path) -> None:
        if target.name == self._checkpoint and self._point == "before-rename":
            die()
        super().rename(source, target)
        if target.name == self._checkpoint and self._point == "after-rename":
            die()


def main() -> None:
    """kill_run.py POINT RECIPE OVERRIDE…; the point is e.g. `generate`, `update`, `save:manifest.json` or `none`."""
    point, recipe, *overrides = sys.argv[1:]

    def engine(lm: DiffusionLM, config: OptimConfig, reference: bool) -> Engine:
        made = FaultyEngine(lm, config, reference=reference)
        made.fatal, made.after = (3 if point.startswith("update") else 0), point == "update-after"
        return made

    def rollout(config: RolloutConfig) -> RolloutBackend:
        made = FaultyRollout(config.decode.config(), config.batch)
        made.fatal = 3 if point == "generate" else 0
        return made

    storage = FaultyStorage("step_000002", point.removeprefix("save:"))
    print("ready", flush=True)
    run(load_config(recipe, overrides), parts=Parts(engine=engine, rollout=rollout, storage=storage))


if __name__ == "__main__":
    main()
