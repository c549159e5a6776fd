# ruff: noqa: INP001
"""What the benchmark measures with: a model that counts, and workers whose memory is their own."""

import contextlib
import multiprocessing
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Generic, NamedTuple, Self, TypeVar

import torch
from torch import Tensor

from dare_samplers.testing import TinyTransformer

__all__ = [
    "Counts",
    "Metered",
    "Outcome",
    "Shape",
    "Worker",
    "beside",
    "build",
    "clock",
    "in_turn",
    "machine",
    "median",
    "once",
    "timed",
]


T = TypeVar("T")


@dataclass(frozen=True)
class Shape:
    """A model and a batch.

    Args:
        name: for the report.
        vocab, width, layers, heads: of the transformer.
        batch, prompt, gen, block: rows, prompt tokens, response slots, slots per block.
    """

    name: str
    vocab: int
    width: int = 256
    layers: int = 4
    heads: int = 4
    batch: int = 8
    prompt: int = 128
    gen: int = 128
    block: int = 32

    @property
    def blocks(self) -> int:
        """Blocks of a response."""
        return self.gen // self.block

    @property
    def head_share(self) -> float:
        """Part of the head in the FLOPs of a forward over the whole canvas, all positions scored."""
        head = 2 * self.width * self.vocab
        body = self.layers * (24 * self.width**2 + 4 * self.width * (self.prompt + self.gen))
        return head / (head + body)

    def prompts(self) -> Tensor:
        """int64 `[B, P]`, ordinary tokens."""
        generator = torch.Generator().manual_seed(0)
        return torch.randint(1, self.vocab - 2, (self.batch, self.prompt), generator=generator)


@dataclass
class Counts:
    """What the forwards of a decode cost.

    Attributes:
        seconds: inside the model, head included.
        forwards: calls.
        tokens: fed, filler left out.
        padded: fed, filler included.
        scored: positions the head ran at.
    """

    seconds: float = 0.0
    forwards: int = 0
    tokens: int = 0
    padded: int = 0
    scored: int = 0


class Metered(TinyTransformer):
    """A `TinyTransformer` that keeps `Counts`."""

    counts: Counts

    def __call__(self, ids: Tensor, *, positions: Tensor, rows: Tensor, **rest: object) -> Tensor:
        """Logits of the transformer."""
        begin = clock()
        logits = super().__call__(ids, positions=positions, rows=rows, **rest)  # pyright: ignore[reportArgumentType]
        counts = self.counts
        counts.seconds += clock() - begin
        counts.forwards += 1
        counts.tokens += int((positions >= 0).sum())
        counts.padded += ids.numel()
        counts.scored += rows.numel()
        return logits

    def sharpened(self, factor: float, end: int | None = None) -> Self:
        """The same weights with logits multiplied by `factor`, and another end token."""
        other = type(self)(
            embed=self.embed,
            layers=self.layers,
            head=self.head * factor,
            bias=self.bias * max(factor, 1.0),
            heads=self.heads,
            block_length=self.block_length,
        )
        other.eos_ids = () if end is None else (end,)
        other.counts = Counts()
        return other


def build(shape: Shape, *, causal: bool) -> Metered:
    """Random weights in float32; the mask embeds to zero, so that what a slot predicts hangs on its position."""
    model = Metered.random(
        vocab_size=shape.vocab,
        width=shape.width,
        layers=shape.layers,
        heads=shape.heads,
        attention="block_causal" if causal else "full",
        block_length=shape.block if causal else None,
        dtype=torch.float32,
    )
    model.embed[model.mask_id] = 0
    return model.sharpened(1.0)


class Outcome(NamedTuple):
    """One decode.

    Attributes:
        tokens: the responses, as lists.
        steps: forwards that each block of each row needed; empty where unknown.
        row_forwards: the rows of all forwards together.
        seconds: of the whole call.
        counts: of the model.
    """

    tokens: list[list[int]]
    steps: list[list[int]]
    row_forwards: int
    seconds: float
    counts: Counts


def clock() -> float:
    """Seconds; with one thread those of this process alone, so that others on the machine hardly count."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def timed(model: Metered, decode: Callable[[], tuple[Tensor, Tensor | None, int]]) -> Outcome:
    """Run a decode with fresh counters."""
    model.counts = Counts()
    begin = clock()
    tokens, steps, row_forwards = decode()
    seconds = clock() - begin
    return Outcome(
        tokens.tolist(), [] if steps is None else steps.tolist(), row_forwards, seconds, replace(model.counts)
    )


class Worker(Generic[T]):
    """A forked process that repeats one job, so that its peak of resident memory is that job's.

    The parent must not have used more than one thread in torch before.
    """

    def __init__(self, job: Callable[[], T], threads: int, warm: Callable[[], object] | None = None) -> None:
        """Fork; nothing runs yet but `warm`, whose memory belongs to what the process had at its start."""
        context = multiprocessing.get_context("fork")
        self._pipe, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._pipe, other, job, threads, warm), daemon=True)
        self._process.start()
        other.close()
        self.peak = 0.0
        """MB that the job needed beyond what the process had at its start."""

    def run(self) -> T:
        """The job's result."""
        self._pipe.send(True)
        result, self.peak = self._pipe.recv()
        return result

    def close(self) -> None:
        """End the process."""
        self._pipe.send(False)
        self._process.join()


def _serve(
    parents: Connection,
    pipe: Connection,
    job: Callable[[], object],
    threads: int,
    warm: Callable[[], object] | None,
) -> None:
    parents.close()  # so that the worker ends when its parent is killed
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    if warm is not None:
        warm()
    start = _peak()
    with contextlib.suppress(EOFError, BrokenPipeError):
        while pipe.recv():
            result = job()
            pipe.send((result, (_peak() - start) / 2**20))


def _peak() -> int:
    """Bytes: the largest resident size of this process so far."""
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else size * 1024


def in_turn(
    jobs: Sequence[Callable[[], T]],
    threads: int,
    seconds: float,
    warm: Sequence[Callable[[], object] | None] | None = None,
) -> list[tuple[list[T], float]]:
    """Run jobs in turn, each in a worker of its own, up to three rounds or until `seconds` are spent.

    Args:
        jobs: what is measured.
        threads: of torch in each worker.
        seconds: no further round begins that would end later.
        warm: for each job what its worker does before it is measured.

    Returns:
        For each job its results, and its peak memory in MB.
    """
    workers = [Worker(job, threads, first) for job, first in zip(jobs, warm or [None] * len(jobs), strict=True)]
    results: list[list[T]] = [[] for _ in jobs]
    begin = time.perf_counter()
    for rounds in range(1, 4):
        for worker, kept in zip(workers, results, strict=True):
            kept.append(worker.run())
        spent = time.perf_counter() - begin
        if spent + spent / rounds > seconds:
            break
    for worker in workers:
        worker.close()
    return [(kept, worker.peak) for kept, worker in zip(results, workers, strict=True)]


def once(job: Callable[[], T], threads: int) -> T:
    """The result of one run in a worker of its own."""
    worker = Worker(job, threads)
    result = worker.run()
    worker.close()
    return result


def beside(job: Callable[[], T]) -> Callable[[], T]:
    """Begin a job in another process, which may have workers of its own; the result of this waits for it."""
    context = multiprocessing.get_context("fork")
    pipe, other = context.Pipe()
    context.Process(target=_send, args=(other, job)).start()
    other.close()
    return pipe.recv


def _send(pipe: Connection, job: Callable[[], object]) -> None:
    pipe.send(job())


def median(values: list[float]) -> float:
    """The median, with four significant digits."""
    return float(f"{statistics.median(values):.4g}")


def machine(threads: int) -> dict[str, object]:
    """What the numbers were measured on."""
    return {
        "machine": _cpu(),
        "cores": os.cpu_count(),
        "threads": threads,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
