"""Conformance kit: what every task and verifier must satisfy, yours included.

>>> from dare_eval.tasks import generated_task
>>> check_task(generated_task("sort"))
"""

import json
from collections.abc import Iterator

from dare_eval.tasks import SPLITS, GeneratedTask, Item
from dare_eval.tasks.draws import Draws
from dare_eval.verify import Verdict

__all__ = ["check_task", "check_verdict", "hostile_texts"]

_FRAGMENTS = (
    "<answer>", "</answer>", "<answer", "\\boxed{", "}", "(", ")", "((((((((", "+", "-", "*", "/", "**", "//", "=",
    "0", "1", "9" * 30, "-2", "1/0", "1e9", "0x1f", "nan", "None", "__import__('os')", ",", ";", "#", "%s", "{}",
    " ", "\t", "\r\n", "\n", "\x00", "\u200b", "\ufeff", "\u0663", "\u00b2", "\u00bd", "\U0001d7db", "e\u0301",
    "\ud800",
)  # fmt: skip
_LONG = 1_000_000


def check_task(task: GeneratedTask, *, n: int = 20, seeds: tuple[int, ...] = (0, 1)) -> None:
    """Check a task's generator and verifier.

    Items are distinct, reproducible, a prefix of longer lists and in no two splits; they survive JSON, keep to the
    stated alphabet and lengths, and their answers are verified as correct, also after JSON. Hostile texts are judged
    without an exception and never as correct.

    Args:
        task: the task.
        n: items per split and seed; must not exceed what the smallest split holds.
        seeds: several, since the splits must be disjoint across them.

    Raises:
        AssertionError: naming what does not hold.
    """
    owner: dict[int, str] = {}
    for split in SPLITS:
        for seed in seeds:
            items = task.generate(split, n, seed)
            assert items == task.generate(split, n, seed), "the same seed must give the same items"
            assert items[: n // 2] == task.generate(split, n // 2, seed), "a larger n must only append"
            assert len({item.uid for item in items}) == n, "items must be distinct"
            for item in items:
                assert owner.setdefault(item.uid, split) == split, f"{item} is in two splits"
                _check_item(task, item)
    item = task.generate("test", 1, seeds[0])[0]
    for text in hostile_texts(200, seed=0):
        verdict = task.verify(item, text)
        check_verdict(verdict)
        assert verdict.correct is not True, f"{text[:200]!r} is no answer"
    assert 0 <= task.chance < 1, f"chance must be in [0, 1), got {task.chance}"


def check_verdict(verdict: Verdict) -> None:
    """Check that a verdict agrees with itself.

    Raises:
        AssertionError: naming what does not hold.
    """
    assert 0 <= verdict.score <= 1, f"score must be in [0, 1]: {verdict}"
    assert (verdict.correct is None) == (verdict.status != "ok"), f"correct is None exactly where not judged: {verdict}"
    assert (verdict.reason == "") == (verdict.correct is True), f"a reason for everything but correct: {verdict}"
    assert verdict.correct or verdict.score < 1, f"full score only for a correct answer: {verdict}"
    assert verdict.pred is None or len(verdict.pred) <= 200, "pred is for display"


def hostile_texts(n: int, *, seed: int) -> Iterator[str]:
    """`n` texts to throw at a verifier: empty, of 10⁶ characters, nested, and random mixtures of nasty fragments."""
    fixed = (
        "", " ", "\n", "<answer>", "</answer>", "</answer><answer>", "<answer></answer>",
        "9" * _LONG, "(" * _LONG, "<answer>" * (_LONG // 8), "</answer>" * (_LONG // 9), " " * _LONG,
        "<answer>" + "(" * _LONG + "</answer>", "<answer>" + "1+" * (_LONG // 2) + "1</answer>",
        "<answer>" + "9" * 500 + "</answer>", "<answer>" + "-" * 900 + "1</answer>",
    )  # fmt: skip
    for i in range(n):
        yield fixed[i] if i < len(fixed) else _mixture(Draws("hostile", seed, i))


def _mixture(draws: Draws) -> str:
    text = "".join(draws.pick(_FRAGMENTS) for _ in range(draws.below(40)))
    return f"<answer>{text}</answer>" if draws.below(2) else text


def _check_item(task: GeneratedTask, item: Item) -> None:
    assert 0 <= item.uid < 1 << 63, f"uid must fit 63 bits: {item}"
    assert set(item.prompt + item.answer) <= set(task.alphabet), f"characters outside the alphabet: {item}"
    assert len(item.prompt) <= task.max_prompt_chars, f"longer than max_prompt_chars={task.max_prompt_chars}: {item}"
    assert len(item.answer) <= task.max_answer_chars, f"longer than max_answer_chars={task.max_answer_chars}: {item}"
    copy = Item(item.uid, item.prompt, item.answer, json.loads(json.dumps(item.data)))
    assert copy == item, f"data must be plain JSON: {item}"
    verdict = task.verify(copy, item.answer)
    assert verdict.correct is True, f"its own answer is refused: {item}, {verdict}"
    check_verdict(verdict)
