"""Published benchmarks: a sheet in YAML says where the rows are and how they are put; two functions read and judge."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, resources
from pathlib import Path
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

from dare_eval.hints import did_you_mean
from dare_eval.tasks.base import SPLITS, Item, Split, Task, uid_of
from dare_eval.tasks.judges import JUDGES, Judge
from dare_eval.tasks.rows import READERS, BadRow, Fields, Reader
from dare_eval.tasks.source import DataError, read_rows
from dare_eval.verify import Verdict

__all__ = ["Benchmark", "Sheet", "sheet", "sheet_names"]

_NAMED: Final = re.compile(r"\{([a-z_]+)\}")


class _Closed(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Weighed(_Closed):
    """How a question is put where answers are weighed by likelihood."""

    prompt: str
    """The text before the answer."""
    choices: Literal["letters", "texts"]
    """What may follow: the letters of the options, or their texts."""


class Sheet(_Closed):
    """What a benchmark is."""

    name: str
    title: str
    """What it asks, and its paper."""
    version: str
    """Raised whenever the same rows give other problems."""
    hub: str
    """Repository of the data set."""
    configs: tuple[str, ...] = ("",)
    """Its configurations to read."""
    splits: Mapping[Split, str]
    """Our names of splits, and its own."""
    shots: Split | None = None
    """Where demonstrations come from; None for benchmarks that show none."""
    read: str
    """Function of `dare_eval.tasks.rows` that reads a row, or `package.module:function`."""
    judge: str
    """Kind of answer, in `dare_eval.tasks.judges`, or `package.module:judge`."""
    prompts: Mapping[str, str]
    """Ways to put the question; the first is the default."""
    answer: str = "{answer}"
    """How a demonstration answers."""
    joint: tuple[str, str] = ("\n", "\n\n")
    """What stands between a demonstration's question and answer, and between demonstrations."""
    likelihood: Weighed | None = None
    """For multiple choice."""
    gen_length: int = Field(ge=1)
    """Positions that leave room for an answer."""
    chance: float = 0.0
    """Accuracy of guessing among the options."""


def sheet_names() -> list[str]:
    """The benchmarks, in alphabetical order."""
    folder = resources.files("dare_eval.tasks") / "sheets"
    return sorted(path.name.removesuffix(".yaml") for path in folder.iterdir() if path.name.endswith(".yaml"))


@cache
def sheet(name: str) -> Sheet:
    """The sheet of a benchmark.

    Args:
        name: one of `sheet_names()`, or a file of your own that ends with `.yaml`.

    Raises:
        ValueError: for an unknown name, or a file that is no sheet.
    """
    if name.endswith(".yaml"):
        path: Any = Path(name)
    elif name in sheet_names():
        path = resources.files("dare_eval.tasks") / "sheets" / f"{name}.yaml"
    else:
        raise ValueError(f"unknown benchmark {name!r}{did_you_mean(name, sheet_names())}")
    try:
        return Sheet.model_validate({"name": Path(name).stem} | yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError, TypeError) as error:
        raise ValueError(f"cannot read the sheet {name}: {error}") from error


def _known(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    """A reader or judge by name, or by `package.module:attribute`.

    Raises:
        ValueError: for an unknown name, or an address where there is none.
    """
    if ":" not in name:
        if name not in known:
            raise ValueError(f"unknown {kind} {name!r}{did_you_mean(name, known)}, or package.module:attribute")
        return known[name]
    module, _, attribute = name.partition(":")
    try:
        return getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"cannot import {kind} {name!r}: {error}") from error


@dataclass(frozen=True)
class Benchmark(Task):
    """A benchmark with its data. Make it with `get_task`.

    Args:
        sheet: what it is.
        prompt: the name of one of the sheet's ways to put the question; empty for the first.
        only: the group of problems to keep, such as an MMLU subject; empty for all.
        data: a folder with the rows, in place of the hub.
    """

    sheet: Sheet
    prompt: str = ""
    only: str = ""
    data: Path | None = field(default=None, compare=False)
    _found: dict[tuple[Split, bool], tuple[list[Item], dict[str, int]]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        """Refuse an unknown way to put the question."""
        if not self.prompt:
            object.__setattr__(self, "prompt", next(iter(self.sheet.prompts)))
        if self.prompt not in self.sheet.prompts:
            near = did_you_mean(self.prompt, self.sheet.prompts)
            raise ValueError(f"task {self.name!r} has no prompt {self.prompt!r}{near}")

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The sheet's."""
        return self.sheet.name

    @property
    def version(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The sheet's."""
        return self.sheet.version

    @property
    def verifier(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Of the sheet's kind of answer."""
        return self._judge.version

    @property
    def _judge(self) -> Judge:
        return _known("judge", self.sheet.judge, JUDGES)

    @property
    def options(self) -> dict[str, Any]:
        """The way to put the question, and the group of problems."""
        return {"prompt": self.prompt, "only": self.only}

    @property
    def gen_length(self) -> int:
        """The sheet's."""
        return self.sheet.gen_length

    @property
    def chance(self) -> float:
        """Of guessing among the options."""
        return self.sheet.chance

    @property
    def joint(self) -> tuple[str, str]:
        """The sheet's."""
        return self.sheet.joint

    def problems(self, split: Split, n: int | None, seed: int, *, likelihood: bool = False) -> list[Item]:
        """The problems of a split in the order of the data, or `n` of them that are a hash of the seed.

        Raises:
            ValueError: for a split that the benchmark does not have, or fewer problems than asked for; in likelihood
                mode, where there are no options.
        """
        items, _ = self.read(split, likelihood=likelihood)
        if n is None or n == len(items):
            return items
        if n > len(items):
            raise ValueError(f"`n`: expected at most {len(items)} problems of task {self.name!r}, got {n}")
        chosen = sorted(range(len(items)), key=lambda i: uid_of(f"{seed}", str(items[i].uid)))[:n]
        return [items[i] for i in sorted(chosen)]

    def demonstrations(self, item: Item, k: int, seed: int) -> list[Item]:
        """The first `k` problems of the split for demonstrations, of the problem's group; the seed does not matter.

        Raises:
            ValueError: where the benchmark has none, or too few.
        """
        if k == 0:
            return []
        if self.sheet.shots is None:
            raise ValueError(f"`shots`: task {self.name!r} has no demonstrations; use 0")
        shown, _ = self.read(self.sheet.shots, likelihood=bool(item.choices))
        shown = [one for one in shown if one.uid != item.uid and one.group == item.group][:k]
        if len(shown) < k:
            raise ValueError(f"`shots`: expected at most {len(shown)} for task {self.name!r} ({item.group}), got {k}")
        return shown

    def verify(self, item: Item, completion: str) -> Verdict:
        """By the sheet's kind of answer."""
        return self._judge.strict(item.data, completion)

    def conditions(self) -> dict[str, str]:
        """The level of the sandbox, where programs are judged.

        Raises:
            SandboxError: where the system does not allow the level that is required.
        """
        return self._judge.conditions()

    def lenient(self, item: Item, completion: str) -> bool | None:
        """By the lenient filter of the sheet's kind of answer."""
        return self._judge.lenient(item.data, completion)

    def read(self, split: Split, *, likelihood: bool = False) -> tuple[list[Item], dict[str, int]]:
        """All problems of a split, and why how many rows were left out.

        Raises:
            ValueError: for a split that the benchmark does not have, or where no row can be used.
        """
        if (split, likelihood) not in self._found:
            self._found[split, likelihood] = self._read(split, likelihood)
        return self._found[split, likelihood]

    def _read(self, split: Split, likelihood: bool) -> tuple[list[Item], dict[str, int]]:
        if split not in self.sheet.splits:
            known = ", ".join(name for name in SPLITS if name in self.sheet.splits)
            raise ValueError(f"task {self.name!r} has no split {split!r}; expected one of: {known}")
        if likelihood and self.sheet.likelihood is None:
            raise ValueError(f"task {self.name!r} has no answers to choose from; use mode 'generate'")
        items: dict[int, Item] = {}
        dropped: Counter[str] = Counter()
        reader: Reader = _known("reader", self.sheet.read, READERS)
        where = self.sheet.splits[split], self.data
        for config, row in read_rows(self.name, self.sheet.hub, self.sheet.configs, split, *where):
            try:
                fields = reader(row)
            except BadRow as error:
                dropped[str(error)] += 1
                continue
            item = self._item(fields, fields.group or config, likelihood=likelihood)
            if self.only not in ("", item.group):
                continue
            if item.uid in items:
                dropped["the same problem again"] += 1
            items[item.uid] = item
        if not items:
            why = "; ".join(f"{count} rows: {reason}" for reason, count in dropped.most_common(3))
            raise DataError(
                f"expected problems of task {self.name!r} in split {split!r}, got none ({why or 'no rows'})"
            )
        return list(items.values()), dict(dropped)

    def _item(self, fields: Fields, group: str, *, likelihood: bool) -> Item:
        uid = uid_of(self.name, repr((sorted(fields.text.items()), fields.options)))
        if not likelihood or self.sheet.likelihood is None:
            answer = fields.answer and _filled(self.sheet.answer, {"answer": fields.answer})
            return Item(uid, _filled(self.sheet.prompts[self.prompt], fields.text), answer, fields.data, group=group)
        letters = [chr(ord("A") + i) for i in range(len(fields.options))]
        texts = letters if self.sheet.likelihood.choices == "letters" else fields.options
        choices = tuple(f" {text}" for text in texts)
        answer = choices[letters.index(fields.answer)]
        return Item(uid, _filled(self.sheet.likelihood.prompt, fields.text), answer, fields.data, choices, group)


def _filled(template: str, fields: Mapping[str, str]) -> str:
    """The template with its named fields; braces around anything else are text."""
    return _NAMED.sub(lambda match: fields.get(match[1], match[0]), template)
