"""A character tokenizer built in memory, and the few lookups that families need."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

EOS, BOS, MASK = "<|endoftext|>", "<|startoftext|>", "<|mdm_mask|>"
TURN_END = "<|eot_id|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
SPECIALS = (EOS, BOS, MASK, TURN_END, *ROLES)
PAIRS = ("vocab.json", "merges.txt")
PARTS = ("tokenizer_config.json", "tokenizer.model")  # of no use alone

CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "<|{{ message['role'] }}|>{{ message['content'] }}<|eot_id|>"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def tiny_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character.

    The specials come first: end of text (also the padding), start of text, mask, end of turn and the three chat roles.

    Args:
        alphabet: the characters it knows, in the order of their ids; repeats are ignored.

    Raises:
        ValueError: the alphabet is empty.

    >>> tokenizer = tiny_tokenizer("0123456789>")
    >>> ids = tokenizer.encode("42>", add_special_tokens=False)
    >>> ids, tokenizer.decode(ids)
    ([11, 9, 17], '42>')
    """
    if not alphabet:
        raise ValueError("expected at least one character in `alphabet`, got ''")
    characters = tuple(dict.fromkeys(alphabet))
    vocabulary = {token: index for index, token in enumerate((*SPECIALS, *characters))}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokenizer.json"
        file.write_text(json.dumps(_definition(vocabulary)), encoding="utf-8")
        return PreTrainedTokenizerFast(
            tokenizer_file=str(file),
            eos_token=EOS,
            pad_token=EOS,
            bos_token=BOS,
            mask_token=MASK,
            extra_special_tokens=[TURN_END, *ROLES],
            chat_template=CHAT_TEMPLATE,
            clean_up_tokenization_spaces=False,
        )


class DreamTokenizer(Qwen2Tokenizer):
    """Qwen2's tokenizer under the name that Dream's files ask for: the ids are the same without their code."""


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase | None:
    """Return the tokenizer of a checkpoint, or None where it has no files of one; no code of the checkpoint is run.

    `tokenizer.json` is taken as it is, whatever class the files name. Where there are only `vocab.json` and
    `merges.txt` (Dream), they are read as Qwen2's, whose byte-level pairs they are. Named tokens are those of
    `tokenizer_config.json`; `special_tokens_map.json` spells some otherwise (SDAR), and a mask token spelt so that it
    has no id is passed over.

    Args:
        folder: the checkpoint.

    Raises:
        ValueError: files that are missing or cannot be read, a token that gets another id than they declare, or one
            that they name and give no id.
    """
    config = _read_json(folder / "tokenizer_config.json")
    declared = _declared(folder, config)
    if (folder / "tokenizer.json").exists():
        known = {*_tokens(_read_json(folder / "tokenizer.json")), *declared}
        return _read(folder, _named(config, known), declared, known)
    if not _has_pairs(folder):
        return None
    known = {*_read_json(folder / "vocab.json"), *declared}
    named = _named(config, known)
    pairs = _without_code(Qwen2Tokenizer.from_pretrained(folder, local_files_only=True, **named))
    with tempfile.TemporaryDirectory() as whole:
        pairs.save_pretrained(whole)
        return _read(Path(whole), named, declared, known)


def _has_pairs(folder: Path) -> bool:
    """Whether there are `vocab.json` and `merges.txt`.

    Raises:
        ValueError: some of a tokenizer's files are there, and what holds its vocabulary is not.
    """
    if all((folder / name).exists() for name in PAIRS):
        return True
    if parts := [name for name in (*PAIRS, *PARTS) if (folder / name).exists()]:
        raise ValueError(
            f"expected tokenizer.json, or vocab.json and merges.txt, got {parts} alone; copy the missing files, or let "
            "transformers convert them: `AutoTokenizer.from_pretrained(…).save_pretrained(…)`"
        )
    return False


def _read_json(file: Path) -> dict[str, Any]:
    """What a file holds; nothing where there is none."""
    if not file.exists():
        return {}
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file.name}: expected JSON, got {error}; copy it again") from error
    if not isinstance(held, dict):
        raise ValueError(f"{file.name}: expected a JSON object, got {type(held).__name__}; copy it again")
    return cast("dict[str, Any]", held)


def _declared(folder: Path, config: Mapping[str, Any]) -> dict[str, int]:
    """The added tokens that the files list beside the vocabulary, with their ids."""
    added: dict[str, int] = dict(_read_json(folder / "added_tokens.json"))
    return {**added, **{token["content"]: int(i) for i, token in config.get("added_tokens_decoder", {}).items()}}


def _tokens(definition: Mapping[str, Any]) -> set[str]:
    """The tokens in a `tokenizer.json`; the vocabulary of a unigram model is a list of pairs."""
    vocabulary = definition.get("model", {}).get("vocab", ())
    tokens = vocabulary if isinstance(vocabulary, dict) else (entry[0] for entry in vocabulary)
    return {*tokens, *(token["content"] for token in definition.get("added_tokens", ()))}


def _named(config: Mapping[str, Any], known: Container[str]) -> dict[str, Any]:
    """The tokens that have a name; a mask token without an id is left to the family, which knows what it is called."""
    tokens = {name: config[name] for name in NAMED if config.get(name) is not None}
    named: dict[str, Any] = {
        name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()
    }
    return named if named.get("mask_token", "") in known else {**named, "mask_token": None}


def _read(
    folder: Path, named: Mapping[str, Any], declared: Mapping[str, int], known: Container[str]
) -> PreTrainedTokenizerBase:
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True, **named)
    except Exception as error:  # the tokenizers library raises Exception itself
        raise ValueError(f"tokenizer.json: expected a tokenizer, got {error}; copy it again") from error
    _check_ids(tokenizer, declared, known)
    return _without_code(tokenizer)


def _check_ids(tokenizer: Any, declared: Mapping[str, int], known: Container[str]) -> None:
    """Compare ids with those declared, and refuse those that transformers made up."""
    found: dict[str, int] = tokenizer.get_vocab()
    for token, index in declared.items():
        if found.get(token) != index:
            raise ValueError(
                f"token {token!r}: expected id {index} by the tokenizer's files, got {found.get(token)}; copy them "
                "again"
            )
    if made_up := sorted(token for token in found if token not in known):
        raise ValueError(
            f"expected tokens that the tokenizer's files give an id, got {made_up} named without one; correct the name "
            "in tokenizer_config.json, or copy the files again"
        )


def _without_code(tokenizer: Any) -> PreTrainedTokenizerBase:
    """Forget how it was read, and the code that the files point at: neither is part of what it is."""
    for name in ("is_local", "local_files_only", "auto_map"):
        tokenizer.init_kwargs.pop(name, None)
    return tokenizer


def token_id(tokenizer: PreTrainedTokenizerBase | None, token: str) -> int | None:
    """Return the id of a special token, or None where the tokenizer (or the token) does not exist."""
    specials: dict[str, int] = {} if tokenizer is None else cast("Any", tokenizer).get_added_vocab()
    return specials.get(token)


def _definition(vocabulary: dict[str, int]) -> dict[str, object]:
    """Return the tokenizers library's description of a one-character-one-token tokenizer."""
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": vocabulary[token], "content": token, **special} for token in SPECIALS],
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False},
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<|unknown|>"},
    }
