"""Divergences: what each estimator is unbiased for, in value and in gradient, and what the published code breaks."""

import pytest
import torch
from torch import Tensor

import dare_objectives as do
from dare_objectives.testing import ToyWorld

KINDS = {"k1": do.kl_k1, "k2": do.kl_k2, "k3": do.kl_k3, "abs": do.kl_abs}


@pytest.fixture(scope="module")
def reference(worlds, tensor) -> ToyWorld:
    """The closed-form reference model of the world of length 4."""
    model = worlds[0]["reference_model"]
    return ToyWorld(tensor(model["U"]), tensor(model["W"]))


@pytest.mark.wheel
@pytest.mark.golden("kl_categorical", "kl_categorical/")
def test_expectations_on_a_categorical(case, tensor, check, reference):
    """Sums over all tokens of one position of the toy world."""
    inputs, expected = case["inputs"], case["expected"]
    logp = tensor(inputs["logp"])
    ref = reference.logits(tensor(inputs["context"])[None])[0, inputs["position"]].log_softmax(-1)
    check((logp.exp() * do.kl_k1(logp, ref)).sum(), torch.tensor(expected["kl"], dtype=torch.float64))
    for name, kind in KINDS.items():
        wanted = torch.tensor(expected[f"expect_{name}"], dtype=torch.float64)
        check((logp.exp() * kind(logp, ref)).sum(), wanted)
    check((ref.exp() * do.kl_k1(ref, logp)).sum(), torch.tensor(expected["reverse_kl"], dtype=torch.float64))


def _two(seed: int) -> tuple[Tensor, Tensor]:
    """Logits of a policy over 6 tokens, and log-probs of a reference."""
    key = torch.arange(6) + 100 * seed
    logits, other = (4 * do.uniform(key, purpose, dtype=torch.float64) for purpose in ("token", "order"))
    return logits.requires_grad_(), other.log_softmax(0)


def _mean_gradient(kind, logits: Tensor, ref: Tensor) -> Tensor:
    """Expectation over the policy's own samples of the gradient of the estimator."""
    logp = logits.log_softmax(0)
    return torch.autograd.grad((logp.exp().detach() * kind(logp, ref)).sum(), logits)[0]


def _exact_gradient(loss, logits: Tensor) -> Tensor:
    return torch.autograd.grad(loss(logits.log_softmax(0)), logits)[0]


@pytest.mark.wheel
@pytest.mark.parametrize("seed", range(4))
def test_what_the_gradient_of_each_estimator_is_unbiased_for(seed):
    logits, ref = _two(seed)
    kl = _exact_gradient(lambda logp: (logp.exp() * (logp - ref)).sum(), logits)
    reverse = _exact_gradient(lambda logp: (ref.exp() * (ref - logp)).sum(), logits)
    exact = {
        do.kl_k1: torch.zeros_like(kl),  # no gradient at all on average: k1 belongs in the reward
        do.kl_k1_corrected: kl,
        do.kl_k2: kl,
        do.kl_k3: reverse,  # that of the divergence the other way round
    }
    for kind, wanted in exact.items():
        torch.testing.assert_close(_mean_gradient(kind, logits, ref), wanted, rtol=0, atol=1e-12)
    assert float((kl - reverse).abs().max()) > 0.01
    assert float((_mean_gradient(do.kl_abs, logits, ref) - kl).abs().max()) > 0.01


@pytest.mark.parametrize("seed", range(4))
def test_unbiased_values_and_the_biased_ones(seed):
    logits, ref = _two(seed)
    logp = logits.detach().log_softmax(0)
    exact = float((logp.exp() * (logp - ref)).sum())
    mean = {kind: float((logp.exp() * kind(logp, ref)).sum()) for kind in (*KINDS.values(), do.kl_k1_corrected)}
    for kind in (do.kl_k1, do.kl_k1_corrected, do.kl_k3):
        assert mean[kind] == pytest.approx(exact, rel=1e-12)
    assert abs(mean[do.kl_k2] - exact) > 1e-3
    assert mean[do.kl_abs] > exact


def test_gradient_of_k2_is_the_value_of_k1_and_both_vanish_at_the_reference():
    logp = torch.tensor([-3.0, -1.0, -0.2], dtype=torch.float64, requires_grad=True)
    ref = torch.tensor([-1.0, -1.0, -2.0], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(do.kl_k2(logp, ref).sum(), logp)
    torch.testing.assert_close(gradient, do.kl_k1(logp, ref).detach(), rtol=0, atol=0)
    for kind in KINDS.values():
        assert kind(ref, ref).tolist() == [0.0, 0.0, 0.0]
    for kind in (do.kl_k2, do.kl_k3):
        here = ref.clone().requires_grad_()
        assert not bool(torch.autograd.grad(kind(here, ref).sum(), here)[0].any())


def _linearised(logp: Tensor, ref: Tensor, advantage: Tensor) -> Tensor:
    """As published: log(1 + d) stands for d where A > 0, then k3 clamped to [-10, 10]."""
    d = logp - ref
    d = torch.where(advantage > 0, torch.log1p(d), d)
    return ((-d).exp() + d - 1).clamp(-10, 10)


@pytest.mark.wheel
def test_the_published_divergence_changes_with_the_sign_of_the_advantage():
    ref = torch.tensor([-1.0, -1.0, -1.0], dtype=torch.float64)
    logp = ref + torch.tensor([0.5, -0.5, -1.5], dtype=torch.float64)
    plus, minus = (_linearised(logp, ref, torch.tensor(sign)) for sign in (1.0, -1.0))
    torch.testing.assert_close(do.kl_k3(logp, ref), minus, rtol=1e-12, atol=0)
    assert float((plus - minus)[:2].abs().min()) > 0.02
    assert bool(plus[2].isnan())
    policy, other = _two(0)
    logp = policy.detach().log_softmax(0)
    mean = (logp.exp() * _linearised(logp, other, torch.tensor(1.0))).sum()
    assert not abs(mean.item() - float((logp.exp() * do.kl_k3(logp, other)).sum())) < 0.1


@pytest.mark.golden("kl", "kl/k3_large")
def test_an_outlier_keeps_its_gradient_where_the_published_clamp_has_none(case, tensor, check):
    inputs, expected = case["inputs"], case["expected"]
    logp, ref = tensor(inputs["logp"]).requires_grad_(), tensor(inputs["ref"])
    value = do.kl_k3(logp, ref)
    check(value, expected["token_kl"])
    check(torch.autograd.grad(value.sum(), logp)[0], expected["token_grad"])
    clamped = tensor(expected["token_kl_clamped_at_10"])
    beyond = clamped == 10
    assert bool((value[beyond] > 10).all())
    torch.testing.assert_close(value[~beyond].detach(), clamped[~beyond], rtol=1e-12, atol=0)
    leaf = logp.detach().clone().requires_grad_()
    published = _linearised(leaf, ref, torch.tensor(-1.0))
    assert not bool(torch.autograd.grad(published.sum(), leaf)[0][beyond].any())
