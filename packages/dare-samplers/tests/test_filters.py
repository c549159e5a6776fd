"""Top-k and nucleus against a sort of the whole vocabulary, and against what the references kept."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dare_samplers import Categorical, Greedy, Logits, Probability
from dare_samplers.filters import Filter

INTEGERS = st.lists(st.integers(1, 30), min_size=1, max_size=12)


@pytest.fixture
def unit(golden_path):
    return torch.load(golden_path / "unit_scores.pt", weights_only=True)


@pytest.mark.wheel
def test_golden_sets(unit):
    logits = unit["logits"]
    assert torch.equal(Filter(top_p=0.8).keep(logits), unit["dream_top_p_kept"])
    assert torch.equal(Filter(top_p=0.8).keep(logits), unit["sdar_top_p_kept"])
    assert torch.equal(Filter(top_k=7).keep(logits), unit["top_k_kept"])
    assert torch.equal(Filter(top_k=160, top_p=0.8).keep(logits), unit["dream_top_p_kept"])


@pytest.mark.parametrize(("order", "name"), [("top_p_first", "dream"), ("top_k_first", "sdar")])
def test_golden_laws(unit, slots, order, name):
    logits = Logits.of(unit["logits"][None])
    proposal = Categorical(0.7, 7, 0.8, order).propose(logits, slots(torch.ones(1, 12, dtype=torch.bool)))
    expected = unit[f"{name}_filtered_probs"]
    torch.testing.assert_close(proposal.law.values[0].softmax(-1), expected, rtol=0, atol=1e-6)
    drawn = expected.gather(-1, proposal.tokens[0].unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(proposal.logq[0].exp(), drawn, rtol=0, atol=1e-6)


def kept(weights: list[int], top_k: int | None, percent: int | None, order: str, nucleus: str) -> set[int]:
    """The published rules in exact arithmetic: weights are whole numbers, the mass is in percent."""
    ranked = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    few = ranked
    if top_k is not None:
        few = [token for token in ranked if weights[token] >= weights[ranked[min(top_k, len(ranked)) - 1]]]
    if percent is None:
        return set(few)
    base = few if order == "top_k_first" else ranked
    whole = sum(weights[token] for token in base)
    chosen, mass = set(), 0
    for token in base:
        if nucleus == "first_above" and 100 * mass > percent * whole:
            break
        mass += weights[token]
        if nucleus == "within" and chosen and 100 * mass > percent * whole:
            break
        chosen.add(token)
    return chosen & set(few)


@given(
    INTEGERS,
    st.none() | st.integers(1, 13),
    st.integers(1, 99),
    st.sampled_from(["top_k_first", "top_p_first"]),
    st.sampled_from(["first_above", "within"]),
)
def test_sets_are_those_of_a_sort(weights, top_k, percent, order, nucleus):
    """Ties are common here; on the exact edge of the mass rounding decides, so such cases are moved off it."""
    law = Filter(top_k, percent / 100 + 1e-4, order, nucleus)
    keep = law.keep(torch.tensor(weights, dtype=torch.float32).log())
    chosen = {token for token, stays in enumerate(keep.tolist()) if stays}
    assert chosen == kept(weights, top_k, percent + 0.01, order, nucleus)


@pytest.mark.parametrize("p", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_vocabulary(p, dtype):
    """bfloat16 logits are full of ties."""
    logits = (3 * torch.randn(2, 126_464, generator=torch.Generator().manual_seed(0))).to(dtype).float()
    ranked = logits.double().softmax(-1).sort(dim=-1, descending=True, stable=True)
    size = (ranked.values.cumsum(-1) <= p).sum(-1, keepdim=True) + 1
    expected = torch.zeros_like(logits, dtype=torch.bool)
    expected.scatter_(-1, ranked.indices, torch.arange(logits.shape[-1]).expand_as(logits) < size)
    wrong = Filter(top_p=p).keep(logits) ^ expected
    assert int(wrong.sum()) <= 2  # a sum of 1e5 numbers in float32 may miss the edge by a token


def test_impossible_tokens_stay_impossible():
    logits = torch.tensor([[0.0, -torch.inf, -200.0, -torch.inf]])
    for law in (Filter(top_p=0.999999), Filter(top_k=1), Filter(top_k=4, top_p=0.5)):
        assert law.keep(logits).tolist() == [[True, False, False, False]]


def test_no_filter_at_all(slots):
    assert not Filter().active and not Filter(top_p=1.0).active
    logits = Logits.of(torch.randn(1, 2, 9, generator=torch.Generator().manual_seed(0)))
    opened = slots(torch.ones(1, 2, dtype=torch.bool))
    assert Categorical().propose(logits, opened).law is logits
    assert Greedy().propose(logits, opened).law is logits


def test_greedy_keeps_its_token_and_gives_the_filtered_law(slots):
    """Dream at temperature 0 scores with the filtered law; top_k=1 makes every score 1, as SDAR's greedy mode does."""
    logits = Logits.of(torch.randn(1, 4, 9, generator=torch.Generator().manual_seed(0)))
    opened = slots(torch.ones(1, 4, dtype=torch.bool))
    plain, nucleus = Greedy().propose(logits, opened), Greedy(top_p=0.6).propose(logits, opened)
    assert torch.equal(plain.tokens, nucleus.tokens)
    scorer = Probability()
    assert bool((scorer.score(nucleus.law, plain.tokens, opened) > scorer.score(logits, plain.tokens, opened)).all())
    one = Greedy(top_k=1).propose(logits, opened)
    assert torch.equal(scorer.score(one.law, one.tokens, opened), torch.ones(1, 4))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, "`top_k`: expected at least 1 or None, got 0"),
        ({"top_p": 0.0}, r"`top_p`: expected a number in \(0, 1\] or None, got 0.0"),
        ({"top_p": 1.5}, "`top_p`"),
        ({"order": "sorted"}, "`order`: expected"),
        ({"nucleus": "all"}, "`nucleus`: expected"),
    ],
)
@pytest.mark.parametrize("kind", [Filter, Greedy, Categorical])
def test_options_are_checked(kind, options, message):
    with pytest.raises(ValueError, match=message):
        kind(**options)
