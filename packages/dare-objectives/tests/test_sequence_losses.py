"""Sequence losses: clips, bounds and the gradient on policy, as identities in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dare_objectives as do

ONE = torch.ones(1, dtype=torch.float64)


def _run(loss_fn, log_ratio: float, advantage: float, *, length: float = 1.0, **options):
    """Loss, gradient by the score and metrics of one sequence whose score moved by log_ratio x length."""
    shape = (1, 1) if loss_fn is do.bgpo_loss else (1,)
    score = torch.full(shape, log_ratio * length - 1, dtype=torch.float64, requires_grad=True)
    old = torch.full(shape, -1.0, dtype=torch.float64)
    loss, metrics = loss_fn(score, old, advantage * ONE, ONE, length=length * ONE, normaliser=1, **options)
    return loss.item(), torch.autograd.grad(loss, score)[0].item(), metrics


@pytest.mark.wheel
@given(log_ratio=st.floats(-2, 2), advantage=st.floats(-2, 2), dual=st.sampled_from([None, 1.5, 3.0]))
def test_ppo_seq_is_ppo_token_on_the_sequence_ratio(log_ratio, advantage, dual):
    """Clipped in the log domain or not: the same number wherever exp is finite."""
    ratio = math.exp(log_ratio)
    if min(abs(ratio - edge) for edge in (0.7, 1.4, dual or 9.0)) < 1e-3 or abs(advantage) < 1e-3:
        return
    options = {"clip_low": 0.3, "clip_high": 0.4, "dual_clip": dual}
    loss, gradient, metrics = _run(do.ppo_seq, log_ratio, advantage, **options)
    score = torch.full((1,), log_ratio, dtype=torch.float64, requires_grad=True)
    wanted, other = do.ppo_token(score, torch.zeros(1).double(), advantage * ONE, ONE, normaliser=1, **options)
    assert loss == pytest.approx(wanted.item(), rel=1e-12, abs=1e-12)
    assert gradient == pytest.approx(torch.autograd.grad(wanted, score)[0].item(), rel=1e-12, abs=1e-12)
    for name, metric in other.items():
        assert metrics[name].value == pytest.approx(metric.value, rel=1e-9)
    low, high = (metrics[f"clip_{side}_fraction"].value for side in ("low", "high"))
    assert low + high == metrics["clip_fraction"].value
    assert (low, high) == (advantage < 0 and ratio < 0.7, advantage > 0 and ratio > 1.4)


@pytest.mark.wheel
@pytest.mark.parametrize("loss_fn", [do.ppo_seq, do.bgpo_loss])
@given(delta=st.floats(-0.9, 2), advantage=st.floats(-2, 2))
def test_gradient_vanishes_exactly_where_a_clip_binds(loss_fn, delta, advantage):
    linear = loss_fn is do.bgpo_loss and advantage >= 0
    ratio, slope = (1 + delta, 1.0) if linear else (math.exp(delta), math.exp(delta))
    if min(abs(ratio - edge) for edge in (0.7, 1.4, 2.0)) < 1e-3 or abs(advantage) < 1e-3:
        return
    bound = (advantage > 0 and ratio > 1.4) or (advantage < 0 and (ratio < 0.7 or ratio > 2))
    loss, gradient, _ = _run(loss_fn, delta, advantage, clip_low=0.3, clip_high=0.4, dual_clip=2.0)
    kept = min(ratio, 1.4) if advantage > 0 else min(max(ratio, 0.7), 2)
    assert loss == pytest.approx(-advantage * kept, rel=1e-9)
    assert gradient == pytest.approx(0.0 if bound else -advantage * slope, rel=1e-9)


@pytest.mark.parametrize("loss_fn", [do.ppo_seq, do.bgpo_loss])
def test_no_clip_range_stops_every_improving_move(loss_fn):
    options = {"clip_low": 0.0, "clip_high": 0.0}
    assert _run(loss_fn, 0.0, 1.0, **options)[1] == -1.0
    assert _run(loss_fn, 1e-6, 1.0, **options)[1] == 0.0
    assert _run(loss_fn, -1e-6, -1.0, **options)[1] == 0.0
    assert _run(loss_fn, -1e-6, 1.0, **options)[1] != 0.0


def _policy_scores():
    """Scores of five sequences with four draws each, advantages that add up to 0, lengths."""
    key = torch.arange(5)
    draws = -20 * do.uniform(key[:, None], "eval", torch.arange(4), dtype=torch.float64)
    advantage = do.uniform(key, "token", dtype=torch.float64)
    return draws.requires_grad_(), advantage - advantage.mean(), torch.tensor([3.0, 1.0, 7.0, 4.0, 2.0]).double()


@pytest.mark.wheel
@pytest.mark.parametrize("dual", [None, 3.0])
def test_on_policy_all_gradients_are_that_of_reinforce(dual):
    """-A grad(score) / length, with a loss of minus the mean advantage and a ratio of exactly 1."""
    draws, advantage, length = _policy_scores()
    mean, ones = draws.mean(1), torch.ones(5)
    options = {"dual_clip": dual, "clip_low": 0.1, "clip_high": 0.2}
    (wanted,) = torch.autograd.grad(-(advantage * mean / length).sum() / 5, draws, retain_graph=True)
    losses = [
        do.ppo_seq(mean, mean.detach(), advantage, ones, length=length, normaliser=5, **options),
        do.bgpo_loss(draws, draws.detach(), advantage, ones, length=length, normaliser=20, **options),
        do.ppo_token(mean / length, (mean / length).detach(), advantage, ones, normaliser=5, **options),
    ]
    for loss, metrics in losses:
        assert metrics["ratio"].value == metrics["ratio_max"].value == 1
        assert loss.item() == pytest.approx(-float(advantage.mean()), abs=1e-15)
        (gradient,) = torch.autograd.grad(loss, draws, retain_graph=True)
        torch.testing.assert_close(gradient, wanted, rtol=1e-12, atol=1e-14)


@pytest.mark.wheel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ratio_is_bitwise_one_for_equal_scores(dtype):
    score = -(do.uniform(torch.arange(500), "eval", dtype=dtype) * 300)
    advantage = do.uniform(torch.arange(500), "token", dtype=dtype) - 0.5
    length = torch.arange(1, 501)
    for metrics in (
        do.ppo_seq(score, score.clone(), advantage, torch.ones(500), length=length, normaliser=500)[1],
        do.bgpo_loss(score[:, None], score[:, None].clone(), advantage, advantage, length=length, normaliser=500)[1],
    ):
        assert metrics["ratio"].value == metrics["ratio_max"].value == 1
        assert metrics["clip_fraction"].value == 0


@pytest.mark.wheel
@given(
    delta=st.lists(st.floats(-3, 3), min_size=1, max_size=6),
    advantage=st.floats(0.1, 2),
    sign=st.sampled_from([1.0, -1.0]),
)
def test_bgpo_is_a_lower_bound_of_the_exact_objective(delta, advantage, sign):
    """exp(x) >= 1 + x for A >= 0, mean exp >= exp of the mean for A < 0."""
    elbo, A = torch.tensor([delta], dtype=torch.float64), sign * advantage
    wide = {"clip_low": 1.0, "clip_high": 1e9}
    loss, _ = do.bgpo_loss(elbo, 0 * elbo, A * ONE, ONE, length=ONE, normaliser=len(delta), **wide)
    assert -loss.item() <= A * math.exp(sum(delta) / len(delta)) + 1e-12
    at_zero, _ = do.bgpo_loss(0 * elbo, 0 * elbo, A * ONE, ONE, length=ONE, normaliser=len(delta), **wide)
    assert -at_zero.item() == pytest.approx(A, rel=1e-12)


@pytest.mark.wheel
@pytest.mark.parametrize("delta", [-1.0, -2.5, -100.0])
def test_bgpo_is_finite_where_the_logarithm_of_its_ratio_is_not(delta):
    """As published the ratio is exp(log(1 + d)): nan for d < -1, and a gradient of nan at -1."""
    x = torch.tensor(delta, dtype=torch.float64, requires_grad=True)
    published = torch.log(1 + x).exp()
    (slope,) = torch.autograd.grad(published, x)
    assert not (math.isfinite(published.item()) and math.isfinite(slope.item()))
    for length in (1.0, 4.0):
        loss, gradient, metrics = _run(do.bgpo_loss, delta, 0.5, length=length)
        assert loss == pytest.approx(-0.5 * (1 + delta), rel=1e-12)
        assert gradient == pytest.approx(-0.5 / length, rel=1e-12)
        assert all(math.isfinite(metric.value) for metric in metrics.values())


@pytest.mark.wheel
@pytest.mark.parametrize("log_ratio", [800.0, -800.0])
def test_clipping_before_exp_leaves_no_nan(log_ratio):
    """exp first: infinity times 0 in the gradient of a sequence that is clipped, or inf in the loss."""
    x = torch.tensor(log_ratio, dtype=torch.float64, requires_grad=True)
    naive = torch.maximum(-x.exp(), -x.exp().clamp(0.8, 1.2))
    (slope,) = torch.autograd.grad(naive, x)
    assert log_ratio < 0 or not math.isfinite(slope.item())
    for advantage, dual in ((1.0, None), (-1.0, None), (-1.0, 3.0)):
        loss, gradient, metrics = _run(do.ppo_seq, log_ratio, advantage, dual_clip=dual)
        assert math.isfinite(loss) and math.isfinite(gradient)
        assert all(math.isfinite(metric.value) for metric in metrics.values())
    assert _run(do.ppo_seq, 800.0, 1.0)[:2] == (pytest.approx(-1.2), 0.0)
    assert _run(do.ppo_seq, -800.0, -1.0)[:2] == (pytest.approx(0.8), 0.0)


def test_rows_of_weight_zero_may_hold_anything():
    nan = torch.full((2,), float("nan"), dtype=torch.float64)
    score = torch.stack([nan[0], ONE[0]]).requires_grad_()
    weight, length = torch.tensor([0.0, 1.0]), torch.tensor([0, 3])
    for draws, loss_fn in ((score, do.ppo_seq), (score[:, None], do.bgpo_loss)):
        loss, metrics = loss_fn(draws, draws.detach(), torch.ones(2), weight, length=length, normaliser=1)
        assert loss.item() == -1
        assert torch.autograd.grad(loss, score, retain_graph=True)[0].tolist() == [0, pytest.approx(-1 / 3)]
        assert all(math.isfinite(metric.value) for metric in metrics.values())


def test_without_a_length_the_raw_difference_counts():
    score = torch.tensor([-10.0], dtype=torch.float64)
    raw = do.ppo_seq(score, score - 0.1, -ONE, ONE, normaliser=1)[0]
    per_token = do.ppo_seq(score, score - 0.1, -ONE, ONE, length=torch.tensor([10]), normaliser=1)[0]
    assert raw.item() == pytest.approx(math.exp(0.1))
    assert per_token.item() == pytest.approx(math.exp(0.01))


@pytest.mark.parametrize("loss_fn", [do.ppo_seq, do.bgpo_loss])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dual_clip": 1.0}, "`dual_clip`: expected a number above 1"),
        ({"clip_low": 1.5}, "`clip_low`: expected a number in"),
        ({"clip_high": -0.1}, "`clip_high`: expected a number in"),
    ],
)
def test_clips_out_of_range_are_refused(loss_fn, options, message):
    with pytest.raises(ValueError, match=message):
        _run(loss_fn, 0.0, -1.0, **options)
    with pytest.raises(ValueError, match=message):
        do.get("bgpo" if loss_fn is do.bgpo_loss else "ebpo", options)


def test_nothing_scored_is_zero():
    empty = torch.zeros(0, dtype=torch.float64, requires_grad=True)
    loss, metrics = do.ppo_seq(empty, empty.detach(), empty.detach(), empty.detach(), normaliser=1)
    assert loss.item() == 0 and metrics["ratio_max"].value == 1
    none = torch.zeros(0, 3)
    assert do.bgpo_loss(none, none, none[:, 0], none[:, 0], length=none[:, 0], normaliser=1)[0].item() == 0
