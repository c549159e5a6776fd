"""Scores: what is fed, what is refused, what is exact."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dare_models.scoring import Scores, check_shapes, full_layout, positions_of, score_streams
from dare_models.testing import dense_gather, example


def shapes(b=2, k=3, s=6):
    inputs = torch.arange(b * k * s).reshape(b, k, s) % 7 + 7
    return {
        "inputs": inputs,
        "target": torch.ones(b, k, s, dtype=torch.bool),
        "labels": inputs,
        "valid": torch.ones(b, s, dtype=torch.bool),
    }


class Recorder:
    """A backbone that embeds ids and remembers what it was fed."""

    def __init__(self):
        self.fed = []

    def __call__(self, ids, positions, plan):
        assert plan is None
        self.fed.append((tuple(ids.shape), positions.clone()))
        return ids[..., None].double()


def run(streams=None, offset=0, **changes):
    backbone, seen = Recorder(), []

    def score_rows(hidden, labels):
        seen.append(len(hidden))
        return Scores(hidden[:, 0] * 100 + labels)

    data = {**shapes(), **changes}
    check_shapes(**data, streams=streams)
    layout = full_layout(data.pop("valid"), offset)
    return score_streams(layout, backbone, score_rows, **data, streams=streams or 3), backbone.fed, seen


def test_one_forward_and_the_head_only_on_targets():
    target = torch.zeros(2, 3, 6, dtype=torch.bool)
    target[1, 2, 4] = target[0, 0, 1] = True
    scores, fed, seen = run(target=target)
    assert [shape for shape, _ in fed] == [(6, 6)]
    assert seen == [2]
    ids = shapes()["inputs"]
    assert torch.equal(scores.logp, torch.where(target, ids * 101.0, 0.0).double())


@pytest.mark.parametrize(("streams", "rows"), [(1, [2, 2, 2]), (2, [4, 2]), (3, [6]), (5, [6])])
def test_streams_bound_the_rows_of_a_forward(streams, rows):
    scores, fed, _ = run(streams=streams)
    assert [shape[0] for shape, _ in fed] == rows
    assert torch.equal(scores.logp, run()[0].logp)


def test_columns_that_are_padding_everywhere_are_not_fed():
    valid = torch.tensor([[False, True, True, True, False, False], [False, False, True, True, True, False]])
    target = shapes()["target"] & valid[:, None]
    scores, fed, _ = run(valid=valid, target=target)
    [(shape, positions)] = fed
    assert shape == (6, 4)
    assert positions[::3].tolist() == [[0, 1, 2, -1], [-1, 0, 1, 2]]
    assert scores.logp.shape == (2, 3, 6)
    assert bool((scores.logp != 0).eq(target).all())


def test_under_a_shift_the_state_to_the_left_scores():
    valid = torch.tensor([[False, True, True, True, False, False], [False, False, True, True, True, True]])
    target = shapes()["target"] & valid[:, None]
    scores, _, _ = run(offset=1, valid=valid, target=target)
    ids = shapes()["inputs"]
    left = torch.cat([ids[..., :1], ids[..., :-1]], -1)
    first = (positions_of(valid) == 0)[:, None]
    expected = torch.where(first, ids, left) * 100.0 + ids
    assert torch.equal(scores.logp, torch.where(target, expected, 0.0).double())


def test_nothing_to_score_is_zero_with_a_gradient():
    lm = example("llada")
    data = {**shapes(), "target": torch.zeros(2, 3, 6, dtype=torch.bool)}
    clean, blocks = data["inputs"][:, 0], None
    logp = lm.score(
        data["inputs"], clean, data["target"], data["labels"], data["valid"], blocks, gather=dense_gather
    ).logp
    assert logp.abs().max() == 0
    logp.sum().backward()


@given(st.integers(0, 3), st.integers(1, 4), st.integers(0, 3))
@settings(deadline=None)
def test_positions_count_from_the_first_real_token(left, length, right):
    valid = torch.tensor([[False] * left + [True] * length + [False] * right])
    assert positions_of(valid).tolist() == [[-1] * left + list(range(length)) + [-1] * right]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": torch.zeros(2, 6, dtype=torch.int64)}, r"`inputs` \[B, K, S\], got shape \(2, 6\)"),
        ({"target": torch.ones(2, 3, 5, dtype=torch.bool)}, "`target` of shape"),
        ({"labels": torch.zeros(2, 6, dtype=torch.int64)}, "`labels` of shape"),
        ({"valid": torch.ones(2, 3, 6, dtype=torch.bool)}, "`valid` of shape"),
        ({"valid": torch.tensor([[True] * 4 + [False] * 2] * 2)}, "expected targets on valid positions, got 12"),
        ({"valid": torch.tensor([[True] * 6, [True] * 4 + [False] * 2])}, "expected targets on valid positions, got 6"),
        ({"streams": 0}, "`streams` of at least 1, got 0"),
    ],
)
def test_what_does_not_fit_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        run(**changes)


def test_float64_is_float64_throughout():
    """A central difference agrees with the gradient far below what float32 anywhere in the network would allow."""
    lm = example("llada")
    data = shapes(b=1, k=1)
    weight = lm.module.model.layers[0].mlp.up_proj.weight

    def total():
        parts = (data["inputs"], data["inputs"][:, 0], data["target"], data["labels"], data["valid"], None)
        return lm.score(*parts, gather=dense_gather).logp.sum()

    [gradient] = torch.autograd.grad(total(), [weight])
    direction, step = gradient / gradient.norm(), 1e-5
    with torch.no_grad():
        weight.add_(step * direction)
        above = total()
        weight.sub_(2 * step * direction)
        below = total()
    assert abs(float((above - below) / (2 * step) / gradient.norm()) - 1) < 1e-8
