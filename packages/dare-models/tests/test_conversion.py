"""From left to right to both sides: nothing is lost, a mask token is there, and it is a family like any other."""

import json

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from dare_models import CheckpointError, from_autoregressive, load, tiny_tokenizer

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
COMMON = {**SIZES, "num_key_value_heads": 1, "max_position_embeddings": 512, "eos_token_id": 0}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def llama(**changes):
    config = LlamaConfig(**COMMON, head_dim=32, vocab_size=20, **changes)
    return LlamaForCausalLM(config)


def qwen2(**changes):
    return Qwen2ForCausalLM(Qwen2Config(**COMMON, vocab_size=24, **changes))


def qwen3(**changes):
    return Qwen3ForCausalLM(Qwen3Config(**COMMON, head_dim=32, vocab_size=20, **changes))


SOURCES = {
    "llama": llama,
    "llama, biases, scaled angles": lambda: llama(attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3_ROPE),
    "qwen2": qwen2,
    "qwen3": qwen3,
    "qwen3, tied": lambda: qwen3(tie_word_embeddings=True),
}


def made(name):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return SOURCES[name]().eval()


def stored(module, folder):
    module.save_pretrained(folder)
    tiny_tokenizer("0123456789+=>").save_pretrained(folder)
    return folder


@pytest.mark.parametrize("options", [{}, {"attention": "block_causal", "block_length": 4, "logit_offset": 1}])
@pytest.mark.parametrize("name", SOURCES)
def test_weights_are_those_of_the_source_and_survive_a_round_trip(name, options, tmp_path):
    source = made(name)
    lm = from_autoregressive(stored(source, tmp_path / "ar"), mask_token="<|new|>", **options)
    assert (lm.attention, lm.block_length) == (options.get("attention", "full"), options.get("block_length"))
    assert lm.left_context == options.get("logit_offset", 0)
    for key, tensor in source.state_dict().items():
        assert torch.equal(lm.module.state_dict()[key][: len(tensor)], tensor) or lm.vocab_size == len(tensor), key
    lm.save(tmp_path / "one")
    again = load(tmp_path / "one")
    assert again.spec == lm.spec
    assert again.fingerprint() == lm.fingerprint()
    again.save(tmp_path / "two")
    for file in sorted((tmp_path / "one").iterdir()):
        assert (tmp_path / "two" / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.parametrize("name", SOURCES)
def test_with_a_causal_plan_it_is_the_source(name, tmp_path):
    source = made(name)
    lm = from_autoregressive(
        stored(source, tmp_path / "ar"), attention="block_causal", block_length=1, mask_token="<|new|>"
    )
    ids = torch.tensor([[3, 7, 1, 9, 4, 12]])
    error = (lm(ids)[..., :20] - source(ids).logits[..., :20]).detach().abs().max()
    assert float(error) < 1e-5


@pytest.mark.parametrize("name", ["llama", "qwen3, tied"])
def test_a_model_in_memory_is_copied(name):
    source = made(name)
    before = {key: tensor.clone() for key, tensor in source.state_dict().items()}
    state = torch.get_rng_state()
    lm = from_autoregressive(source, mask_token=20)
    assert torch.equal(torch.get_rng_state(), state)
    assert (lm.mask_id, lm.vocab_size) == (20, 24)
    with torch.no_grad():
        for parameter in lm.module.parameters():
            parameter.zero_()
    assert all(torch.equal(tensor, before[key]) for key, tensor in source.state_dict().items())


def test_a_new_token_starts_at_the_mean_with_a_little_noise(tmp_path):
    folder = stored(made("qwen3"), tmp_path / "ar")
    lm, other = (from_autoregressive(folder, mask_token="<|new|>", seed=seed) for seed in (0, 1))
    rows = lm.module.get_input_embeddings().weight.detach()
    assert len(rows) == lm.vocab_size == 24  # a multiple of 4, like 20
    mean, spread = rows[:20].mean(0), rows[:20].std()
    away = (rows[20:] - mean).abs()
    assert float(away.mean()) == pytest.approx(0.08 * float(spread), rel=0.3)  # E|N(0, 0.1²)|
    assert len({tuple(row) for row in rows[20:].tolist()}) == 4
    assert not torch.equal(rows[20], other.module.get_input_embeddings().weight[20])
    assert torch.equal(rows[:20], other.module.get_input_embeddings().weight[:20])
    head = lm.module.get_output_embeddings().weight.detach()
    assert float((head[20] - head[:20].mean(0)).abs().max()) < float(head[:20].std())


def test_a_spare_row_is_used_before_a_new_one_is_made(tmp_path):
    lm = from_autoregressive(stored(made("qwen2"), tmp_path / "ar"), mask_token="<|new|>")
    assert (lm.mask_id, lm.vocab_size) == (20, 24)


def test_a_token_that_is_there_keeps_its_embedding(tmp_path):
    source = made("qwen3")
    lm = from_autoregressive(stored(source, tmp_path / "ar"), mask_token="<|mdm_mask|>")
    assert (lm.mask_id, lm.vocab_size) == (2, 20)
    assert torch.equal(lm.module.get_input_embeddings().weight, source.get_input_embeddings().weight)
    assert lm.tokenizer.mask_token == "<|mdm_mask|>"
    by_id = from_autoregressive(tmp_path / "ar", mask_token=6)
    assert (by_id.mask_id, by_id.tokenizer.mask_token) == (6, "<|assistant|>")


def test_config_says_what_it_is_and_stays_readable_by_older_software(tmp_path):
    lm = from_autoregressive(
        stored(made("llama, biases, scaled angles"), tmp_path / "ar"), attention="block_causal", block_length=8
    )
    lm.save(tmp_path / "saved")
    fields = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert fields["architectures"] == ["DiffusionLlamaForCausalLM"]
    assert (fields["attention"], fields["block_length"], fields["logit_offset"]) == ("block_causal", 8, 0)
    assert fields["rope_theta"] == 1e4
    assert fields["rope_scaling"]["rope_type"] == "llama3"
    assert "rope_parameters" not in fields
    assert "is_causal" not in fields


def test_tied_tensors_must_be_equal_where_both_are_stored(tmp_path):
    from safetensors.torch import load_file, save_file

    lm = from_autoregressive(stored(made("qwen3, tied"), tmp_path / "ar"), mask_token="<|new|>")
    lm.save(tmp_path / "saved")
    file = tmp_path / "saved" / "model.safetensors"
    tensors = load_file(file)
    assert "lm_head.weight" not in tensors
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, file, metadata={"format": "pt"})
    assert load(tmp_path / "saved").fingerprint() == lm.fingerprint()
    tensors["lm_head.weight"][3, 5] += 1
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=r"'lm_head.weight': expected the values of 'model.embed_tokens.weight'"):
        load(tmp_path / "saved")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention": "block_causal"}, "expected a `block_length` with attention='block_causal'"),
        ({"block_length": 4}, "none with 'full', got attention='full', block_length=4"),
        ({"mask_token": 999}, "expected the id of a token that the tokenizer knows, got mask_token=999"),
        ({"device": "foo"}, "`device`: expected one that this torch can use"),
    ],
)
def test_what_cannot_be_is_refused(options, message, tmp_path):
    folder = stored(made("llama"), tmp_path / "ar")
    with pytest.raises(ValueError, match=message):
        from_autoregressive(folder, **options)


def test_other_architectures_and_windows_are_refused(tmp_path):
    moe = Qwen3MoeForCausalLM(Qwen3MoeConfig(**COMMON, vocab_size=20, num_experts=2, num_experts_per_tok=1))
    with pytest.raises(ValueError, match=r"one of the architectures .* got \['Qwen3MoeForCausalLM'\]"):
        from_autoregressive(moe, mask_token=3)
    windows = qwen2(use_sliding_window=True, sliding_window=8, max_window_layers=1)
    with pytest.raises(ValueError, match=r"config field `(use_sliding_window|layer_types)`"):
        from_autoregressive(windows, mask_token=3)
    with pytest.raises(ValueError, match=r"expected a tokenizer that resolves mask_token='<\|mask\|>', got none"):
        from_autoregressive(made("llama"))


def test_full_attention_is_not_cut_into_blocks_at_loading(tmp_path):
    from_autoregressive(stored(made("llama"), tmp_path / "ar")).save(tmp_path / "saved")
    with pytest.raises(ValueError, match="config field `attention`: expected 'full' with no `block_length`"):
        load(tmp_path / "saved", block_length=4)
