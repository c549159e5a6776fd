"""Everything that decides a score, and its hash."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, Self, TypedDict, Unpack

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dare_eval.presets import settings_of
from dare_eval.sampling import SamplerSettings
from dare_eval.tasks import Item, Split, Task, get_task

__all__ = ["LikelihoodSettings", "Protocol", "digest"]


def digest(data: Any) -> str:
    """SHA-256 of plain data, independent of key order and white space."""
    text = json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


class LikelihoodSettings(BaseModel):
    """How the answers of a multiple-choice task are weighed.

    Answers of equal length to one question are scored under the same draws, so their difference is less noisy than
    either.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    estimator: Literal["count", "complementary", "bernoulli", "block_count", "left_to_right"] = "count"
    """Of `dare_objectives.log_likelihood`."""
    draws: int = Field(default=128, ge=1)
    """Forwards per answer that is not enumerated; a multiple of `replicates`."""
    replicates: int = Field(default=16, ge=2)
    """Independent groups of draws, from whose spread the standard error comes."""
    normalisation: Literal["sum", "token", "byte", "unconditional", "text"] = "sum"
    """Divide by the answer's tokens or bytes, or subtract its log-likelihood behind an empty question; `text` scores
    question and answer together, per token, as perplexity-based harnesses do."""
    guidance: float = Field(default=0.0, ge=0)
    """Scale of classifier-free guidance; models with full attention only."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.draws % self.replicates:
            near = max(self.draws // self.replicates, 1) * self.replicates
            raise ValueError(f"`draws`: expected a multiple of `replicates` = {self.replicates}; take {near}")
        return self


class Changes(TypedDict, total=False):
    """The fields of `Protocol` that a preset may be changed in, any of them."""

    options: Mapping[str, Any]
    split: Split
    n: int | None
    seed: int
    template: str
    chat: bool
    system: str | None
    shots: int
    mode: Literal["generate", "likelihood"]
    samples: int
    stop: Sequence[str]
    sampler: SamplerSettings | Mapping[str, Any]
    eos: Literal["allow", "suppress"]
    likelihood: LikelihoodSettings | Mapping[str, Any]
    data: Path | None


class Protocol(BaseModel):
    """Everything that decides a score except the model.

    Give the task and the sampler; the fields under "identity" are filled in from the installed task and make the hash
    change whenever the task, its verifier or a single problem does.

    Raises:
        ValueError: (as pydantic's ValidationError) for an unknown task, option or split, or too few problems.

    >>> from dare_eval.sampling import LladaSampler
    >>> p = Protocol(task="sort", n=100, sampler=LladaSampler(gen_length=8, block_length=4, steps=4))
    >>> p.options, p.verifier, p.hash() == p.model_copy().hash()
    ({'digits': 8}, 'digits/1', True)
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    task: str
    """A name in `dare_eval.tasks.names()`, or `package.module:Class`."""
    options: Mapping[str, Any] = Field(default_factory=dict)
    """The task's options; the defaults are filled in."""
    split: Split = "test"
    """Which problems: the splits are disjoint for all seeds."""
    n: int | None = Field(default=None, ge=1)
    """How many problems; None takes all of a data set, and 1,000 of a generated task."""
    seed: int = 0
    """Decides which problems come up and, with a prompt's tokens, the sampler's noise."""
    template: str = "{prompt}"
    """Text around the problem."""
    chat: bool = False
    """Render the prompt as a user message with the model's chat template, demonstrations as earlier turns."""
    system: str | None = None
    """A system message before them; with `chat` only."""
    shots: int = Field(default=0, ge=0)
    """Solved problems shown before the question. Where the context is too short, the last ones are left out."""
    mode: Literal["generate", "likelihood"] = "generate"
    """Let the model write, or choose the answer that it finds most likely."""
    samples: int = Field(default=1, ge=1)
    """Completions per problem, each with noise of its own."""
    stop: tuple[str, ...] = ()
    """A completion ends before the first of these texts."""
    sampler: SamplerSettings
    """How completions are decoded."""
    eos: Literal["allow", "suppress"] = "allow"
    """`suppress` never proposes an end token, so that every completion has the full length."""
    likelihood: LikelihoodSettings = LikelihoodSettings()
    """How answers are weighed in likelihood mode."""
    data: Path | None = Field(default=None, exclude=True)
    """A folder with a data set's files, in place of the hub. No part of the identity: the problems themselves are."""

    # identity
    task_version: str = ""
    """Version of the task's generator."""
    verifier: str = ""
    """Name and version of the verifier."""
    dataset: str = ""
    """SHA-256 of all problems."""

    @field_validator("template")
    @classmethod
    def _has_prompt(cls, template: str) -> str:
        if "{prompt}" not in template:
            raise ValueError(f"expected a template with {{prompt}} in it, got {template!r}")
        return template

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.system is not None and not self.chat:
            raise ValueError("`system`: expected it with `chat` only; put the text into `template`, or set chat=True")
        if self.mode == "likelihood" and (self.samples > 1 or self.stop):
            raise ValueError("`samples`, `stop`: expected them in mode 'generate' only; leave them out")
        if "" in self.stop:
            raise ValueError("`stop`: expected texts, got an empty one; leave it out")
        return self

    @model_validator(mode="after")
    def _identify(self) -> Self:
        if not self.dataset:  # a protocol that was stored keeps the identity it was scored under
            task = get_task(self.task, self.options, data=self.data)
            items = task.problems(self.split, self.n, self.seed, likelihood=self.mode == "likelihood")
            filled = {
                "options": task.options,
                "task_version": task.version,
                "verifier": task.verifier,
                "n": len(items),
                "dataset": _dataset(items, task.demonstrations(items[0], self.shots, self.seed)),
            }
            for name, value in filled.items():
                object.__setattr__(self, name, value)
        return self

    @classmethod
    def preset(cls, name: str, task: str, **changes: Unpack[Changes]) -> Self:
        """The protocol of a task under a preset, such as `"dare-core"`.

        Args:
            name: one of `dare_eval.presets.preset_names()`.
            task: of the task.
            **changes: fields that differ; `options` and `likelihood` are merged into the preset's.

        Raises:
            ValueError: for an unknown preset, a task it says nothing of, or a change that does not fit.

        >>> Protocol.preset("dare-core", "sort", n=10).sampler.kind
        'core'
        """
        plain = get_task(task, changes.get("options"), data=changes.get("data"))
        fields = settings_of(name, task, plain.gen_length)
        given = (("options", changes.get("options")), ("likelihood", changes.get("likelihood")))
        merged = {key: {**fields.get(key, {}), **value} for key, value in given if isinstance(value, Mapping)}
        return cls.model_validate({"task": task, **fields, **changes, **merged})

    def hash(self) -> str:
        """Hash of every field but where the data lies."""
        return digest(self.model_dump(mode="json"))

    @property
    def n_problems(self) -> int:
        """`n`, which is known once the problems are."""
        assert self.n is not None, "the validator has counted the problems"
        return self.n

    def load_task(self) -> Task:
        """The task with its options.

        Raises:
            ValueError: if the installed version is another one.
        """
        task = get_task(self.task, self.options, data=self.data)
        for field, installed in (("task_version", task.version), ("verifier", task.verifier)):
            if getattr(self, field) != installed:
                raise ValueError(
                    f"the protocol was made with `{field}` {getattr(self, field)!r} of task {self.task!r},"
                    f" installed is {installed!r}; make it anew or install the dare-eval it was made with"
                )
        return task

    def items(self, task: Task | None = None) -> list[Item]:
        """The problems.

        Args:
            task: from `load_task`, where it is at hand: its data is not read again.

        Raises:
            ValueError: if they are not those the protocol was made with.
        """
        task = self.load_task() if task is None else task
        items = task.problems(self.split, self.n, self.seed, likelihood=self.mode == "likelihood")
        if (found := _dataset(items, task.demonstrations(items[0], self.shots, self.seed))) != self.dataset:
            raise ValueError(
                f"expected problems with hash {self.dataset[:12]}, got {found[:12]}: the data of task {self.task!r}"
                " is another than the protocol was made with; if the task was changed, raise its `version`"
            )
        return items

    def prompt(self, item: Item) -> str:
        """The text that the model continues."""
        return self.template.replace("{prompt}", item.prompt)


def _dataset(items: Sequence[Item], demonstrations: Sequence[Item]) -> str:
    """Hash of all that is shown and asked; what has its default does not count, so that new fields change nothing."""
    plain = [[_plain(item) for item in some] for some in (items, demonstrations) if some]
    return digest(plain if demonstrations else plain[0])


def _plain(item: Item) -> dict[str, Any]:
    return {key: value for key, value in asdict(item).items() if value or key not in ("choices", "group")}
