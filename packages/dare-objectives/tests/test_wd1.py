"""wd1: published numbers, weights over whole groups."""

import pytest
import torch

import dare_objectives as do
from dare_objectives.testing import ToyWorld, objective_conformance, toy_batch

REWARDS = torch.tensor([1.0, 0.0, 0.5, 1.0, 0.0, 0.25], dtype=torch.float64)
GROUP = torch.tensor([0, 0, 0, 1, 1, 1])


@pytest.mark.parametrize(
    "options", [{"temperature": 0.3, "normaliser": "one"}, {"normaliser": "sequence", "prompt_mask": 0.0}]
)
def test_conformance_with_options(options):
    objective_conformance(do.wd1(**options))


@pytest.mark.wheel
@pytest.mark.golden("wd1", "wd1/")
def test_published_numbers(case, tensor, check, make_batch):
    inputs, expected = case["inputs"], case["expected"]
    rewards, group, target = (tensor(inputs[name]) for name in ("rewards", "group", "target"))
    batch = make_batch(target[:, 0], group=group)
    check(do.center(rewards, group), expected["advantage"])
    losses = {"one": "loss", "group": "loss_mean_over_groups", "sequence": "loss_mean_over_sequences"}
    for normaliser, key in losses.items():
        objective = do.get("wd1", {"normaliser": normaliser, "temperature": case["hyper"]["temperature"]})
        plan = objective.plan(batch)
        assert torch.equal(plan.target, target)
        coefficients = objective.prepare(batch, plan, rewards)
        check(coefficients.advantage, expected["weight"])
        logp = tensor(inputs["logp"]).requires_grad_()
        loss, _ = objective.loss(logp, plan, coefficients)
        check(loss, expected[key])
        if normaliser == "one":
            check(torch.autograd.grad(loss, logp)[0], expected["grad"]["logp"])


@pytest.mark.wheel
def test_weights_sum_to_zero_over_a_group_and_do_not_see_a_constant():
    weight = do.likelihood_weights(REWARDS, GROUP)
    assert weight[:3].sum().item() == pytest.approx(0, abs=1e-15)
    assert weight[3:].sum().item() == pytest.approx(0, abs=1e-15)
    shifted = do.likelihood_weights(REWARDS + torch.tensor([7.0, 7, 7, -3, -3, -3]), GROUP)
    torch.testing.assert_close(shifted, weight, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_weights_of_small_advantages_are_those_of_reinforce(temperature):
    advantage = 1e-4 * do.center(REWARDS, GROUP)
    weight = do.likelihood_weights(advantage, GROUP, temperature=temperature)
    torch.testing.assert_close(weight, 2 * advantage / (3 * temperature), rtol=1e-6, atol=0)


def test_equal_rewards_and_single_samples_have_no_loss_and_no_forward():
    batch, world, objective = toy_batch(rows=4), ToyWorld.random(7, 5), do.wd1()
    plan = objective.plan(batch)
    coefficients = objective.prepare(batch, plan, torch.tensor([0.1, 0.1, 0.1, 5.0]))
    assert not bool(coefficients.row_weight.any())
    loss, _ = objective.loss(do.evaluate(world.score, plan), plan, coefficients)
    assert loss.item() == 0
    assert not bool(torch.autograd.grad(loss, world.own)[0].any())


def test_large_rewards_do_not_overflow():
    weight = do.likelihood_weights(torch.tensor([1000.0, 0.0, -1000.0]), torch.zeros(3, dtype=torch.int64))
    assert weight.tolist() == [1.0, 0.0, -1.0]


@pytest.mark.wheel
def test_the_softmax_runs_over_groups_and_not_over_micro_batches():
    """As published it runs over the micro-batch, which is a group only as long as the layout says so."""
    batch, objective = toy_batch(), do.wd1()
    plan = objective.plan(batch)
    whole = objective.prepare(batch, plan, REWARDS).advantage
    parts = torch.cat([objective.prepare(batch[rows], plan[rows], REWARDS[rows]).advantage for rows in GROUP_SPLIT])
    torch.testing.assert_close(whole, parts, rtol=1e-14, atol=0)
    published = do.likelihood_weights(do.center(REWARDS, batch.group), torch.zeros_like(batch.group))
    assert float((published - whole).abs().max()) > 0.05


GROUP_SPLIT = (slice(0, 3), slice(3, 6))


def test_normalisers():
    batch, wanted = toy_batch(), {"group": 2, "sequence": 6, "one": 1}
    plan = do.full_response(batch)
    for name, number in wanted.items():
        assert do.wd1(normaliser=name).prepare(batch, plan, REWARDS).normaliser == number
    mixed = batch[[5, 0, 3, 1, 2]]
    assert do.wd1().prepare(mixed, do.full_response(mixed), REWARDS[:5]).normaliser == 2


def test_group_softmax():
    x = torch.tensor([0.3, -0.2, 1.0, 4.0], dtype=torch.float64)
    found = do.group_softmax(x, torch.tensor([7, 2, 7, 2]))
    torch.testing.assert_close(found[[0, 2]], x[[0, 2]].softmax(0))
    torch.testing.assert_close(found[[1, 3]], x[[1, 3]].softmax(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "`temperature`: expected a number in"),
        ({"prompt_mask": 1.5}, "`prompt_mask`: expected a number in"),
        ({"normaliser": "groups"}, "did you mean 'group'"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        do.wd1(**options)
    with pytest.raises(ValueError, match="`temperature`: expected a number in"):
        do.likelihood_weights(REWARDS, GROUP, temperature=-1.0)


def test_a_few_steps_raise_the_rewarded_answers_above_the_others():
    world, batch, objective = ToyWorld.random(7, 5), toy_batch(), do.wd1(prompt_mask=0.0)
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    plan = objective.plan(batch)
    coefficients, margin = objective.prepare(batch, plan, rewards), []
    for _ in range(3):
        scored = do.evaluate(world.score, plan)
        margin.append(float((coefficients.advantage * do.seq_sum(scored.logp.detach(), plan)).sum()))
        loss, _ = objective.loss(scored, plan, coefficients)
        with torch.no_grad():
            for weight, slope in zip(world.parameters, torch.autograd.grad(loss, world.parameters), strict=True):
                weight.sub_(0.1 * slope)
    assert margin[0] < margin[1] < margin[2]
