"""Countdown: reach a target from given numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, NamedTuple

from dare_eval.tasks.base import GeneratedTask, Item, check_range, uid_of
from dare_eval.tasks.draws import Draws
from dare_eval.verify.countdown import VERSION, countdown
from dare_eval.verify.verdict import Verdict

__all__ = ["Countdown"]

_PRECEDENCE: Final = {"+": 1, "-": 1, "*": 2, "/": 2}
_ATOM: Final = 3
_CHANCE_DRAWS: Final = 1_000
_CHANCE_TRIES: Final = 10


@dataclass(frozen=True)
class Countdown(GeneratedTask):
    """`3,5,25=60>` → `<answer>(25-5)*3</answer>`: use every number once, with + - * / and parentheses.

    Solvable by construction: the target is the value of a random expression over the numbers. Any expression with that
    value is right.
    Canonical form: the target and the sorted numbers.
    Chance: a random expression over the given numbers, drawn as the targets are (estimated from fixed draws).

    >>> Countdown().generate("test", 1, seed=0)[0].prompt
    '4,11,18=11>'
    """

    numbers: int = 3
    max_number: int = 25
    max_target: int = 100
    allow_subset: bool = False
    allow_unary_minus: bool = False

    name = "countdown"
    version = "1"
    verifier = VERSION
    alphabet = "0123456789,=+-*/()<>answer"

    def __post_init__(self) -> None:
        check_range("numbers", self.numbers, 2, 6)
        check_range("max_number", self.max_number, 1, 10_000)
        check_range("max_target", self.max_target, 1, 1_000_000)

    @property
    def max_prompt_chars(self) -> int:
        """The numbers with commas, `=`, the target and `>`."""
        return self.numbers * (len(str(self.max_number)) + 1) + len(str(self.max_target)) + 1

    @property
    def max_answer_chars(self) -> int:
        """Tags, numbers, operators and at most numbers − 2 pairs of parentheses."""
        return len("<answer></answer>") + self.numbers * (len(str(self.max_number)) + 3) - 5

    @property
    def chance(self) -> float:
        """How often another random expression over the same numbers hits the target."""
        hits = tries = 0
        for attempt in range(_CHANCE_DRAWS):
            draws = Draws(self.name, "chance", attempt)
            numbers = self._numbers(draws)
            target = self._target(_expression(numbers, draws))
            if target is not None:
                tries += _CHANCE_TRIES
                hits += sum(self._target(_expression(numbers, draws)) == target for _ in range(_CHANCE_TRIES))
        return hits / max(tries, 1)

    def draw(self, draws: Draws) -> Item | None:
        """Uniform numbers and the value of a random expression over them, if it is an integer in range."""
        numbers = self._numbers(draws)
        solution = _expression(numbers, draws)
        target = self._target(solution)
        if solution is None or target is None:
            return None
        return Item(
            uid_of(self.name, f"{','.join(map(str, sorted(numbers)))}={target}"),
            f"{','.join(map(str, numbers))}={target}>",
            f"<answer>{solution.text}</answer>",
            {"numbers": numbers, "target": target},
        )

    def verify(self, item: Item, completion: str) -> Verdict:
        """The expression in the last answer pair."""
        return countdown(
            completion,
            item.data["numbers"],
            item.data["target"],
            allow_subset=self.allow_subset,
            allow_unary_minus=self.allow_unary_minus,
        )

    def _numbers(self, draws: Draws) -> list[int]:
        return [1 + draws.below(self.max_number) for _ in range(self.numbers)]

    def _target(self, solution: "_Node | None") -> int | None:
        if solution is None or solution.value.denominator != 1 or not 1 <= solution.value <= self.max_target:
            return None
        return int(solution.value)


class _Node(NamedTuple):
    value: Fraction
    text: str
    precedence: int


def _expression(numbers: Sequence[int], draws: Draws) -> _Node | None:
    """Join two random nodes by a random operator until one is left; None if that divides by zero."""
    nodes = [_Node(Fraction(n), str(n), _ATOM) for n in numbers]
    while len(nodes) > 1:
        left, right, *rest = draws.shuffled(nodes)
        joined = _joined(left, draws.pick("+-*/"), right)
        if joined is None:
            return None
        nodes = [joined, *rest]
    return nodes[0]


def _joined(left: _Node, operator: str, right: _Node) -> _Node | None:
    """The two nodes as one, with no parentheses that the value does not need."""
    rank = _PRECEDENCE[operator]
    a = f"({left.text})" if left.precedence < rank else left.text
    tight = right.precedence > rank or (right.precedence == rank and operator in "+*")
    b = right.text if tight else f"({right.text})"
    match operator:
        case "+":
            value = left.value + right.value
        case "-":
            value = left.value - right.value
        case "*":
            value = left.value * right.value
        case _ if right.value == 0:
            return None
        case _:
            value = left.value / right.value
    return _Node(value, f"{a}{operator}{b}", rank)
