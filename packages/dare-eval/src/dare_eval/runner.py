"""Decode a task's problems with a model and judge them. The only module here that loads torch."""

import platform
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version

import torch

from dare_eval.protocol import Protocol, digest
from dare_eval.record import Record, Row
from dare_eval.tasks import Item, Task
from dare_eval.verify import visible
from dare_models import DiffusionLM
from dare_samplers import SamplerConfig, SamplerOutput, Suppress, generate, row_keys

__all__ = ["Progress", "evaluate"]

_PACKAGES = ("dare-eval", "dare-models", "dare-samplers", "torch", "transformers")


@dataclass(frozen=True)
class Progress:
    """How far an evaluation is."""

    done: int
    total: int
    correct: int
    unparsable: int


def evaluate(
    model: DiffusionLM,
    protocol: Protocol,
    *,
    batch_size: int = 256,
    on_progress: Callable[[Progress], None] | None = None,
) -> Record:
    """Score a model under a protocol.

    A row's randomness is a hash of (seed, uid), so neither the batch size nor the order of the problems changes a
    completion, as far as the model's arithmetic does not depend on the batch. Global generators and the training mode
    of every submodule are left as they were.

    Args:
        model: with a tokenizer.
        protocol: everything else that decides the score.
        batch_size: rows decoded together at most; the batches are of equal size, longest prompts first.
        on_progress: called after each batch.

    Returns:
        The record, with one row per problem in the protocol's order.

    Raises:
        ValueError: before any decoding, for settings that do not fit one another, the model or the installed task.
    """
    if batch_size < 1:
        raise ValueError(f"`batch_size`: expected at least 1, got {batch_size}")
    task, items, config = protocol.load_task(), protocol.items(), _config(protocol, model)
    prompts = [model.encode(protocol.prompt(item), chat=protocol.chat) for item in items]
    _check_length(prompts, config, model)
    rows: dict[int, Row] = {}
    forwards, seconds = 0, 0.0
    with _evaluating(model):
        for batch in _batches(prompts, batch_size):
            start = time.perf_counter()
            keys = row_keys(protocol.seed, [items[i].uid for i in batch])
            output = generate(model, [prompts[i] for i in batch], config, keys=keys)
            judged = [_judge(task, items[i], output, at, model) for at, i in enumerate(batch)]
            seconds += time.perf_counter() - start
            forwards += output.nfe
            rows |= dict(zip(batch, judged, strict=True))
            if on_progress is not None:
                on_progress(_progress(rows.values(), len(items)))
    return Record.of(
        [rows[i] for i in range(len(items))],
        protocol=protocol,
        prompts=_prompts_digest(prompts, model),
        checkpoint=model.fingerprint(),
        device=_device(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        batch_size=batch_size,
        versions={"python": platform.python_version()} | {name: version(name) for name in _PACKAGES},
        forwards=forwards,
        seconds=seconds,
    )


def _config(protocol: Protocol, model: DiffusionLM) -> SamplerConfig:
    config = protocol.sampler.config()
    if protocol.eos == "suppress" and model.eos_ids:
        config = config.replace(rules=(*config.rules, Suppress(tuple(model.eos_ids))))
    return config


def _prompts_digest(prompts: Sequence[Sequence[int]], model: DiffusionLM) -> str:
    """What tokenizer and chat template made of the problems, and the ids that end, pad and mask."""
    return digest([prompts, sorted(model.eos_ids), model.pad_id, model.mask_id])


def _check_length(prompts: Sequence[Sequence[int]], config: SamplerConfig, model: DiffusionLM) -> None:
    longest, limit = max(map(len, prompts)), model.spec.max_positions
    if longest + config.gen_length > limit:
        raise ValueError(
            f"expected prompt and completion within the model's {limit} positions, got {longest} + {config.gen_length};"
            " lower `gen_length` or shorten the template"
        )


def _batches(prompts: Sequence[Sequence[int]], batch_size: int) -> Iterator[list[int]]:
    """Indices of the prompts, longest first, in as few batches as possible whose sizes differ by one at most."""
    order = sorted(range(len(prompts)), key=lambda i: -len(prompts[i]))
    count = -(-len(order) // batch_size)
    for i in range(count):
        yield order[i * len(order) // count : (i + 1) * len(order) // count]


def _judge(task: Task, item: Item, output: SamplerOutput, row: int, model: DiffusionLM) -> Row:
    ids = output.completions[row][output.completion_mask[row]].tolist()
    text = visible(ids, eos_ids=model.eos_ids, pad_id=model.pad_id, mask_id=model.mask_id)
    completion = model.decode(text.ids, specials=True)  # what was generated is what is judged
    verdict = task.verify(item, completion)
    return Row(
        uid=item.uid,
        correct=verdict.correct,
        score=verdict.score,
        status=verdict.status,
        reason=verdict.reason,
        pred=verdict.pred,
        completion=completion,
        tokens=len(text.ids),
        nfe=int(output.row_nfe[row]),
        truncated=text.truncated,
    )


def _progress(rows: Iterable[Row], total: int) -> Progress:
    verdicts = [row.correct for row in rows]
    return Progress(len(verdicts), total, verdicts.count(True), verdicts.count(None))


def _device(device: torch.device) -> str:
    """The kind of device, with the chip's name where it has one: another chip rounds differently."""
    return f"cuda {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type


@contextmanager
def _evaluating(model: DiffusionLM) -> Generator[None]:
    """Dropout off, and every submodule's training mode given back."""
    training = {module: module.training for module in model.module.modules()}
    model.module.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode
