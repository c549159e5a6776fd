"""SPG: published numbers, the sandwich, and what goes wrong with one draw, with powers and with micro-batch means."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

import dare_objectives as do
from dare_objectives.testing import ToyWorld, objective_conformance, toy_batch

REWARDS = torch.tensor([1.0, 0.0, 0.5, 1.0, 0.0, 0.25], dtype=torch.float64)
PROMPT = 2


@pytest.mark.parametrize(
    "options",
    [
        {"draws": 3, "beta": 1.0, "mix": 1.0, "weighting": "length"},
        {"negatives": "none", "context": 0.0},
        {"min_t": 0.5, "max_t": 0.5, "advantage": "leave_one_out"},
    ],
)
def test_conformance_with_options(options):
    objective_conformance(do.spg(**options), reinforce=False)


@pytest.mark.parametrize("weighting", ["sequence", "length"])
def test_conformance_with_the_lower_bound_alone(weighting):
    objective_conformance(do.spg(mix=0.0, weighting=weighting))


def _golden_case(case, tensor, make_batch) -> tuple[do.Batch, do.Plan]:
    inputs = {name: tensor(value) for name, value in case["inputs"].items()}
    column = torch.arange(inputs["target"].shape[2])
    maskable = (column >= PROMPT) & (column < PROMPT + inputs["length"][:, None])
    batch = make_batch(maskable, group=inputs["group"])
    size = inputs["target"].sum(2).clamp(min=1).double()
    return batch, do.mask_plan(batch, inputs["target"], (inputs["length"][:, None] / size)[:, :, None])


@pytest.mark.wheel
@pytest.mark.golden("spg", "spg/mix")
def test_published_mixture(case, tensor, check, make_batch):
    _check_loss(case, tensor, check, make_batch, {})


@pytest.mark.golden("spg", "spg/eubo_beta")
def test_published_upper_bound(case, tensor, check, make_batch):
    _check_loss(case, tensor, check, make_batch, {})


@pytest.mark.golden("spg", "spg/elbo")
def test_published_lower_bound(case, tensor, check, make_batch):
    _check_loss(case, tensor, check, make_batch, {})


@pytest.mark.golden("spg", "spg/zero")
def test_published_positive_samples_alone(case, tensor, check, make_batch):
    _check_loss(case, tensor, check, make_batch, {"negatives": "none", "mix": 0.0})


def _check_loss(case, tensor, check, make_batch, options) -> None:
    inputs, hyper, expected = case["inputs"], case["hyper"], case["expected"]
    batch, plan = _golden_case(case, tensor, make_batch)
    options = {"mix": hyper["omega"], "beta": hyper["beta"], "weighting": "length", **options}
    objective = do.get("spg", options)
    coefficients = objective.prepare(batch, plan, tensor(inputs["rewards"]))
    check(coefficients.advantage, inputs["advantage"])
    logp = tensor(inputs["logp"]).requires_grad_()
    check(do.elbo_mean(logp, plan), expected["elbo_mean"])
    check(do.eubo_mean(logp, plan, hyper["beta"]), expected["eubo_mean"])
    loss, metrics = objective.loss(logp, plan, coefficients)
    check(loss, expected["loss"])
    check(torch.autograd.grad(loss, logp)[0], expected["grad"]["logp"])
    gap = (do.eubo_mean(logp, plan, hyper["beta"]) - do.elbo_mean(logp, plan)).detach()
    assert metrics["bound_gap"].value == pytest.approx(float(gap[coefficients.row_weight != 0].mean()))


@pytest.mark.wheel
@pytest.mark.golden("spg", "spg/eubo_underflow")
def test_small_probabilities_keep_their_tokens(case, tensor, check, one_answer):
    """Powers of probabilities underflow to 0, which the published code takes for "not masked"."""
    inputs, expected, beta = case["inputs"], case["expected"], case["hyper"]["beta"]
    target, length = tensor(inputs["target"]), tensor(inputs["length"])
    weight = (length[:, None] / target.sum(2).double())[:, :, None]
    plan = do.mask_plan(one_answer([0, 1, 2]), target, weight)
    logp = tensor(inputs["logp"]).requires_grad_()
    bound = do.eubo_mean(logp, plan, beta)
    check(do.eubo_token(logp, plan, beta), expected["token_eubo"])
    check(bound, expected["eubo_mean"])
    check(torch.autograd.grad(bound.sum(), logp)[0], expected["grad"]["logp"])
    published = _published_eubo(logp.detach(), plan, beta)
    assert abs(float(published) - bound.item()) > 100


def _published_eubo(logp: Tensor, plan: do.Plan, beta: float) -> Tensor:
    """Powers of probabilities; a mean over the tokens whose sum of powers is not 0."""
    power = (plan.weight * plan.target * (beta * logp).exp()).mean(1)
    return torch.where(power > 0, power.log() / beta, 0.0).sum(1) / (power > 0).sum(1)


def test_powers_agree_with_logarithms_where_nothing_underflows():
    batch, world = toy_batch(), ToyWorld.random(7, 5)
    plan = do.block_suffix(batch, draws=3)
    logp = do.evaluate(world.score, plan).logp.detach()
    torch.testing.assert_close(do.eubo_mean(logp, plan, 1.5), _published_eubo(logp, plan, 1.5), rtol=1e-12, atol=0)


def _gradient(objective: do.Objective, plan: do.Plan, batch: do.Batch, logp: Tensor) -> Tensor:
    leaf = logp.clone().requires_grad_()
    loss, _ = objective.loss(leaf, plan, objective.prepare(batch, plan, REWARDS))
    return torch.autograd.grad(loss, leaf)[0]


def _drawn(draws: int) -> tuple[do.Batch, do.Plan, Tensor]:
    batch, world = toy_batch(), ToyWorld.random(7, 5)
    plan = do.block_suffix(batch, draws=draws)
    return batch, plan, do.evaluate(world.score, plan).logp.detach()


@pytest.mark.wheel
def test_with_one_draw_the_mixture_changes_no_gradient_and_by_default_it_does():
    batch, plan, logp = _drawn(1)
    gradients = [_gradient(do.spg(mix=mix), plan, batch, logp) for mix in (0.0, 0.5, 1.0)]
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-12, atol=1e-14)
    assert do.spg().plan(batch).streams == 2
    assert do.spg_dare_compat().plan(batch).streams == 1
    batch, plan, logp = _drawn(2)
    found = [_gradient(do.spg(mix=mix), plan, batch, logp) for mix in (0.0, 0.5)]
    assert float((found[0] - found[1]).abs().max()) > 1e-3


@pytest.mark.wheel
def test_the_sign_of_the_advantage_selects_the_bound():
    batch, plan, logp = _drawn(3)
    advantage = do.center(REWARDS, batch.group)
    lower, upper = do.elbo_mean(logp, plan), do.eubo_mean(logp, plan, 1.5)
    score = torch.where(advantage > 0, lower, 0.3 * upper + 0.7 * lower)
    objective = do.spg(draws=3, mix=0.3)
    loss, metrics = objective.loss(logp, plan, objective.prepare(batch, plan, REWARDS))
    assert loss.item() == pytest.approx(-float((advantage * score).mean()), rel=1e-12)
    counted = advantage != 0
    assert metrics["lower"].value == pytest.approx(float(lower[counted].mean()))
    only_lower = do.spg(draws=3, mix=0.0)
    loss, _ = only_lower.loss(logp, plan, only_lower.prepare(batch, plan, REWARDS))
    assert loss.item() == pytest.approx(-float((advantage * lower).mean()), rel=1e-12)


def test_advantage_zero_contributes_nothing_and_needs_no_forward():
    batch, plan, logp = _drawn(2)
    rewards = torch.tensor([0.0, 0.5, 1.0, 1.0, 1.0, 1.0])
    objective = do.spg()
    coefficients = objective.prepare(batch, plan, rewards)
    assert coefficients.row_weight.tolist() == [1, 0, 1, 0, 0, 0]
    decoys = logp.clone()
    decoys[[1, 3, 4, 5]] = -50.0
    loss = [objective.loss(x, plan, coefficients)[0].item() for x in (logp, decoys)]
    assert loss[0] == loss[1]
    positive = do.spg(negatives="none").prepare(batch, plan, rewards)
    assert positive.row_weight.tolist() == [0, 0, 1, 0, 0, 0]
    assert positive.normaliser == 6


def test_the_gradient_of_the_upper_bound_is_a_softmax_over_the_draws():
    _, plan, logp = _drawn(3)
    leaf = logp.clone().requires_grad_()
    (found,) = torch.autograd.grad(do.eubo_mean(leaf, plan, 2.0).sum(), leaf)
    share = torch.where(plan.target, plan.weight.double() * (2 * logp).exp(), 0.0)
    share = share / share.sum(1, keepdim=True).clamp(min=1e-300)
    torch.testing.assert_close(found, share / plan.scored.sum(1)[:, None, None], rtol=1e-10, atol=1e-12)


def _mean_of_the_micro_batch(scored, plan, coefficients, *, old=None, ref=None):
    """As published: weighted by length within the micro-batch."""
    here = replace(coefficients, normaliser=coefficients.row_weight.sum().clamp(min=1))
    return do.spg(weighting="length").loss(scored, plan, here)


def test_length_weights_of_a_micro_batch_are_found_by_the_conformance_suite():
    with pytest.raises(AssertionError, match="micro-batches of"):
        objective_conformance(replace(do.spg(weighting="length"), loss=_mean_of_the_micro_batch), reinforce=False)


def test_weightings_and_the_preset():
    batch, plan, _ = _drawn(1)
    sequence, length = (do.spg(weighting=name).prepare(batch, plan, REWARDS) for name in ("sequence", "length"))
    moved = sequence.advantage != 0
    assert torch.equal(sequence.row_weight, moved.double())
    assert torch.equal(length.row_weight, (moved * batch.lengths).double())
    assert (sequence.normaliser, length.normaliser) == (6, batch.lengths.sum())
    preset = do.spg_dare_compat().prepare(batch, plan, REWARDS)
    assert torch.equal(preset.advantage, do.group_normalize(REWARDS, batch.group, singleton="raw"))
    assert torch.equal(preset.advantage.sign(), length.advantage.sign())
    assert preset.normaliser == length.normaliser


def test_replay_gives_the_gradient_of_all_graphs():
    batch, world, objective = toy_batch(), ToyWorld.random(7, 5), do.spg(draws=4)
    plan = objective.plan(batch)
    coefficients = objective.prepare(batch, plan, REWARDS)
    loss, _ = objective.loss(do.evaluate(world.score, plan), plan, coefficients)
    wanted = torch.autograd.grad(loss, world.parameters)
    found, _ = do.replay_backward(world.score, plan, lambda scored: objective.loss(scored, plan, coefficients))
    assert found.item() == pytest.approx(loss.item(), rel=1e-12)
    for leaf, gradient in zip(world.parameters, wanted, strict=True):
        torch.testing.assert_close(leaf.grad, gradient, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beta": 0.5}, "`beta`: expected a number in"),
        ({"mix": 1.5}, "`mix`: expected a number in"),
        ({"draws": 0}, "`draws`: expected a count"),
        ({"context": -0.1}, "`context`: expected a number in"),
        ({"min_t": 0.9, "max_t": 0.1}, "`min_t`: expected a number in"),
        ({"negatives": "zero"}, "unknown treatment of negatives 'zero'"),
        ({"weighting": "lengths"}, "did you mean 'length'"),
        ({"advantage": "centre"}, "did you mean 'center'"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        do.spg(**options)


def test_the_loss_refuses_a_mix_out_of_range():
    one = torch.ones(1)
    with pytest.raises(ValueError, match="`mix`: expected a number in"):
        do.spg_loss(one, one, one, one, mix=-1.0, normaliser=1)
