"""Credit of denoising steps, values of trees, value estimates over steps: identities and degenerate groups."""

from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dare_objectives as do

NUMBERS = st.lists(st.floats(-5, 5, width=32), min_size=12, max_size=12)


def _table(values, rows: int = 4) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64).reshape(rows, -1)


@pytest.mark.wheel
@given(values=NUMBERS)
def test_step_credit_is_a_gain_plus_the_mean_of_what_follows(values):
    rewards = _table(values)
    for row, found in zip(rewards.tolist(), do.mdpo_credit(rewards).tolist(), strict=True):
        before, last = [0.0, *row[:-1]], len(row) - 1
        later = [sum(row[k + 1 :]) / (last - k) if k < last else row[last] for k in range(len(row))]
        wanted = [r - b + 1 + s for r, b, s in zip(row, before, later, strict=True)]
        assert found == pytest.approx(wanted, abs=1e-12)


@pytest.mark.wheel
def test_one_step_is_the_group_z_score():
    rewards, group = torch.tensor([1.0, 0.0, 0.25, 1.0]).double(), torch.tensor([0, 0, 1, 1])
    wanted = do.group_normalize(rewards, group)
    torch.testing.assert_close(do.mdpo_steps(rewards[:, None], group)[:, 0], wanted, rtol=0, atol=1e-5)
    exact = do.mdpo_steps(rewards[:, None], group, advantage=partial(do.group_normalize, eps=0.0))[:, 0]
    torch.testing.assert_close(exact, do.group_normalize(rewards, group, eps=0.0), rtol=0, atol=1e-12)


@pytest.mark.wheel
def test_constant_single_and_empty_groups_of_steps():
    group = torch.tensor([0, 0, 0, 7])
    rewards = torch.tensor([[0.1, 0.3]]).repeat(4, 1)
    assert not do.mdpo_steps(rewards, group).any()
    assert do.mdpo_steps(torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)).shape == (0, 3)
    assert do.mdpo_steps(torch.zeros(4, 0), group).shape == (4, 0)
    raw = do.mdpo_steps(rewards, group, advantage=partial(do.group_normalize, singleton="raw"))
    torch.testing.assert_close(raw[3], do.mdpo_credit(rewards)[3], rtol=0, atol=1e-5)


@given(orders=st.lists(st.permutations(range(12)), min_size=3, max_size=3))
def test_steps_of_the_same_advantages_are_equally_important(orders):
    value = do.uniform(torch.tensor(5), "eval", torch.arange(12), dtype=torch.float64) - 0.5
    advantage = torch.stack([value[list(order)] for order in orders], 1)
    assert do.steps_by_importance(advantage).tolist() == [0, 1, 2]


@given(order=st.permutations(range(6)))
def test_ties_of_importance_do_not_depend_on_the_row_order(order):
    """Binary rewards give steps of equal importance all the time."""
    group = torch.tensor([0, 0, 0, 1, 1, 1])
    rewards = torch.tensor([[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 1], [1, 0, 0], [0, 1, 0]], dtype=torch.float32)
    advantage = torch.stack([do.group_normalize(column, group) for column in rewards.unbind(1)], 1)
    shuffled = torch.stack([do.group_normalize(column, group[list(order)]) for column in rewards[list(order)].T], 1)
    assert do.steps_by_importance(advantage).tolist() == do.steps_by_importance(shuffled).tolist() == [0, 1, 2]


def _balanced(depth: int, branch: int) -> torch.Tensor:
    parent, level = [-1], [0]
    for _ in range(depth):
        level = [len(parent) + i for i, _ in enumerate(above for above in level for _ in range(branch))]
        start = level[0]
        parent += [(start - len(level) // branch) + i // branch for i in range(len(level))]
    return torch.tensor([parent])


@pytest.mark.wheel
@given(depth=st.integers(1, 3), branch=st.integers(1, 3), seed=st.integers(0, 99))
def test_the_root_of_a_balanced_tree_is_the_mean_of_its_leaves(depth, branch, seed):
    parent = _balanced(depth, branch)
    reward = do.uniform(torch.tensor([[seed]]), "eval", torch.arange(parent.shape[1]), dtype=torch.float64)
    value = do.tree_backup(reward, parent)
    leaves = reward[:, -(branch**depth) :]
    assert float(value[0, 0]) == pytest.approx(float(leaves.mean()), abs=1e-12)
    assert torch.equal(value[:, -leaves.shape[1] :], leaves)


@given(parents=st.lists(st.integers(0, 8), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_siblings_add_up_to_nothing_and_are_compared_with_the_others(parents, seed):
    parent = torch.tensor([[-1, *(min(p, i) for i, p in enumerate(parents))]])
    value = do.uniform(torch.tensor([[seed]]), "eval", torch.arange(parent.shape[1]), dtype=torch.float64)
    found, raw = do.sibling_advantage(value, parent), do.sibling_advantage(value, parent, singleton="raw")
    for node in range(1, parent.shape[1]):
        others = [m for m in range(1, parent.shape[1]) if m != node and parent[0, m] == parent[0, node]]
        wanted = value[0, node] - value[0, others].mean() if others else value[0, node] * 0
        assert float(found[0, node]) == pytest.approx(float(wanted), abs=1e-12)
        assert float(raw[0, node]) == pytest.approx(float(wanted if others else value[0, node]), abs=1e-12)
    for above in range(parent.shape[1]):
        assert abs(float(found[parent == above].sum())) < 1e-12


@pytest.mark.parametrize("size", range(1, 12))
def test_equal_siblings_get_exactly_nothing(size):
    parent = torch.tensor([[-1, *[0] * size]]).expand(40, -1)
    value = torch.linspace(0.01, 1.3, 40, dtype=torch.float64)[:, None].expand_as(parent)
    assert not do.sibling_advantage(value, parent).any()


@pytest.mark.wheel
def test_constant_single_and_empty_trees():
    parent = torch.tensor([[-1, 0, 0, 0, 1], [-1, 0, 0, -2, -2]])
    assert not do.sibling_advantage(torch.full((2, 5), 0.1), parent).any()
    value = do.tree_backup(torch.tensor([[9.0, 9.0, 0.5, 0.5, 0.2], [9.0, 1.0, 0.0, 9.0, 9.0]]), parent)
    torch.testing.assert_close(value, torch.tensor([[0.4, 0.2, 0.5, 0.5, 0.2], [0.5, 1.0, 0.0, 0.0, 0.0]]))
    assert not do.tree_backup(torch.ones(1, 2), torch.full((1, 2), do.NO_NODE)).any()
    assert do.tree_backup(torch.ones(0, 3), torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 3)
    alone = do.tree_backup(torch.ones(1, 1), torch.tensor([[-1]]))
    assert alone.tolist() == [[1.0]]


@pytest.mark.wheel
@given(values=NUMBERS, steps=st.lists(st.integers(-1, 4), min_size=12, max_size=12))
def test_without_discount_the_advantage_is_reward_minus_value(values, steps):
    value, step_map = _table(values), torch.tensor(steps).reshape(4, 3)
    reward = torch.arange(4.0, dtype=torch.float64)
    found, on = do.gae_steps(reward, value, step_map), step_map >= 0
    wanted = torch.where(on, reward[:, None] - value, 0.0)
    torch.testing.assert_close(found.advantage, wanted, rtol=0, atol=1e-12)
    torch.testing.assert_close(found.ret, torch.where(on, reward[:, None].expand(4, 3), 0.0), rtol=0, atol=1e-12)


@given(values=NUMBERS, steps=st.lists(st.integers(-1, 4), min_size=12, max_size=12))
def test_value_estimates_equal_those_of_a_loop(values, steps):
    gamma, lam, reward = 0.9, 0.8, 0.7
    value, step_map = _table(values, 1), torch.tensor([steps])
    found = do.gae_steps(torch.tensor([reward], dtype=torch.float64), value, step_map, gamma=gamma, lam=lam)
    advantage = later_value = ret = 0.0
    for number, step in enumerate(sorted({s for s in steps if s >= 0}, reverse=True)):
        members = [i for i, s in enumerate(steps) if s == step]
        mean = sum(values[i] for i in members) / len(members)
        outcome = reward if number == 0 else 0.0
        ahead = gamma * later_value + gamma * lam * advantage
        for i in members:
            assert float(found.advantage[0, i]) == pytest.approx(outcome - values[i] + ahead, abs=1e-9)
        advantage, ret, later_value = outcome - mean + ahead, outcome + gamma * ret, mean
        assert found.ret[0, members].tolist() == pytest.approx([ret] * len(members), abs=1e-9)


def test_no_token_and_no_row_give_no_estimate():
    nothing = do.gae_steps(torch.ones(2), torch.ones(2, 3), torch.full((2, 3), -1))
    assert not nothing.advantage.any()
    assert not nothing.ret.any()
    assert do.gae_steps(torch.ones(0), torch.ones(0, 3), torch.zeros(0, 3, dtype=torch.int64)).ret.shape == (0, 3)
    with pytest.raises(ValueError, match="`lam`: expected a number in"):
        do.gae_steps(torch.ones(1), torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int64), lam=1.5)


@pytest.mark.wheel
def test_the_value_loss_has_no_gradient_beyond_its_clip_towards_the_return():
    value = torch.tensor([0.5, -0.5, 0.1, 9.0], dtype=torch.float64, requires_grad=True)
    old, ret, weight = torch.zeros(4), torch.ones(4), torch.tensor([1.0, 1.0, 1.0, 0.0])
    loss, metrics = do.value_loss(value, old, ret, weight, normaliser=1)
    assert torch.autograd.grad(loss, value)[0].tolist() == pytest.approx([0.0, -1.5, -0.9, 0.0])
    assert metrics["value_clip_fraction"].value == pytest.approx(1 / 3)
    plain, _ = do.value_loss(value, old, ret, weight, clip=None, normaliser=2)
    assert torch.autograd.grad(plain, value)[0].tolist() == pytest.approx([-0.25, -0.75, -0.45, 0.0])
