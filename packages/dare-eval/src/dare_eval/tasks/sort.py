"""Sort the digits of a number."""

from dataclasses import dataclass
from math import factorial, prod

from dare_eval.tasks.base import GeneratedTask, Item, check_range, uid_of
from dare_eval.tasks.draws import Draws
from dare_eval.verify.digits import VERSION, digits
from dare_eval.verify.verdict import Verdict

__all__ = ["Sort"]


@dataclass(frozen=True)
class Sort(GeneratedTask):
    """`49303973>` → `03334799`: the digits in ascending order and nothing else.

    Canonical form: the digits as given, so two orders of the same digits are two problems.
    Chance: the likeliest answer, always the same one (8 digits: 8!/10⁸ = 0.04 %).

    >>> Sort().generate("test", 1, seed=0)[0].prompt
    '60900192>'
    """

    digits: int = 8

    name = "sort"
    version = "1"
    verifier = VERSION
    alphabet = "0123456789>"

    def __post_init__(self) -> None:
        check_range("digits", self.digits, 1, 64)

    @property
    def max_prompt_chars(self) -> int:
        """The digits and `>`."""
        return self.digits + 1

    @property
    def max_answer_chars(self) -> int:
        """As many digits as were given."""
        return self.digits

    @property
    def chance(self) -> float:
        """Share of the most frequent multiset of digits: d! / ∏ cᵢ! / 10ᵈ with the counts cᵢ as equal as can be."""
        counts = [(self.digits + i) // 10 for i in range(10)]
        return factorial(self.digits) / prod(map(factorial, counts)) / 10**self.digits

    def draw(self, draws: Draws) -> Item:
        """Independent uniform digits."""
        text = "".join(str(draws.below(10)) for _ in range(self.digits))
        return Item(uid_of(self.name, text), f"{text}>", "".join(sorted(text)))

    def verify(self, item: Item, completion: str) -> Verdict:
        """Exactly the sorted digits."""
        return digits(completion, item.answer)
