"""Chats as token ids, and which of them an assistant has to learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from transformers import PreTrainedTokenizerBase

__all__ = ["Dialogue", "Message", "encode_dialogue", "encode_dialogues", "encode_text", "render"]

Message = Mapping[str, object]


class Dialogue(NamedTuple):
    """A chat with its answers.

    Args:
        ids: [L] token ids, from the template's start to the end of the last answer.
        trained: [L], True on the tokens of the answers that are to be learnt, each one's end of turn included.
    """

    ids: list[int]
    trained: list[bool]


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    *,
    answer: bool,
    options: Mapping[str, object] | None = None,
) -> str:
    """Return the text that the chat template makes of some messages.

    Args:
        tokenizer: holds the template.
        messages: {"role": …, "content": …}, first to last.
        answer: end where the assistant's answer begins.
        options: what else the template reads, such as {"enable_thinking": False}.

    Raises:
        ValueError: there is no template, or nothing to render.
    """
    if not messages:
        raise ValueError("expected at least one message, got none")
    if not tokenizer.chat_template:
        raise ValueError("expected a chat template beside the tokenizer, got none; set `tokenizer.chat_template`")
    turns: Any = [dict(message) for message in messages]
    knobs: dict[str, Any] = dict(options or {})
    return str(tokenizer.apply_chat_template(turns, add_generation_prompt=answer, tokenize=False, **knobs))


def encode_text(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Return the ids of a text, without any special token added.

    Raises:
        ValueError: a character the tokenizer cannot represent.
    """
    try:
        return list(tokenizer.encode(text, add_special_tokens=False))
    except Exception as error:
        if "UNK" not in str(error):
            raise
        raise ValueError(f"expected characters of the tokenizer's alphabet, got {text!r}") from error


def encode_dialogue(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    ends: Sequence[str],
    *,
    masks: Sequence[str] = (),
    turns: Literal["all", "last"] = "all",
    options: Mapping[str, object] | None = None,
) -> Dialogue:
    """Return a chat's ids and which of them belong to the assistant's answers.

    Each answer comes after exactly the text that it would be generated after, and ends with the first end-of-turn token
    of what the template makes of it: line ends or an empty header of a further answer, which some templates append
    always, are no part of it. Text before an answer and the answer are encoded apart, as in generation.

    Args:
        tokenizer: with a chat template.
        messages: {"role": …, "content": …}, the last one the assistant's.
        ends: texts of the tokens that end a turn.
        masks: text of the mask token, if it has one.
        turns: learn "all" answers or the "last" one.
        options: what else the template reads.

    Raises:
        ValueError: no answer at the end or nothing before the first one, a message that holds an end-of-turn or mask
            token, an answer that is not closed by one or does not follow what generation starts from, or a template
            that changes earlier turns when later ones are added.
    """
    if turns not in ("all", "last"):
        raise ValueError(f"expected `turns` 'all' or 'last', got {turns!r}")
    steps = _steps(tokenizer, messages, ends, masks, last=turns == "last", options=options)
    if (changed := _changed(steps)) is not None:
        raise ValueError(
            f"expected a chat template that keeps earlier turns as they are, got one that changes them at message "
            f"{changed} (reasoning models drop their thoughts from the history); use turns='last', or `dialogues`, "
            "which makes one dialogue of each answer"
        )
    return _joined(tokenizer, steps)


def encode_dialogues(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    ends: Sequence[str],
    *,
    masks: Sequence[str] = (),
    options: Mapping[str, object] | None = None,
) -> list[Dialogue]:
    """Return dialogues in which every answer of a chat is learnt once.

    It is one dialogue where the template keeps earlier turns as they are, and else one of each answer, after the
    history that the answer would be generated after.

    Args:
        tokenizer: with a chat template.
        messages: {"role": …, "content": …}, the last one the assistant's.
        ends: texts of the tokens that end a turn.
        masks: text of the mask token, if it has one.
        options: what else the template reads.

    Raises:
        ValueError: as `encode_dialogue` does, but for templates that change earlier turns.
    """
    steps = _steps(tokenizer, messages, ends, masks, last=False, options=options)
    if _changed(steps) is None:
        return [_joined(tokenizer, steps)]
    return [_joined(tokenizer, [step]) for step in steps]


class _Step(NamedTuple):
    """An answer as text: message `at`, what generation starts from, and the answer with its end of turn."""

    at: int
    before: str
    reply: str


def _steps(
    tokenizer: PreTrainedTokenizerBase,
    messages: Sequence[Message],
    ends: Sequence[str],
    masks: Sequence[str],
    *,
    last: bool,
    options: Mapping[str, object] | None,
) -> list[_Step]:
    _check(messages, ends, masks)
    answers = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    steps: list[_Step] = []
    for i in answers[-1:] if last else answers:
        before = render(tokenizer, messages[:i], answer=True, options=options)
        after = render(tokenizer, messages[: i + 1], answer=False, options=options)
        if not after.startswith(before):
            raise ValueError(
                f"expected a chat template that puts the answer, message {i}, after what generation starts from, got "
                f"{after[-80:]!r} where generation starts from {before[-40:]!r}; set the template's `options`"
            )
        steps.append(_Step(i, before, _closed(after[len(before) :], ends)))
    return steps


def _changed(steps: Sequence[_Step]) -> int | None:
    """The first answer before which the template renders earlier turns in another way than it did before."""
    for earlier, later in pairwise(steps):
        if not later.before.startswith(earlier.before + earlier.reply):
            return later.at
    return None


def _joined(tokenizer: PreTrainedTokenizerBase, steps: Sequence[_Step]) -> Dialogue:
    ids: list[int] = []
    trained: list[bool] = []
    done = 0
    for step in steps:
        for text, learn in ((step.before[done:], False), (step.reply, True)):
            part = encode_text(tokenizer, text)
            ids += part
            trained += [learn] * len(part)
        done = len(step.before) + len(step.reply)
    return Dialogue(ids, trained)


def _check(messages: Sequence[Message], ends: Sequence[str], masks: Sequence[str]) -> None:
    for i, message in enumerate(messages):
        if not isinstance(message.get("role"), str):
            raise ValueError(f"expected a `role` in message {i}, got {dict(message)!r}")
        if not isinstance(message.get("content"), str) and not message.get("tool_calls"):
            raise ValueError(f"expected text as `content` of message {i}, got {message.get('content')!r}")
        _check_text(str([*message.values()]), i, ends, masks)
    roles = [str(message["role"]) for message in messages]
    if roles[-1:] != ["assistant"]:
        got = repr(roles[-1]) if roles else "no message"
        raise ValueError(f"expected a chat that ends with the assistant's answer, got one that ends with {got}")
    if roles[0] == "assistant":
        raise ValueError("expected a message before the first answer, got a chat that begins with the assistant's")


def _check_text(text: str, i: int, ends: Sequence[str], masks: Sequence[str]) -> None:
    for kind, tokens in (("end-of-turn", ends), ("mask", masks)):
        for token in tokens:
            if token in text:
                raise ValueError(f"expected no {kind} token inside message {i}, got {token!r}; remove it there")


def _closed(reply: str, ends: Sequence[str]) -> str:
    """What the template makes of an answer, up to and with its end of turn."""
    found = [(reply.index(end), end) for end in ends if end in reply]
    if not found:
        raise ValueError(f"expected a chat template that closes an answer by one of {list(ends)}, got {reply[-40:]!r}")
    at, end = min(found)
    return reply[: at + len(end)]
