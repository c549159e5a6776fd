"""What a task is, and how a problem finds its split."""

from abc import abstractmethod
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from operator import index
from typing import Any, ClassVar, Final, Literal, Protocol, cast

from dare_eval.hints import did_you_mean
from dare_eval.tasks.draws import Draws
from dare_eval.verify import Verdict

__all__ = ["SPLITS", "GeneratedTask", "Item", "Split", "Task", "check_range", "split_of", "uid_of"]

Split = Literal["train", "validation", "test"]
SPLITS: Final[tuple[Split, ...]] = ("train", "validation", "test")

_TENTHS: Final[tuple[Split, ...]] = ("train",) * 8 + ("validation", "test")
_PATIENCE: Final = 10_000


@dataclass(frozen=True)
class Item:
    """One problem."""

    uid: int
    """Stable 63-bit hash of the task's name and the problem's canonical form."""
    prompt: str
    answer: str
    """A complete completion that the verifier accepts: what a demonstration shows."""
    data: dict[str, Any] = field(default_factory=dict)
    """What the verifier needs beyond the answer; plain JSON."""


class Task(Protocol):
    """What training and evaluation need of a task."""

    name: ClassVar[str]
    """Its name in configurations and records."""
    version: ClassVar[str]
    """Raised whenever the same options, split and seed give other items."""
    verifier: ClassVar[str]
    """Name and version of the verifier that judges it."""
    alphabet: ClassVar[str]
    """The characters that prompts and answers are made of."""

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Every option with its value."""
        ...

    @property
    @abstractmethod
    def max_prompt_chars(self) -> int:
        """No prompt is longer."""
        ...

    @property
    @abstractmethod
    def max_answer_chars(self) -> int:
        """No canonical answer is longer."""
        ...

    @property
    @abstractmethod
    def chance(self) -> float:
        """Accuracy of a blind strategy, which the docstring of each task names."""
        ...

    @abstractmethod
    def generate(self, split: Split, n: int, seed: int) -> list[Item]:
        """`n` distinct items of a split."""
        ...

    @abstractmethod
    def verify(self, item: Item, completion: str) -> Verdict:
        """Judge the text before the first end token."""
        ...


def uid_of(task: str, canonical: str) -> int:
    """The 63-bit identity of a problem, the same for every seed and in every process.

    >>> uid_of("sort", "49303973")
    2726686390839795257
    """
    return int.from_bytes(sha256(f"{task}:{canonical}".encode()).digest()[:8], "big") >> 1


def split_of(uid: int) -> Split:
    """The split that a problem belongs to: eight tenths train, one validation, one test.

    The seed has no say in it, so no training set of any seed holds a test problem of any other.
    """
    return _TENTHS[uid % 10]


class GeneratedTask(Task):
    """A task whose problems are drawn by a rule. Subclasses are frozen dataclasses: their fields are the options.

    A subclass states the class variables, the other properties, `draw` and `verify`; the splits follow.
    `dare_eval.testing.check_task` tests all of it.
    """

    @abstractmethod
    def draw(self, draws: Draws) -> Item | None:
        """One random problem of any split, or None where the draw came to nothing."""

    @property
    def options(self) -> dict[str, Any]:
        """Every option with its value."""
        return asdict(cast(Any, self))

    def generate(self, split: Split, n: int, seed: int) -> list[Item]:
        """The first `n` distinct problems of a split in the order of a seed.

        The list is a pure function of the options and arguments, and a larger `n` only appends to it.

        Args:
            split: `"train"`, `"validation"` or `"test"`: disjoint for all seeds.
            n: how many.
            seed: the order in which problems come up.

        Raises:
            ValueError: for an unknown split, or if the split has too few problems.
        """
        if split not in SPLITS:
            raise ValueError(f"unknown split {split!r}{did_you_mean(split, SPLITS)}")
        check_range("n", n, 0)
        seed = index(seed)  # numpy integers draw like Python's
        items: dict[int, Item] = {}
        attempt = last = 0
        while len(items) < n:
            item = self.draw(Draws(self.name, seed, attempt))
            attempt += 1
            if item is not None and item.uid not in items and split_of(item.uid) == split:
                items[item.uid], last = item, attempt
            elif attempt - last > _PATIENCE:
                raise ValueError(
                    f"{self!r} has too few {split} problems: expected {n}, but after {len(items)} no new one came up in"
                    f" more than {_PATIENCE} draws; ask for fewer or choose options with more problems"
                )
        return list(items.values())


def check_range(name: str, value: int, low: int, high: int | None = None) -> None:
    """Refuse an option outside its bounds."""
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"{low} to {high}"
        raise ValueError(f"`{name}`: expected {bounds}, got {value}")
