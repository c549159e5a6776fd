"""Chats as token ids, and which of them an assistant has to learn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from transformers import PreTrainedTokenizerBase

__all__ = ["Dialogue", "Message", "encode_dialogue", "encode_text", "render"]

Message = Mapping[str, str]


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
        ValueError: there is no template.
    """
    if not tokenizer.chat_template:
        raise ValueError("expected a chat template beside the tokenizer, got none; set `tokenizer.chat_template`")
    turns = [dict(message) for message in messages]
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
        turns: learn "all" answers or the "last" one.
        options: what else the template reads.

    Raises:
        ValueError: no answer at the end, an answer that holds an end-of-turn token or is not closed by one, or a
            template that changes earlier turns when later ones are added.
    """
    _check(messages, ends, turns)
    learnt = [i for i, message in enumerate(messages) if message["role"] == "assistant"]
    ids: list[int] = []
    trained: list[bool] = []
    done = ""
    for i in learnt if turns == "all" else learnt[-1:]:
        before = render(tokenizer, messages[:i], answer=True, options=options)
        after = render(tokenizer, messages[: i + 1], answer=False, options=options)
        if not (before.startswith(done) and after.startswith(before)):
            raise ValueError(
                f"expected a chat template that keeps earlier turns as they are, got one that changes them at message "
                f"{i} (reasoning models drop their thoughts from the history); use turns='last' on each prefix of the "
                "chat that ends with an answer"
            )
        reply = _closed(after[len(before) :], ends)
        for text, learn in ((before[len(done) :], False), (reply, True)):
            part = encode_text(tokenizer, text)
            ids += part
            trained += [learn] * len(part)
        done = before + reply
    return Dialogue(ids, trained)


def _check(messages: Sequence[Message], ends: Sequence[str], turns: str) -> None:
    if turns not in ("all", "last"):
        raise ValueError(f"expected `turns` 'all' or 'last', got {turns!r}")
    if not messages or messages[-1]["role"] != "assistant":
        last = messages[-1]["role"] if messages else "no message"
        raise ValueError(f"expected a chat that ends with the assistant's answer, got one that ends with {last!r}")
    for i, message in enumerate(messages):
        for end in ends:
            if end in message["content"]:
                raise ValueError(f"expected no end-of-turn token inside message {i}, got {end!r}; remove it there")


def _closed(reply: str, ends: Sequence[str]) -> str:
    """What the template makes of an answer, up to and with its end of turn."""
    found = [(reply.index(end), end) for end in ends if end in reply]
    if not found:
        raise ValueError(f"expected a chat template that closes an answer by one of {list(ends)}, got {reply[-40:]!r}")
    at, end = min(found)
    return reply[: at + len(end)]
