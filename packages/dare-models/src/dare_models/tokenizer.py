"""A character tokenizer built in memory, and the few lookups that families need."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any, cast

from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

EOS, BOS, MASK = "<|endoftext|>", "<|startoftext|>", "<|mdm_mask|>"
TURN_END = "<|eot_id|>"
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
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
