"""Adapters: three routes to the same ids, the base untouched, and no adapter on the wrong base."""

import importlib
import json
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from dare_models import CheckpointError, DiffusionLM, family_names, get_family, load, tiny, tiny_tokenizer
from dare_models.testing import dense_gather, example

peft = pytest.importorskip("peft", reason="adapters are the extra `lora`")
lora = importlib.import_module("dare_models.lora")
every_family = pytest.mark.parametrize("family", family_names())
MIXTURES = ("llada_moe", "sdar_moe", "llada2")


def canvas(lm, rows=2, columns=8):
    ids = (torch.arange(rows * columns).reshape(rows, columns) * 7 + 3) % lm.vocab_size
    return ids.index_fill(1, torch.tensor([4, 5, 6, 7]), lm.mask_id)


def trained(lm, steps=2, **options):
    """The model after some steps that raise the log-probability of a token."""
    lora.attach(lm, rank=2, alpha=8, **options)
    ids = canvas(lm)
    optimiser = torch.optim.Adam([p for p in lm.module.parameters() if p.requires_grad], lr=0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        (-lm(ids).log_softmax(-1)[..., 9].mean()).backward()
        optimiser.step()
    return lm


def choices(lm):
    """Greedy ids, one masked position after the other."""
    ids = canvas(lm)
    for column in range(4, 8):
        ids[:, column] = lm(ids)[:, column].argmax(-1)
    return ids.tolist()


@every_family
def test_three_routes_give_the_same_ids(family, tmp_path):
    lm = example(family, dtype="float32")
    lm.save(tmp_path / "base")
    lm = load(tmp_path / "base")
    before = choices(lm)
    trained(lm)
    in_memory, logits = choices(lm), lm(canvas(lm)).detach()
    assert in_memory != before
    lora.save(lm, tmp_path / "adapter")
    by_path = load(tmp_path / "adapter")
    assert torch.equal(by_path(canvas(lm)), logits)
    assert choices(by_path) == in_memory
    lora.merge(by_path).save(tmp_path / "merged")
    merged = load(tmp_path / "merged")
    assert choices(merged) == in_memory
    assert float((merged(canvas(lm)) - logits).detach().abs().max()) < 1e-4
    names = [sorted(load_file(tmp_path / name / "model.safetensors")) for name in ("base", "merged")]
    assert names[0] == names[1]


@every_family
def test_switched_off_it_is_the_base_bit_for_bit(family):
    plain, lm = example(family), trained(example(family))
    expected, with_adapter = plain(canvas(plain)), lm(canvas(lm)).detach()
    assert not torch.equal(with_adapter, expected)
    with lora.disabled(lm) as reference:
        assert torch.equal(reference(canvas(lm)), expected)
    assert torch.equal(lm(canvas(lm)), with_adapter)
    with pytest.raises(KeyError), lora.disabled(lm):
        raise KeyError
    assert torch.equal(lm(canvas(lm)), with_adapter)
    lora.unload(lm)
    assert torch.equal(lm(canvas(lm)), expected)
    assert lm.fingerprint() == plain.fingerprint()
    assert all(parameter.requires_grad for parameter in lm.module.parameters())


@every_family
def test_a_new_adapter_changes_nothing_and_touches_no_global_generator(family):
    lm = example(family)
    expected, state = lm(canvas(lm)), torch.get_rng_state()
    lora.attach(lm, rank=2)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(lm(canvas(lm)), expected)
    assert not lm.module.training


@every_family
def test_gradients_reach_the_adapter_alone(family):
    lm = lora.attach(example(family), rank=2)
    names = {name for name, parameter in lm.module.named_parameters() if parameter.requires_grad}
    assert names
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    covered = {target for target in lm.spec.lora_targets if any(f".{target}.lora_A" in name for name in names)}
    assert covered == set(lm.spec.lora_targets)
    assert any(".experts." in name for name in names) == bool(lm.spec.lora_parameters)
    assert not any(".gate.lora" in name for name in names)
    lm(canvas(lm)).square().mean().backward()
    for name, parameter in lm.module.named_parameters():
        assert (parameter.grad is not None) == (name in names), name
        if ".lora_B." in name:
            assert bool(parameter.grad.any()), name


@every_family
def test_scores_through_an_adapter_are_those_of_the_merged_weights(family):
    lm = trained(example(family))
    ids = canvas(lm)
    target = ids == lm.mask_id
    labels = torch.full_like(ids, 9)
    arguments = (ids[:, None], ids, target[:, None], labels[:, None], torch.ones_like(target), None)
    scored = lm.score(*arguments, gather=dense_gather).logp.detach()
    lora.merge(lm)
    again = lm.score(*arguments, gather=dense_gather).logp.detach()
    assert float((scored - again).abs().max()) < 1e-9


@pytest.mark.parametrize("family", ["sdar", "llada2"])
def test_recomputed_activations_give_the_same_gradients(family):
    gradients = []
    for recompute in (False, True):
        lm = trained(example(family))
        if recompute:
            lm.recompute_activations()
        lm.module.train()
        parameters = [parameter for parameter in lm.module.parameters() if parameter.requires_grad]
        gradients.append(torch.autograd.grad(lm(canvas(lm)).log_softmax(-1)[..., 3].mean(), parameters))
    for one, other in zip(*gradients, strict=True):
        assert torch.equal(one, other)


def test_seeds_and_names_decide_the_first_values():
    one, same, other = (lora.attach(example("sdar"), rank=2, seed=seed) for seed in (0, 0, 1))
    values = [{n: p.detach() for n, p in lm.module.named_parameters() if ".lora_A." in n} for lm in (one, same, other)]
    assert all(torch.equal(values[0][name], values[1][name]) for name in values[0])
    assert not any(torch.equal(values[0][name], values[2][name]) for name in values[0])
    bound = max(float(value.abs().max()) * value.shape[-1] ** 0.5 for value in values[0].values())
    assert 0.8 < bound <= 1


@every_family
def test_a_cache_serves_until_the_adapter_changes(family):
    lm = trained(example(family))
    ids = canvas(lm, columns=16)
    length = lm.block_length or 8
    head, positions = length if length < 16 else 0, torch.arange(16).expand(2, -1)
    expected = lm(ids)[:, head:].detach()
    cache = lm.new_cache(2, 16)
    write = torch.ones_like(ids, dtype=torch.bool)
    lm(ids, write=write, cache=cache)
    logits = lm(ids[:, head:], positions=positions[:, head:], cache=cache)
    assert float((logits - expected)[:, lm.left_context :].abs().max()) < 1e-10
    adapter = next(p for p in lm.module.parameters() if p.requires_grad)
    with torch.no_grad():
        adapter += 1
    with pytest.raises(ValueError, match="expected a cache of the weights as they are now"):
        lm(ids, positions=positions, cache=cache)


def test_a_cache_of_the_other_side_is_refused():
    lm = trained(example("sdar"))
    ids = canvas(lm)
    positions = torch.arange(8).expand_as(ids)
    with lora.disabled(lm):
        reference = lm.new_cache(2, 8)
        lm(ids, positions=positions, cache=reference)
    message = "expected a cache of the weights as they are now"
    with pytest.raises(ValueError, match=message):
        lm(ids, positions=positions, cache=reference)
    cache = lm.new_cache(2, 8)
    with lora.disabled(lm), pytest.raises(ValueError, match=message):
        lm(ids, positions=positions, cache=cache)


@pytest.mark.parametrize("change", ["one weight", "one bit"])
def test_another_base_is_refused(change, tmp_path):
    lm = example("llada", dtype="float32")
    lm.save(tmp_path / "base")
    lora.save(trained(load(tmp_path / "base")), tmp_path / "adapter")
    with torch.no_grad():
        weight = lm.module.model.layers[0].mlp.up_proj.weight
        weight[3, 5] = weight[3, 5] + 1 if change == "one weight" else torch.nextafter(weight[3, 5], torch.tensor(9.0))
    lm.save(tmp_path / "other")
    message = r"trained on \(sha256 \w{12}, float32\), got another \(sha256 \w{12}, float32\) from .*other"
    with pytest.raises(CheckpointError, match=message):
        lora.load(tmp_path / "adapter", base=tmp_path / "other")
    with pytest.raises(CheckpointError, match=r"got another .* from memory"):
        lora.load(tmp_path / "adapter", base=lm)
    assert lm.adapter is None
    lora.load(tmp_path / "adapter", base=tmp_path / "other", verify=False)


def test_the_base_is_checked_in_the_dtype_it_was_trained_in(tmp_path):
    example("sdar", dtype="float32").save(tmp_path / "base")
    lm = trained(load(tmp_path / "base"))
    lora.save(lm, tmp_path / "adapter")
    wide = load(tmp_path / "adapter", dtype="float64")
    assert wide.dtype == torch.float64
    assert float((wide(canvas(lm)) - lm(canvas(lm))).detach().abs().max()) < 1e-4


def test_half_precision_bases_train_float32_adapters(tmp_path):
    example("sdar", dtype="float32").save(tmp_path / "base")
    lm = lora.attach(load(tmp_path / "base", dtype="bfloat16"), rank=2)
    assert {p.dtype for p in lm.module.parameters() if p.requires_grad} == {torch.float32}
    lora.save(lm, tmp_path / "adapter")
    again = load(tmp_path / "adapter", dtype="bfloat16")
    assert again.dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
def test_peft_itself_reads_what_is_written(tmp_path):
    example("sdar_moe", dtype="float32").save(tmp_path / "base")
    lm = trained(load(tmp_path / "base"))
    lora.save(lm, tmp_path / "adapter", notes={"run": "r1", "step": 2})
    base = load(tmp_path / "base").module
    module = peft.PeftModel.from_pretrained(base, str(tmp_path / "adapter")).eval()
    spec = lm.spec
    again = DiffusionLM(module.get_base_model(), spec)
    assert torch.equal(again(canvas(lm)), lm(canvas(lm)))
    sidecar = json.loads((tmp_path / "adapter" / "dare_adapter.json").read_text())
    assert sidecar["notes"] == {"run": "r1", "step": 2}


def test_an_adapter_that_peft_wrote_is_read(tmp_path):
    example("llada", dtype="float32").save(tmp_path / "base")
    lm = trained(load(tmp_path / "base"))
    lm.adapter.save_pretrained(tmp_path / "adapter", save_embedding_layers=False)
    again = lora.load(tmp_path / "adapter", base=tmp_path / "base")
    assert torch.equal(again(canvas(lm)), lm(canvas(lm)))


def test_saving_twice_gives_equal_bytes(tmp_path):
    example("llada2", dtype="float32").save(tmp_path / "base")
    lora.save(trained(load(tmp_path / "base")), tmp_path / "one")
    lora.save(load(tmp_path / "one"), tmp_path / "two")
    files = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert files == ["adapter_config.json", "adapter_model.safetensors", "dare_adapter.json"]
    for name in files:
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes(), name
    with pytest.raises(CheckpointError, match="exists"):
        lora.save(load(tmp_path / "one"), tmp_path / "two")


def renamed(tensors):
    name = next(iter(tensors))
    tensors[name.replace("model.layers", "transformer.blocks")] = tensors.pop(name)


def shortened(tensors):
    del tensors[next(iter(tensors))]


def widened(tensors):
    name = next(iter(tensors))
    tensors[name] = torch.zeros(3, *tensors[name].shape[1:])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (shortened, "adapter tensor '.*': expected in adapter_model.safetensors, got none"),
        (renamed, "adapter tensor '.*': expected (in adapter_model.safetensors|none of this name)"),
        (widened, r"adapter tensor '.*': expected shape \(2"),
    ],
)
def test_damaged_adapters_are_named(damage, message, tmp_path):
    example("llada", dtype="float32").save(tmp_path / "base")
    lora.save(trained(load(tmp_path / "base")), tmp_path / "adapter")
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    damage(tensors)
    save_file(tensors, tmp_path / "adapter" / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load(tmp_path / "adapter")


def test_a_truncated_adapter_and_a_missing_base_are_named(tmp_path):
    lm = trained(example("llada", dtype="float32"))
    lora.save(lm, tmp_path / "adapter")
    with pytest.raises(CheckpointError, match=r"expected the adapter to record its base, got none; pass base="):
        load(tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="damaged or truncated"):
        lora.load(tmp_path / "adapter", base=example("llada", dtype="float32"))
    file.unlink()
    with pytest.raises(CheckpointError, match=r"expected the weight file 'adapter_model.safetensors'"):
        lora.load(tmp_path / "adapter", base=example("llada", dtype="float32"))


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("llada", {"rank": 0}, "expected `rank` of at least 1, got 0"),
        ("llada", {"dropout": 1.0}, r"expected `dropout` in \[0, 1\), got 1.0"),
        ("llada", {"targets": ["ff_proj"]}, r"expected `targets` among \['down_proj', .*got 'ff_proj'"),
        ("llada", {"targets": []}, "expected at least one target"),
        ("sdar_moe", {"dropout": 0.1}, r"expected dropout=0 with parameters as targets .* got 0.1"),
    ],
)
def test_what_cannot_be_attached_is_refused(family, options, message):
    lm = example(family)
    with pytest.raises(ValueError, match=message):
        lora.attach(lm, **options)
    assert lm.adapter is None


def test_targets_and_dropout_may_be_chosen():
    lm = lora.attach(example("sdar_moe"), rank=2, targets=["self_attn.q_proj", "v_proj"], dropout=0.1)
    names = {name.split(".lora_")[0].rpartition(".")[2] for name, p in lm.module.named_parameters() if p.requires_grad}
    assert names == {"q_proj", "v_proj"}


def test_one_adapter_at_a_time_and_none_is_lost(tmp_path):
    lm = example("llada")
    for act in (lora.merge, lora.unload):
        with pytest.raises(ValueError, match="expected a model with an adapter, got one without"):
            act(lm)
    lora.attach(lm)
    with pytest.raises(ValueError, match="expected a model without an adapter, got one"):
        lora.attach(lm)
    with pytest.raises(ValueError, match=r"write the adapter with `lora\.save`, or `lora.merge` it"):
        lm.save(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []


def test_without_peft_everything_else_works_and_the_extra_is_named():
    code = (
        "import sys; sys.modules['peft'] = None\n"
        "import dare_models\n"
        "try:\n    from dare_models import lora\n"
        "except ImportError as error:\n    print(error)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert run.stdout.strip() == "expected the package `peft`, got none; pip install 'dare-models[lora]'"


@pytest.mark.parametrize("family", MIXTURES)
def test_experts_are_targets_of_the_release_too(family):
    config = get_family(family).config({})
    with torch.device("meta"):
        module = get_family(family).model_class(config)
    spec = tiny(family, tokenizer=tiny_tokenizer("01")).spec
    for name in spec.lora_parameters:
        assert any(path.endswith(f".{name}") and p.ndim == 3 for path, p in module.named_parameters())


def test_what_the_base_does_not_record_may_be_given(tmp_path):
    example("sdar", dtype="float32").save(tmp_path / "base")
    for name, without in (("config.json", "mask_token_id"), ("dare_model.json", "probe")):
        fields = json.loads((tmp_path / "base" / name).read_text())
        del fields[without]
        (tmp_path / "base" / name).write_text(json.dumps(fields))
    (tmp_path / "base" / "tokenizer_config.json").unlink()
    (tmp_path / "base" / "tokenizer.json").unlink()
    lm = load(tmp_path / "base", mask_token_id=2, block_length=8)
    lora.save(trained(lm), tmp_path / "adapter")
    again = load(tmp_path / "adapter", mask_token_id=2, block_length=8)
    assert (again.mask_id, again.block_length) == (2, 8)
    assert torch.equal(again(canvas(lm)), lm(canvas(lm)))


def test_an_adapter_of_the_hub_is_fetched_file_by_file(tmp_path, monkeypatch):
    example("llada", dtype="float32").save(tmp_path / "base")
    lm = trained(load(tmp_path / "base"))
    lora.save(lm, tmp_path / "adapter")
    asked = []

    def fake(repository, name, *, _raise_exceptions_for_missing_entries):
        assert repository == "someone/adapter"
        asked.append(name)
        file = tmp_path / "adapter" / name
        return str(file) if file.exists() else None

    monkeypatch.setattr(importlib.import_module("dare_models.checkpoint"), "cached_file", fake)
    assert choices(load("someone/adapter")) == choices(lm)
    assert asked == ["adapter_config.json", "adapter_model.safetensors", "dare_adapter.json"]
