"""The agreed layout: one reasoning block, then one answer, and nothing else."""

import re
from typing import Final

from dare_eval.verify.verdict import Verdict

__all__ = ["VERSION", "reasoned_answer"]

VERSION: Final = "reasoned_answer/1"

_TAGS: Final = ("<reasoning>", "</reasoning>", "<answer>", "</answer>")
_WHOLE: Final = re.compile(r"\s*<reasoning>(.*?)</reasoning>\s*<answer>(.*?)</answer>\s*", re.DOTALL)


def reasoned_answer(completion: str) -> Verdict:
    """Judge `<reasoning>…</reasoning><answer>…</answer>`: a reward for form, never for content.

    A quarter each for a closed reasoning block, a closed answer, something in it, and nothing but these, each once and
    in order. Line ends and the white space around tags do not matter, repeated tags earn nothing.

    Args:
        completion: text before the first end token.

    >>> reasoned_answer("<reasoning>add</reasoning> <answer>7</answer>").score
    1.0
    >>> reasoned_answer("<answer>7</answer></answer>").reason
    'expected <reasoning> once, got it 0 times'
    """
    counts = {tag: completion.count(tag) for tag in _TAGS}
    reasoning, answer = _pair(completion, "reasoning"), _pair(completion, "answer")
    filled = bool(answer and answer.strip())
    parts = {
        "reasoning": 0.25 * (reasoning is not None),
        "answer": 0.25 * (answer is not None),
        "filled": 0.25 * filled,
    }
    odd = next((tag for tag in _TAGS if counts[tag] != 1), None)
    if odd is not None:
        reason = f"expected {odd} once, got it {counts[odd]} times"
    elif not _WHOLE.fullmatch(completion):
        reason = "expected <reasoning>…</reasoning><answer>…</answer> and nothing else"
    elif not filled:
        reason = "empty <answer>"
    else:
        return Verdict.right(str(answer).strip(), parts={**parts, "nothing_else": 0.25})
    shown = (answer or "").strip()
    if not any(counts.values()):
        return Verdict.unparsable("no tags", parts={**parts, "nothing_else": 0.0})
    return Verdict.wrong(reason, pred=shown, score=sum(parts.values()), parts={**parts, "nothing_else": 0.0})


def _pair(text: str, tag: str) -> str | None:
    """What the first opener and the next closer enclose."""
    start = text.find(f"<{tag}>")
    end = text.find(f"</{tag}>", start) if start >= 0 else -1
    return None if end < 0 else text[start + len(tag) + 2 : end]
