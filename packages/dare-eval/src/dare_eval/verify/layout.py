r"""Rewards for form, never for content: one reasoning block and one answer, or one `\boxed{…}`."""

import re
from functools import cache
from typing import Final

from dare_eval.verify.boxes import boxes
from dare_eval.verify.verdict import Verdict

__all__ = ["VERSION", "boxed_answer", "reasoned_answer"]

VERSION: Final = "layout/1"


def reasoned_answer(completion: str, *, reasoning: str = "reasoning", answer: str = "answer") -> Verdict:
    """Judge `<reasoning>…</reasoning><answer>…</answer>`.

    A quarter each for a closed reasoning block, a closed answer, something in it, and nothing but these, each once and
    in order. Line ends and the white space around tags do not matter, repeated tags earn nothing.

    Args:
        completion: text before the first end token.
        reasoning: name of the first tag; `think` for some models.
        answer: name of the second tag.

    Raises:
        ValueError: for names that are no two different words.

    >>> reasoned_answer("<reasoning>add</reasoning> <answer>7</answer>").score
    1.0
    >>> reasoned_answer("<answer>7</answer></answer>").reason
    'expected <reasoning> once, got it 0 times'
    """
    whole = _whole(reasoning, answer)
    tags = (f"<{reasoning}>", f"</{reasoning}>", f"<{answer}>", f"</{answer}>")
    counts = {tag: completion.count(tag) for tag in tags}
    thought, said = _pair(completion, reasoning), _pair(completion, answer)
    shown = (said or "").strip()
    parts = {
        "reasoning": 0.25 * (thought is not None),
        "answer": 0.25 * (said is not None),
        "filled": 0.25 * bool(shown),
    }
    odd = next((tag for tag in tags if counts[tag] != 1), None)
    if odd is not None:
        reason = f"expected {odd} once, got it {counts[odd]} times"
    elif not whole.fullmatch(completion):
        reason = f"expected {'…'.join(tags[:2])}{'…'.join(tags[2:])} and nothing else"
    elif not shown:
        reason = f"empty {tags[2]}"
    else:
        return Verdict.right(shown, parts={**parts, "nothing_else": 0.25})
    if not any(counts.values()):
        return Verdict.unparsable("no tags", parts={**parts, "nothing_else": 0.0})
    return Verdict.wrong(reason, pred=shown, score=sum(parts.values()), parts={**parts, "nothing_else": 0.0})


def boxed_answer(completion: str) -> Verdict:
    r"""Judge whether one closed `\boxed{…}` holds something; several earn half, none or an empty one nothing.

    Args:
        completion: text before the first end token.

    >>> boxed_answer(r"so \boxed{7}").score, boxed_answer(r"\boxed{7} or \boxed{8}").score, boxed_answer("7").status
    (1.0, 0.5, 'unparsable')
    """
    found = boxes(completion)
    if not found:
        return Verdict.unparsable("no closed box")
    last = completion[found[-1]].strip()
    if not last:
        return Verdict.wrong("empty box", pred=last)
    if len(found) > 1:
        return Verdict.wrong(f"expected one box, got {len(found)}", pred=last, score=0.5)
    return Verdict.right(last)


@cache
def _whole(reasoning: str, answer: str) -> re.Pattern[str]:
    if reasoning == answer or not all(re.fullmatch(r"[A-Za-z_]\w*", name) for name in (reasoning, answer)):
        raise ValueError(f"expected two different tag names without brackets, got {reasoning!r} and {answer!r}")
    return re.compile(rf"\s*<{reasoning}>(.*?)</{reasoning}>\s*<{answer}>(.*?)</{answer}>\s*", re.DOTALL)


def _pair(text: str, tag: str) -> str | None:
    """What the first opener and the next closer enclose."""
    start = text.find(f"<{tag}>")
    end = text.find(f"</{tag}>", start) if start >= 0 else -1
    return None if end < 0 else text[start + len(tag) + 2 : end]
