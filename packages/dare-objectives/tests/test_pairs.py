"""Preferences: pair losses, shared masks, and rows that are coupled in `prepare` alone."""

import math
from dataclasses import replace

import pytest
import torch
from torch.nn.functional import logsigmoid

import dare_objectives as do
from dare_objectives.losses.dpo import dpo_terms
from dare_objectives.objectives.vrpo import pair_loss
from dare_objectives.testing import ToyWorld, all_masks, objective_conformance, toy_batch

REWARDS = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
PAIRS = torch.tensor([0, 0, 1, 1, 2, 2])


def _pairs():
    return replace(toy_batch(), group=PAIRS)


def _other(world, size):
    """The same world, a little off."""
    shift = [size * torch.sin(torch.arange(part.numel())).reshape(part.shape) for part in world.parameters]
    return ToyWorld(*(part.detach() + by for part, by in zip(world.parameters, shift, strict=True)))


def _prepared(objective, batch, world, ref_world, rewards=REWARDS):
    plan = objective.plan(batch)
    logp, ref = (do.evaluate(w.score, plan).logp.detach() for w in (world, ref_world))
    return plan, logp, objective.prepare(replace(batch, ref=ref), plan, rewards, logp)


@pytest.mark.wheel
@pytest.mark.parametrize(
    "options",
    [
        {"counts": "block", "draws": 1, "beta": 0.1},
        {"per_token": True, "beta": 2.0, "label_smoothing": 0.2},
        {"draws": 4, "label_smoothing": 0.5},
    ],
)
def test_conformance_with_options(options):
    objective_conformance(do.vrpo(**options))
    objective_conformance(do.vrpo(**options), _pairs())


@pytest.mark.wheel
@pytest.mark.parametrize(("name", "loss_fn"), [("vrpo", do.dpo), ("vrpo_ipo", do.ipo), ("vrpo_hinge", do.hinge)])
@pytest.mark.parametrize("per_token", [True, False])
def test_rows_add_up_to_the_loss_of_pairs(name, loss_fn, per_token):
    """Rows apart, through coefficients: loss and gradient of the pair loss with both rows in one graph."""
    world, batch = ToyWorld.random(7, 5), _pairs()
    objective = do.get(name, {"beta": 0.7, "draws": 3, "per_token": per_token})
    plan, _, coefficients = _prepared(objective, batch, world, _other(world, 0.5))
    ref_logp = do.evaluate(_other(world, 0.5).score, plan).logp.detach()
    length = batch.lengths if per_token else 1
    new, ref = (do.elbo_seq(x, plan) / length for x in (do.evaluate(world.score, plan).logp, ref_logp))
    winner, loser = torch.tensor([0, 3, 4]), torch.tensor([1, 2, 5])
    wanted, metrics = loss_fn(new[winner], new[loser], ref[winner], ref[loser], beta=0.7, normaliser=3)
    gradient = torch.autograd.grad(wanted, world.parameters)
    parts = [
        objective.loss(do.evaluate(world.score, plan[[row]]), plan[[row]], coefficients[[row]])[0] for row in range(6)
    ]
    loss = torch.stack(parts).sum()
    torch.testing.assert_close(loss, wanted, rtol=1e-12, atol=1e-12)
    for one, other in zip(torch.autograd.grad(loss, world.parameters), gradient, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    for metric, value in metrics.items():  # of the whole batch, where the published log shows the last micro-batch
        assert coefficients.metrics[metric].value == pytest.approx(value.value, rel=1e-9)


def test_a_ranked_group_gives_all_pairs_of_unequal_rewards():
    world, batch, objective = ToyWorld.random(7, 5), toy_batch(), do.vrpo(draws=2)
    rewards = torch.tensor([2.0, 1.0, 1.0, 0.5, 0.5, 0.5])
    plan, logp, coefficients = _prepared(objective, batch, world, _other(world, 0.3), rewards)
    gain = do.elbo_seq(logp, plan) - do.elbo_seq(do.evaluate(_other(world, 0.3).score, plan).logp.detach(), plan)
    wanted = dpo_terms(gain[0] - gain[1:3], beta=0.2).mean()
    torch.testing.assert_close(objective.loss(logp, plan, coefficients)[0], wanted, rtol=1e-12, atol=1e-12)
    assert coefficients.row_weight.tolist() == [1, 1, 1, 0, 0, 0]
    assert coefficients.metrics["unpaired"].value == 0.5
    assert coefficients.normaliser == 2 * 2


@pytest.mark.wheel
def test_at_the_reference_the_loss_is_log_two_and_the_gradient_half_of_beta():
    world, batch, objective = ToyWorld.random(7, 5), _pairs(), do.vrpo(draws=3)
    plan, logp, coefficients = _prepared(objective, batch, world, world)
    logp.requires_grad_()
    loss, _ = objective.loss(logp, plan, coefficients)
    assert loss.item() == pytest.approx(math.log(2), rel=1e-15)
    assert coefficients.metrics["margin"].value == 0
    sign = torch.where(REWARDS == 1, 1.0, -1.0)
    surrogate = -(0.2 / 2) * (sign * do.elbo_seq(logp, plan)).sum() / 3
    found, wanted = (torch.autograd.grad(x, logp)[0] for x in (loss, surrogate))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-15)


def _bounds(world, answer):
    """The bound of each nonempty mask and its probability, one count on 1..L."""
    length, masks = len(answer), all_masks(len(answer))
    size = masks.sum(1)
    choose = torch.tensor([math.comb(length, k) for k in range(length + 1)], dtype=torch.float64)[size]
    value = world.masked_logp(answer).detach().sum(1) * length / size.clamp(min=1)
    return value, torch.where(size > 0, 1 / (length * choose), 0.0)


@pytest.mark.wheel
def test_shared_masks_have_no_noise_at_the_reference_and_less_beside_it():
    world, answer = ToyWorld.random(5, 4), torch.tensor([0, 3, 1, 2, 2])

    def variance(x, probability):
        return float((probability * (x - (probability * x).sum()) ** 2).sum())

    bound, probability = _bounds(world, answer)
    assert variance(bound, probability) > 1
    assert bool((bound - bound == 0).all())  # shared: the score of each mask is 0, not only in the mean
    for size in (0.01, 0.1, 0.3):
        ref, _ = _bounds(_other(world, size), answer)
        shared = variance(bound - ref, probability)
        assert 0 < shared < variance(bound, probability) + variance(ref, probability)


def test_independent_masks_are_noisy_even_at_the_reference():
    world, batch, objective = ToyWorld.random(7, 5), _pairs(), do.vrpo(draws=2)
    plan, logp, _ = _prepared(objective, batch, world, world)
    other = objective.plan(replace(batch, keys=batch.keys + 1))
    independent = do.elbo_seq(do.evaluate(world.score, other).logp.detach(), other)
    assert float((do.elbo_seq(logp, plan) - independent).abs().max()) > 0.1


@pytest.mark.wheel
def test_dividing_by_the_padded_length_makes_the_sigmoid_linear():
    """As published with L = 512: sigma stays at one half, so hopeless and settled pairs pull alike."""
    score = torch.tensor([-40.0, 0.0, 40.0], dtype=torch.float64, requires_grad=True)
    (right,) = torch.autograd.grad(dpo_terms(score, beta=0.2).sum(), score)
    (wrong,) = torch.autograd.grad(dpo_terms(score / 512, beta=0.2).sum() * 512, score)
    assert float(wrong.max() / wrong.min()) > 0.98
    assert float(right[0] / right[2]) > 1000


def _padded_length(scored, plan, coefficients, *, old=None, ref=None):
    width = plan.inputs.shape[2]
    return pair_loss(scored, plan, replace(coefficients, advantage=coefficients.advantage / width))


def test_the_padded_length_is_found_by_the_conformance_suite():
    broken = replace(do.vrpo(), loss=_padded_length)
    with pytest.raises(AssertionError, match="padding"):
        objective_conformance(broken, reinforce=False)


@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_pair_terms(scale):
    score = scale * torch.linspace(-3, 3, 7, dtype=torch.float64)
    zero = torch.zeros_like(score)
    for smoothing in (0.0, 0.1, 0.5):
        loss, _ = do.dpo(score, zero, zero, zero, beta=0.5, label_smoothing=smoothing, normaliser=1)
        wanted = -(1 - smoothing) * logsigmoid(0.5 * score) - smoothing * logsigmoid(-0.5 * score)
        assert loss.item() == pytest.approx(wanted.sum().item(), rel=1e-12)
        assert math.isfinite(loss.item())
    assert do.ipo(score, zero, zero, zero, beta=0.5, normaliser=1)[0].item() == pytest.approx(
        ((score - 1) ** 2).sum().item(), rel=1e-12
    )
    hinge, metrics = do.hinge(zero, -score, zero, zero, beta=0.5, normaliser=1)
    assert hinge.item() == pytest.approx((1 - 0.5 * score).clamp(min=0).sum().item(), rel=1e-12)
    assert metrics["accuracy"].value == pytest.approx(3 / 7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: do.vrpo(beta=0.0), "`beta`: expected a number above 0, got 0.0"),
        (lambda: do.vrpo(label_smoothing=0.7), "`label_smoothing`: expected a number in"),
        (lambda: do.vrpo(draws=0), "`draws`: expected a count of at least 1"),
        (lambda: do.vrpo(counts="blocks"), "did you mean 'block'"),
    ],
)
def test_options_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_couples_a_pair_must_be_given():
    batch, objective, world = _pairs(), do.vrpo(), ToyWorld.random(7, 5)
    plan, logp, _ = _prepared(objective, batch, world, world)
    with pytest.raises(ValueError, match="`detached`: expected log-probs"):
        objective.prepare(replace(batch, ref=logp), plan, REWARDS)
    with pytest.raises(ValueError, match=r"`batch\.ref`: expected log-probs"):
        objective.prepare(batch, plan, REWARDS, logp)
    with pytest.raises(ValueError, match="`rewards`: expected one number per row"):
        objective.prepare(replace(batch, ref=logp), plan, None, logp)
    with pytest.raises(TypeError, match="expected PairCoefficients, got Coefficients"):
        objective.loss(logp, plan, do.Coefficients(REWARDS, REWARDS, torch.tensor(1.0)))


def test_pairs_may_be_prepared_where_gradients_are_off():
    world, batch, objective = ToyWorld.random(7, 5), _pairs(), do.vrpo()
    wanted = _prepared(objective, batch, world, _other(world, 0.3))[2]
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = _prepared(objective, batch, world, _other(world, 0.3))[2]
        assert torch.equal(found.advantage, wanted.advantage)


def test_presets_have_the_published_numbers():
    batch = _pairs()
    assert do.vrpo().plan(batch).streams == 8
    assert do.vrpo_dare_compat().plan(batch).streams == 4


def test_a_few_steps_widen_the_margin():
    world, batch, objective = ToyWorld.random(7, 5), _pairs(), do.vrpo(draws=4)
    reference = ToyWorld(*world.parameters)
    margins = []
    for _ in range(4):
        plan, _, coefficients = _prepared(objective, batch, world, reference)
        margins.append(coefficients.metrics["margin"].value)
        loss, _ = objective.loss(do.evaluate(world.score, plan), plan, coefficients)
        with torch.no_grad():
            for weight, slope in zip(world.parameters, torch.autograd.grad(loss, world.parameters), strict=True):
                weight.sub_(0.3 * slope)
    assert margins == sorted(margins) and margins[-1] > 0.1
