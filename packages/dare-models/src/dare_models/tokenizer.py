"""A character tokenizer built in memory, and the few lookups that families need."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

EOS, BOS, MASK = "<|endoftext|>", "<|startoftext|>", "<|mdm_mask|>"
TURN_END = "<|eot_id|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
SPECIALS = (EOS, BOS, MASK, TURN_END, *ROLES)

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
    `tokenizer_config.json`; `special_tokens_map.json` spells some otherwise (SDAR).

    Args:
        folder: the checkpoint.

    Raises:
        ValueError: files that cannot be read, or a token that gets another id than they declare.
    """
    config = _read_config(folder)
    if (folder / "tokenizer.json").exists():
        return _read(folder, config)
    if not (folder / "vocab.json").exists() or not (folder / "merges.txt").exists():
        return None
    pairs = _without_code(Qwen2Tokenizer.from_pretrained(folder, local_files_only=True))
    _check_ids(pairs, config)
    with tempfile.TemporaryDirectory() as whole:
        pairs.save_pretrained(whole)
        return _read(Path(whole), config)


def _read_config(folder: Path) -> dict[str, Any]:
    file = folder / "tokenizer_config.json"
    try:
        return json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    except json.JSONDecodeError as error:
        raise ValueError(f"tokenizer_config.json: expected JSON, got {error}; copy it again") from error


def _read(folder: Path, config: Mapping[str, Any]) -> PreTrainedTokenizerBase:
    tokens = {name: config[name] for name in NAMED if config.get(name) is not None}
    named: dict[str, Any] = {
        name: token["content"] if isinstance(token, dict) else token for name, token in tokens.items()
    }
    try:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True, **named)
    except Exception as error:  # the tokenizers library raises Exception itself
        raise ValueError(f"tokenizer.json: expected a tokenizer, got {error}; copy it again") from error
    _check_ids(tokenizer, config)
    return _without_code(tokenizer)


def _check_ids(tokenizer: Any, config: Mapping[str, Any]) -> None:
    for declared, token in config.get("added_tokens_decoder", {}).items():
        found = tokenizer.convert_tokens_to_ids(token["content"])
        if found != int(declared):
            raise ValueError(
                f"token {token['content']!r}: expected id {declared} by tokenizer_config.json, got {found}; copy the "
                "tokenizer's files again"
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
