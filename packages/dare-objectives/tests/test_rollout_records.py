"""Records of rollouts: checks, rows, padding, branches."""

from dataclasses import replace

import pytest
import torch

import dare_objectives as do
from dare_objectives.testing import toy_batch, toy_states, toy_tree, toy_values, with_records


@pytest.mark.wheel
@pytest.mark.parametrize("make", [toy_states, toy_tree, toy_values])
def test_rows_and_padding(make):
    batch = toy_batch(response=6)
    record = make(batch)
    assert len(record) == 6
    wide = record.padded(2, batch.mask_id)
    assert len(record[[4, 1]]) == 2
    for name, value in vars(record).items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(getattr(record[[4, 1]], name), value[[4, 1]])
            more = value.ndim >= 2 and value.shape[-1] == 8
            assert getattr(wide, name).shape[-1] == value.shape[-1] + 2 * more
        else:
            assert getattr(record[:1], name) == value


@pytest.mark.parametrize(
    ("make", "change", "message"),
    [
        (toy_states, lambda r: {"tokens": r.tokens.int()}, r"`tokens`: expected torch\.int64"),
        (toy_states, lambda r: {"confidence": r.confidence[:, :1]}, "`confidence`: expected shape"),
        (toy_states, lambda r: {"rewards": r.rewards / 0}, "`rewards`: expected finite numbers, got inf"),
        (toy_tree, lambda r: {"parent": r.parent[:, :2]}, "`parent`: expected shape"),
        (toy_tree, lambda r: {"parent": torch.full_like(r.parent, 1)}, "sort the nodes by depth"),
        (toy_tree, lambda r: {"parent": torch.full_like(r.parent, -3)}, "`parent`: expected -2, -1 or"),
        (toy_tree, lambda r: {"progress": 1.5}, "`progress`: expected a number in"),
        (toy_tree, lambda r: {"reward": r.reward * torch.nan}, "`reward`: expected finite numbers, got nan"),
        (toy_values, lambda r: {"value": r.value.long()}, r"`value`: expected torch\.float32 or torch\.float64"),
    ],
)
def test_a_wrong_record_is_refused(make, change, message):
    record = make(toy_batch())
    with pytest.raises(ValueError, match=message):
        replace(record, **change(record))


@pytest.mark.wheel
@pytest.mark.parametrize(("name", "field", "kind"), [("mdpo", "states", "States"), ("d_tree_rpo", "tree", "Tree")])
def test_a_missing_or_foreign_record_is_named(name, field, kind):
    objective, batch = do.get(name), toy_batch()
    with pytest.raises(
        ValueError, match=rf"`{field}`: expected the rollout's record, a dare_objectives\.{kind}, got None"
    ):
        objective.plan(batch)
    with pytest.raises(ValueError, match="got Values; record it"):
        objective.plan(replace(batch, **{field: toy_values(batch)}))
    narrow = with_records(toy_batch(response=4), objective.needs)
    with pytest.raises(ValueError, match="expected rows and columns of the batch"):
        objective.plan(replace(batch, **{field: getattr(narrow, field)}))


def test_a_missing_value_is_named():
    batch, objective = with_records(toy_batch(), {"step_map"}), do.get("tracerl_value")
    with pytest.raises(ValueError, match=r"`value`: expected the rollout's record, a dare_objectives\.Values"):
        objective.prepare(batch, objective.plan(batch), torch.zeros(6))


@pytest.mark.wheel
def test_branches_are_the_inner_nodes_and_their_children():
    parent = torch.tensor([[-1, 0, 0, 1, 1, 1], [-1, 0, -2, 1, -2, -2], [-1, -2, -2, -2, -2, -2]])
    canvas, reward = torch.zeros(3, 6, 4, dtype=torch.int64), torch.zeros(3, 6)
    found = do.Tree(canvas, parent, reward).branches()
    assert found.parent.tolist() == [[0, 1], [0, 1], [-1, -1]]
    nothing = [-1, -1, -1]
    assert found.child.tolist() == [
        [[1, 2, -1], [3, 4, 5]],
        [[1, -1, -1], [3, -1, -1]],
        [nothing, nothing],
    ]
    alone = do.Tree(canvas[2:], parent[2:], reward[2:]).branches()
    assert alone.parent.tolist() == [[-1]]
    assert alone.child.tolist() == [[[-1]]]
    assert do.Tree(canvas, parent, reward).leaves.int().tolist() == [
        [0, 0, 1, 1, 1, 1],
        [0, 0, 0, 1, 0, 0],
        [1, 0, 0, 0, 0, 0],
    ]


def test_a_child_that_changes_its_parent_is_refused():
    batch = with_records(toy_batch(), {"tree"})
    canvas = batch.tree.canvas.clone()
    canvas[0, 1, 0] += 1
    with pytest.raises(ValueError, match="`tree`: expected children to keep what their parent has set"):
        do.get("d_tree_rpo").plan(replace(batch, tree=replace(batch.tree, canvas=canvas)))


def test_records_of_a_batch_are_kept():
    states = toy_states(toy_batch(), steps=2)
    batch = with_records(replace(toy_batch(), states=states), {"states", "step_map", "old"})
    assert batch.states is states
    assert batch.step_map is not None
    assert batch.tree is None
