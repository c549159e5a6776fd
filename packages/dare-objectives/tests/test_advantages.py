"""Advantages: identities and degenerate groups."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dare_objectives as do

ALL = pytest.mark.parametrize("advantage", [do.center, do.group_normalize, do.leave_one_out])
REWARDS = st.lists(st.floats(-5, 5, width=32), min_size=4, max_size=4)


def _rewards(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.wheel
@ALL
def test_constant_single_and_empty_groups_are_zero_and_finite(advantage):
    group = torch.tensor([0, 0, 0, 4])
    assert advantage(torch.tensor([0.1, 0.1, 0.1, 0.7]), group).tolist() == [0, 0, 0, 0]
    assert advantage(torch.zeros(0), torch.zeros(0, dtype=torch.int64)).shape == (0,)


@ALL
def test_single_group_keeps_its_reward_on_request(advantage):
    value = advantage(_rewards([0.7]), torch.tensor([4]), singleton="raw")
    assert value.item() == pytest.approx(0.7, abs=1e-6)


@ALL
@given(values=REWARDS)
def test_groups_sum_to_zero_and_ignore_one_another(advantage, values):
    group = torch.tensor([3, 3, 8, 3, 8, 3])
    rewards = _rewards([*values[:2], 0.25, values[2], 1.5, values[3]])
    found = advantage(rewards, group)
    scale = max(1.0, float(found.abs().max()))
    assert abs(float(found[group == 3].sum())) < 1e-9 * scale
    assert torch.allclose(found[group == 3], advantage(_rewards(values), torch.zeros(4).long()), rtol=0, atol=1e-12)


@given(values=REWARDS)
def test_leave_one_out_is_scaled_centering_and_excludes_itself(values):
    rewards, group = _rewards(values), torch.zeros(4, dtype=torch.int64)
    found = do.leave_one_out(rewards, group)
    assert torch.allclose(found, do.center(rewards, group) * 4 / 3, rtol=0, atol=1e-12)
    others = torch.stack([rewards[torch.arange(4) != i].mean() for i in range(4)])
    assert torch.allclose(found, rewards - others, rtol=0, atol=1e-12)


@given(values=REWARDS, scale=st.floats(0.125, 8), shift=st.floats(-4, 4))
def test_z_score_ignores_affine_maps_of_the_reward(values, scale, shift):
    rewards, group = _rewards(values), torch.zeros(4, dtype=torch.int64)
    if float(rewards.std()) > 1e-2:
        one, other = (do.group_normalize(x, group, eps=0.0) for x in (rewards, scale * rewards + shift))
        assert torch.allclose(one, other, rtol=0, atol=1e-9)


def test_row_order_does_not_matter():
    rewards, group = _rewards([0.3, 1.0, 0.2, 0.9, 0.1]), torch.tensor([0, 1, 0, 1, 0])
    order = torch.tensor([3, 0, 4, 1, 2])
    for advantage in (do.center, do.group_normalize, do.leave_one_out):
        found = advantage(rewards[order], group[order])
        assert torch.allclose(found, advantage(rewards, group)[order], rtol=0, atol=1e-12)
