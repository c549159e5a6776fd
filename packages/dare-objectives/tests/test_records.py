"""Batch, Plan, Coefficients, Scored: validation and row selection; metrics."""

from dataclasses import replace

import pytest
import torch

import dare_objectives as do
from dare_objectives.testing import toy_batch


@pytest.mark.wheel
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: {"tokens": b.tokens.int()}, "`tokens`: expected torch.int64, got torch.int32"),
        (lambda b: {"valid": b.valid[:, :-1]}, r"`valid`: expected shape \[B, S\]"),
        (lambda b: {"keys": b.keys[:-1]}, r"`keys`: expected shape \[B\]"),
        (lambda b: {"valid": b.valid.flip(1)}, "right padding"),
        (lambda b: {"maskable": torch.ones_like(b.valid)}, "subset of `valid`"),
        (lambda b: {"blocks": b.blocks + 1}, "expected -1 exactly where"),
        (lambda b: {"mask_id": int(b.tokens[0, 2])}, "holds the mask token"),
        (lambda b: {"step_map": b.tokens}, "`step_map`: expected torch.int32"),
        (lambda b: {"states": (b.tokens, b.keys)}, "`states`: expected an object that rows index, got a tuple"),
        (lambda b: {"tree": {"parent": b.keys}}, "`tree`: expected an object that rows index, got a dict"),
        (lambda b: {"value": (b.keys,)}, "`value`: expected an object that rows index, got a tuple"),
    ],
)
def test_a_wrong_batch_is_refused(change, message):
    batch = toy_batch()
    with pytest.raises(ValueError, match=message):
        replace(batch, **change(batch))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: {"target": p.target.float()}, "`target`: expected torch.bool"),
        (lambda p: {"inputs": p.inputs[:, :1]}, "`target`: expected shape"),
        (lambda p: {"target": torch.ones_like(p.target)}, "target on padding"),
        (lambda p: {"weight": torch.ones_like(p.weight)}, "expected 0 off target"),
        (lambda p: {"weight": p.weight / 0.0}, "`weight`"),
        (lambda p: {"weight": p.weight * torch.inf}, "`weight`"),
        (lambda p: {"labels": p.labels[..., 0]}, "`labels`: expected shape"),
    ],
)
def test_a_wrong_plan_is_refused(change, message):
    plan = do.coupled(toy_batch())
    with pytest.raises(ValueError, match=message):
        replace(plan, **change(plan))


def test_a_plan_may_score_unmasked_positions_and_other_or_several_labels():
    batch = toy_batch()
    target = batch.maskable[:, None]
    plan = do.mask_plan(batch, torch.zeros_like(target), torch.ones(()), target=target)
    assert torch.equal(plan.inputs[:, 0], batch.tokens)
    other = replace(plan, labels=(plan.labels + 1) % 5)
    assert other.streams == 1
    several = torch.stack([plan.labels, other.labels], -1)
    assert replace(plan, labels=several).labels.shape == (*target.shape, 2)


@pytest.mark.wheel
def test_rows_select_every_field():
    batch = replace(toy_batch(), step_map=torch.zeros(6, 7, dtype=torch.int32), states=torch.arange(6))
    rows = torch.tensor([4, 1])
    some = batch[rows]
    assert len(some) == 2
    assert torch.equal(some.tokens, batch.tokens[rows])
    assert torch.equal(some.states, rows)
    assert some.mask_id == batch.mask_id
    plan = do.coupled(batch)
    assert torch.equal(plan[[4, 1]].inputs, plan.inputs[rows])
    assert torch.equal(plan[batch.keys == batch.keys[1]].weight, plan.weight[1:2])
    coeff = do.get("diffu_grpo").prepare(batch, plan, torch.arange(6.0))
    assert torch.equal(coeff[1:3].advantage, coeff.advantage[1:3])
    assert torch.equal(coeff[1:3].normaliser, coeff.normaliser)
    assert torch.equal(do.Scored(plan.weight)[rows].logp, plan.weight[rows])
    with pytest.raises(TypeError, match=r"write slice\(3, 3 \+ 1\)"):
        plan[3]


def test_rows_are_integers_or_bools_of_any_kind():
    keys, some = toy_batch().keys, [True, False, False, True, False, False]
    for rows in (some, torch.tensor(some), [0, 3], [0, -3], (0, 3), range(0, 6, 3), torch.tensor([0, 3])):
        assert torch.equal(toy_batch()[rows].keys, keys[[0, 3]])
    assert len(toy_batch()[[]]) == len(toy_batch()[range(0)]) == 0


def test_rows_as_numpy_arrays():
    np = pytest.importorskip("numpy")
    batch = toy_batch()
    for rows in (np.array([True, False, False, True, False, False]), np.array([0, 3])):
        assert torch.equal(batch[rows].keys, batch.keys[[0, 3]])


@pytest.mark.parametrize("rows", [[0.0, 3.0], torch.tensor([0, 3], dtype=torch.int32), torch.zeros(0)])
def test_rows_of_other_dtypes_are_refused(rows):
    with pytest.raises(ValueError, match=r"`rows`: expected torch\.int64 or torch\.bool"):
        toy_batch()[rows]


def test_a_single_row_number_in_a_tensor_is_refused():
    with pytest.raises(ValueError, match=r"`rows`: expected shape \[N\]"):
        toy_batch()[torch.tensor(3)]


def test_a_subclass_of_coefficients_may_add_fields():
    from dataclasses import dataclass

    @dataclass(frozen=True, eq=False)
    class Mine(do.Coefficients):
        steps: torch.Tensor | None = None

    mine = Mine(torch.ones(3), torch.ones(3), torch.tensor(1.0), steps=torch.arange(3))
    chosen = mine[1:]
    assert isinstance(chosen, Mine)
    assert chosen.steps is not None
    assert chosen.steps.tolist() == [1, 2]


def test_prompt_ends_at_the_first_maskable_column():
    batch = toy_batch()
    assert torch.equal(batch.prompt, batch.columns.expand_as(batch.tokens) < 2)


@pytest.mark.wheel
def test_metrics_merge_exactly_and_survive_emptiness():
    assert do.Mean(torch.tensor(3.0), torch.tensor(2)).merge(do.Mean(1.0, 2)).value == 1.0
    assert do.Mean(0.0, 0).value == 0.0
    assert do.Max(torch.tensor(-3.0)).merge(do.Max(-5.0)).value == -3.0
    merged = do.merge_metrics([{"a": do.Mean(1.0)}, {"a": do.Mean(3.0), "b": do.Max(2.0)}])
    assert {name: metric.value for name, metric in merged.items()} == {"a": 2.0, "b": 2.0}
