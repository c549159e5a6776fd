"""Tiny models and the character tokenizer."""

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from dare_models import get_family, tiny, tiny_tokenizer

TOKENIZER = tiny_tokenizer("01")


@pytest.mark.wheel
def test_size_is_as_asked():
    lm = tiny(tokenizer=TOKENIZER, hidden_size=32, layers=3, heads=1, intermediate_size=48, max_positions=64)
    config = lm.module.config
    assert (config.hidden_size, config.num_hidden_layers, config.intermediate_size) == (32, 3, 48)
    assert lm.spec.max_positions == 64
    assert not lm.module.training


def test_a_layer_more_leaves_the_others_as_they_are():
    small, large = tiny(tokenizer=TOKENIZER), tiny(tokenizer=TOKENIZER, layers=3)
    for name, tensor in small.module.state_dict().items():
        assert torch.equal(tensor, large.module.state_dict()[name]), name


def test_dtype_does_not_change_the_draw():
    single, double = tiny(tokenizer=TOKENIZER), tiny(tokenizer=TOKENIZER, dtype="float64")
    for name, tensor in single.module.state_dict().items():
        assert torch.equal(tensor.double(), double.module.state_dict()[name]), name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "lada"}, r"\['llada', .*\], got 'lada'; did you mean 'llada'"),
        ({"hidden_size": 30}, "multiple of 2 x 2 heads, got 30"),
        ({"dtype": "int8"}, "`dtype` to be one of"),
    ],
)
def test_impossible_requests_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        tiny(**{"tokenizer": TOKENIZER, **change})


def test_a_tokenizer_without_a_mask_is_refused(tmp_path):
    TOKENIZER.save_pretrained(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(config.read_text().replace('"mask_token": "<|mdm_mask|>"', '"sep_token": "<|mdm_mask|>"'))
    with pytest.raises(ValueError, match="expected a tokenizer with mask and eos"):
        tiny(tokenizer=PreTrainedTokenizerFast.from_pretrained(tmp_path))


def test_unknown_family_lists_the_known():
    with pytest.raises(ValueError, match=r"family of \['llada', .*\], got 'x'; choose"):
        get_family("x")


def test_one_token_per_character():
    tokenizer = tiny_tokenizer("ba é\n<|b")
    ids = tokenizer.encode("ab é\n<|", add_special_tokens=False)
    assert [tokenizer.decode([i]) for i in ids] == list("ab é\n<|")
    assert len(tokenizer) == 7 + 7


def test_special_ids_come_first():
    assert TOKENIZER.convert_ids_to_tokens(list(range(9))) == [
        *("<|endoftext|>", "<|startoftext|>", "<|mdm_mask|>", "<|eot_id|>"),
        *("<|system|>", "<|user|>", "<|assistant|>", "0", "1"),
    ]
    assert (TOKENIZER.pad_token_id, TOKENIZER.eos_token_id, TOKENIZER.mask_token_id) == (0, 0, 2)


def test_an_empty_alphabet_is_refused():
    with pytest.raises(ValueError, match="at least one character"):
        tiny_tokenizer("")
