"""The work of an evaluation: which rows there are, and how some of them are computed."""

import os
import platform
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from typing import NamedTuple, Protocol

import torch

from dare_eval.engine import (
    Answer,
    Completion,
    Request,
    Weight,
    batches,
    complete,
    decoding,
    evaluating,
    split_pair,
    weigh,
)
from dare_eval.prompting import Prompt, fit, messages, text
from dare_eval.protocol import Protocol as EvalProtocol
from dare_eval.protocol import digest
from dare_eval.record import Option, Row
from dare_eval.runner.cache import Part, Spent
from dare_eval.tasks import Item
from dare_models import DiffusionLM
from dare_samplers import SamplerConfig

__all__ = ["Complete", "Facts", "Worker"]

_PACKAGES = ("dare-eval", "dare-models", "dare-objectives", "dare-samplers", "torch", "transformers")
PICTURES = 8
"""So many problems have the picture of their decoding recorded."""


class Complete(Protocol):
    """What completes prompts: dare-samplers in this process, or another engine of that interface."""

    def __call__(
        self, requests: Sequence[Request], config: SamplerConfig, *, seed: int, stop: Sequence[str]
    ) -> tuple[list[Completion], int]:
        """A completion for each request, and the forward calls it took."""
        ...


@dataclass(frozen=True)
class Facts:
    """What a record says of the model and the conditions."""

    prompts: str
    checkpoint: str
    device: str
    dtype: str
    versions: dict[str, str]
    model: str
    decoding: str
    block_length: int | None

    @property
    def identity(self) -> tuple[str, ...]:
        """What decides a row beside the protocol."""
        return self.prompts, self.checkpoint, self.device, self.dtype, self.decoding


class Unit(NamedTuple):
    """A row to compute: one completion of a problem, or the answers of a problem to weigh."""

    item: int
    sample: int


class Worker:
    """A model and a protocol, ready to compute any of the rows.

    Args:
        model: with a tokenizer.
        protocol: everything else that decides the rows.
        backend: completes the prompts; None takes dare-samplers with the model itself.

    Raises:
        ValueError: for settings that do not fit one another, the model or the installed task.
    """

    def __init__(self, model: DiffusionLM, protocol: EvalProtocol, *, backend: Complete | None = None) -> None:
        self.model, self.protocol = model, protocol
        self.task = protocol.load_task()
        self.items = protocol.items(self.task)
        self.config = decoding(model, protocol.sampler, protocol.eos)
        room = model.spec.max_positions
        room -= self.config.gen_length if protocol.mode == "generate" else 0
        self.prompts = [self._prompt(item, room) for item in self.items]
        self.answers = [self._answers(i) for i in range(len(self.items))]
        self._backend, self._conditions = backend, self.task.conditions()
        self.units = [Unit(item, sample) for item in range(len(self.items)) for sample in range(protocol.samples)]

    def facts(self) -> Facts:
        """What a record says beside the rows."""
        model = self.model
        read = [prompt.ids for prompt in self.prompts], self.answers
        special = sorted(model.eos_ids), model.pad_id, model.mask_id
        return Facts(
            prompts=digest([*(read if self.protocol.mode == "likelihood" else read[:1]), *special]),
            checkpoint=model.fingerprint(),
            device=_device(model.device),
            dtype=str(model.dtype).removeprefix("torch."),
            versions={"python": platform.python_version()}
            | {name: version(name) for name in _PACKAGES}
            | self._conditions,
            model=getattr(model, "source", None) or "",
            decoding=str(self.config) if self.protocol.mode == "generate" else "",
            block_length=model.block_length if model.attention == "block_causal" else None,
        )

    def batches(self, batch_size: int) -> list[list[Unit]]:
        """All rows in the batches in which they are computed, longest first."""
        lengths = [len(self.prompts[unit.item].ids) for unit in self.units]
        return [[self.units[i] for i in batch] for batch in batches(lengths, batch_size)]

    def run(self, units: Sequence[Unit], batch_size: int) -> Part:
        """Compute some rows together."""
        start = time.perf_counter()
        with evaluating(self.model):
            rows, forwards = (
                self._generated(units) if self.protocol.mode == "generate" else self._weighed(units, batch_size)
            )
        return Part(rows, Spent(forwards, time.perf_counter() - start))

    def _generated(self, units: Sequence[Unit]) -> tuple[list[Row], int]:
        requests = [Request(self.prompts[unit.item].ids, unit.sample) for unit in units]
        seed, stop = self.protocol.seed, self.protocol.stop
        if self._backend is None:
            written, forwards = complete(self.model, requests, self.config, seed=seed, stop=stop)
        else:
            written, forwards = self._backend(requests, self.config, seed=seed, stop=stop)
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # programs under test run beside one another
            return list(pool.map(self._judged, units, written)), forwards

    def _judged(self, unit: Unit, written: Completion) -> Row:
        item, model = self.items[unit.item], self.model
        verdict = self.task.verify(item, written.text)
        picture = None
        if unit.item < PICTURES and unit.sample == 0:
            pieces = zip(written.ids, written.steps, strict=True)
            picture = tuple((model.decode([token], specials=True), step) for token, step in pieces)
        return Row(
            uid=item.uid,
            sample=unit.sample,
            correct=verdict.correct,
            score=verdict.score,
            status=verdict.status,
            reason=verdict.reason,
            pred=verdict.pred,
            completion=written.text,
            tokens=written.tokens,
            nfe=written.nfe,
            truncated=written.truncated,
            committed=written.committed,
            lenient=self.task.lenient(item, written.text),
            dropped=self.prompts[unit.item].dropped,
            picture=picture,
        )

    def _weighed(self, units: Sequence[Unit], batch_size: int) -> tuple[list[Row], int]:
        settings, seed = self.protocol.likelihood, self.protocol.seed
        answers = [answer for unit in units for answer in self.answers[unit.item]]
        if settings.normalisation == "text":
            answers = [Answer((), (*context, *own)) for context, own in answers]
        found = weigh(self.model, answers, settings, seed=seed, batch_size=batch_size)
        if settings.normalisation == "unconditional":
            alone = [Answer((), answer.continuation) for answer in answers]
            blank = weigh(self.model, alone, settings, seed=seed, batch_size=batch_size)
            found = [a.minus(b) for a, b in zip(found, blank, strict=True)]
        rows: list[Row] = []
        for unit in units:
            weights, found = found[: len(self.answers[unit.item])], found[len(self.answers[unit.item]) :]
            rows.append(self._chosen(unit, weights))
        return rows, sum(row.nfe for row in rows)

    def _chosen(self, unit: Unit, found: Sequence[Weight]) -> Row:
        item = self.items[unit.item]
        sizes = {
            "token": [weight.length for weight in found],
            "text": [weight.length for weight in found],
            "byte": [len(choice.strip().encode()) for choice in item.choices],
        }.get(self.protocol.likelihood.normalisation, [1] * len(found))
        weights = [weight.over(size) for weight, size in zip(found, sizes, strict=True)]
        best, *others = sorted(range(len(weights)), key=lambda i: -weights[i].value)
        gap = _gap(weights[best], weights[others[0]]) if others else None
        correct = item.choices[best] == item.answer
        return Row(
            uid=item.uid,
            correct=correct,
            score=float(correct),
            status="ok",
            reason="" if correct else f"finds it likelier than {item.answer.strip()[:40]}",
            pred=item.choices[best].strip()[:200],
            completion=item.choices[best],
            tokens=sum(weight.length for weight in found),
            nfe=sum(weight.forwards for weight in found),
            truncated=False,
            dropped=self.prompts[unit.item].dropped,
            options=tuple(Option(value=weight.value, error=weight.error) for weight in weights),
            margin=gap,
        )

    def _prompt(self, item: Item, room: int) -> Prompt:
        protocol, model = self.protocol, self.model
        shots = self.task.demonstrations(item, protocol.shots, protocol.seed)

        def encode(shots: Sequence[Item]) -> list[int]:
            if protocol.chat:
                return model.chat([messages(item.prompt, shots, protocol.template, protocol.system)])[0]
            return model.encode(text(item.prompt, shots, protocol.template, self.task.joint))

        longest = max((len(model.encode(choice)) for choice in item.choices), default=0)
        return fit(item, shots, encode, room - longest)

    def _answers(self, number: int) -> list[Answer]:
        """The choices of a problem behind its prompt."""
        item, prompt, protocol = self.items[number], self.prompts[number], self.protocol
        if not item.choices:
            return []
        if protocol.chat:
            return [Answer(prompt.ids, self.model.encode(choice.strip())) for choice in item.choices]
        context = text(item.prompt, prompt.shots, protocol.template, self.task.joint)
        return [split_pair(self.model, context, choice) for choice in item.choices]


def _gap(best: Weight, second: Weight) -> float | None:
    """How far the best is ahead, in standard errors; None where both are exact."""
    if best.exact and second.exact:
        return None
    paired = not best.exact and not second.exact and best.length == second.length
    error = best.minus(second).error if paired else (best.error**2 + second.error**2) ** 0.5
    return (best.value - second.value) / error if error > 0 else None


def _device(device: torch.device) -> str:
    """The kind of device, with the chip's name where it has one: another chip rounds differently."""
    return f"cuda {torch.cuda.get_device_name(device)}" if device.type == "cuda" else device.type
