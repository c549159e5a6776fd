"""Add two numbers."""

from dataclasses import dataclass

from dare_eval.tasks.base import GeneratedTask, Item, check_range, uid_of
from dare_eval.tasks.draws import Draws
from dare_eval.verify.digits import VERSION, digits
from dare_eval.verify.verdict import Verdict

__all__ = ["Addition"]


@dataclass(frozen=True)
class Addition(GeneratedTask):
    """`57+68=` → `125`: the digits of the sum and nothing else.

    Both operands have exactly `digits` digits, without a leading zero. With `padded` the answer has always one digit
    more than they (`12+34=` → `046`), so that completions of one length need no end token.
    Canonical form: the two operands in ascending order; `57+68` and `68+57` are one problem.
    Chance: the likeliest sum, always the same one.

    >>> item = Addition(digits=2).generate("test", 1, seed=0)[0]
    >>> item.uid, item.prompt, item.answer
    (7931409563489541709, '73+28=', '101')
    """

    digits: int = 3
    padded: bool = False

    name = "addition"
    version = "1"
    verifier = VERSION
    alphabet = "0123456789+="

    def __post_init__(self) -> None:
        check_range("digits", self.digits, 1, 64)

    @property
    def max_prompt_chars(self) -> int:
        """Two operands, `+` and `=`."""
        return 2 * self.digits + 2

    @property
    def max_answer_chars(self) -> int:
        """One digit more than the operands."""
        return self.digits + 1

    @property
    def chance(self) -> float:
        """One in as many as an operand has values: so often does the middle of all sums occur."""
        return 1 / (9 * 10 ** (self.digits - 1))

    def draw(self, draws: Draws) -> Item:
        """Independent uniform operands."""
        a, b = self._operand(draws), self._operand(draws)
        answer = str(a + b).zfill(self.digits + 1 if self.padded else 0)
        return Item(uid_of(self.name, f"{min(a, b)}+{max(a, b)}"), f"{a}+{b}=", answer)

    def verify(self, item: Item, completion: str) -> Verdict:
        """Exactly the digits of the sum."""
        return digits(completion, item.answer)

    def _operand(self, draws: Draws) -> int:
        tail = (str(draws.below(10)) for _ in range(self.digits - 1))
        return int(str(1 + draws.below(9)) + "".join(tail))
