"""The `<answer>…</answer>` pair."""

__all__ = ["last_answer"]

_OPEN, _CLOSE = "<answer>", "</answer>"


def last_answer(text: str) -> str | None:
    """The stripped content of the last complete answer pair, or None.

    An opener that is never closed does not hide an earlier pair; the innermost opener of nested ones counts.

    >>> last_answer("<answer>1</answer> no, <answer> 2 </answer> or <answer>3")
    '2'
    """
    close = text.rfind(_CLOSE)
    start = text.rfind(_OPEN, 0, close) if close >= 0 else -1
    if start < 0:
        return None
    start += len(_OPEN)
    return text[start : text.find(_CLOSE, start)].strip()
