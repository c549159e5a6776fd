"""The structures of the published chat templates on byte-level pairs, from files in each family's layout."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from dare_models import load, tiny

WORDS = ["ab", " ab", "ba", "\n", "\n\n", " ", "1", "é", "你好", "<", "assistant", "user", "HUMAN", "</think>x"]
CORPUS = ["".join(WORDS)] * 4

LLADA = (  # the assistant's header always comes last, contents are trimmed
    "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    "<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "<|start_header_id|>assistant<|end_header_id|>{{ '\n\n' }}"
)
LLAMA = LLADA.replace("{% endfor %}", "{% endfor %}{% if add_generation_prompt %}") + "{% endif %}"
DREAM = (  # a system turn where none is given
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SDAR = (  # thoughts stay only in answers to the last question
    "{% set ns = namespace(asked=-1) %}{% for m in messages %}"
    "{% if m.role == 'user' %}{% set ns.asked = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% set parts = m.content.split('</think>') %}{% set said = parts[-1].lstrip('\n') %}"
    "{% if m.role != 'assistant' %}{{ m.content }}"
    "{% elif loop.index0 > ns.asked and (loop.last or parts | length > 1) %}"
    "<think>\n{{ parts[0].split('<think>')[-1].strip('\n') if parts | length > 1 }}\n</think>\n\n{{ said }}"
    "{% else %}{{ said }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
LLADA2 = (  # a system turn always, roles of its own
    "<role>SYSTEM</role>{% if messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}"
    "detailed thinking off<|role_end|>{% for m in messages %}{% if m.role == 'user' %}<role>HUMAN</role>"
    "{{ m.content }}<|role_end|>{% elif m.role == 'assistant' %}<role>ASSISTANT</role>{{ m.content }}<|role_end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<role>ASSISTANT</role>{% endif %}"
)
HEADERS = ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
CHATML = ("<|im_start|>", "<|im_end|>")
TAGS = ("<|role_end|>", "<role>", "</role>")
# family -> template, text of its mask, end of a turn, other special tokens
PUBLISHED = {
    "llada": (LLADA, "<|mdm_mask|>", "<|eot_id|>", ("<|startoftext|>", *HEADERS)),
    "llada_moe": (LLADA2, "<|mask|>", "<|role_end|>", TAGS),
    "dream": (DREAM, "<|mask|>", "<|im_end|>", ("<|beginoftext|>", *CHATML)),
    "sdar": (SDAR, "<|MASK|>", "<|im_end|>", CHATML),
    "sdar_moe": (SDAR, "<|MASK|>", "<|im_end|>", CHATML),
    "llada2": (LLADA2, "<|mask|>", "<|role_end|>", TAGS),
    "fast_dllm_v2": (DREAM, "|<MASK>|", "<|im_end|>", CHATML),
    "llama": (LLAMA, "<|mask|>", "<|eot_id|>", ("<|startoftext|>", *HEADERS)),
    "qwen3": (SDAR, "<|mask|>", "<|im_end|>", CHATML),
}
STEADY = [name for name in PUBLISHED if PUBLISHED[name][0] != SDAR]


def pairs(family):
    """Byte-level pairs trained on a few words, with the family's special tokens at the end of the vocabulary."""
    template, mask, _, others = PUBLISHED[family]
    backend = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(r"\s*[\r\n]+| ?[^\s]+|\s+"), "isolated")  # line ends stay together
    symbols = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([pieces, symbols])
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator(CORPUS, trainer)
    named = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "mask_token": mask}
    if "<|startoftext|>" in others:
        named["bos_token"] = "<|startoftext|>"
    more = [*others, "<think>", "</think>"] if template == SDAR else [*others]
    return PreTrainedTokenizerFast(tokenizer_object=backend, **named, extra_special_tokens=more, chat_template=template)


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Models from files as they are published: the mask has a name only where it has one there."""
    loaded = {}
    for family in PUBLISHED:
        folder = tmp_path_factory.mktemp("published") / family
        tiny(family, tokenizer=pairs(family)).save(folder)
        if family in ("llada", "llada_moe", "llada2", "fast_dllm_v2"):
            drop(folder / "tokenizer_config.json", "mask_token")
        if family not in ("llada", "dream"):
            drop(folder / "config.json", "mask_token_id")
        loaded[family] = (load(folder), folder)
    return loaded


def drop(file, name):
    held = json.loads(file.read_text())
    del held[name]
    file.write_text(json.dumps(held, indent=2))


def chat_of(*contents):
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


def learnt(lm, dialogue):
    return lm.decode([i for i, learn in zip(*dialogue, strict=True) if learn], specials=True)


@pytest.mark.parametrize("family", PUBLISHED)
def test_mask_padding_and_ends_are_those_of_the_family(family, published):
    lm, _ = published[family]
    _, mask, end, _ = PUBLISHED[family]
    assert lm.tokenizer.convert_ids_to_tokens([lm.mask_id, lm.pad_id, *lm.eos_ids]) == [
        mask,
        "<|endoftext|>",
        "<|endoftext|>",
        end,
    ]
    assert lm.spec.turn_end_ids == lm.eos_ids[1:]


@pytest.mark.parametrize("family", PUBLISHED)
def test_files_of_each_layout_are_written_the_same_again(family, published, tmp_path):
    lm, folder = published[family]
    lm.save(tmp_path / "one")
    again = load(tmp_path / "one")
    again.save(tmp_path / "two")
    names = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert names == sorted(file.name for file in (tmp_path / "two").iterdir())
    for name in names:
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes(), name
    assert {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= {*names}
    for name in ("tokenizer.json", "chat_template.jinja"):
        assert (folder / name).read_bytes() == (tmp_path / "one" / name).read_bytes(), name
    assert again.spec == lm.spec
    assert again.chat(["ab"]) == lm.chat(["ab"])


@pytest.mark.parametrize("family", STEADY)
def test_every_answer_and_its_end_is_learnt_once(family, published):
    lm, _ = published[family]
    end = PUBLISHED[family][2]
    dialogue = lm.dialogue([{"role": "system", "content": "1"}, *chat_of("ab", "ba", "user", "你好\nassistant")])
    assert learnt(lm, dialogue) == f"ba{end}你好\nassistant{end}"
    assert dialogue.trained[-1]  # nothing follows the last answer's end


@pytest.mark.parametrize("family", ["sdar", "sdar_moe", "qwen3"])
def test_thoughts_that_leave_the_history_make_one_dialogue_per_answer(family, published):
    lm, _ = published[family]
    chat = chat_of("ab", "<think>\nba\n</think>\n\n1", "user", "<think>\n<\n</think>\n\n你好")
    with pytest.raises(ValueError, match=r"keeps earlier turns.*message 3"):
        lm.dialogue(chat)
    first, second = lm.dialogues(chat)
    assert learnt(lm, first) == "<think>\nba\n</think>\n\n1<|im_end|>"
    assert learnt(lm, second) == "<think>\n<\n</think>\n\n你好<|im_end|>"
    start = second.trained.index(True)
    assert second.ids[:start] == lm.chat([chat[:-1]])[0]
    assert lm.decode(second.ids[:start], specials=True).count("think") == 0
    quiet = {"enable_thinking": False}
    assert [learnt(lm, one) for one in lm.dialogues(chat_of("ab", "1"), options=quiet)] == ["1<|im_end|>"]


@pytest.mark.parametrize("family", PUBLISHED)
@settings(max_examples=12, deadline=None)
@given(contents=st.lists(st.lists(st.sampled_from(WORDS[:-1]), max_size=3).map("".join), min_size=2, max_size=6))
def test_any_answer_follows_the_ids_that_generation_starts_from(family, contents, published):
    lm, _ = published[family]
    template, _, end, _ = PUBLISHED[family]
    chat = chat_of(*contents[: len(contents) // 2 * 2])
    dialogue = lm.dialogue(chat, turns="last")
    start = dialogue.trained.index(True)
    assert all(dialogue.trained[start:])
    assert dialogue.ids[:start] == lm.chat([chat[:-1]])[0]
    said = chat[-1]["content"]
    said = said.strip() if template in (LLADA, LLAMA) else said
    said = "<think>\n\n</think>\n\n" + said.lstrip("\n") if template == SDAR else said
    assert lm.decode(dialogue.ids[start:], specials=True) == said + end
    every = lm.dialogues(chat)
    assert sum(one.trained.count(True) for one in every) >= len(chat) // 2
    ends = [token for one in every for token, learn in zip(*one, strict=True) if learn and token in lm.eos_ids]
    assert len(ends) == len(chat) // 2


def test_line_ends_at_the_start_of_an_answer_do_not_join_the_header(published):
    lm, _ = published["dream"]
    dialogue = lm.dialogue(chat_of("ab", "\nba"))
    start = dialogue.trained.index(True)
    whole = lm.encode(lm.decode(dialogue.ids, specials=True))
    assert whole != dialogue.ids  # the tokenizer would have joined the two line ends
    assert dialogue.ids[:start] == lm.chat(["ab"])[0]
    assert learnt(lm, dialogue) == "\nba<|im_end|>"
