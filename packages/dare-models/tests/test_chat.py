"""Chats of every published template's structure: which tokens an assistant learns, and what generation starts from."""

import dataclasses

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
    assert lm.dialogues(TWO) == [lm.dialogue(ASK), lm.dialogue(TWO, turns="last")]
    assert speaker(ROLES).dialogues(TWO) == [speaker(ROLES).dialogue(TWO)]


def test_an_answer_that_does_not_follow_the_generation_prompt_is_refused():
    lm = speaker(CHAT_TEMPLATE.replace("<|assistant|>{% endif", "<|assistant|><think>{% endif"))
    for learn in (lm.dialogue, lm.dialogues):
        with pytest.raises(ValueError, match=r"puts the answer, message 1, after what generation starts from"):
            learn(ASK)


def test_tool_calls_need_no_text():
    called = "{% if m.tool_calls %}{{ m.tool_calls[0].name }}{% else %}{{ m.content }}{% endif %}"
    lm = speaker(CHAT_TEMPLATE.replace("{{ message['content'] }}", called.replace("m.", "message.")))
    call = {"role": "assistant", "content": None, "tool_calls": [{"name": "add"}]}
    assert learnt(lm, lm.dialogue([ASK[0], call, *TWO])) == ["add<|eot_id|>", "yo<|eot_id|>", "ok<|eot_id|>"]
    call["tool_calls"] = [{"name": "a<|eot_id|>b"}]
    with pytest.raises(ValueError, match="inside message 1"):
        lm.dialogue([ASK[0], call])


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "ends with no message"),
        (ASK[:1], "ends with 'user'"),
        ([ASK[0], {"role": "assistant", "content": "a<|eot_id|>b"}], "inside message 1, got '<|eot_id|>'"),
        ([{"role": "user", "content": "<|endoftext|>"}, ASK[1]], "inside message 0, got '<|endoftext|>'"),
        ([{"role": "user", "content": "<|mdm_mask|>"}, ASK[1]], "no mask token inside message 0, got '<|mdm_mask|>'"),
        ([ASK[0], {"role": "assistant", "content": "É"}], "characters of the tokenizer's alphabet"),
        ([ASK[0], {"role": "assistant"}], "expected text as `content` of message 1, got None"),
        ([ASK[0], {"role": "assistant", "content": ["yo"]}], "expected text as `content` of message 1, got \\['yo'\\]"),
        ([{"content": "hi"}, ASK[1]], "expected a `role` in message 0"),
        (ASK[1:], "expected a message before the first answer"),
    ],
)
def test_bad_chats_are_refused(messages, message):
    with pytest.raises(ValueError, match=message.replace("|", r"\|")):
        speaker(CHAT_TEMPLATE).dialogue(messages)


def test_a_template_that_closes_no_answer_is_refused():
    lm = speaker("{% for m in messages %}{{ m['content'] }}\n{% endfor %}")
    with pytest.raises(ValueError, match="closes an answer by one of"):
        lm.dialogue(ASK)


def test_of_two_ends_in_a_row_the_first_is_learnt():
    lm = speaker(CHAT_TEMPLATE.replace("<|eot_id|>", "<|eot_id|><|endoftext|>"))
    assert learnt(lm, lm.dialogue(TWO)) == ["yo<|eot_id|>", "ok<|eot_id|>"]


def test_without_a_template_there_is_no_chat():
    lm = speaker(CHAT_TEMPLATE)
    lm.tokenizer.chat_template = None
    with pytest.raises(ValueError, match="expected a chat template beside the tokenizer, got none"):
        lm.chat(["hi"])
    with pytest.raises(ValueError, match="expected `turns` 'all' or 'last', got 'first'"):
        speaker(CHAT_TEMPLATE).dialogue(ASK, turns="first")


def test_a_chat_of_no_message_is_refused():
    with pytest.raises(ValueError, match="expected at least one message, got none"):
        speaker(CHAT_TEMPLATE).chat([[]])


def test_a_stop_id_that_the_tokenizer_lacks_forbids_no_word():
    lm = speaker(CHAT_TEMPLATE)
    lm.spec = dataclasses.replace(lm.spec, vocab_size=1000, eos_token_ids=(0, 999))
    lm.tokenizer.add_tokens(["N"])
    assert learnt(lm, lm.dialogue([ASK[0], {"role": "assistant", "content": "None"}])) == ["None<|eot_id|>"]


def test_padding_ids_inside_a_row_are_real_tokens():
    lm = speaker(CHAT_TEMPLATE)
    ids = torch.tensor([[9, lm.pad_id, 12, 9]])
    other = torch.tensor([[9, 13, 12, 9]])
    assert float((lm(ids) - lm(other))[0, 0].detach().abs().max()) > 1e-6
