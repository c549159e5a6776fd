"""Run a configuration: build the worker, drive it step by step, and leave a run that can be continued."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from dare_eval import Protocol as EvalProtocol
from dare_eval import evaluate
from dare_eval.tasks import Split
from dare_models import DiffusionLM, load

from .checkpoint import Checkpoint, CheckpointStore, DiskStorage
from .config import Decode, OptimConfig, RlConfig, RolloutConfig, SftConfig, TaskData
from .data import load_rows, load_task
from .engines.torch import TorchEngine
from .errors import ConfigError, Interrupted
from .pipelines.common import Pipeline, StepReport
from .pipelines.rl import RlPipeline
from .pipelines.sft import SftPipeline
from .protocols import Engine, Group, RolloutBackend, Runtime, Storage
from .rewards import build_rewards
from .rollout import TorchRollout
from .rundir import RunDir, read_metrics
from .runtimes.local import LocalRuntime
from .stop import StopFlag

__all__ = ["Observer", "Parts", "RunResult", "decode_protocol", "run", "validation_protocol"]

Observer = Callable[[int, int, dict[str, float]], None]
"""Called after each step with (finished steps, planned steps, metrics)."""


def _torch_engine(lm: DiffusionLM, config: OptimConfig, reference: bool) -> Engine:
    return TorchEngine(lm, config, reference=reference)


def _torch_rollout(config: RolloutConfig) -> RolloutBackend:
    return TorchRollout(config.decode.config(), config.batch)


@dataclass(frozen=True)
class Parts:
    """The implementations behind the protocols; give your own to run somewhere else."""

    runtime: Runtime = field(default_factory=LocalRuntime)
    engine: Callable[[DiffusionLM, OptimConfig, bool], Engine] = _torch_engine
    """From (policy, optimiser settings, whether a reference is needed) to an engine."""
    rollout: Callable[[RolloutConfig], RolloutBackend] = _torch_rollout
    storage: Storage = field(default_factory=DiskStorage)


@dataclass(frozen=True)
class RunResult:
    """What a finished run left."""

    path: Path
    checkpoint: Path
    """The last checkpoint; also a model folder."""
    metrics: dict[str, float]
    """Of the last step."""


def run(
    config: SftConfig | RlConfig,
    *,
    resume: bool = False,
    parts: Parts | None = None,
    observer: Observer | None = None,
) -> RunResult:
    """Run to the end, or to the next signal.

    Args:
        config: what to run.
        resume: continue from the newest intact checkpoint of a run of the same name and settings. The result is
            bit-equal to a run that was never interrupted.
        parts: implementations behind the protocols; by default one process with torch.
        observer: called after each step.

    Raises:
        ConfigError: for settings, models or data that cannot be used; nothing was created.
        Interrupted: after SIGINT or SIGTERM, once the state is saved.
    """
    parts = parts or Parts()
    with RunDir(config, resume=resume) as folder, StopFlag() as stop:
        store = CheckpointStore(folder.checkpoints, parts.storage, config.checkpoint.keep_last)
        checkpoint = store.newest() if resume else None
        workers: Group[Pipeline] = parts.runtime.spawn(lambda rank, world: _build(config, parts, checkpoint))
        try:
            store.tidy()
            folder.start()
            return _drive(config, workers, folder, store, checkpoint, stop, observer)
        finally:
            parts.runtime.close()


def _drive(
    config: SftConfig | RlConfig,
    workers: Group[Pipeline],
    folder: RunDir,
    store: CheckpointStore,
    checkpoint: Checkpoint | None,
    stop: StopFlag,
    observer: Observer | None,
) -> RunResult:
    done, saved = (checkpoint.step, checkpoint.path) if checkpoint else (0, folder.path)
    total = config.run.steps
    metrics = _last_metrics(folder.path) if done == total else {}
    every = config.checkpoint.every
    while done < total:
        started = time.perf_counter()
        report = workers.run(partial(_step, step=done))[0]
        done += 1
        metrics = report.metrics | {"time/step": time.perf_counter() - started}
        folder.log(done, metrics)
        if report.samples:
            folder.write_samples(done, report.samples)
        if observer:
            observer(done, total, metrics)
        if stop.raised or done == total or (every and done % every == 0):
            needed = bool(stop.raised) or done == total
            saved = workers.run(partial(_save, store=store, step=done, needed=needed))[0] or saved
        if stop.raised and done < total:
            raise Interrupted(f"stopped by {stop.raised} after step {done} of {total}; continue with --resume")
    return RunResult(path=folder.path, checkpoint=saved, metrics=metrics)


def _last_metrics(folder: Path) -> dict[str, float]:
    """What a run logged last, of a run that had already finished."""
    last = read_metrics(folder)[-1]
    return {name: value for name, value in last.items() if name not in ("step", "attempt")}


def _step(worker: Pipeline, step: int) -> StepReport:
    return worker.step(step)


def _save(worker: Pipeline, store: CheckpointStore, step: int, needed: bool) -> Path | None:
    """Write a checkpoint; while updates are being dropped only a needed one, so that the last good one stays."""
    if not (worker.optimiser.healthy or needed):
        return None
    return store.save(step, worker.engine.lm, worker.engine.state, worker.optimiser.counters())


def _build(config: SftConfig | RlConfig, parts: Parts, checkpoint: Checkpoint | None) -> Pipeline:
    """A worker, at the start of the run or at a checkpoint."""
    rows = load_rows(config.data, completions=isinstance(config, SftConfig))
    task = load_task(config.data) if isinstance(config.data, TaskData) else None
    policy = _load_model(config, checkpoint.path if checkpoint else Path(config.model.path))
    reference = "ref" in config.objective.build().needs
    engine = parts.engine(policy, config.optim, reference)
    validate = _validator(config, policy)
    worker: Pipeline
    if isinstance(config, SftConfig):
        worker = SftPipeline(config, engine, rows, validate)
    else:
        rewards = build_rewards(config.rewards, task, rows)
        worker = RlPipeline(config, engine, parts.rollout(config.rollout), rows, rewards, validate)
    if checkpoint:
        engine.load_state(checkpoint.optimizer())
        worker.optimiser.restore(checkpoint.counters())
    return worker


def _load_model(config: SftConfig | RlConfig, path: Path) -> DiffusionLM:
    settings = config.model
    try:
        return load(path, dtype=settings.dtype, device=settings.device, mask_token_id=settings.mask_token_id)
    except (ValueError, OSError) as error:
        raise ConfigError(f"`model.path`={str(path)!r}: {error}") from error


def validation_protocol(config: SftConfig | RlConfig) -> EvalProtocol:
    """How validation accuracy is measured during this run.

    Raises:
        ConfigError: for a run whose data has no task.
    """
    if not isinstance(config.data, TaskData):
        raise ConfigError("validation needs `data.kind: task`; set `validation.every` to 0 for a JSON-lines file")
    decode = config.validation.decode
    if decode is None:
        if isinstance(config, SftConfig):
            raise ConfigError("`validation.decode` is missing; say how to sample")
        decode = config.rollout.decode.model_copy(update={"temperature": 0.0})
    drawn = config.validation
    return decode_protocol(config.data, decode, split=drawn.split, n=drawn.n, seed=drawn.seed)


def decode_protocol(data: TaskData, decode: Decode, *, split: Split, n: int, seed: int) -> EvalProtocol:
    """The evaluation protocol that scores a task under the given decoding settings."""
    return EvalProtocol(
        task=data.task,
        options=data.options,
        split=split,
        n=n,
        seed=seed,
        sampler=decode,
        chat=data.chat,
        data=data.folder,
    )


def _validator(config: SftConfig | RlConfig, lm: DiffusionLM) -> Callable[[DiffusionLM], dict[str, float]]:
    """Gives the validation metrics of a policy; what could go wrong later is found now.

    Raises:
        ConfigError: for problems that cannot be drawn, encoded or held by the model.
    """
    if not config.validation.every:
        return lambda policy: {}
    try:
        protocol = validation_protocol(config)
        longest = max(len(lm.encode(protocol.prompt(item), chat=protocol.chat)) for item in protocol.items())
    except ValidationError as error:
        raise ConfigError(f"`validation`: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from error
    except ValueError as error:
        raise ConfigError(f"`validation`: {error}") from error
    length, limit = longest + protocol.sampler.gen_length, lm.spec.max_positions
    if length > limit:
        raise ConfigError(
            f"`validation.decode.gen_length`: prompt and response take {length} positions of {limit}; shorten it"
        )
    return partial(_validate, protocol=protocol)


def _validate(lm: DiffusionLM, *, protocol: EvalProtocol) -> dict[str, float]:
    record = evaluate(lm, protocol)
    low, high = record.interval
    return {"validation/accuracy": record.score, "validation/low": low, "validation/high": high}
