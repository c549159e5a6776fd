"""Chats of every published template's structure: which tokens an assistant learns, and what generation starts from."""

import pytest
import torch

from dare_models import tiny, tiny_tokenizer
from dare_models.tokenizer import CHAT_TEMPLATE

ALPHABET = "\n abcdefghijklmnopqrstuvwxyz<>/"
ASK = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
TWO = [*ASK, {"role": "user", "content": "so"}, {"role": "assistant", "content": "ok"}]

# The structures of the published templates in this tokenizer's special tokens.
HEADER_ALWAYS = (  # LLaDA: the assistant's header comes last, asked for or not; contents are trimmed
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>\n\n{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{{ '<|assistant|>\n\n' }}"
)
DEFAULT_SYSTEM = (  # Dream: a system turn where none is given, a line end after each turn
    "{% if messages[0]['role'] != 'system' %}<|system|>be good<|eot_id|>\n{% endif %}"
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|eot_id|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
THINKING = (  # SDAR: an empty thought before the last answer, none in the history
    "{% for m in messages %}<|{{ m['role'] }}|>\n"
    "{% if m['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m['content'] }}<|eot_id|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
ROLES = (  # LLaDA2: a system turn always
    "<|system|>detailed thinking off<|eot_id|>{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
STEADY = {"plain": CHAT_TEMPLATE, "llada": HEADER_ALWAYS, "dream": DEFAULT_SYSTEM, "llada2": ROLES}


def speaker(template):
    tokenizer = tiny_tokenizer(ALPHABET)
    tokenizer.chat_template = template
    return tiny("llada", tokenizer=tokenizer)


def learnt(lm, dialogue):
    """The runs of learnt tokens as text."""
    runs, last = [], False
    for token, learn in zip(dialogue.ids, dialogue.trained, strict=True):
        if learn:
            runs = [*runs, []] if not last else runs
            runs[-1].append(token)
        last = learn
    return [lm.decode(run, specials=True) for run in runs]


@pytest.mark.parametrize("name", STEADY)
def test_answers_and_their_ends_are_learnt_once(name):
    lm = speaker(STEADY[name])
    dialogue = lm.dialogue(TWO)
    assert learnt(lm, dialogue) == ["yo<|eot_id|>", "ok<|eot_id|>"]
    assert dialogue.trained[-1]  # no empty header, no line end after the last answer
    assert lm.decode(dialogue.ids, specials=True).count("<|assistant|>") == 2
    assert learnt(lm, lm.dialogue(TWO, turns="last")) == ["ok<|eot_id|>"]


@pytest.mark.parametrize("name", [*STEADY, "sdar"])
def test_an_answer_follows_what_generation_starts_from(name):
    lm = speaker({**STEADY, "sdar": THINKING}[name])
    for turns, chat in (("all", ASK), ("last", TWO)):
        dialogue = lm.dialogue(chat, turns=turns)
        start = dialogue.trained.index(True)
        assert dialogue.ids[:start] == lm.chat([chat[:-1]])[0]


def test_thoughts_are_learnt_with_the_answer_unless_the_prompt_holds_them():
    lm = speaker(THINKING)
    assert learnt(lm, lm.dialogue(ASK)) == ["<think>\n\n</think>\n\nyo<|eot_id|>"]
    quiet = {"enable_thinking": False}
    assert learnt(lm, lm.dialogue(ASK, options=quiet)) == ["yo<|eot_id|>"]
    assert lm.decode(lm.chat(["hi"], options=quiet)[0]).endswith("</think>\n\n")


def test_a_template_that_changes_the_history_is_refused_with_the_way_out():
    lm = speaker(THINKING)
    with pytest.raises(ValueError, match=r"keeps earlier turns as they are.*message 3.*use turns='last'"):
        lm.dialogue(TWO)
    assert learnt(lm, lm.dialogue(TWO, turns="last")) == ["<think>\n\n</think>\n\nok<|eot_id|>"]


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "ends with 'no message'"),
        (ASK[:1], "ends with 'user'"),
        ([ASK[0], {"role": "assistant", "content": "a<|eot_id|>b"}], "inside message 1, got '<|eot_id|>'"),
        ([{"role": "user", "content": "<|endoftext|>"}, ASK[1]], "inside message 0, got '<|endoftext|>'"),
        ([ASK[0], {"role": "assistant", "content": "É"}], "characters of the tokenizer's alphabet"),
    ],
)
def test_bad_chats_are_refused(messages, message):
    with pytest.raises(ValueError, match=message.replace("|", r"\|")):
        speaker(CHAT_TEMPLATE).dialogue(messages)


def test_a_template_that_closes_no_answer_is_refused():
    lm = speaker("{% for m in messages %}{{ m['content'] }}\n{% endfor %}")
    with pytest.raises(ValueError, match="closes an answer by one of"):
        lm.dialogue(ASK)


def test_without_a_template_there_is_no_chat():
    lm = speaker(CHAT_TEMPLATE)
    lm.tokenizer.chat_template = None
    with pytest.raises(ValueError, match="expected a chat template beside the tokenizer, got none"):
        lm.chat(["hi"])
    with pytest.raises(ValueError, match="expected `turns` 'all' or 'last', got 'first'"):
        speaker(CHAT_TEMPLATE).dialogue(ASK, turns="first")


def test_padding_ids_inside_a_row_are_real_tokens():
    lm = speaker(CHAT_TEMPLATE)
    ids = torch.tensor([[9, lm.pad_id, 12, 9]])
    other = torch.tensor([[9, 13, 12, 9]])
    assert float((lm(ids) - lm(other))[0, 0].detach().abs().max()) > 1e-6
