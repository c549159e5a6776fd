"""From problems to what the model reads: demonstrations, chat templates, and what to leave out where room is short."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dare_eval.tasks import Item

__all__ = ["Message", "Prompt", "fit", "messages", "text"]

Message = Mapping[str, str]


@dataclass(frozen=True)
class Prompt:
    """A prompt that fits."""

    ids: list[int]
    shots: Sequence[Item]
    """Demonstrations that it shows."""
    dropped: int
    """Demonstrations that were left out."""


def text(question: str, shots: Sequence[Item], template: str, joint: tuple[str, str]) -> str:
    """Demonstrations and question as one text.

    Args:
        question: the prompt to end with.
        shots: solved problems, each shown with its answer.
        template: goes around every question.
        joint: what stands between question and answer, and after an answer.

    >>> text("2+2=", [Item(1, "1+1=", "2")], "{prompt}", ("", "; "))
    '1+1=2; 2+2='
    """
    between, after = joint
    shown = "".join(
        f"{template.replace('{prompt}', shot.prompt)}{_spaced(between, shot.answer)}{after}" for shot in shots
    )
    return f"{shown}{template.replace('{prompt}', question)}"


def messages(question: str, shots: Sequence[Item], template: str, system: str | None) -> list[Message]:
    """Demonstrations and question as a chat, every demonstration a turn of its own."""
    turns: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    for shot in shots:
        turns += [
            {"role": "user", "content": template.replace("{prompt}", shot.prompt)},
            {"role": "assistant", "content": shot.answer.strip()},
        ]
    return [*turns, {"role": "user", "content": template.replace("{prompt}", question)}]


def fit(item: Item, shots: Sequence[Item], encode: Callable[[Sequence[Item]], list[int]], room: int) -> Prompt:
    """The prompt with as many demonstrations as there is room for: the last ones are left out first.

    So a prompt that lost some is the prompt with fewer `shots`.

    Args:
        item: the problem.
        shots: its demonstrations.
        encode: from demonstrations to the ids of the whole prompt.
        room: positions for the prompt.

    Raises:
        ValueError: if the question alone does not fit.
    """
    kept, ids = len(shots), encode(shots)
    while len(ids) > room and kept:
        kept -= 1
        ids = encode(shots[:kept])
    if len(ids) <= room:
        return Prompt(ids, shots[:kept], len(shots) - kept)
    raise ValueError(
        f"expected a question of at most {room} tokens, so that it and the completion fit into the model's positions,"
        f" got {len(ids)} for {item.prompt[:60]!r}; lower `gen_length` or shorten the template"
    )


def _spaced(between: str, answer: str) -> str:
    """An answer that brings its own white space, such as a choice, needs none between."""
    return answer if answer[:1].isspace() else f"{between}{answer}"
