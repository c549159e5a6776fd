import torch
from hypothesis import given
from hypothesis import strategies as st

from dare_samplers import Logits, PositionScore, Probability, RandomScore


def logits_of(seed: int, scale: float = 3.0) -> Logits:
    return Logits.of(scale * torch.randn(2, 4, 11, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


@given(st.integers(0, 50), st.floats(-40, 40))
def test_probability_is_one_and_ignores_a_constant(slots, seed, constant):
    logits = logits_of(seed)
    tokens = logits.values.argmax(-1)
    opened = slots(torch.ones(2, 4, dtype=torch.bool))
    score = Probability().score(logits, tokens, opened)
    assert bool(((score >= 0) & (score <= 1)).all())
    shifted = Probability().score(Logits.of(logits.values + constant), tokens, opened)
    torch.testing.assert_close(shifted, score, rtol=1e-10, atol=1e-12)


def test_random_is_keyed_by_row_step_and_position(slots):
    logits = logits_of(0)
    tokens = logits.values.argmax(-1)
    opened = torch.ones(2, 4, dtype=torch.bool)
    first = RandomScore().score(logits, tokens, slots(opened))
    assert torch.equal(first, RandomScore().score(logits, tokens, slots(opened)))
    assert len(first.unique()) == 8
    assert not bool((first == RandomScore().score(logits, tokens, slots(opened, step=1))).any())


def test_position_orders_from_the_left(slots):
    logits = logits_of(0)
    score = PositionScore().score(logits, logits.values.argmax(-1), slots(torch.ones(2, 4, dtype=torch.bool)))
    assert bool((score.diff(dim=-1) < 0).all())
