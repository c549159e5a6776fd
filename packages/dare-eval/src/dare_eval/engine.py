"""Where a model answers: one way to complete prompts and one to weigh answers, for every entry of this package.

Randomness is a hash of (seed, the prompt's tokens, the number of the sample), so whoever puts the same prompt gets the
same answer: Python, the command line, OpenCompass or lm-evaluation-harness, in any order and batch.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from math import sqrt
from statistics import stdev
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from dare_eval.protocol import LikelihoodSettings
from dare_eval.sampling import CoreSampler, SamplerSettings
from dare_eval.stats import student
from dare_eval.verify import visible
from dare_models import DiffusionLM
from dare_objectives import Batch, gather_logp, guided, log_likelihood
from dare_objectives import row_keys as plan_keys
from dare_samplers import SamplerConfig, SamplerOutput, Suppress, generate, row_keys

__all__ = [
    "Answer",
    "Completion",
    "Request",
    "Weight",
    "batches",
    "complete",
    "decoding",
    "evaluating",
    "greedy",
    "in_batches",
    "split_pair",
    "trimmed",
    "weigh",
]


T = TypeVar("T")
R = TypeVar("R")


class Request(NamedTuple):
    """A prompt to complete."""

    ids: Sequence[int]
    """Its tokens."""
    sample: int = 0
    """Which of its completions."""


@dataclass(frozen=True)
class Completion:
    """What a model wrote."""

    text: str
    """What precedes the first end token and the first stop text; other special tokens included."""
    tokens: int
    """Tokens before the first end token."""
    truncated: bool
    """No end token came before the canvas was full."""
    nfe: int
    """Denoising forwards that the row took part in."""
    committed: int
    """Positions that were decoded."""
    ids: tuple[int, ...]
    """The tokens up to the first end token, which is included."""
    steps: tuple[int, ...]
    """The step at which each of them was committed."""


class Answer(NamedTuple):
    """An answer to weigh: `continuation` follows `context`."""

    context: Sequence[int]
    continuation: Sequence[int]


@dataclass(frozen=True)
class Weight:
    """How likely a model finds an answer."""

    value: float
    """Log-likelihood, a lower bound where masks are drawn in any order."""
    replicates: tuple[float, ...]
    """Independent estimates whose mean is `value`; those of answers of equal length to one context are paired."""
    exact: bool
    forwards: int
    length: int
    """Tokens."""

    @property
    def error(self) -> float:
        """Standard error of `value`."""
        return 0.0 if self.exact else stdev(self.replicates) / sqrt(len(self.replicates))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Interval of the log-likelihood, by Student's t over the replicates."""
        reach = 0.0 if self.exact else student(level, len(self.replicates) - 1) * self.error
        return self.value - reach, self.value + reach

    def over(self, size: int) -> "Weight":
        """Per unit of a size, such as a token or a byte."""
        return replace(self, value=self.value / size, replicates=tuple(one / size for one in self.replicates))

    def minus(self, other: "Weight") -> "Weight":
        """What this one has more, replicate by replicate: paired where both were drawn under the same masks."""
        pairs = zip(self.replicates, other.replicates, strict=True)
        return replace(
            self,
            value=self.value - other.value,
            replicates=tuple(a - b for a, b in pairs),
            exact=self.exact and other.exact,
            forwards=self.forwards + other.forwards,
        )


def complete(
    model: DiffusionLM, requests: Sequence[Request], config: SamplerConfig, *, seed: int, stop: Sequence[str] = ()
) -> tuple[list[Completion], int]:
    """Complete some prompts in one batch.

    Args:
        model: with a tokenizer.
        requests: the prompts.
        config: how to decode.
        seed: of the sampler's noise.
        stop: texts before which a completion ends.

    Returns:
        A completion for each request, and the forward calls of the model.
    """
    keys = torch.cat([row_keys(seed, [_uid(ids)], sample) for ids, sample in requests])
    output = generate(model, [list(ids) for ids, _ in requests], config, keys=keys)
    return [_completion(model, output, row, stop) for row in range(len(requests))], output.nfe


def decoding(model: DiffusionLM, sampler: SamplerSettings, eos: Literal["allow", "suppress"]) -> SamplerConfig:
    """The strategy of some settings for a model.

    Args:
        model: its description and end tokens count.
        sampler: the settings.
        eos: `suppress` never proposes an end token.
    """
    config = sampler.config(model.spec)
    if eos == "suppress" and model.eos_ids:
        config = config.replace(rules=(*config.rules, Suppress(tuple(model.eos_ids))))
    return config


def weigh(
    model: DiffusionLM, answers: Sequence[Answer], settings: LikelihoodSettings, *, seed: int, batch_size: int = 256
) -> list[Weight]:
    """Log-likelihoods of answers given their contexts.

    Args:
        model: the model.
        answers: all of at least one token.
        settings: estimator, draws and guidance. (Normalisation is the caller's: it needs the text.)
        seed: of the draws.
        batch_size: rows in one forward at most; it changes no result.

    Returns:
        The sums over the answers' tokens, in their order.

    Raises:
        ValueError: for an empty answer, or guidance with block-causal attention.
    """
    if empty := [i for i, answer in enumerate(answers) if not answer.continuation]:
        raise ValueError(f"expected answers of at least one token, got none in number {empty[0]}")
    if settings.guidance and model.attention != "full":
        raise ValueError("`guidance`: expected 0 with block-causal attention, which always sees the prompt")
    lengths = [len(context) + len(continuation) for context, continuation in answers]
    return in_batches(answers, lengths, batch_size, lambda some: _weigh(model, some, settings, seed, batch_size))


def _weigh(
    model: DiffusionLM, answers: Sequence[Answer], settings: LikelihoodSettings, seed: int, batch_size: int
) -> list[Weight]:
    score = partial(model.score, gather=gather_logp)
    found = log_likelihood(
        guided(partial(_logits, model), settings.guidance) if settings.guidance else score,
        _batch(model, answers, seed),
        estimator=settings.estimator,
        draws=settings.draws,
        replicates=settings.replicates,
        streams=max(1, batch_size // len(answers)),
    )
    return [
        Weight(
            value=float(found.value[row]),
            replicates=tuple(found.replicates[row].tolist()),
            exact=bool(found.exact[row]),
            forwards=int(found.draws[row]),
            length=int(found.length[row]),
        )
        for row in range(len(answers))
    ]


def greedy(model: DiffusionLM, answers: Sequence[Answer], *, seed: int) -> list[bool]:
    """Whether greedy decoding, the most confident token at a time, would have written exactly these answers."""
    found: list[bool] = []
    for context, continuation in answers:
        config = CoreSampler(gen_length=len(continuation), block_length=len(continuation)).config(model.spec)
        (written,), _ = complete(model, [Request(context)], config, seed=seed)
        found.append(written.ids == tuple(continuation))
    return found


def split_pair(model: DiffusionLM, context: str, continuation: str) -> Answer:
    """Tokens of an answer behind its context in plain text.

    White space at the end of the context belongs to the answer. Both are encoded together where the context's tokens
    stay as they are, and apart otherwise.
    """
    kept = context.rstrip()
    continuation, context = context[len(kept) :] + continuation, kept
    head, whole = model.encode(context), model.encode(context + continuation)
    if whole[: len(head)] == head and len(whole) > len(head):
        return Answer(head, whole[len(head) :])
    return Answer(head, model.encode(continuation))


def trimmed(text: str, stop: Sequence[str]) -> str:
    """The text before the first of some stop texts."""
    return text[: min((at for at in map(text.find, stop) if at >= 0), default=len(text))]


def batches(lengths: Sequence[int], batch_size: int) -> Iterator[list[int]]:
    """Indices by length, longest first, in as few batches as possible whose sizes differ by one at most."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    count = -(-len(order) // batch_size)
    for i in range(count):
        yield order[i * len(order) // count : (i + 1) * len(order) // count]


def in_batches(
    given: Sequence[T], lengths: Sequence[int], batch_size: int, compute: Callable[[list[T]], Sequence[R]]
) -> list[R]:
    """What `compute` makes of all that is given, batch by batch, in the order given."""
    found: dict[int, R] = {}
    for rows in batches(lengths, batch_size):
        found |= zip(rows, compute([given[i] for i in rows]), strict=True)
    return [found[i] for i in range(len(given))]


@contextmanager
def evaluating(model: DiffusionLM) -> Generator[None]:
    """Dropout off, and every submodule's training mode given back."""
    training = {module: module.training for module in model.module.modules()}
    model.module.eval()
    try:
        yield
    finally:
        for module, mode in training.items():
            module.training = mode


def _completion(model: DiffusionLM, output: SamplerOutput, row: int, stop: Sequence[str]) -> Completion:
    kept = output.completion_mask[row]
    ids, steps = output.completions[row][kept].tolist(), output.step_map[row][kept].tolist()
    text = visible(ids, eos_ids=model.eos_ids, pad_id=model.pad_id, mask_id=model.mask_id)
    return Completion(
        text=trimmed(model.decode(text.ids, specials=True), stop),  # what was generated is what is judged
        tokens=len(text.ids),
        truncated=text.truncated,
        nfe=int(output.row_nfe[row]),
        committed=int((output.step_map[row] >= 0).sum()),
        ids=tuple(ids),
        steps=tuple(steps),
    )


def _batch(model: DiffusionLM, answers: Sequence[Answer], seed: int) -> Batch:
    """Right-padded rows; blocks count from the row's first token, as block-causal models are trained."""
    rows = [[*context, *continuation] for context, continuation in answers]
    starts = torch.tensor([len(answer.context) for answer in answers])[:, None]
    ends = torch.tensor([len(row) for row in rows])[:, None]
    width = max(map(len, rows))
    tokens = torch.tensor([row + [model.pad_id] * (width - len(row)) for row in rows])
    column = torch.arange(width)[None]
    valid = column < ends
    blocks = torch.where(valid, column // (model.block_length or width), -1).to(torch.int32)
    keys = plan_keys(seed, [_uid(answer.context) for answer in answers])
    group = torch.arange(len(rows))
    moved = [x.to(model.device) for x in (tokens, valid, valid & (column >= starts), blocks, keys, group)]
    return Batch(*moved, mask_id=model.mask_id)


def _logits(model: DiffusionLM, ids: Tensor, valid: Tensor) -> Tensor:
    positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
    return model(ids, positions=positions.masked_fill(~valid, -1)).float()


def _uid(ids: Sequence[int]) -> int:
    """The 63-bit name of a prompt: a hash of its tokens."""
    return int.from_bytes(sha256(",".join(map(str, ids)).encode()).digest()[:8], "big") >> 1
