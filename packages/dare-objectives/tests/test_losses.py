"""Clipping and divergences: identities in float64."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import dare_objectives as do


def _ppo(log_ratio: float, advantage: float, **options) -> tuple[float, float, dict]:
    logp = torch.tensor([log_ratio - 1], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([-1.0], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    loss, metrics = do.ppo_token(logp, old, advantage * one, one, normaliser=1, **options)
    return loss.item(), torch.autograd.grad(loss, logp)[0].item(), metrics


@pytest.mark.wheel
@given(log_ratio=st.floats(-2, 2), advantage=st.floats(-2, 2))
def test_gradient_vanishes_exactly_where_the_clip_binds(log_ratio, advantage):
    ratio = torch.tensor(log_ratio - 1 + 1, dtype=torch.float64).exp().item()
    if min(abs(ratio - 0.7), abs(ratio - 1.4)) < 1e-3 or abs(advantage) < 1e-3:
        return
    loss, gradient, _ = _ppo(log_ratio, advantage, clip_low=0.3, clip_high=0.4)
    bound = (advantage > 0 and ratio > 1.4) or (advantage < 0 and ratio < 0.7)
    assert loss == pytest.approx(-min(advantage * ratio, advantage * min(max(ratio, 0.7), 1.4)), rel=1e-9)
    assert gradient == pytest.approx(0.0 if bound else -advantage * ratio, rel=1e-9)


def test_dual_clip_bounds_the_loss_of_bad_samples():
    loss, gradient, metrics = _ppo(3.0, -0.5, dual_clip=2.0)
    assert (loss, gradient) == (pytest.approx(1.0), 0.0)
    assert metrics["dual_clip_fraction"].value == 1
    assert _ppo(3.0, 0.5, dual_clip=2.0)[:2] == _ppo(3.0, 0.5)[:2]
    assert _ppo(0.5, -0.5, dual_clip=2.0)[:2] == _ppo(0.5, -0.5)[:2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dual_clip": 1.0}, "`dual_clip`: expected a number above 1"),
        ({"dual_clip": 0.0}, "`dual_clip`: expected a number above 1"),
        ({"dual_clip": float("nan")}, "`dual_clip`: expected a number above 1"),
        ({"clip_low": 1.5}, "`clip_low`: expected a number in"),
        ({"clip_high": -0.1}, "`clip_high`: expected a number in"),
    ],
)
def test_clips_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        _ppo(0.0, -1.0, **options)


def test_no_clip_range_stops_every_improving_move():
    options = {"clip_low": 0.0, "clip_high": 0.0}
    assert _ppo(0.0, 1.0, **options)[1] == -1.0
    assert _ppo(1e-6, 1.0, **options)[1] == 0.0
    assert _ppo(-1e-6, -1.0, **options)[1] == 0.0
    assert _ppo(-1e-6, 1.0, **options)[1] != 0.0


@pytest.mark.wheel
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ratio_is_bitwise_one_for_equal_scores(dtype):
    logp = -(do.uniform(torch.arange(500), "eval", dtype=dtype) * 30)
    advantage = do.uniform(torch.arange(500), "token", dtype=dtype) - 0.5
    loss, metrics = do.ppo_token(logp, logp.clone(), advantage, torch.ones(500), normaliser=500)
    assert metrics["ratio"].value == metrics["ratio_max"].value == 1
    assert metrics["log_ratio_max"].value == metrics["approx_kl"].value == metrics["clip_fraction"].value == 0
    assert loss.item() == pytest.approx(-float(advantage.mean()), abs=1e-7)


def test_extreme_ratios_and_decoys_give_no_nan():
    logp = torch.tensor([-1.0, -1.0, -500.0, float("nan")], requires_grad=True)
    old = torch.tensor([-500.0, -500.0, -1.0, -1.0])
    loss, metrics = do.ppo_token(
        logp, old, torch.tensor([1.0, -1.0, 1.0, 1.0]), torch.tensor([1, 1, 1, 0]), dual_clip=3.0, normaliser=3
    )
    (gradient,) = torch.autograd.grad(loss, logp)
    assert bool(gradient.isfinite().all())
    assert bool(loss.isfinite())
    assert all(abs(metric.value) < float("inf") for metric in metrics.values())


@pytest.mark.parametrize("log_ratio", [39.0, 40.0, 41.0, 1000.0])
def test_a_bad_sample_without_dual_clip_keeps_its_gradient(log_ratio):
    slope = 0.5 * math.exp(min(log_ratio, 40))
    loss, gradient, metrics = _ppo(log_ratio, -0.5)
    assert gradient == pytest.approx(slope, rel=1e-12)
    assert loss == pytest.approx(slope * (1 + max(log_ratio - 40, 0)), rel=1e-12)
    assert metrics["log_ratio_max"].value == log_ratio
    assert _ppo(log_ratio, 0.5)[1] == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_k3_is_itself_to_40_and_finite_and_restoring_beyond(dtype):
    near = torch.linspace(-40, 40, 321, dtype=dtype)
    assert torch.equal(do.kl_k3(near, torch.zeros_like(near)), (-near).expm1() + near)
    far = torch.tensor([-40.0, -41.0, -100.0, -1e4], dtype=dtype, requires_grad=True)
    value = do.kl_k3(far, torch.zeros_like(far))
    (gradient,) = torch.autograd.grad(value.sum(), far)
    assert bool(value.isfinite().all())
    assert bool((value.diff() > 0).all())
    assert torch.allclose(gradient, torch.full_like(far, 1 - math.exp(40)), rtol=1e-6)


def test_nothing_scored_is_zero():
    empty = torch.zeros(0, 3, requires_grad=True)
    loss, metrics = do.ppo_token(empty, empty.detach(), torch.zeros(0, 1), torch.zeros(0, 3), normaliser=1)
    assert loss.item() == 0
    assert metrics["ratio_max"].value == 1
    assert do.weighted_nll(torch.tensor([float("nan")]), torch.zeros(1), normaliser=1).item() == 0


def _two_categoricals() -> tuple[torch.Tensor, torch.Tensor]:
    key = torch.arange(6)
    logits, other = (4 * do.uniform(key, purpose, dtype=torch.float64) for purpose in ("token", "order"))
    return logits.requires_grad_(), other.log_softmax(0)


@pytest.mark.wheel
@pytest.mark.parametrize("kind", [do.kl_k1, do.kl_k1_corrected, do.kl_k3])
def test_k1_and_k3_are_unbiased(kind):
    logits, ref = _two_categoricals()
    logp = logits.detach().log_softmax(0)
    exact = (logp.exp() * (logp - ref)).sum()
    assert (logp.exp() * kind(logp, ref)).sum().item() == pytest.approx(exact.item(), rel=1e-12)


@pytest.mark.parametrize("kind", [do.kl_k2, do.kl_k1_corrected])
def test_k2_and_corrected_k1_have_the_gradient_of_the_divergence(kind):
    logits, ref = _two_categoricals()
    logp = logits.log_softmax(0)
    (exact,) = torch.autograd.grad((logp.exp() * (logp - ref)).sum(), logits, retain_graph=True)
    (found,) = torch.autograd.grad((logp.exp().detach() * kind(logp, ref)).sum(), logits)
    assert torch.allclose(found, exact, rtol=0, atol=1e-12)


@given(d=st.floats(-8, 8))
def test_divergences_are_nonnegative_and_vanish_at_the_reference(d):
    ref = torch.tensor(-2.0, dtype=torch.float64)
    logp = (ref + d).requires_grad_()
    for kind in (do.kl_k2, do.kl_k3, do.kl_abs):
        assert kind(logp, ref).item() >= 0
        assert kind(ref, ref).item() == 0
    for kind in (do.kl_k2, do.kl_k3):
        here = ref.clone().requires_grad_()
        assert torch.autograd.grad(kind(here, ref), here)[0].item() == 0
    (k2,) = torch.autograd.grad(do.kl_k2(logp, ref), logp)
    assert k2.item() == pytest.approx(do.kl_k1(logp, ref).item())


def test_divergence_does_not_depend_on_the_advantage():
    """The published code replaces d by log(1 + d) where A > 0, which is nan for d <= -1."""
    from dare_objectives.testing import toy_batch

    batch = toy_batch(rows=3)
    with_kl, without = (do.get("diffu_grpo", {"beta": beta}) for beta in (0.3, 0.0))
    plan = with_kl.plan(batch)
    ref = torch.where(plan.target, -0.5, 0.0).double()
    logp = ref - 1.5
    published = torch.log1p(do.kl_k1(logp, ref))
    assert bool(published[plan.target].isnan().all())
    terms = []
    for sign in (1.0, -1.0):
        coeff = with_kl.prepare(batch, plan, sign * torch.tensor([1.0, 0.0, 0.3]))
        terms.append(with_kl.loss(logp, plan, coeff, ref=ref)[0] - without.loss(logp, plan, coeff)[0])
    wanted = 0.3 * do.kl_k3(torch.tensor(-1.5), torch.tensor(0.0)).item()
    assert [term.item() for term in terms] == [pytest.approx(wanted, rel=1e-6)] * 2
