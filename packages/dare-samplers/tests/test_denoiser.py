import pytest
import torch

from dare_samplers import Denoiser, Denoises, generate, presets
from dare_samplers.testing import TinyTransformer, ToyDenoiser

TOY = ToyDenoiser.random(eos_bias=1.0)


def every_column(ids: torch.Tensor) -> torch.Tensor:
    return torch.arange(ids.shape[1]).expand_as(ids)


def level_0(ids: torch.Tensor) -> torch.Tensor:
    return TOY.logits(ids, every_column(ids), None, every_column(ids))


def level_1(ids: torch.Tensor, attention_mask: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
    assert attention_mask.dtype == torch.int64
    positions = torch.where(attention_mask.bool(), position_ids, -1)
    return TOY.logits(ids, positions, None, every_column(ids))


def wrapped(net, level: int) -> Denoiser:
    return Denoiser(net, mask_id=TOY.mask_id, eos_ids=TOY.eos_ids, level=level)


@pytest.mark.wheel
def test_levels_agree():
    config = presets.llada(8, 4, temperature=0.7)
    prompts = [[1, 2, 3], [4, 5, 6]]
    expected = generate(TOY, prompts, config, keys=4)
    for model in (wrapped(level_0, 0), wrapped(level_1, 1)):
        assert isinstance(model, Denoises)
        out = generate(model, prompts, config, keys=4)
        assert torch.equal(out.sequences[out.valid], expected.sequences[expected.valid])
        assert torch.equal(out.step_map, expected.step_map)
    ragged = [[1, 2, 3], [4]]
    out = generate(wrapped(level_1, 1), ragged, config, keys=4)
    assert torch.equal(out.step_map, generate(TOY, ragged, config, keys=4).step_map)


def test_level_0_refuses_unequal_lengths():
    with pytest.raises(ValueError, match=r"rows of one length for a level-0 model, got canvases of \[5, 6\].*level=1"):
        generate(wrapped(level_0, 0), [[1], [1, 2]], presets.llada(4))


def test_pad_id_defaults_to_the_first_end_token():
    assert Denoiser(level_0, mask_id=9, eos_ids=[3, 4]).pad_id == 3
    assert Denoiser(level_0, mask_id=9).pad_id == 0
    assert Denoiser(level_0, mask_id=9, eos_ids=[3], pad_id=5).pad_id == 5


def test_wrong_combinations():
    with pytest.raises(ValueError, match="`level`: expected 0 or 1, got 2"):
        Denoiser(level_0, mask_id=9, level=2)
    with pytest.raises(ValueError, match="`attention`: expected"):
        Denoiser(level_0, mask_id=9, attention="block_causal")
    with pytest.raises(ValueError, match="keeps no cache"):
        wrapped(level_0, 0)(torch.zeros(1, 1, dtype=torch.int64), positions=None, write=torch.ones(1, 1), rows=None)


def test_wrong_logits_are_named():
    model = Denoiser(lambda ids: level_0(ids)[:, -1], mask_id=23)
    with pytest.raises(ValueError, match=r"`net`: expected logits \[1, 5, V\] for these ids, got \[1, 24\]"):
        generate(model, [[1]], presets.llada(4))
    model = Denoiser(lambda ids: level_0(ids)[..., :20], mask_id=23)
    with pytest.raises(ValueError, match="V > mask_id=23"):
        generate(model, [[1]], presets.llada(4))


def test_nan_logits_are_an_error():
    model = Denoiser(lambda ids: level_0(ids) * float("nan"), mask_id=23)
    with pytest.raises(ValueError, match=r"NaN or -inf in rows \[0\] at step 0"):
        generate(model, [[1]], presets.llada(4))


def test_a_bare_network_is_refused_with_the_remedy():
    with pytest.raises(TypeError, match="wrap it: Denoiser"):
        generate(level_0, [[1]], presets.llada(4))


@pytest.mark.parametrize(
    ("declared", "missing"), [(("full_attention",), "'prefix_cache'"), (("x",), "'full_attention'")]
)
def test_a_model_is_held_to_what_it_declares(declared, missing):
    model, config = TinyTransformer.random(), presets.fast_dllm(8, 4, cache="prefix")
    free = generate(model, [[1]], config)
    model.capabilities = ()  # nobody has said
    assert torch.equal(generate(model, [[1]], config).sequences, free.sequences)
    model.capabilities = declared
    with pytest.raises(ValueError, match=rf"expected a model with \[{missing}.*, got TinyTransformer with \['"):
        generate(model, [[1]], config)
    model.capabilities = ("full_attention", "prefix_cache", "moe")
    assert torch.equal(generate(model, [[1]], config).sequences, free.sequences)
