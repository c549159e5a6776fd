"""Evaluate in this process."""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from dare_eval.protocol import Protocol
from dare_eval.record import Record, Row
from dare_eval.runner.cache import Cache, Part, Spent
from dare_eval.runner.progress import Progress, progress_of
from dare_eval.runner.worker import Complete, Facts, Unit, Worker
from dare_models import DiffusionLM

__all__ = ["collect", "evaluate"]

Batches = Sequence[Sequence[Unit]]


def evaluate(
    model: DiffusionLM,
    protocol: Protocol,
    *,
    batch_size: int = 256,
    cache: str | os.PathLike[str] | None = None,
    backend: Complete | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> Record:
    """Score a model under a protocol.

    A row's randomness is a hash of (seed, prompt, sample), so neither the batch size nor the order of the problems
    changes a completion, as far as the model's arithmetic does not depend on the batch. Global generators and the
    training mode of every submodule are left as they were.

    Args:
        model: with a tokenizer.
        protocol: everything else that decides the score.
        batch_size: rows decoded together at most; the batches are of equal size, longest prompts first.
        cache: a folder to which finished rows are written. With it, an evaluation that was stopped goes on.
        backend: another engine that completes the prompts.
        on_progress: called after each batch.

    Returns:
        The record, with the rows in the protocol's order.

    Raises:
        ValueError: before any decoding, for settings that do not fit one another, the model or the installed task.
    """
    worker = Worker(model, protocol, backend=backend)
    batches = checked(worker, batch_size)

    def parts(batches: Batches) -> Iterator[Part]:
        for batch in batches:
            yield worker.run(batch, batch_size)

    uids = [item.uid for item in worker.items]
    folder = None if cache is None else Path(cache)
    return collect(protocol, worker.facts(), uids, batches, parts, batch_size, folder, on_progress)


def checked(worker: Worker, batch_size: int) -> list[list[Unit]]:
    """The batches.

    Raises:
        ValueError: for a batch size below 1.
    """
    if batch_size < 1:
        raise ValueError(f"`batch_size`: expected at least 1, got {batch_size}")
    return worker.batches(batch_size)


def collect(
    protocol: Protocol,
    facts: Facts,
    uids: Sequence[int],
    batches: Batches,
    parts: Callable[[Batches], Iterable[Part]],
    batch_size: int,
    cache: Path | None,
    on_progress: Callable[[Progress], None] | None,
) -> Record:
    """The record, from rows that are finished and rows to compute.

    Args:
        protocol: what is evaluated.
        facts: of the model and the conditions.
        uids: of the problems, in order.
        batches: all rows, as they are computed together.
        parts: computes batches, in any order.
        batch_size: for the record.
        cache: folder of finished rows.
        on_progress: called after each batch.
    """
    kept = None if cache is None else Cache(cache, (protocol.hash(), *facts.identity))
    before = Part([], Spent()) if kept is None else kept.read()
    rows: dict[tuple[int, int], Row] = {(row.uid, row.sample): row for row in before.rows}
    spent, total = before.spent, len(uids) * protocol.samples
    left = [[unit for unit in batch if (uids[unit.item], unit.sample) not in rows] for batch in batches]
    for part in parts([batch for batch in left if batch]):
        rows |= {(row.uid, row.sample): row for row in part.rows}
        spent = spent.plus(part.spent)
        if kept is not None:
            kept.append(part.rows, part.spent)
        if on_progress is not None:
            on_progress(progress_of(rows.values(), total, spent.seconds))
    return Record.of(
        [rows[uid, sample] for uid in uids for sample in range(protocol.samples)],
        protocol=protocol,
        batch_size=batch_size,
        **spent._asdict(),
        **vars(facts),
    )
