"""What shapes cannot show: a checkpoint that computes something else than when it was saved is refused."""

import json
import logging
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from dare_models import CheckpointError, ProbeError, family_names, load, tiny, tiny_tokenizer
from dare_models.testing import example

every_family = pytest.mark.parametrize("family", family_names())


@pytest.fixture
def saved(tmp_path, checkpoint_at):
    """A saved tiny model that a test may damage."""

    def save(family):
        example(family, dtype="float32").save(tmp_path / family)
        return checkpoint_at(tmp_path / family)

    return save


def mapped(name, change):
    return lambda tensors: tensors.update({name: change(tensors[name])})


def swapped(one, other):
    return lambda tensors: tensors.update({one: tensors[other], other: tensors[one]})


def rolled(name, rows):
    return mapped(name, lambda tensor: tensor.roll(rows, 0))


def set_to(name, value, index=(0, 0)):
    def change(tensor):
        tensor = tensor.clone()
        tensor[index] = value
        return tensor

    return mapped(name, change)


LLADA, LAYER = "model.transformer.blocks", "model.layers"
VALUES = {
    "llada: heads of the queries in another order": ("llada", rolled(f"{LLADA}.0.q_proj.weight", 32)),
    "llada: gate and up exchanged": ("llada", swapped(f"{LLADA}.0.ff_proj.weight", f"{LLADA}.0.up_proj.weight")),
    "llada: queries and keys exchanged": ("llada", swapped(f"{LLADA}.0.q_proj.weight", f"{LLADA}.0.k_proj.weight")),
    "llada: layers exchanged": ("llada", swapped(f"{LLADA}.0.ff_out.weight", f"{LLADA}.1.ff_out.weight")),
    "llada: a square matrix transposed": ("llada", mapped(f"{LLADA}.1.attn_out.weight", torch.t)),
    "llada: embedding and head exchanged": (
        "llada",
        swapped("model.transformer.wte.weight", "model.transformer.ff_out.weight"),
    ),
    "llada: embedding shifted by one id": ("llada", rolled("model.transformer.wte.weight", 1)),
    "llada: head shifted by one id": ("llada", rolled("model.transformer.ff_out.weight", 1)),
    "llada: a norm of the wrong scale": ("llada", mapped("model.transformer.ln_f.weight", lambda tensor: 2 * tensor)),
    "llada: a matrix of zeros": ("llada", mapped(f"{LLADA}.1.v_proj.weight", torch.zeros_like)),
    "llada: not a number": ("llada", set_to(f"{LLADA}.0.k_proj.weight", torch.nan)),
    "llada: one value of many": ("llada", set_to(f"{LLADA}.0.v_proj.weight", 40.0)),
    "dream: a forgotten bias": ("dream", mapped(f"{LAYER}.0.self_attn.q_proj.bias", lambda tensor: tensor + 1)),
    "sdar: norms of queries and keys": (
        "sdar",
        mapped(f"{LAYER}.0.self_attn.q_norm.weight", lambda tensor: tensor * torch.linspace(0.5, 2, len(tensor))),
    ),
    "sdar: norms before and after exchanged": ("sdar", rolled(f"{LAYER}.1.self_attn.o_proj.weight", 1)),
    "sdar_moe: experts in another order": (
        "sdar_moe",
        swapped(f"{LAYER}.0.mlp.experts.0.up_proj.weight", f"{LAYER}.0.mlp.experts.1.up_proj.weight"),
    ),
    "llada_moe: router rows in another order": ("llada_moe", rolled(f"{LAYER}.0.mlp.gate.weight", 1)),
    "llada2: rows of queries, keys and values mixed": (
        "llada2",
        rolled(f"{LAYER}.0.attention.query_key_value.weight", 32),
    ),
    "llada2: routing bias": (
        "llada2",
        mapped(f"{LAYER}.1.mlp.gate.expert_bias", lambda tensor: tensor + torch.linspace(-9, 9, len(tensor))),
    ),
    "llada2: shared expert of zeros": (
        "llada2",
        mapped(f"{LAYER}.1.mlp.shared_experts.down_proj.weight", torch.zeros_like),
    ),
    "fast_dllm_v2: heads of the keys": ("fast_dllm_v2", rolled(f"{LAYER}.0.self_attn.k_proj.weight", 16)),
    "qwen3: head shifted by one id": ("qwen3", rolled("lm_head.weight", 1)),
}


@pytest.mark.wheel
@pytest.mark.parametrize("name", VALUES)
def test_values_that_are_not_those_that_were_saved_are_noticed(name, saved):
    family, damage = VALUES[name]
    checkpoint = saved(family)
    checkpoint.tensors(damage)
    with pytest.raises(ProbeError, match=r"expected the logits that were recorded .* most at position \d+; weights or"):
        load(checkpoint.folder)
    load(checkpoint.folder, verify=False)


FIELDS = [
    ("llada", {"rope_theta": 10_000.0}),
    ("llada", {"rms_norm_eps": 0.1}),
    ("llada", {"n_heads": 1, "n_kv_heads": 1}),
    ("llada_moe", {"num_experts_per_tok": 1}),
    ("llada_moe", {"rope_theta": 1e6}),
    ("dream", {"rope_theta": 10_000.0}),
    ("dream", {"rms_norm_eps": 0.1}),
    ("sdar", {"rope_theta": 10_000.0}),
    ("sdar_moe", {"norm_topk_prob": False}),
    ("sdar_moe", {"num_experts_per_tok": 1}),
    ("llada2", {"routed_scaling_factor": 1.0}),
    ("llada2", {"topk_group": 1}),
    ("llada2", {"num_experts_per_tok": 1}),
    ("llada2", {"rope_theta": 10_000}),
    ("fast_dllm_v2", {"rope_theta": 10_000.0}),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    ("qwen3", {"rope_theta": 10_000}),
    ("qwen2", {"hidden_act": "gelu"}),
    ("llama", {"logit_offset": 1}),
]


@pytest.mark.parametrize(("family", "changes"), FIELDS)
def test_a_changed_field_that_fits_the_shapes_is_noticed(family, changes, saved):
    checkpoint = saved(family)
    checkpoint.config(**changes)
    with pytest.raises(ProbeError, match=r"weights or config\.json were changed"):
        load(checkpoint.folder)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("sdar", {"block_size": 8}, "`block_length`: expected 4, with which the model was saved, got 8"),
        ("llada2", {"block_size": 4}, "`block_length`: expected 32, with which the model was saved, got 4"),
        ("llada", {"mask_token_id": 9}, "`mask_token_id`: expected 2, with which the model was saved, got 9"),
        ("qwen2", {"block_length": 4}, "`block_length`: expected None, with which the model was saved, got 4"),
    ],
)
def test_a_changed_choice_is_noticed_unless_it_is_given(family, changes, message, saved):
    checkpoint = saved(family)
    checkpoint.config(**changes)
    with pytest.raises(ProbeError, match=message):
        load(checkpoint.folder)


def test_choices_may_be_given_at_loading(saved):
    assert load(saved("sdar").folder, block_length=8).block_length == 8
    lm = load(saved("llada").folder, mask_token_id=9)
    assert lm.mask_id == 9


SHAPES = [
    ("llada", {"n_layers": 1}, r"tensor 'model.transformer.blocks.1.*: expected none of this name"),
    ("llada", {"n_layers": 3}, r"parameters: expected in the checkpoint, got none"),
    ("llada", {"vocab_size": 21, "embedding_size": 21}, r"tensor 'model.transformer.*: expected shape \(21, 64\)"),
    ("llada", {"mlp_hidden_size": 64}, r"tensor '.*(ff_proj|up_proj|ff_out).weight': expected shape"),
    ("dream", {"num_key_value_heads": 2}, r"tensor '.*(k_proj|v_proj).*': expected shape \(64"),
    ("sdar", {"head_dim": 16}, r"tensor '.*self_attn.*': expected shape"),
    ("sdar_moe", {"num_experts": 2}, r"experts.\d.*': expected none of this name"),
    ("llada2", {"first_k_dense_replace": 0}, r"tensor 'model.layers.0.mlp.*': expected none"),
    ("llada2", {"first_k_dense_replace": 2}, r"tensor 'model.layers.1.mlp.*': expected none"),
    ("llada2", {"num_shared_experts": 2}, r"shared_experts.*': expected shape"),
    ("qwen3", {"attention_bias": True}, r"parameters: expected in the checkpoint"),
    ("qwen3", {"tie_word_embeddings": True}, r"'lm_head.weight': expected the values of 'model.embed_tokens.weight'"),
    ("llama", {"mlp_bias": True}, r"parameters: expected in the checkpoint"),
]


@pytest.mark.parametrize(("family", "changes", "message"), SHAPES)
def test_a_config_of_another_size_names_the_tensor(family, changes, message, saved):
    checkpoint = saved(family)
    checkpoint.config(**changes)
    with pytest.raises(CheckpointError, match=message):
        load(checkpoint.folder)


@every_family
def test_a_clean_load_says_nothing(family, saved, capfd, caplog):
    folder = saved(family).folder
    with warnings.catch_warnings(), caplog.at_level(logging.INFO):
        warnings.simplefilter("error")
        load(folder)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@every_family
def test_a_clean_load_in_another_dtype_is_accepted(family, dtype, saved):
    if (family, dtype) not in {("llada", "float16"), ("sdar", "bfloat16")} and dtype != "float64":
        dtype = "float64"  # half precision is slow on a CPU: two families show it
    folder = saved(family).folder
    assert str(load(folder, dtype=dtype).dtype) == f"torch.{dtype}"


@pytest.mark.parametrize("family", ["llada", "sdar"])
def test_half_precision_notices_damage_too(family, tmp_path):
    tokenizer = tiny_tokenizer("0123456789")
    tiny(family, tokenizer=tokenizer).save(tmp_path / "saved")
    file = tmp_path / "saved" / "model.safetensors"
    name = {"llada": "model.transformer.ff_out.weight", "sdar": "lm_head.weight"}[family]
    tensors = load_file(file)
    tensors[name] = tensors[name].roll(1, 0)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ProbeError, match="in bfloat16"):
        load(tmp_path / "saved", dtype="bfloat16")


@pytest.mark.parametrize("probe", [{}, {"logits": [[1.0]]}, {"rows": [10_000]}, {"dtype": 3, "logits": "x"}])
def test_a_damaged_record_is_named(probe, saved):
    checkpoint = saved("llada")
    sidecar = json.loads((checkpoint.folder / "dare_model.json").read_text())
    kept = sidecar["probe"] if probe else {"block_length": None, "mask_token_id": 2}
    checkpoint.json("dare_model.json", probe={**kept, **probe})
    with pytest.raises(ProbeError, match="`probe`: expected rows, columns and logits, got a damaged record"):
        load(checkpoint.folder)


def test_a_record_of_a_later_format_is_refused(saved):
    checkpoint = saved("llada")
    checkpoint.json("dare_model.json", format=2)
    with pytest.raises(CheckpointError, match=r"dare_model.json: expected format 1, got 2; use a newer dare-models"):
        load(checkpoint.folder)


def test_a_model_that_computes_nan_is_not_saved(tmp_path):
    lm = tiny("llada", tokenizer=tiny_tokenizer("0123456789"))
    torch.nn.init.constant_(lm.module.lm_head.weight[0], torch.nan)
    with pytest.raises(ProbeError, match="expected finite logits, got NaN or infinity"):
        lm.save(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


def test_training_goes_on_as_it_was_after_a_save(tmp_path):
    lm = tiny("llada", tokenizer=tiny_tokenizer("0123456789"))
    lm.module.train()
    lm.module.model.norm.eval()
    lm.save(tmp_path / "saved")
    assert lm.module.training
    assert not lm.module.model.norm.training


@every_family
def test_native_layout_is_read_by_the_stock_class_and_by_us(family, tmp_path):
    from transformers import AutoModelForCausalLM

    lm = example(family, dtype="float32")
    lm.save(tmp_path / "native", layout="native")
    stock = AutoModelForCausalLM.from_pretrained(tmp_path / "native", dtype="float32").eval()
    assert type(stock) is type(lm.module).__bases__[1]
    assert stock.config.is_causal is False
    again = load(tmp_path / "native")
    assert (again.spec, again.fingerprint()) == (lm.spec, lm.fingerprint())
    ids = torch.arange(4)[None]  # one block of every family
    logits = stock(ids).logits[:, [0, 0, 1, 2] if lm.left_context else [0, 1, 2, 3]]
    assert float((logits - lm(ids)).detach().abs().max()) < 1e-4
    again.save(tmp_path / "second", layout="native")
    for file in sorted((tmp_path / "native").iterdir()):
        assert (tmp_path / "second" / file.name).read_bytes() == file.read_bytes(), file.name
    again.save(tmp_path / "original")
    lm.save(tmp_path / "direct")
    for file in sorted((tmp_path / "direct").iterdir()):
        assert (tmp_path / "original" / file.name).read_bytes() == file.read_bytes(), file.name


def test_an_edited_native_config_is_noticed(tmp_path):
    example("llada2", dtype="float32").save(tmp_path / "native", layout="native")
    file = tmp_path / "native" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "n_group": 2}))
    with pytest.raises(CheckpointError, match=r"config field `n_group`: expected 4 by dare_model.json, got 2"):
        load(tmp_path / "native")


@pytest.mark.parametrize("layout", ["original", "native"])
@every_family
def test_shards_hold_what_one_file_holds(family, layout, tmp_path):
    lm = example(family, dtype="float32")
    lm.save(tmp_path / "shards", layout=layout, max_shard_size="100KB")
    files = sorted((tmp_path / "shards").glob("*.safetensors"))
    index = json.loads((tmp_path / "shards" / "model.safetensors.index.json").read_text())
    assert len(files) > 1
    assert set(index["weight_map"].values()) == {file.name for file in files}
    assert index["metadata"]["total_size"] == sum(t.nbytes for file in files for t in load_file(file).values())
    again = load(tmp_path / "shards")
    assert again.fingerprint() == lm.fingerprint()
    again.save(tmp_path / "second", layout=layout, max_shard_size="100KB")
    for file in sorted((tmp_path / "shards").iterdir()):
        assert (tmp_path / "second" / file.name).read_bytes() == file.read_bytes(), file.name
