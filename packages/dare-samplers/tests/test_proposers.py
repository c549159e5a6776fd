import math
from itertools import pairwise

import pytest
import torch

from dare_samplers import Categorical, Greedy, Logits

ZIPF = -1.5 * torch.arange(1, 4097, dtype=torch.float64).log()


def draws(logits: torch.Tensor, slots, *, temperature: float = 1.0, rows: int = 1000, steps: int = 8) -> torch.Tensor:
    """Tokens of many independent rows that share one law."""
    out = []
    opened = torch.ones(rows, 1, dtype=torch.bool)
    for step in range(steps):
        expanded = Logits.of(logits.expand(rows, 1, -1))
        out.append(Categorical(temperature).propose(expanded, slots(opened, step=step)).tokens)
    return torch.cat(out).flatten()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_marginal_and_tail(slots, dtype):
    """Zipf law over 4096 tokens. bfloat16 Gumbel noise loses the whole tail (its mass is 0.065); here it is kept."""
    law = ZIPF.to(dtype).double().softmax(-1)
    tokens = draws(ZIPF.to(dtype), slots)
    n = len(tokens)
    bounds = [0, 1, 2, 4, 10, 30, 100, 1000, 4096]
    chi_square = 0.0
    for low, high in pairwise(bounds):
        expected = n * float(law[low:high].sum())
        observed = int(((tokens >= low) & (tokens < high)).sum())
        chi_square += (observed - expected) ** 2 / expected
    assert chi_square < 29.9  # 0.9999 quantile, 7 degrees of freedom
    assert int((tokens >= 100).sum()) > 0.05 * n


def test_reference_formula_in_bfloat16_loses_the_tail():
    generator = torch.Generator().manual_seed(0)
    logits = ZIPF.to(torch.bfloat16)
    u = torch.rand(500, 4096, generator=generator, dtype=torch.bfloat16)
    tokens = (logits.exp() / -u.log()).argmax(-1)
    assert int((tokens >= 100).sum()) < 0.02 * len(tokens)


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


@pytest.mark.wheel
def test_logq_is_the_law_that_was_drawn_from(slots):
    logits = Logits.of(torch.linspace(-3, 3, 14).view(1, 2, 7))
    proposal = Categorical(0.7).propose(logits.without([6]), slots(torch.ones(1, 2, dtype=torch.bool)))
    law = logits.without([6]).values.div(0.7).log_softmax(-1)
    torch.testing.assert_close(proposal.logq, law.gather(-1, proposal.tokens[..., None]).squeeze(-1))


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


def test_greedy_takes_the_lowest_id_among_equals(slots):
    logits = Logits.of(torch.tensor([[[1.0, 3.0, 3.0, 3.0]]]))
    proposal = Greedy().propose(logits, slots(torch.ones(1, 1, dtype=torch.bool)))
    assert proposal.tokens.item() == 1
    assert proposal.logq.item() == 0.0


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_temperature_must_be_positive(temperature):
    with pytest.raises(ValueError, match=r"`temperature`: expected a number > 0, got .*use Greedy\(\) for 0"):
        Categorical(temperature)
