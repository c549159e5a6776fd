"""Random-mask policy gradients: published numbers, one rate per mask, the divergence from the old policy."""

import math
from dataclasses import replace

import pytest
import torch

import dare_objectives as do
from dare_objectives.objectives.random_mask import stream_mean
from dare_objectives.testing import ToyWorld, objective_conformance, toy_batch

VARIANTS = [
    ("random_mask", {"streams": 3, "dual_clip": 3.0, "weighting": "stream"}),
    ("random_mask", {"streams": 2, "masks": "complementary", "weighting": "stream_kl_sum"}),
    ("random_mask", {"streams": 2, "masks": "block", "reference": "ref", "beta": 0.1, "divergence": "k2"}),
    ("unigrpo", {"streams": 1, "beta": 0.0, "advantage": "population_normalize"}),
    ("unigrpo", {"streams": 3, "reference": "ref", "weighting": "stream"}),
]
REWARDS = torch.tensor([1.0, 0.0, 0.5, 1.0, 0.0, 0.25], dtype=torch.float64)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_conformance_with_options(name, options):
    objective_conformance(do.get(name, options))


@pytest.mark.wheel
@pytest.mark.golden("random_mask", "random_mask/")
def test_published_numbers(case, tensor, check, make_batch):
    inputs, hyper, expected = case["inputs"], case["hyper"], case["expected"]
    target = tensor(inputs["target"])
    batch = make_batch(target.any(1), group=tensor(inputs["group"]))
    plan = do.mask_plan(batch, target, torch.ones((), dtype=torch.float64))
    options = {"beta": hyper["beta"], "divergence": hyper["kl"], "weighting": "stream_kl_sum"}
    objective = do.get("random_mask", options)
    coefficients = objective.prepare(batch, plan, tensor(inputs["rewards"]))
    check(coefficients.advantage, expected["advantage"])
    logp, old = tensor(inputs["logp"]).requires_grad_(), tensor(inputs["old"])
    loss, metrics = objective.loss(logp, plan, coefficients, old=old)
    check(loss, expected["loss"])
    check(torch.autograd.grad(loss, logp)[0], expected["grad"]["logp"])
    assert ("kl_old" in metrics) == (hyper["beta"] > 0)
    mean = do.get("random_mask", {**options, "weighting": "stream"})
    loss, _ = mean.loss(logp, plan, mean.prepare(batch, plan, tensor(inputs["rewards"])), old=old)
    assert (abs(loss.item() - expected["loss"]) > 1e-5) == (hyper["beta"] > 0)  # the mean is the default, not the sum


def _parts(name, options, logp, old, plan, batch):
    """Loss with and without the divergence."""
    found = []
    for beta in (options["beta"], 0.0):
        objective = do.get(name, {**options, "beta": beta})
        found.append(objective.loss(logp, plan, objective.prepare(batch, plan, REWARDS), old=old, ref=old)[0])
    return found[0] - found[1]


@pytest.mark.wheel
@pytest.mark.parametrize("name", ["random_mask", "unigrpo"])
@pytest.mark.parametrize("reference", ["old", "ref"])
def test_the_divergence_is_a_mean_over_the_scored_tokens(name, reference):
    batch, options = toy_batch(), {"streams": 3, "beta": 0.3, "reference": reference}
    plan = do.get(name, options).plan(batch)
    old = torch.where(plan.target, -2.0, 0.0).double()
    logp = old + 0.4
    wanted = 0.3 * do.kl_k3(torch.tensor(0.4), torch.tensor(0.0)).item()
    assert _parts(name, options, logp, old, plan, batch).item() == pytest.approx(wanted, rel=1e-6)
    published = _parts(name, {**options, "weighting": "stream_kl_sum"}, logp, old, plan, batch).item()
    assert published == pytest.approx(wanted * float(plan.target.sum()) / 18, rel=1e-6)


@pytest.mark.wheel
@pytest.mark.parametrize("name", ["random_mask", "unigrpo"])
def test_the_divergence_does_not_depend_on_the_advantage(name):
    """The published code takes log(1 + d) for d where A > 0, which is nan for d <= -1."""
    batch, options = toy_batch(), {"streams": 2, "beta": 0.3}
    plan = do.get(name, options).plan(batch)
    old = torch.where(plan.target, -0.5, 0.0).double()
    logp = (old - 1.5).requires_grad_()
    assert bool(torch.log1p(do.kl_k1(logp, old))[plan.target].isnan().all())
    wanted = 0.3 * do.kl_k3(torch.tensor(-1.5), torch.tensor(0.0)).item()
    for rewards in (REWARDS, -REWARDS):
        losses = []
        for beta in (0.3, 0.0):
            objective = do.get(name, {**options, "beta": beta})
            losses.append(objective.loss(logp, plan, objective.prepare(batch, plan, rewards), old=old)[0])
        assert (losses[0] - losses[1]).item() == pytest.approx(wanted, rel=1e-6)
        assert bool(torch.autograd.grad(losses[0], logp)[0].isfinite().all())


def test_the_divergence_from_the_old_policy_vanishes_on_policy():
    batch, world = toy_batch(), ToyWorld.random(7, 5)
    objective = do.unigrpo(streams=2, beta=0.5)
    assert objective.needs == {"old"}
    plan = objective.plan(batch)
    coefficients = objective.prepare(batch, plan, torch.ones(6))
    loss, metrics = objective.loss(do.evaluate(world.score, plan), plan, coefficients)
    assert loss.item() == metrics["kl_old"].value == 0
    assert not bool(torch.autograd.grad(loss, world.own)[0].any())
    assert coefficients.row_weight.tolist() == [1.0] * 6  # after the first update rows of advantage 0 have a divergence


def _all_masked(batch: do.Batch, plan: do.Plan) -> float:
    """How often all tokens of a row are masked at once."""
    return float((plan.target.sum(2) == batch.lengths[:, None]).double().mean())


@pytest.mark.wheel
def test_a_mask_has_one_rate_and_not_one_half_per_token(one_answer):
    """A threshold drawn for each token, as published for block models, masks every token with probability 1/2."""
    batch = one_answer([0, 1, 2, 3, 4, 0], 4000)
    plan = do.random_mask(streams=1).plan(batch)
    exact = (0.9**7 - 0.1**7) / (7 * 0.8)  # E[p^6]
    error = math.sqrt(exact * (1 - exact) / 4000)
    assert abs(_all_masked(batch, plan) - exact) < 4 * error
    threshold, chance = (do.uniform(batch.keys[:, None], name, batch.columns) for name in ("level", "mask"))
    published = do.mask_plan(batch, (chance < threshold)[:, None], torch.ones(()))
    assert abs(_all_masked(batch, published) - 0.5**6) < 4 * math.sqrt(0.5**6 / 4000)
    assert abs(_all_masked(batch, published) - exact) > 10 * error


def test_a_block_mask_has_one_rate_for_each_block(one_answer):
    batch = one_answer([0, 1, 2, 3, 4, 0], 4000)
    batch = replace(batch, blocks=(batch.columns // 3).expand(4000, -1).int().contiguous())
    plan = do.random_mask(streams=1, masks="block").plan(batch)
    exact = (0.9**4 - 0.1**4) / (4 * 0.8)  # E[p^3] for each of the two
    for block in (plan.target[:, 0, :3], plan.target[:, 0, 3:]):
        assert abs(float(block.all(1).double().mean()) - exact) < 4 * math.sqrt(exact * (1 - exact) / 4000)
    assert abs(_all_masked(batch, plan) - exact**2) < 4 * math.sqrt(exact**2 / 4000)


@pytest.mark.wheel
def test_coupled_rows_cover_every_token_once_per_pair():
    batch = toy_batch()
    plan = do.random_mask(streams=3, masks="complementary").plan(batch)
    assert plan.streams == 6
    assert torch.equal(plan.target[:, :3] ^ plan.target[:, 3:], batch.maskable[:, None].expand(-1, 3, -1))
    assert torch.equal(plan.weight, plan.target.float())


def test_no_weight_and_no_prompt_mask():
    batch = toy_batch(rows=50)
    for name in ("random_mask", "unigrpo"):
        plan = do.get(name).plan(batch)
        assert torch.equal(plan.weight, plan.target.float())  # no 1/t
        assert torch.equal(plan.inputs == batch.mask_id, plan.target)
        assert not bool((plan.target & ~batch.maskable[:, None]).any())
    assert do.random_mask().plan(batch).streams == 35


def test_rates_of_unigrpo_are_spread_over_the_masks_of_a_row(one_answer):
    batch = one_answer([0, 1, 2, 3, 4] * 20, 200)
    share = do.unigrpo(streams=4).plan(batch).target.double().mean(2)
    gaps = share.sort(1).values.diff(dim=1)
    assert abs(float(gaps.mean()) - 0.25) < 0.02
    assert float(share.amin(1).max()) < 0.45
    independent = do.bernoulli(batch, streams=4).target.double().mean(2)
    assert float(independent.amin(1).max()) > 0.45


def test_stream_mean_and_normalisers():
    batch = toy_batch()
    token, stream = do.random_mask(streams=3), do.random_mask(streams=3, weighting="stream")
    plan = token.plan(batch)
    logp = -do.uniform(batch.keys[:, None, None], "eval", torch.arange(3)[:, None], batch.columns, dtype=torch.float64)
    for b in range(6):
        for k in range(3):
            some = logp[b, k][plan.target[b, k]]
            wanted = float(some.mean()) if len(some) else 0.0
            assert stream_mean(logp, plan)[b, k].item() == pytest.approx(wanted)
    assert token.prepare(batch, plan, REWARDS).normaliser == plan.target.sum()
    assert stream.prepare(batch, plan, REWARDS).normaliser == 18
    assert stream.estimator is stream_mean


def _per_micro_batch(scored, plan, coefficients, *, old=None, ref=None):
    here = replace(coefficients, normaliser=plan.target.sum().clamp(min=1).float())
    return do.unigrpo().loss(scored, plan, here, old=old, ref=ref)


def test_a_mean_over_the_micro_batch_is_found_by_the_conformance_suite():
    with pytest.raises(AssertionError, match="micro-batches of"):
        objective_conformance(replace(do.unigrpo(), loss=_per_micro_batch))


@pytest.mark.parametrize("name", ["random_mask", "unigrpo"])
def test_streams_may_be_computed_one_at_a_time(name):
    batch, world, objective = toy_batch(), ToyWorld.random(7, 5), do.get(name, {"streams": 3})
    plan = objective.plan(batch)
    coefficients = objective.prepare(batch, plan, REWARDS)
    old = do.evaluate(world.score, plan).logp.detach() - 0.05
    loss, _ = objective.loss(do.evaluate(world.score, plan), plan, coefficients, old=old)
    wanted = torch.autograd.grad(loss, world.parameters)

    def part(scored, some, at):
        return objective.loss(scored, some, coefficients, old=torch.where(some.target, old[:, at], 0.0))

    found, _ = do.stream_backward(world.score, plan, part)
    assert found.item() == pytest.approx(loss.item(), rel=1e-12)
    for leaf, gradient in zip(world.parameters, wanted, strict=True):
        torch.testing.assert_close(leaf.grad, gradient, rtol=1e-12, atol=1e-13)


def test_a_missing_reference_is_named():
    objective = do.unigrpo(reference="ref")
    batch = toy_batch()
    plan = objective.plan(batch)
    with pytest.raises(ValueError, match="`ref`: expected the reference's log-probs, got None"):
        objective.loss(torch.zeros(plan.inputs.shape), plan, objective.prepare(batch, plan, REWARDS))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("random_mask", {"streams": 0}, "`streams`: expected a count"),
        ("random_mask", {"masks": "blocks"}, "did you mean 'block'"),
        ("random_mask", {"low": 0.9, "high": 0.1}, "`low`: expected a number in"),
        ("random_mask", {"high": 1.1}, "`high`: expected a number in"),
        ("random_mask", {"reference": "reference"}, "did you mean 'ref'"),
        ("unigrpo", {"weighting": "streams"}, "did you mean 'stream'"),
        ("unigrpo", {"beta": -1.0}, "`beta`: expected a number in"),
        ("unigrpo", {"divergence": "k4"}, "unknown divergence 'k4'"),
        ("unigrpo", {"streams": 0}, "`streams`: expected a count"),
    ],
)
def test_options_out_of_range_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        do.get(name, options)
