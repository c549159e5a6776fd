import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dare_samplers import Categorical, Greedy, Logits

ZIPF = -1.5 * torch.arange(1, 4097, dtype=torch.float64).log()
BINS = [0, 1, 2, 4, 10, 30, 100, 1000, 4096]  # the last ones are the tail
QUANTILE = 29.9  # 0.9999 of chi-square with 7 degrees of freedom


def draws(
    logits: torch.Tensor, slots, proposer: Categorical | None = None, *, rows: int = 1000, steps: int = 8
) -> torch.Tensor:
    """Tokens of many independent rows that share one law."""
    out = []
    opened = torch.ones(rows, 1, dtype=torch.bool)
    for step in range(steps):
        expanded = Logits.of(logits.expand(rows, 1, -1))
        out.append((proposer or Categorical()).propose(expanded, slots(opened, step=step)).tokens)
    return torch.cat(out).flatten()


def chi_square(tokens: torch.Tensor, law: torch.Tensor, bins: list[int]) -> float:
    total = 0.0
    for low, high in pairwise(bins):
        expected = len(tokens) * float(law[low:high].sum())
        total += (int(((tokens >= low) & (tokens < high)).sum()) - expected) ** 2 / expected
    return total


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_marginal_and_tail(slots, dtype):
    """Zipf law over 4096 tokens. bfloat16 Gumbel noise loses the whole tail (its mass is 0.065); here it is kept."""
    tokens = draws(ZIPF.to(dtype), slots)
    assert chi_square(tokens, ZIPF.to(dtype).double().softmax(-1), BINS) < QUANTILE
    assert int((tokens >= 100).sum()) > 0.05 * len(tokens)


def test_reference_formula_in_bfloat16_loses_the_tail():
    generator = torch.Generator().manual_seed(0)
    logits = ZIPF.to(torch.bfloat16)
    u = torch.rand(500, 4096, generator=generator, dtype=torch.bfloat16)
    tokens = (logits.exp() / -u.log()).argmax(-1)
    assert int((tokens >= 100).sum()) < 0.02 * len(tokens)
    assert chi_square(tokens, logits.double().softmax(-1), BINS) > QUANTILE


@pytest.mark.parametrize("proposer", [Categorical(0.7), Categorical(1.3, top_k=99, top_p=0.97), Categorical(top_p=0.9)])
def test_draws_follow_the_law_they_report(slots, proposer):
    """Temperature and filters too."""
    zipf = ZIPF[:256].float()
    law = proposer.propose(Logits.of(zipf[None, None]), slots(torch.ones(1, 1, dtype=torch.bool))).law
    probabilities = law.values[0, 0].double().softmax(-1)
    tokens = draws(zipf, slots, proposer)
    assert bool((probabilities[tokens] > 0).all())
    bins = [0, 1, 2, 4, 8, int((probabilities > 0).sum())]
    assert chi_square(tokens, probabilities, bins) < 23.5  # 0.9999 quantile, 4 degrees of freedom


def test_large_vocabulary_keeps_its_tail(slots):
    """One token holds half of the mass, 126,463 share the other; a float32 running sum would not resolve them."""
    vocab = 126_464
    logits = torch.zeros(vocab)
    logits[0] = math.log(vocab - 1)
    tokens = draws(logits, slots, rows=64, steps=8)
    tail = tokens[tokens > 0]
    assert abs(len(tail) / len(tokens) - 0.5) < 4 * 0.5 / math.sqrt(len(tokens))
    assert len(tail.unique()) > 0.98 * len(tail)
    assert abs(float(tail.double().mean()) / vocab - 0.5) < 4 * math.sqrt(1 / 12 / len(tail))


@pytest.mark.parametrize("vocab", [126_464, 151_936, 50_258, 509])
def test_every_chunking_inverts_the_same_function(slots, vocab):
    """Vocabularies that are, and are not, multiples of the chunk."""
    logits = torch.randn(vocab, generator=torch.Generator().manual_seed(0))
    opened = slots(torch.ones(20, 1, dtype=torch.bool))
    tokens = Categorical().propose(Logits.of(logits.expand(20, 1, -1)), opened).tokens
    below = logits.double().softmax(-1).cumsum(-1)
    u = opened.uniform("token", torch.float64)
    assert torch.equal(tokens, torch.searchsorted(below, u, right=True))


@pytest.mark.wheel
def test_logq_is_the_law_that_was_drawn_from(slots):
    logits = Logits.of(torch.linspace(-3, 3, 14).view(1, 2, 7))
    for proposer in (Categorical(), Categorical(0.7), Categorical(0.7, top_k=3)):
        proposal = proposer.propose(logits.without([6]), slots(torch.ones(1, 2, dtype=torch.bool)))
        torch.testing.assert_close(proposal.logq, proposal.law.logp(proposal.tokens))
    law = logits.without([6]).values.div(0.7).log_softmax(-1)
    proposal = Categorical(0.7).propose(logits.without([6]), slots(torch.ones(1, 2, dtype=torch.bool)))
    torch.testing.assert_close(proposal.logq, law.gather(-1, proposal.tokens[..., None]).squeeze(-1))
    torch.testing.assert_close(proposal.law.values.log_softmax(-1), law)


@pytest.mark.parametrize("proposer", [Greedy(top_p=0.5), Categorical(), Categorical(0.5), Categorical(1, 2, 0.5)])
def test_logits_are_left_alone(slots, proposer):
    logits = Logits.of(torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)))
    before = logits.values.clone()
    proposer.propose(logits, slots(torch.ones(2, 3, dtype=torch.bool)))
    assert torch.equal(logits.values, before)


@given(st.integers(0, 99), st.floats(-30, 30))
def test_a_constant_changes_no_draw(slots, seed, constant):
    """Whole numbers, so that the sum itself is exact."""
    values = torch.randint(-9, 9, (2, 3, 11), generator=torch.Generator().manual_seed(seed)).double()
    opened = slots(torch.ones(2, 3, dtype=torch.bool), key=seed)
    for proposer in (Greedy(), Categorical(0.8, top_k=6, top_p=0.9)):
        one = proposer.propose(Logits.of(values), opened)
        other = proposer.propose(Logits.of(values + round(constant)), opened)
        assert torch.equal(one.tokens, other.tokens)


@given(st.integers(0, 99))
def test_half_precision_equals_its_upcast(slots, seed):
    values = torch.randn(2, 3, 40, generator=torch.Generator().manual_seed(seed)).bfloat16()
    opened = slots(torch.ones(2, 3, dtype=torch.bool), key=seed)
    for proposer in (Greedy(), Categorical(0.8, top_k=6, top_p=0.9)):
        half, full = (proposer.propose(Logits.of(x), opened) for x in (values, values.float()))
        assert torch.equal(half.tokens, full.tokens) and torch.equal(half.logq, full.logq)


@given(st.integers(0, 99))
def test_a_row_does_not_depend_on_others_or_on_filler(slots, seed):
    values = torch.randn(3, 4, 40, generator=torch.Generator().manual_seed(seed))
    opened = torch.ones(3, 4, dtype=torch.bool)
    proposer = Categorical(0.8, top_k=6, top_p=0.9)
    together = proposer.propose(Logits.of(values), slots(opened))
    alone = proposer.propose(Logits.of(values[:1, :2]), slots(opened[:1, :2]))
    assert torch.equal(together.tokens[:1, :2], alone.tokens) and torch.equal(together.logq[:1, :2], alone.logq)


def test_impossible_tokens_are_never_drawn(slots):
    logits = torch.full((600,), -torch.inf)
    logits[[17, 599]] = 0.0
    assert set(draws(logits, slots, steps=1).tolist()) == {17, 599}


@pytest.mark.parametrize("temperature", [1e-3, 1e-30])
def test_low_temperature_is_greedy(slots, temperature):
    logits = Logits.of(torch.randn(4, 5, 50, generator=torch.Generator().manual_seed(1)))
    opened = slots(torch.ones(4, 5, dtype=torch.bool))
    cold = Categorical(temperature).propose(logits, opened)
    assert torch.equal(cold.tokens, Greedy().propose(logits, opened).tokens)
    torch.testing.assert_close(cold.logq, torch.zeros(4, 5), atol=1e-5, rtol=0)


def test_references_are_not_greedy_at_temperature_zero(slots):
    """One skips the division and still draws, the other divides by zero."""
    logits = torch.linspace(0, 1, 50).expand(40, 1, 50)
    undivided = torch.multinomial(logits[:, 0].softmax(-1), 1, generator=torch.Generator().manual_seed(0))
    assert not bool((undivided == 49).all())
    assert bool((logits / 0.0).softmax(-1).isnan().any())
    greedy = Greedy().propose(Logits.of(logits), slots(torch.ones(40, 1, dtype=torch.bool)))
    assert bool((greedy.tokens == 49).all())


def test_greedy_takes_the_lowest_id_among_equals(slots):
    logits = Logits.of(torch.tensor([[[1.0, 3.0, 3.0, 3.0]]]))
    proposal = Greedy().propose(logits, slots(torch.ones(1, 1, dtype=torch.bool)))
    assert proposal.tokens.item() == 1
    assert proposal.logq.item() == 0.0


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_temperature_must_be_positive(temperature):
    with pytest.raises(ValueError, match=r"`temperature`: expected a number > 0, got .*use Greedy\(\) for 0"):
        Categorical(temperature)
