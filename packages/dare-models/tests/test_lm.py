"""DiffusionLM: calls, text, saving."""

import re

import pytest
import torch

from dare_models import (
    BlockCausal,
    CheckpointError,
    Dense,
    DiffusionLM,
    Documents,
    Full,
    load,
    tiny,
    tiny_tokenizer,
)
from dare_models.testing import dense_gather, example

TOKENIZER = tiny_tokenizer("0123456789+=>")


@pytest.fixture(scope="module")
def lm():
    return tiny(tokenizer=TOKENIZER)


@pytest.mark.parametrize("rows", [[[0], [4]], [[-1], [0]]])
def test_rows_outside_the_canvas_are_refused(rows):
    lm = example("llada")
    with pytest.raises(RuntimeError, match="out of bounds"):
        lm(torch.ones(2, 4, dtype=torch.int64), rows=torch.tensor(rows))


def test_rows_of_another_batch_are_refused():
    with pytest.raises(ValueError, match=r"expected `rows` \[1, N\], got \[2, 1\]"):
        example("llada")(torch.ones(1, 4, dtype=torch.int64), rows=torch.zeros(2, 1, dtype=torch.int64))


def test_what_a_sampler_reads(lm):
    shown = (lm.level, lm.mask_id, lm.eos_ids, lm.pad_id, lm.vocab_size, lm.attention, lm.block_length, lm.left_context)
    assert shown == (2, 2, (0, 3), 0, 20, "full", None, 0)
    assert lm.device == torch.device("cpu")
    assert (lm.attention_backend, lm.packs, lm.hidden_size) == ("sdpa", True, 64)


def test_a_module_that_attends_causally_is_refused(lm):
    module = tiny(tokenizer=TOKENIZER).module
    module.config.is_causal = True
    with pytest.raises(ValueError, match=r"`config\.is_causal` False"):
        DiffusionLM(module, lm.spec)


def test_states_and_head_make_the_logits(lm):
    ids, rows = torch.tensor([[7, 2, 8]]), torch.tensor([[2, 0]])
    assert torch.equal(lm.hidden(ids, rows=rows) @ lm.head_weight.T, lm(ids, rows=rows))


def test_what_is_added_goes_to_the_embeddings(lm):
    ids = torch.tensor([[7, 2, 8]])
    weight = lm.module.get_input_embeddings().weight
    moved = lm(ids, added=(weight[9] - weight[2]) * (ids == 2)[..., None])
    assert torch.allclose(moved, lm(torch.tensor([[7, 9, 8]])), atol=1e-6)
    assert torch.equal(lm.mix(torch.eye(lm.vocab_size)[None])[0], weight)


def test_a_plan_says_who_sees_whom(lm):
    ids = torch.tensor([[7, 2, 8, 9]])
    assert torch.equal(lm(ids, plan=Full()), lm(ids))
    blocks = torch.tensor([[0, 0, 1, 1]])
    assert torch.allclose(lm(ids, plan=BlockCausal(blocks))[:, :2], lm(ids[:, :2]), atol=1e-6)
    packed = lm(ids, plan=Dense(blocks[0] == blocks[0][:, None]))
    assert torch.allclose(packed, lm(ids, plan=Documents(blocks, Full())), atol=1e-6)


def test_blocks_do_not_matter_under_full_attention(lm):
    ids = torch.tensor([[7, 2, 8, 2]])
    assert torch.equal(lm(ids, blocks=torch.tensor([[0, 0, 1, 1]])), lm(ids))


def test_positions_of_another_shape_are_refused(lm):
    with pytest.raises(ValueError, match=re.escape("shape (1, 2), got (1, 3)")):
        lm(torch.tensor([[7, 2]]), positions=torch.arange(3)[None])


def test_only_relative_positions_matter():
    lm = example("llada")
    ids = torch.tensor([[7, 2, 8, 9]])
    shifted = lm(ids, positions=torch.arange(4)[None] + 3)
    assert (shifted - lm(ids)).abs().max() < 1e-6  # rotary angles are float32


@pytest.mark.wheel
def test_text_round_trip(lm):
    assert lm.decode(lm.encode("12+34=46>")) == "12+34=46>"
    assert lm.encode("") == []
    ids = torch.tensor([*lm.encode("12"), lm.mask_id, lm.eos_ids[0]])
    assert lm.decode(ids) == "12"
    assert lm.decode(ids, specials=True) == "12<|mdm_mask|><|endoftext|>"


def test_chat_ends_where_the_answer_begins(lm):
    [plain, turns] = lm.chat(["1+1", [{"role": "system", "content": "7"}, {"role": "user", "content": "1+1"}]])
    assert lm.decode(plain, specials=True) == "<|startoftext|><|user|>1+1<|eot_id|><|assistant|>"
    assert lm.decode(turns, specials=True) == ("<|startoftext|><|system|>7<|eot_id|><|user|>1+1<|eot_id|><|assistant|>")
    assert lm.encode("1+1", chat=True) == plain


def test_unknown_characters_are_refused(lm):
    with pytest.raises(ValueError, match="alphabet, got '1 x'"):
        lm.encode("1 x")


def test_text_without_a_tokenizer_is_refused(golden):
    lm = load(golden)
    for use in (lambda: lm.encode("1"), lambda: lm.decode([1]), lambda: lm.chat(["1"])):
        with pytest.raises(ValueError, match="expected a tokenizer"):
            use()


def test_layout_must_be_known(lm, tmp_path):
    with pytest.raises(ValueError, match="layout 'original' or 'native', got 'gguf'"):
        lm.save(tmp_path / "x", layout="gguf")


@pytest.mark.wheel
def test_tokenizer_travels_with_the_model(lm, tmp_path):
    lm.save(tmp_path / "saved")
    again = load(tmp_path / "saved")
    assert again.spec == lm.spec
    assert again.encode("1+1=>", chat=True) == lm.encode("1+1=>", chat=True)
    assert again.eos_ids == (0, 3)
    assert torch.equal(again(torch.tensor([[7, 2]])), lm(torch.tensor([[7, 2]])))


def test_a_tokenizer_larger_than_the_vocabulary_is_refused(lm, tmp_path):
    lm.save(tmp_path / "saved")
    tiny_tokenizer("0123456789+=>*").save_pretrained(tmp_path / "saved")
    with pytest.raises(CheckpointError, match=r"at most `vocab_size`=20 tokens, got 21"):
        load(tmp_path / "saved")


def test_fingerprint_sees_one_changed_value(lm):
    other = tiny(tokenizer=TOKENIZER)
    assert other.fingerprint() == lm.fingerprint()
    with torch.no_grad():
        other.module.lm_head.weight[0, 0].add_(1e-7)
    assert other.fingerprint() != lm.fingerprint()


def test_a_wrapped_head_is_refused_by_score():
    lm = tiny(tokenizer=TOKENIZER)
    lm.module.lm_head = torch.nn.Sequential(lm.module.lm_head)
    ids, valid = torch.full((1, 1, 2), 7), torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(TypeError, match="plain linear head"):
        lm.score(ids, ids[:, 0], valid[:, None], ids, valid, None, gather=dense_gather)


def test_repr_is_short(lm):
    assert repr(lm) == "DiffusionLM(llada, 84800 parameters, torch.float32, cpu)"
    assert isinstance(lm, DiffusionLM)
