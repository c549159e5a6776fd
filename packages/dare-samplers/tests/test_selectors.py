import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dare_samplers import Threshold, TopK
from dare_samplers.selectors import rank

SCORES = st.lists(st.sampled_from([-torch.inf, -1.0, 0.0, 0.5, 1.0]), min_size=1, max_size=9)


@given(SCORES, st.data())
def test_rank_is_open_first_then_score_then_position(values, data):
    opened = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    ranks = rank(torch.tensor([values]), torch.tensor([opened]))[0].tolist()
    expected = sorted(range(len(values)), key=lambda slot: (not opened[slot], -values[slot], slot))
    assert [ranks.index(r) for r in range(len(values))] == expected


@given(SCORES, st.integers(0, 12), st.data())
def test_top_k_takes_the_quota_or_all(slots, values, quota, data):
    opened = torch.tensor([data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))])
    pick = TopK().select(torch.tensor([values]), slots(opened), torch.tensor([quota]))
    assert int(pick.sum()) == min(quota, int(opened.sum()))
    assert not bool((pick & ~opened).any())


def test_ties_go_to_the_lowest_position(slots):
    """torch.topk returns other positions than the first ones on equal values."""
    score = torch.full((1, 8), 0.5)
    pick = TopK().select(score, slots(torch.ones(1, 8, dtype=torch.bool)), torch.tensor([3]))
    assert pick[0].nonzero().flatten().tolist() == [0, 1, 2]


@pytest.mark.wheel
def test_threshold_includes_equality(slots):
    score = torch.tensor([[0.89, 0.9, 0.95, 1.0]])
    opened = torch.tensor([[True, True, True, False]])
    pick = Threshold(torch.tensor(0.9).item()).select(score, slots(opened), torch.ones(1, dtype=torch.int64))
    assert pick.tolist() == [[False, True, True, False]]


def test_threshold_must_be_a_number():
    with pytest.raises(ValueError, match="`tau`: expected a number, got nan"):
        Threshold(float("nan"))
