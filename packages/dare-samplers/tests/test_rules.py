from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dare_samplers import Logits, Suppress, generate, presets
from dare_samplers.rules import Credit, LogitsHook, RepeatPenalty
from dare_samplers.testing import ToyDenoiser

OPEN = torch.ones(1, 3, dtype=torch.bool)


def test_suppressed_ids_never_appear_and_leak_nowhere():
    """The recorded raw log-probability is of the model's own logits, not of the edited ones."""
    model = ToyDenoiser.random(eos_bias=4.0)
    config = presets.llada(8, 4, temperature=1.0).replace(rules=(Suppress(model.eos_ids),))
    out = generate(model, [[1, 2]], config, keys=0)
    assert not bool((out.completions == model.eos_ids[0]).any())
    assert bool((out.logprobs < out.sample_logprobs).all())


@pytest.mark.parametrize("ids", [(), (-1,)])
def test_ids_are_checked(ids):
    with pytest.raises(ValueError, match="`ids`: expected at least one token id >= 0"):
        Suppress(ids)


def test_forbidding_every_token_is_an_error():
    model = ToyDenoiser.random()
    config = presets.llada(4).replace(rules=(Suppress(tuple(range(24))),))
    with pytest.raises(ValueError, match="the rules forbid every token"):
        generate(model, [[1]], config)


def leaky(values: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
    """What a server does: subtract in place."""
    values.scatter_add_(-1, left.unsqueeze(-1), torch.full((*left.shape, 1), -2.0))
    return values


def test_logits_are_not_edited_in_place(slots):
    """In the reference the penalty shows up in the logits that are returned and recorded."""
    values = torch.randn(1, 3, 5, generator=torch.Generator().manual_seed(0))
    now = replace(slots(OPEN), left=torch.tensor([[3, 1, 2]]))
    rules = (Suppress((1,)), RepeatPenalty(2.0), LogitsHook(lambda logits, _: logits.without([0])))
    logits = Logits(values.clone())
    for rule in rules:
        assert not torch.equal(rule.apply(logits, now).values, values)
    memory = torch.zeros(1, 3, Credit().width(3), dtype=torch.float64)
    changed, later = Credit().recall(logits, now, memory)
    assert not torch.equal(changed.values, values) and not torch.equal(later, memory)
    assert torch.equal(logits.values, values) and not bool(memory.any())
    leaky(logits.values, now.left)
    assert not torch.equal(logits.values, values)


def test_repeat_penalty_meets_the_left_neighbour_alone(slots):
    now = replace(slots(OPEN, mask_id=4), left=torch.tensor([[3, 4, 2]]))
    changed = RepeatPenalty(1.5).apply(Logits(torch.zeros(1, 3, 5)), now).values
    assert changed.tolist() == [[[0, 0, 0, -1.5, 0], [0, 0, 0, 0, 0], [0, 0, -1.5, 0, 0]]]


def test_a_hook_sees_the_slots(slots):
    rule = LogitsHook(lambda logits, now: Logits(logits.values + now.index.unsqueeze(-1)))
    assert rule.apply(Logits(torch.zeros(1, 3, 2)), slots(OPEN)).values[0, :, 0].tolist() == [0, 1, 2]


@given(st.integers(0, 30), st.sampled_from([(0.7, 0.2, 0.8), (1.0, 1.0, 1.0), (0.5, 0.5, 0.0)]))
def test_credit_equals_the_dense_matrix(slots, seed, numbers):
    """The published rule keeps a number for every slot and token; slots that are committed earn no more."""
    alpha, gamma, beta = numbers
    generator = torch.Generator().manual_seed(seed)
    rule, steps = Credit(*numbers), 4
    memory = torch.zeros(2, steps, rule.width(steps), dtype=torch.float64)
    dense = torch.zeros(2, steps, 6, dtype=torch.float64)
    opened = torch.ones(2, steps, dtype=torch.bool)
    for step in range(steps):
        values = 2 * torch.randn(2, steps, 6, generator=generator, dtype=torch.float64)
        p, best = values.softmax(-1).max(-1)
        dense = beta * dense
        dense = dense.scatter_add(-1, best.unsqueeze(-1), (p**gamma * opened).unsqueeze(-1))
        changed, memory = rule.recall(Logits(values), slots(opened, step=step), memory)
        expected = values + alpha * (dense + 1).log()
        torch.testing.assert_close(changed.values[opened], expected[opened])
        opened = opened & (torch.arange(steps) != step)


def test_credit_forgets_the_least_when_it_is_full(slots):
    """More steps than slots, which only a reviser brings about."""
    now, rule = slots(torch.ones(1, 1, dtype=torch.bool)), Credit()
    memory = torch.zeros(1, 1, rule.width(1), dtype=torch.float64)
    for token in (2, 3):
        values = torch.zeros(1, 1, 5)
        values[..., token] = 4.0
        changed, memory = rule.recall(Logits(values), now, memory)
        assert (changed.values != values)[0, 0].nonzero().tolist() == [[token]]
    assert memory[0, 0, 0] == 4


def test_credit_of_impossible_tokens(slots):
    values = torch.tensor([[[0.0, -torch.inf, -torch.inf]]])
    rule = Credit()
    changed, _ = rule.recall(Logits(values), slots(OPEN[:, :1]), torch.zeros(1, 1, rule.width(2), dtype=torch.float64))
    assert changed.values[0, 0, 1:].tolist() == [-torch.inf, -torch.inf]
    assert float(changed.values[0, 0, 0]) == pytest.approx(0.7 * torch.tensor(2.0).log().item())


def test_decay_is_checked():
    with pytest.raises(ValueError, match=r"`beta`: expected a number in \[0, 1\], got 1.5"):
        Credit(beta=1.5)
