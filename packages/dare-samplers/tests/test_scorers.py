from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dare_samplers import Categorical, Logits, PositionScore, Probability, RandomScore
from dare_samplers.scorers import EosLast, EosScaled, LogProb, Margin, NegEntropy, PadPenalty

EOS = 10
OPEN = torch.ones(2, 4, dtype=torch.bool)
LAWS = [Probability(), LogProb(), Margin(), NegEntropy()]


def logits_of(seed: int, scale: float = 3.0) -> Logits:
    return Logits.of(scale * torch.randn(2, 4, 11, generator=torch.Generator().manual_seed(seed), dtype=torch.float64))


@pytest.fixture
def unit(golden_path):
    return torch.load(golden_path / "unit_scores.pt", weights_only=True)


@pytest.mark.parametrize(
    ("scorer", "name"), [(Probability(), "prob"), (Margin(), "margin"), (NegEntropy(), "neg_entropy")]
)
def test_golden(unit, slots, scorer, name):
    logits = Logits.of(unit["logits"][None])
    tokens = logits.values.argmax(-1)
    assert torch.equal(tokens[0], unit["proposal"])
    score = scorer.score(logits, tokens, slots(torch.ones(1, 12, dtype=torch.bool)))
    torch.testing.assert_close(score[0], unit[f"score_{name}"], rtol=0, atol=1e-6)


@given(st.integers(0, 50), st.floats(-40, 40))
def test_ranges_and_a_constant(slots, seed, constant):
    logits = logits_of(seed)
    tokens = logits.values.argmax(-1)
    low = {LogProb: -torch.inf, NegEntropy: -torch.inf}
    high = {LogProb: 0.0, NegEntropy: 0.0}
    for scorer in LAWS:
        score = scorer.score(logits, tokens, slots(OPEN))
        assert bool(((score >= low.get(type(scorer), 0.0)) & (score <= high.get(type(scorer), 1.0))).all())
        shifted = scorer.score(Logits.of(logits.values + constant), tokens, slots(OPEN))
        torch.testing.assert_close(shifted, score, rtol=1e-10, atol=1e-11)


@given(st.integers(0, 50))
def test_names_of_tokens_do_not_matter(slots, seed):
    logits = logits_of(seed)
    order = torch.randperm(11, generator=torch.Generator().manual_seed(seed))
    tokens = logits.values.argmax(-1)
    for scorer in LAWS:
        renamed = scorer.score(Logits.of(logits.values[..., order]), order.argsort()[tokens], slots(OPEN))
        torch.testing.assert_close(renamed, scorer.score(logits, tokens, slots(OPEN)), rtol=1e-12, atol=1e-12)


@given(st.integers(0, 50))
def test_half_precision_equals_its_upcast(slots, seed):
    values = logits_of(seed).values.bfloat16()
    tokens = values.float().argmax(-1)
    for scorer in LAWS:
        half, full = (scorer.score(Logits.of(x), tokens, slots(OPEN)) for x in (values, values.float()))
        assert half.dtype == torch.float32 and torch.equal(half, full)


def test_peaked_comes_before_flat(slots):
    """Two references return +H where they promise -H, and commit the most uncertain position first."""
    logits = Logits.of(torch.tensor([[[5.0, 0, 0, 0], [0.0, 0, 0, 0]]]))
    opened, tokens = slots(torch.ones(1, 2, dtype=torch.bool)), torch.zeros(1, 2, dtype=torch.int64)
    p = logits.values.softmax(-1)
    reference = -(p * (p + 1e-10).log()).sum(-1)
    assert reference[0, 0] < reference[0, 1]
    for scorer in LAWS:
        score = scorer.score(logits, tokens, opened)
        assert score[0, 0] > score[0, 1]


def test_impossible_tokens_do_no_harm(slots):
    logits = Logits.of(torch.tensor([[[0.0, -torch.inf, -torch.inf]]]))
    opened, tokens = slots(torch.ones(1, 1, dtype=torch.bool)), torch.zeros(1, 1, dtype=torch.int64)
    assert [float(scorer.score(logits, tokens, opened)) for scorer in LAWS] == [1.0, 0.0, 1.0, 0.0]


def test_random_is_keyed_by_row_step_and_position(slots):
    logits = logits_of(0)
    tokens = logits.values.argmax(-1)
    first = RandomScore().score(logits, tokens, slots(OPEN))
    assert torch.equal(first, RandomScore().score(logits, tokens, slots(OPEN)))
    assert len(first.unique()) == 8
    assert not bool((first == RandomScore().score(logits, tokens, slots(OPEN, step=1))).any())


def test_position_orders_from_the_left(slots):
    logits = logits_of(0)
    score = PositionScore().score(logits, logits.values.argmax(-1), slots(OPEN))
    assert bool((score.diff(dim=-1) < 0).all())


@given(st.integers(0, 50), st.sampled_from([0.2, 1.0]))
def test_end_tokens_come_last_at_every_temperature(slots, seed, temperature):
    """LLaDA writes -inf into the noisy logits after the argmax: no effect on the score at a temperature above 0."""
    logits = logits_of(seed)
    logits = Logits(logits.values.index_add(-1, torch.tensor([EOS]), torch.full((2, 4, 1), 5.0, dtype=torch.float64)))
    opened = slots(OPEN, eos_ids=(EOS,), key=seed)
    tokens = Categorical(temperature).propose(logits, opened).tokens
    plain = Probability().score(logits, tokens, opened)
    score = EosLast(Probability()).score(logits, tokens, opened)
    assert torch.equal(score, torch.where(tokens == EOS, -torch.inf, plain))
    assert torch.equal(EosLast(Probability(), ids=()).score(logits, tokens, opened), plain)
    assert torch.equal(EosLast(Probability(), ids=(EOS,)).score(logits, tokens, slots(OPEN)), score)


def test_end_tokens_that_are_filled_keep_their_score(slots):
    """A reference sets the score of end tokens to 0 at filled slots too, which then beat the open ones' -inf."""
    logits, tokens = logits_of(0), torch.full((2, 4), EOS)
    opened = OPEN.clone()
    opened[:, :2] = False
    reference = torch.full((2, 4), -torch.inf).masked_fill(opened, 0.3).masked_fill(tokens == EOS, 0.0)
    assert reference.topk(2, -1).indices.unique().numel() == 2 and bool((reference[:, :2] == 0).all())
    now = slots(opened, eos_ids=(EOS,), committed=~opened)
    score = EosLast(Probability()).score(logits, tokens, now)
    assert torch.equal(score[:, :2], Probability().score(logits, tokens, now)[:, :2])
    assert bool((score[:, 2:] == -torch.inf).all())


def test_gamma_reaches_one_at_the_last_step_of_the_response(slots):
    """The reference divides the step inside the block by the steps of the response: with two blocks it never does."""
    logits, tokens = logits_of(0), torch.full((2, 4), EOS)
    plain = Probability().score(logits, tokens, slots(OPEN))
    scaled = []
    for step in range(8):
        now = replace(slots(OPEN, step=step, eos_ids=(EOS,)), block_step=torch.full((2,), step % 4), total_steps=8)
        scaled.append(float((EosScaled(Probability()).score(logits, tokens, now) / plain).mean()))
    assert scaled == pytest.approx([0.4 + 0.6 * i / 7 for i in range(8)])
    reference = [0.4 + 0.6 * (i % 4) / 7 for i in range(8)]
    assert max(reference) < 0.7


def test_gamma_of_ascending_steps(slots):
    logits, tokens = logits_of(0), torch.full((2, 4), EOS)
    plain = Probability().score(logits, tokens, slots(OPEN))
    scorer = EosScaled(Probability(), gamma_min=0.01, ramp="ascending")
    for step in range(4):
        now = slots(OPEN, step=step, steps=4, eos_ids=(EOS,))
        expected = 0.01 + 0.99 * (2 ** (step + 1) - 1) / 16
        torch.testing.assert_close(scorer.score(logits, tokens, now), plain * expected)
        own = replace(scorer, steps=4).score(logits, tokens, replace(now, total_steps=None))
        torch.testing.assert_close(own, plain * expected)


def test_gamma_needs_a_number_of_steps(slots):
    logits, tokens = logits_of(0), torch.full((2, 4), EOS)
    with pytest.raises(ValueError, match="`steps`: expected a number, got None"):
        EosScaled(Probability()).score(logits, tokens, slots(OPEN))


@pytest.mark.parametrize("inner", [Probability(), NegEntropy(), PositionScore()])
def test_a_penalty_never_raises_a_score(slots, inner):
    """The reference divides scores below 0 as well, which lifts them."""
    logits = logits_of(3)
    tokens = torch.tensor([[EOS, 1, EOS, 3]]).expand(2, 4)
    now = slots(OPEN, eos_ids=(EOS,), pad_id=EOS, steps=8)
    plain = inner.score(logits, tokens, now)
    for scorer in (PadPenalty(inner, 3.0), EosScaled(inner)):
        score = scorer.score(logits, tokens, now)
        pads = tokens == EOS
        assert torch.equal(score[~pads], plain[~pads])
        assert bool((score[pads] <= plain[pads]).all())
        assert bool((score[pads] < plain[pads])[plain[pads] != 0].all())
    if bool((plain < 0).any()):
        assert bool(((plain / 3.0)[plain < 0] > plain[plain < 0]).all())


def test_options_are_checked():
    with pytest.raises(ValueError, match="`gamma_min`, `gamma_max`: expected 0 <= gamma_min <= gamma_max <= 1, got 1"):
        EosScaled(Probability(), gamma_min=1.2)
    with pytest.raises(ValueError, match="`ramp`: expected"):
        EosScaled(Probability(), ramp="cubic")
    with pytest.raises(ValueError, match=r"`penalty`: expected a number >= 1, got 0\.5"):
        PadPenalty(Probability(), 0.5)
