"""Evaluate on a Ray cluster: every worker holds the model and takes the next batch when it is free."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from dare_eval.protocol import Protocol
from dare_eval.record import Record
from dare_eval.runner.cache import Part
from dare_eval.runner.local import checked, collect
from dare_eval.runner.progress import Progress
from dare_eval.runner.worker import Facts, Unit, Worker

__all__ = ["evaluate_on_ray"]


class _Remote:
    """A worker in a process of its own. It is made when first asked: an error then reaches the caller as itself."""

    def __init__(self, path: str, protocol: dict[str, Any], data: Path | None, device: str, dtype: str) -> None:
        self._path, self._protocol, self._device, self._dtype = path, {**protocol, "data": data}, device, dtype

    @cached_property
    def _worker(self) -> Worker:
        from dare_models import load  # noqa: PLC0415 - in the worker's process

        return Worker(load(self._path, device=self._device, dtype=self._dtype), Protocol.model_validate(self._protocol))

    def describe(self, batch_size: int) -> tuple[Facts, list[int], list[list[Unit]]]:
        """What the record says, the problems, and the batches."""
        return self._worker.facts(), [item.uid for item in self._worker.items], checked(self._worker, batch_size)

    def run(self, units: Sequence[Unit], batch_size: int) -> Part:
        """Compute some rows together."""
        return self._worker.run(units, batch_size)


def evaluate_on_ray(
    path: str | os.PathLike[str],
    protocol: Protocol,
    *,
    workers: int = 1,
    cpus: float = 1,
    gpus: float = 0,
    address: str | None = None,
    device: str = "cpu",
    dtype: str = "float32",
    batch_size: int = 256,
    cache: str | os.PathLike[str] | None = None,
    timeout: float = 3600.0,
    on_progress: Callable[[Progress], None] | None = None,
) -> Record:
    """Score a checkpoint under a protocol with several workers; the rows are those of `evaluate`.

    A worker that dies is started anew, and its batch computed again, three times at most.

    Args:
        path: of the checkpoint or adapter, readable on every node.
        protocol: everything else that decides the score.
        workers: how many.
        cpus: of each.
        gpus: of each.
        address: of a running cluster; None starts one here, and ends it.
        device: where a worker's model lives.
        dtype: of its weights.
        batch_size: rows decoded together at most.
        cache: a folder to which finished rows are written, by this process.
        timeout: seconds without a finished batch after which the evaluation is given up.
        on_progress: called after each batch.

    Raises:
        ValueError: as `evaluate`.
        TimeoutError: if no batch is finished in time, for want of resources or of progress. What is finished is kept in
            the cache.
        ModuleNotFoundError: without Ray: install dare-eval[ray].
    """
    for name, count in (("workers", workers), ("batch_size", batch_size)):
        if count < 1:
            raise ValueError(f"`{name}`: expected at least 1, got {count}")
    import ray  # noqa: PLC0415 - an extra

    started = not ray.is_initialized()
    if started:
        local: dict[str, Any] = (
            {} if address else {"num_cpus": max(1, round(workers * cpus)), "include_dashboard": False}
        )
        ray.init(address=address, log_to_driver=False, configure_logging=False, **local)
    actors: list[Any] = []
    try:
        remote: Any = ray.remote(num_cpus=cpus, num_gpus=gpus, max_restarts=3, max_task_retries=3)(_Remote)
        plain = protocol.model_dump(mode="json")
        data = None if protocol.data is None else protocol.data.resolve()
        source = str(Path(path).resolve()) if Path(path).exists() else str(path)
        actors += [remote.remote(source, plain, data, device, dtype) for _ in range(workers)]
        facts, uids, batches = _now(ray, actors[0].describe.remote(batch_size), timeout)

        def parts(batches: Sequence[Sequence[Unit]]) -> Iterator[Part]:
            waiting, running = list(reversed(batches)), dict[Any, Any]()
            for actor in actors[: len(waiting)]:
                running[actor.run.remote(waiting.pop(), batch_size)] = actor
            while running:
                done, _ = ray.wait(list(running), num_returns=1, timeout=timeout)
                if not done:
                    raise TimeoutError(
                        f"no batch was finished within {timeout:g} s; see `ray status`, and go on with `cache`"
                    )
                actor = running.pop(done[0])
                if waiting:
                    running[actor.run.remote(waiting.pop(), batch_size)] = actor
                yield _now(ray, done[0], timeout)

        folder = None if cache is None else Path(cache)
        return collect(protocol, facts, uids, batches, parts, batch_size, folder, on_progress)
    finally:
        for actor in actors:
            ray.kill(actor)
        if started:
            ray.shutdown()


def _now(ray: Any, reference: Any, timeout: float) -> Any:
    """The value, or the worker's own error."""
    try:
        return ray.get(reference, timeout=timeout)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from error
    except ray.exceptions.GetTimeoutError as error:
        raise TimeoutError(f"no worker was ready within {timeout:g} s; see `ray status`") from error
