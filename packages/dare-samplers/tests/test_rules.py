import pytest
import torch

from dare_samplers import Logits, Suppress, generate, presets
from dare_samplers.testing import ToyDenoiser


def test_suppressed_ids_never_appear_and_leak_nowhere(slots):
    """The recorded raw log-probability is of the model's own logits, not of the edited ones."""
    model = ToyDenoiser.random(eos_bias=4.0)
    config = presets.llada(8, 4, temperature=1.0).replace(rules=(Suppress(model.eos_ids),))
    out = generate(model, [[1, 2]], config, keys=0)
    assert not bool((out.completions == model.eos_ids[0]).any())
    assert bool((out.logprobs < out.sample_logprobs).all())


def test_logits_are_not_edited_in_place(slots):
    logits = Logits.of(torch.zeros(1, 2, 5))
    Suppress((1,)).apply(logits, slots(torch.ones(1, 2, dtype=torch.bool)))
    assert torch.equal(logits.values, torch.zeros(1, 2, 5))


@pytest.mark.parametrize("ids", [(), (-1,)])
def test_ids_are_checked(ids):
    with pytest.raises(ValueError, match="`ids`: expected at least one token id >= 0"):
        Suppress(ids)


def test_forbidding_every_token_is_an_error():
    model = ToyDenoiser.random()
    config = presets.llada(4).replace(rules=(Suppress(tuple(range(24))),))
    with pytest.raises(ValueError, match="the rules forbid every token"):
        generate(model, [[1]], config)
