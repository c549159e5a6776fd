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
    choices: tuple[str, ...] = ()
    """Texts that may follow the prompt, to weigh by likelihood: white space before them included."""
    group: str = ""
    """The part of the data that it belongs to, such as an MMLU subject: demonstrations come from the same."""


class Task(Protocol):
    """What evaluation needs of a task."""

    name: str
    """Its name in configurations and records."""
    version: str
    """Raised whenever the same options, split and seed give other items."""
    verifier: str
    """Name and version of the verifier that judges it."""

    @property
    @abstractmethod
    def options(self) -> dict[str, Any]:
        """Every option with its value."""
        ...

    @property
    @abstractmethod
    def gen_length(self) -> int:
        """Positions to generate that leave room for an answer."""
        ...

    @property
    @abstractmethod
    def chance(self) -> float:
        """Accuracy of a blind strategy, which the docstring of each task names."""
        ...

    @property
    def joint(self) -> tuple[str, str]:
        """What stands between a demonstration's prompt and its answer, and after the answer, in plain text."""
        return "", "\n"

    @abstractmethod
    def problems(self, split: Split, n: int | None, seed: int, *, likelihood: bool = False) -> list[Item]:
        """`n` distinct problems of a split, or as many as there are.

        Args:
            split: `"train"`, `"validation"` or `"test"`.
            n: how many; None for all of them, or 1,000 where there is no end of them.
            seed: decides which.
            likelihood: as they are put where answers are weighed; every problem then has `choices`, and `answer` is
                one of them.
        """
        ...

    @abstractmethod
    def demonstrations(self, item: Item, k: int, seed: int) -> list[Item]:
        """The first `k` solved problems to show before a problem, none of the same split."""
        ...

    @abstractmethod
    def verify(self, item: Item, completion: str) -> Verdict:
        """Judge the text before the first end token."""
        ...

    def conditions(self) -> dict[str, str]:
        """What of this machine a verdict depends on, for the record; complains where it does not suffice."""
        return {}

    def lenient(self, item: Item, completion: str) -> bool | None:
        """Whether a more lenient filter finds the right answer; None without such a filter.

        Where it is far from the verifier, answers are lost to form.
        """
        return None


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

    alphabet: ClassVar[str]
    """The characters that prompts and answers are made of."""

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

    @abstractmethod
    def draw(self, draws: Draws) -> Item | None:
        """One random problem of any split, or None where the draw came to nothing."""

    def foretell(self, draws: Draws) -> int | None:
        """The uid of what `draw` would make of the same draws, where that is cheaper to know; else None."""
        return None

    @property
    def options(self) -> dict[str, Any]:
        """Every option with its value."""
        return asdict(cast(Any, self))

    @property
    def gen_length(self) -> int:
        """One position per character of the longest answer."""
        return self.max_answer_chars

    def problems(self, split: Split, n: int | None, seed: int, *, likelihood: bool = False) -> list[Item]:
        """The first `n` problems, 1,000 for None.

        Raises:
            ValueError: in likelihood mode, as there are no answers to choose from.
        """
        if likelihood:
            raise ValueError(f"task {self.name!r} has no answers to choose from; use mode 'generate'")
        return self.generate(split, 1_000 if n is None else n, seed)

    def demonstrations(self, item: Item, k: int, seed: int) -> list[Item]:
        """The first `k` training problems, whatever the problem."""
        return self.generate("train", k, seed)

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
            if attempt - last > _PATIENCE:
                raise ValueError(
                    f"{self!r} has too few {split} problems: expected {n}, but after {len(items)} no new one came up in"
                    f" more than {_PATIENCE} draws; ask for fewer or choose options with more problems"
                )
            words = self.name, seed, attempt
            attempt += 1
            uid = self.foretell(Draws(*words))
            if uid is not None and (uid in items or split_of(uid) != split):
                continue
            item = self.draw(Draws(*words))
            if item is not None and item.uid not in items and split_of(item.uid) == split:
                items[item.uid], last = item, attempt
        return list(items.values())


def check_range(name: str, value: int, low: int, high: int | None = None) -> None:
    """Refuse an option outside its bounds."""
    if value < low or (high is not None and value > high):
        bounds = f"at least {low}" if high is None else f"{low} to {high}"
        raise ValueError(f"`{name}`: expected {bounds}, got {value}")
