from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from dare_samplers import Logits, Probability, Selector, Slots, Threshold, TopK
from dare_samplers.selectors import (
    All,
    BudgetThreshold,
    EntropyBudget,
    Factor,
    Hybrid,
    Lead,
    SegmentMax,
    SoftTopK,
    rank,
)

SCORES = st.lists(st.sampled_from([-torch.inf, -1.0, 0.0, 0.5, 1.0]), min_size=1, max_size=9)
PROBABILITIES = st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.8, 0.9, 0.95, 0.99, 1.0]), min_size=1, max_size=9)
EVERY = [
    TopK(),
    SoftTopK(0.5),
    All(),
    Threshold(0.5),
    Threshold(0.5, strict=True),
    Threshold(0.9, decay=0.1),
    Threshold(0.9, ties=1e-5),
    Hybrid(0.5),
    BudgetThreshold(0.5),
    Factor(0.5),
    EntropyBudget(0.4),
    EntropyBudget(0.4, "previous"),
    SegmentMax(),
    SegmentMax(None, None),
    Lead(Threshold(0.5)),
]


def pick(selector: Selector, values: Sequence[float], slots: Slots, quota: int = 1) -> list[int]:
    """Positions picked in a row of its own."""
    score = torch.tensor([values], dtype=torch.float64)
    return selector.select(score, slots, torch.tensor([quota]))[0].nonzero().flatten().tolist()


def opened(values: Sequence[float]) -> Tensor:
    return torch.ones(1, len(values), dtype=torch.bool)


def booleans(data: st.DataObject, size: int) -> Tensor:
    return torch.tensor([data.draw(st.lists(st.booleans(), min_size=size, max_size=size))])


@given(SCORES, st.data())
def test_rank_is_open_first_then_score_then_position(values, data):
    mask = booleans(data, len(values))
    ranks = rank(torch.tensor([values]), mask)[0].tolist()
    expected = sorted(range(len(values)), key=lambda slot: (not mask[0, slot], -values[slot], slot))
    assert [ranks.index(r) for r in range(len(values))] == expected


@given(SCORES, st.integers(0, 12), st.data())
def test_quota_selectors_take_the_quota_or_all(slots, values, quota, data):
    mask = booleans(data, len(values))
    for selector in (TopK(), SoftTopK(0.7), Hybrid(2.0), BudgetThreshold(-torch.inf)):
        assert len(pick(selector, values, slots(mask), quota)) == min(quota, int(mask.sum()))


@given(PROBABILITIES, st.integers(1, 9), st.data())
def test_only_open_slots_are_picked_whatever_the_filler(slots, values, quota, data):
    """And filler on the right, which is what the other rows of a batch bring, changes nothing."""
    mask = booleans(data, len(values))
    for selector in EVERY:
        alone = pick(selector, values, slots(mask), quota)
        assert set(alone) <= set(mask[0].nonzero().flatten().tolist())
        wide = torch.cat([mask, torch.zeros(1, 3, dtype=torch.bool)], -1)
        assert pick(selector, [*values, 9.0, -9.0, 0.99], slots(wide), quota) == alone


@given(PROBABILITIES, st.integers(1, 4))
def test_a_row_does_not_depend_on_the_others(slots, values, quota):
    score = torch.tensor([values, values[::-1]], dtype=torch.float64)
    for selector in EVERY:
        both = selector.select(score, slots(opened(values).expand(2, -1)), torch.tensor([quota, 1]))
        assert both[0].nonzero().flatten().tolist() == pick(selector, values, slots(opened(values)), quota)


def test_ties_go_to_the_lowest_position(slots):
    """torch.topk returns other positions than the first ones on equal values."""
    values = [0.5] * 8
    assert torch.full((8,), 0.5).topk(3).indices.tolist() != [0, 1, 2]
    now = slots(opened(values))
    assert pick(TopK(), values, now, 3) == [0, 1, 2]
    assert pick(BudgetThreshold(0.9), values, now, 3) == [0]
    assert pick(Factor(0.1), values, now) == [0]
    assert pick(EntropyBudget(0.0), [-0.5] * 8, now) == [0]
    assert pick(SegmentMax(), values, now) == [0]


def test_half_precision_scores_tie_where_exact_ones_do_not(slots):
    """bfloat16 has 27 values in [0.9, 1]: the order of a reference that scores in it is arbitrary."""
    logits = torch.tensor([[[7.0, 0, 0], [7.1, 0, 0], [7.2, 0, 0], [7.3, 0, 0]]])
    coarse = logits.softmax(-1)[..., 0].bfloat16()
    assert coarse.unique().numel() == 1
    tokens, now = torch.zeros(1, 4, dtype=torch.int64), slots(torch.ones(1, 4, dtype=torch.bool))
    assert pick(TopK(), Probability().score(Logits.of(logits), tokens, now)[0].tolist(), now, 2) == [2, 3]


@given(PROBABILITIES, st.integers(1, 6))
def test_limits_are_one_slot_per_step_or_all(slots, values, quota):
    now = slots(opened(values))
    best = pick(TopK(), values, now, 1)
    top = pick(TopK(), values, now, quota)
    saturated = [value if value < 1 else 0.999 for value in values]
    assert pick(Factor(0.0), values, now) == best
    assert pick(EntropyBudget(0.0), [v - 1 for v in values], now) == best
    assert pick(EntropyBudget(0.0, "previous"), [v - 1 for v in values], now) == best
    assert pick(SegmentMax(None, None), values, now) == best
    assert pick(Hybrid(1.1), values, now, quota) == top
    assert pick(BudgetThreshold(0.0), values, now, quota) == top
    assert pick(Threshold(1.1), values, now) == []
    assert pick(Threshold(1.0, strict=True), values, now) == []
    assert pick(Threshold(1.0), saturated, now) == []
    everything = list(range(len(values)))
    for selector in (All(), Threshold(0.0), Factor(99.0), EntropyBudget(torch.inf, "previous"), SegmentMax(-1.0)):
        assert pick(selector, values, now) == everything


@given(PROBABILITIES, st.floats(0, 1), st.floats(0, 1))
def test_a_lower_bar_picks_more(slots, values, one, other):
    low, high = sorted([one, other])
    now = slots(opened(values))
    for kind in (Threshold, lambda tau: Threshold(tau, strict=True), SegmentMax):
        assert set(pick(kind(high), values, now)) <= set(pick(kind(low), values, now))
    assert set(pick(Factor(low), values, now)) <= set(pick(Factor(high), values, now))


@pytest.mark.wheel
def test_threshold_includes_equality_unless_strict(slots):
    score = torch.tensor([[0.89, 0.9, 0.95, 1.0]])
    mask = torch.tensor([[True, True, True, False]])
    tau = torch.tensor(0.9).item()
    quota = torch.ones(1, dtype=torch.int64)
    assert Threshold(tau).select(score, slots(mask), quota).tolist() == [[False, True, True, False]]
    assert Threshold(tau, strict=True).select(score, slots(mask), quota).tolist() == [[False, False, True, False]]


def test_threshold_decays_over_the_response(slots):
    """max(1 - 0.02 i, tau), every row by its own step."""
    score = torch.full((3, 1), 0.93)
    now = replace(slots(torch.ones(3, 1, dtype=torch.bool)), step=torch.tensor([3, 4, 400]))
    quota = torch.ones(3, dtype=torch.int64)
    assert Threshold(0.9, decay=0.02).select(score, now, quota).flatten().tolist() == [False, True, True]
    assert not bool(Threshold(0.95, decay=0.02).select(score, now, quota).any())


def test_near_ties_enter_only_on_request(slots):
    values = [0.5, 0.499995, 0.4]
    assert pick(Threshold(0.9), values, slots(opened(values))) == []
    assert pick(Threshold(0.9, ties=1e-5), values, slots(opened(values))) == [0, 1]


def test_hybrid(slots):
    """All above tau if they are at least the quota, else the quota's best."""
    values = [0.2, 0.9, 0.85, 0.95, 0.1]
    now = slots(opened(values))
    assert pick(Hybrid(0.85), values, now, 2) == [1, 3]
    assert pick(Hybrid(0.85), values, now, 3) == [1, 2, 3]
    assert pick(Hybrid(0.85, strict=False), values, now, 1) == [1, 2, 3]
    assert pick(Hybrid(0.85), values, now, 4) == [0, 1, 2, 3]


def test_budget_threshold(slots):
    values = [0.2, 0.9, 0.8, 0.95, 0.1]
    now = slots(opened(values))
    assert pick(BudgetThreshold(0.8), values, now, 2) == [1, 3]
    assert pick(BudgetThreshold(0.8), values, now, 5) == [1, 2, 3]
    assert pick(BudgetThreshold(0.99), values, now, 5) == [3]
    assert pick(BudgetThreshold(0.99), values, now, 0) == []


def accepted_by_reference(values: list[float], factor: float) -> int:
    """Two references step over the slot that fails where it is the first, and also where it is the last."""
    ordered = sorted(values, reverse=True)
    n = next((n for n, value in enumerate(ordered) if value < 1 - factor / (n + 2)), len(ordered) - 1)
    return n + 1 if n in (0, len(ordered) - 1) else n


def test_factor_leaves_out_the_slot_that_fails(slots):
    values = [0.99, 0.99, 0.99, 0.05]
    assert accepted_by_reference(values, 1.0) == 4
    assert pick(Factor(1.0), values, slots(opened(values))) == [0, 1, 2]


@given(PROBABILITIES, st.sampled_from([0.1, 0.5, 1.0, 2.0]))
def test_factor_is_the_longest_passing_prefix(slots, values, factor):
    ordered = sorted(range(len(values)), key=lambda slot: (-values[slot], slot))
    n = 1
    while n < len(values) and values[ordered[n]] >= 1 - factor / (n + 2):
        n += 1
    assert pick(Factor(factor), values, slots(opened(values))) == sorted(ordered[:n])


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8), st.integers(0, 30))
def test_entropy_budget(slots, tenths, gamma):
    """Quarters are exact in floating point."""
    ordered = sorted(range(len(tenths)), key=lambda slot: (tenths[slot], slot))
    sums = [sum(tenths[slot] for slot in ordered[: n + 1]) for n in range(len(tenths))]
    with_it = max(1, sum(total < gamma for total in sums))
    before = max(1, sum(total <= gamma for total in [0, *sums[:-1]])) if gamma else 1
    now, values = slots(opened(tenths)), [-h / 4 for h in tenths]
    assert pick(EntropyBudget(gamma / 4), values, now) == sorted(ordered[:with_it])
    assert pick(EntropyBudget(gamma / 4, "previous"), values, now) == sorted(ordered[:before])


def test_segment_max(slots):
    """Runs of open slots end at committed ones and where positions jump."""
    values = [0.5, 0.6, 0.99, 0.3, 0.95, 0.41, 0.7]
    mask = torch.tensor([[True, True, False, True, True, True, True]])
    now = slots(mask)
    assert pick(SegmentMax(), values, now) == [1, 4]
    assert pick(SegmentMax(0.65), values, now) == [1, 4, 6]
    assert pick(SegmentMax(tau_low=0.7), values, now) == [4]
    jump = replace(now, index=torch.tensor([[0, 1, 2, 3, 4, 9, 10]]))
    assert pick(SegmentMax(), values, jump) == [1, 4, 6]


def test_soft_top_k_draws_without_replacement(slots):
    """The first of two draws follows softmax(score / alg_temp), the second what is left of it."""
    rows = 8000
    values = torch.tensor([0.1, 0.3, 0.2, -torch.inf], dtype=torch.float64)
    now = slots(torch.ones(rows, 4, dtype=torch.bool))
    weight = (values / 0.1).softmax(-1)
    score = values.expand(rows, -1)
    one = SoftTopK(0.1).select(score, now, torch.ones(rows, dtype=torch.int64)).double().mean(0)
    torch.testing.assert_close(one, weight, rtol=0, atol=4 * 0.5 / rows**0.5)
    pairs = SoftTopK(0.1).select(score, now, torch.full((rows,), 2)).double()
    missing = [sum(weight[a] * weight[b] / (1 - weight[a]) for a, b in ((x, y), (y, x))) for x, y in ((1, 2), (0, 2))]
    torch.testing.assert_close(1 - pairs.mean(0)[:2], torch.stack(missing), rtol=0, atol=4 * 0.5 / rows**0.5)
    assert bool((pairs[:, 3] == 0).all())
    full = SoftTopK(0.1).select(score, now, torch.full((rows,), 9))
    assert bool(full.all())


def test_soft_top_k_at_low_temperature_is_top_k(slots):
    values = [0.1, 0.3, 0.2, -torch.inf]
    for temperature in (1e-4, 1e-300):
        assert pick(SoftTopK(temperature), values, slots(opened(values)), 2) == [1, 2]


def test_lead_takes_the_first_open_slot_of_a_block(slots):
    values = [0.99, 0.1, 0.99, 0.99]
    mask = torch.tensor([[False, True, True, True]])
    assert pick(Lead(Threshold(0.9)), values, slots(mask)) == [1]
    assert pick(Lead(Threshold(0.9)), values, slots(mask, step=1)) == [2, 3]
    later = replace(slots(mask, step=7), block_step=torch.tensor([0]))
    assert pick(Lead(TopK()), values, later, 3) == [1]


def test_who_listens_to_the_schedule():
    assert [type(one).__name__ for one in EVERY if one.uses_quota] == ["TopK", "SoftTopK", "Hybrid", "BudgetThreshold"]
    assert Lead(TopK()).uses_quota and not Lead(Threshold()).uses_quota
    assert replace(Lead(TopK()), inner=All()).uses_quota is False


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Threshold(float("nan")), "`tau`: expected a number, got nan"),
        (lambda: Threshold(decay=-1), "`decay`: expected a number >= 0"),
        (lambda: Threshold(ties=-1), "`ties`: expected a number >= 0"),
        (lambda: Hybrid(float("nan")), "`tau`: expected a number, got nan"),
        (lambda: BudgetThreshold(float("nan")), "`tau`: expected a number, got nan"),
        (lambda: SegmentMax(tau_low=float("nan")), "`tau_low`: expected a number, got nan"),
        (lambda: SoftTopK(0.0), r"`alg_temp`: expected a number > 0, got 0.0; use TopK\(\)"),
        (lambda: Factor(-1.0), "`factor`: expected a number >= 0"),
        (lambda: EntropyBudget(-1.0), "`gamma`: expected a number >= 0"),
        (lambda: EntropyBudget(1.0, "all"), "`bound`: expected"),
    ],
)
def test_options_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()
