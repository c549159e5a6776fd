"""Everything that decides a score, and its hash."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dare_eval.sampling import SamplerSettings
from dare_eval.tasks import GeneratedTask, Item, Split, get_task

__all__ = ["Protocol", "digest"]


def digest(data: Any) -> str:
    """SHA-256 of plain data, independent of key order and white space."""
    text = json.dumps(data, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()


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
    n: int = Field(default=1_000, ge=1)
    """How many problems."""
    seed: int = 0
    """Decides which problems come up and, with a problem's uid, the sampler's noise."""
    template: str = "{prompt}"
    """Text around the problem."""
    chat: bool = False
    """Render the prompt as a user message with the model's chat template."""
    sampler: SamplerSettings
    """How completions are decoded."""
    eos: Literal["allow", "suppress"] = "allow"
    """`suppress` never proposes an end token, so that every completion has the full length."""

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
    def _identify(self) -> Self:
        if not self.dataset:  # a protocol that was stored keeps the identity it was scored under
            task = get_task(self.task, self.options)
            filled = {
                "options": task.options,
                "task_version": task.version,
                "verifier": task.verifier,
                "dataset": _dataset(task.generate(self.split, self.n, self.seed)),
            }
            for name, value in filled.items():
                object.__setattr__(self, name, value)
        return self

    def hash(self) -> str:
        """Hash of every field."""
        return digest(self.model_dump(mode="json"))

    def load_task(self) -> GeneratedTask:
        """The task with its options.

        Raises:
            ValueError: if the installed version is another one.
        """
        task = get_task(self.task, self.options)
        for field, installed in (("task_version", task.version), ("verifier", task.verifier)):
            if getattr(self, field) != installed:
                raise ValueError(
                    f"the protocol was made with `{field}` {getattr(self, field)!r} of task {self.task!r},"
                    f" installed is {installed!r}; make it anew or install the dare-eval it was made with"
                )
        return task

    def items(self) -> list[Item]:
        """The problems.

        Raises:
            ValueError: if they are not those the protocol was made with.
        """
        items = self.load_task().generate(self.split, self.n, self.seed)
        if (found := _dataset(items)) != self.dataset:
            raise ValueError(
                f"expected problems with hash {self.dataset[:12]}, got {found[:12]}: task {self.task!r} was changed"
                " without a new version; raise its `version`"
            )
        return items

    def prompt(self, item: Item) -> str:
        """The text that the model continues."""
        return self.template.replace("{prompt}", item.prompt)


def _dataset(items: Sequence[Item]) -> str:
    return digest([asdict(item) for item in items])
