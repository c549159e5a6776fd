"""Tokenizers in each published layout, without a line of the checkpoint's own code."""

import json

import pytest
from transformers import AutoTokenizer, Qwen2Tokenizer

from dare_models import load, register, tiny, tiny_tokenizer
from dare_models.tokenizer import DreamTokenizer, load_tokenizer

TEXTS = ["ab abc", "1+1=2 é 你好", "<|im_start|>user\nab<|im_end|>", " \n\n<|mask|>", ""]
SPECIAL = {
    "<|endoftext|>": 262,
    "<|im_start|>": 263,
    "<|im_end|>": 264,
    "<|beginoftext|>": 265,
    "<|mask|>": 266,
}


def byte_level():
    """The 256 byte symbols of byte-level pairs, some merges, no special token."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in kept]
    symbols = [chr(byte) for byte in kept] + [chr(256 + i) for i in range(len(others))]
    merges = [("a", "b"), ("ab", "c"), ("Ġ", "ab"), ("u", "s"), ("e", "r"), ("us", "er")]
    vocabulary = {token: i for i, token in enumerate([*symbols, *("".join(pair) for pair in merges)])}
    return vocabulary, merges


def token(content):
    return {"content": content, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}


def change(file, **fields):
    held = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps({**held, **fields}))


@pytest.fixture
def pairs_only(tmp_path):
    """Dream's layout: vocab.json and merges.txt, a class name and an auto_map that point at code."""
    folder = tmp_path / "dream"
    folder.mkdir()
    vocabulary, merges = byte_level()
    (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
    lines = "\n".join(" ".join(pair) for pair in merges)
    (folder / "merges.txt").write_text(f"#version: 0.2\n{lines}\n", encoding="utf-8")
    config = {
        "added_tokens_decoder": {str(i): {**token(text), "special": True} for text, i in SPECIAL.items()},
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "bos_token": "<|beginoftext|>",
        "eos_token": "<|endoftext|>",
        "mask_token": "<|mask|>",
        "pad_token": "<|endoftext|>",
        "chat_template": "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>{% endfor %}",
        "model_max_length": 131072,
        "tokenizer_class": "DreamTokenizer",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenization_dream.py").write_text("raise RuntimeError('this must never run')\n", encoding="utf-8")
    return folder


def ids(tokenizer):
    return [tokenizer.encode(text, add_special_tokens=False) for text in TEXTS]


def test_pairs_give_the_ids_of_the_stock_class(pairs_only):
    stock = Qwen2Tokenizer.from_pretrained(pairs_only)
    mine = load_tokenizer(pairs_only)
    assert ids(mine) == ids(stock)
    assert [mine.decode(row) for row in ids(mine)] == TEXTS
    specials = (mine.mask_token_id, mine.pad_token_id, mine.eos_token_id, mine.bos_token_id)
    assert specials == (266, 262, 262, 265)
    assert mine.chat_template == stock.chat_template


def test_the_auto_class_reads_dreams_files_without_their_code(pairs_only):
    register()
    (pairs_only / "config.json").write_text(json.dumps({"model_type": "Dream", "architectures": ["DreamModel"]}))
    tokenizer = AutoTokenizer.from_pretrained(pairs_only)
    assert isinstance(tokenizer, DreamTokenizer)
    assert ids(tokenizer) == ids(load_tokenizer(pairs_only))


@pytest.mark.parametrize("chosen", ["dream", "tiny"])
def test_what_is_saved_is_read_and_written_the_same(chosen, pairs_only, tmp_path):
    tokenizer = load_tokenizer(pairs_only) if chosen == "dream" else tiny_tokenizer("0123456789")
    tiny("dream", tokenizer=tokenizer).save(tmp_path / "one")
    again = load(tmp_path / "one")
    assert (again.mask_id, again.pad_id) == (tokenizer.mask_token_id, tokenizer.pad_token_id)
    again.save(tmp_path / "two")
    for file in sorted((tmp_path / "one").iterdir()):
        assert (tmp_path / "two" / file.name).read_bytes() == file.read_bytes(), file.name
    written = json.loads((tmp_path / "one" / "tokenizer_config.json").read_text())
    assert "auto_map" not in written
    plain = AutoTokenizer.from_pretrained(tmp_path / "one")
    assert plain.encode("12", add_special_tokens=False) == again.encode("12")
    if chosen == "dream":
        assert ids(again.tokenizer) == ids(tokenizer) == ids(plain)


def test_end_of_turn_is_a_stop_id(pairs_only):
    lm = tiny("dream", tokenizer=load_tokenizer(pairs_only))
    assert (lm.spec.eos_token_ids, lm.spec.turn_end_ids) == ((262,), (264,))
    assert lm.eos_ids == (262, 264)


@pytest.mark.parametrize("file", ["special_tokens_map.json", "tokenizer_config.json"])
@pytest.mark.parametrize("spelling", ["<MASK>", "<|MASK|>"])
def test_sdars_two_spellings_of_the_mask_are_one_token(spelling, file, pairs_only, tmp_path):
    tokenizer = load_tokenizer(pairs_only)
    tokenizer.add_special_tokens({"mask_token": "<|MASK|>"})
    tiny("sdar", tokenizer=tokenizer).save(tmp_path / "saved")
    change(tmp_path / "saved" / "config.json", mask_token_id=None)
    change(tmp_path / "saved" / file, mask_token=spelling)
    lm = load(tmp_path / "saved")
    assert lm.mask_id == tokenizer.convert_tokens_to_ids("<|MASK|>") == 267
    assert len(lm.tokenizer) == 268


def test_without_files_there_is_no_tokenizer(tmp_path):
    assert load_tokenizer(tmp_path) is None


@pytest.mark.parametrize("lost", ["merges.txt", "vocab.json"])
def test_half_of_the_files_is_no_tokenizer_in_silence(lost, pairs_only):
    (pairs_only / lost).unlink()
    with pytest.raises(ValueError, match=r"expected tokenizer.json, or vocab.json and merges.txt, got \[.*\] alone"):
        load_tokenizer(pairs_only)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "tokenizer.model"])
def test_a_file_of_no_use_alone_is_refused(name, tmp_path):
    (tmp_path / name).write_text("{}")
    with pytest.raises(ValueError, match=rf"got \['{name}'\] alone"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("tokenizer.json", "{}", "tokenizer.json: expected a tokenizer, got"),
        ("tokenizer.json", '{"version":', "tokenizer.json: expected JSON, got"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: expected a JSON object, got list"),
        ("vocab.json", "", "vocab.json: expected JSON, got"),
    ],
)
def test_a_damaged_file_is_named(name, text, message, pairs_only):
    (pairs_only / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(pairs_only)


@pytest.mark.parametrize("layout", ["pairs", "whole"])
def test_a_named_token_without_an_id_gets_none_made_up(layout, pairs_only, tmp_path):
    folder = pairs_only
    if layout == "whole":
        load_tokenizer(pairs_only).save_pretrained(folder := tmp_path / "whole")
    change(folder / "tokenizer_config.json", pad_token="<|pad|>")
    with pytest.raises(ValueError, match=r"tokens that the tokenizer's files give an id, got \['<\|pad\|>'\]"):
        load_tokenizer(folder)


def test_added_tokens_may_have_a_file_of_their_own(pairs_only):
    file = pairs_only / "tokenizer_config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps({name: value for name, value in config.items() if name != "added_tokens_decoder"}))
    change(pairs_only / "added_tokens.json", **SPECIAL)
    assert {text: load_tokenizer(pairs_only).get_vocab()[text] for text in SPECIAL} == SPECIAL
    change(pairs_only / "added_tokens.json", **{"<|mask|>": 270})
    with pytest.raises(ValueError, match=r"token '<\|mask\|>': expected id 270 by the tokenizer's files, got 266"):
        load_tokenizer(pairs_only)


def test_an_id_that_the_files_declare_is_the_id_that_the_token_gets(pairs_only):
    decoder = json.loads((pairs_only / "tokenizer_config.json").read_text())["added_tokens_decoder"]
    decoder["270"] = decoder.pop("266")
    change(pairs_only / "tokenizer_config.json", added_tokens_decoder=decoder)
    with pytest.raises(ValueError, match=r"token '<\|mask\|>': expected id 270 by the tokenizer's files, got 266"):
        load_tokenizer(pairs_only)
