"""Every objective passes the conformance suite; broken ones do not; the registry."""

import pickle
import sys
from dataclasses import replace
from functools import partial

import pytest
import torch

import dare_objectives as do
from dare_objectives.testing import ToyWorld, objective_conformance, toy_batch, with_records

VARIANTS = [
    ("diffu_grpo", {"clip_low": 0.5, "clip_high": 0.5, "beta": 0.04}),
    ("diffu_grpo", {"prompt_mask": 0.0, "dual_clip": 3.0, "advantage": "group_normalize"}),
    ("coupled_grpo", {"clip_low": 0.1, "clip_high": 0.28, "beta": 0.01, "advantage": "center"}),
    ("coupled_grpo", {"rate_low": 0.5, "rate_high": 0.5}),
    ("masked_sft", {"streams": 3, "normaliser": "token", "eps": 0.1}),
]
OTHER_BOUND = {"d_tree_rpo", "d_tree_rpo_dare_compat", "spg", "tracerl_critic"}
"""Another bound for negative advantages, a distillation term, a regression: no REINFORCE gradient."""
KL_TO_OLD = {"random_mask", "tracerl", "tracerl_value", "unigrpo"}
"""A divergence from the old policy: rows of advantage 0 have a loss."""


@pytest.mark.wheel
@pytest.mark.parametrize("name", do.names())
def test_conformance(name):
    objective_conformance(do.get(name), reinforce=name not in OTHER_BOUND)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_conformance_with_options(name, options):
    objective_conformance(do.get(name, options))


def test_conformance_on_another_batch():
    objective_conformance(do.get("coupled_grpo"), toy_batch(rows=4, response=3, vocab=3, seed=9))


def _mean_of_the_micro_batch(scored, plan, coefficients, *, old=None, ref=None):
    """As published: a mean over the tokens of the micro-batch."""
    here = replace(coefficients, normaliser=plan.scored.sum().clamp(min=1).float())
    return do.get("diffu_grpo").loss(scored, plan, here, old=old, ref=ref)


def _padded_length(scored, plan, coefficients, *, old=None, ref=None):
    here = replace(coefficients, row_weight=coefficients.row_weight / plan.inputs.shape[2])
    return do.get("masked_sft").loss(scored, plan, here)


def _off_target_too(logp, plan, coefficients, *, old=None, ref=None):
    return -logp.sum() / coefficients.normaliser, {}


def _dictionary_keys(scored, plan, coefficients, *, old=None, ref=None):
    """As published: the share of a micro-batch is the number of keys of a dictionary, whatever its rows."""
    loss, metrics = _mean_of_the_micro_batch(scored, plan, coefficients, old=old, ref=ref)
    return loss * 10 / 6, metrics


def _random_plan(batch):
    masked = batch.maskable[:, None] & (torch.rand(batch.tokens.shape)[:, None] < 0.5)
    return do.mask_plan(batch, masked, torch.ones(()))


def _plan_of_the_batch(batch):
    """A rate shared by the batch: a row's mask depends on its neighbours."""
    keys = torch.zeros_like(batch.keys) + batch.keys.sum()
    return do.coupled(replace(batch, keys=keys))


@pytest.mark.wheel
@pytest.mark.parametrize(
    ("base", "broken", "message"),
    [
        ("diffu_grpo", {"loss": _mean_of_the_micro_batch}, "micro-batches of"),
        ("diffu_grpo", {"loss": _dictionary_keys}, "gradient on policy"),
        ("masked_sft", {"loss": _padded_length}, "padding"),
        ("masked_sft", {"loss": _off_target_too}, "decoys"),
        ("masked_sft", {"plan": _random_plan}, "random generator"),
        ("coupled_grpo", {"plan": _plan_of_the_batch}, "alone"),
    ],
)
def test_conformance_finds_published_mistakes(base, broken, message):
    options = {"normaliser": "token"} if base == "masked_sft" else {}
    with pytest.raises(AssertionError, match=message):
        objective_conformance(replace(do.get(base, options), **broken), reinforce="padding" not in message)


def made_up(*, power: float = 1.0) -> do.Objective:
    """A third party's objective: score the whole response, weight rows by reward."""

    def prepare(batch, plan, rewards=None, detached=None):
        weight = (torch.ones(len(batch)) if rewards is None else rewards) ** power
        return do.Coefficients(torch.ones(len(batch)), weight, torch.tensor(float(len(batch))))

    def loss(scored, plan, coefficients, *, old=None, ref=None):
        logp = scored if isinstance(scored, torch.Tensor) else scored.logp
        total = do.weighted_nll(do.elbo_seq(logp, plan), coefficients.row_weight, normaliser=coefficients.normaliser)
        return total, {}

    return do.Objective("made_up", do.full_response, do.elbo_seq, None, prepare, loss)


def test_an_objective_of_ones_own():
    objective_conformance(made_up())
    with pytest.raises(ValueError, match="did you mean 'states'"):
        replace(made_up(), needs=frozenset({"state"}))


def test_a_factory_by_module_and_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_objectives", sys.modules[__name__])
    assert do.get("my_objectives:made_up", {"power": 2.0}).name == "made_up"
    with pytest.raises(ValueError, match="did you mean 'made_up'"):
        do.get("my_objectives:made_upp")


@pytest.mark.wheel
@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("difu_grpo", {}, "unknown objective 'difu_grpo'; did you mean 'diffu_grpo'?"),
        ("nothing_like_it_at_all", {}, "known: .*coupled_grpo"),
        ("diffu_grpo", {"clip_hi": 0.2}, "unknown option of diffu_grpo 'clip_hi'; did you mean 'clip_high'?"),
        ("diffu_grpo", {"advantage": "centre"}, "did you mean 'center'?"),
        ("diffu_grpo", {"clip_low": 1.5}, "`clip_low`: expected a number in"),
        ("diffu_grpo", {"beta": -1.0}, "`beta`: expected a number in"),
        ("diffu_grpo", {"dual_clip": 1.0}, "`dual_clip`: expected a number above 1, or None, got 1.0"),
        ("masked_sft", {"normaliser": "tokens"}, "did you mean 'token'?"),
        ("masked_sft", {"eps": 2.0}, "`eps`: expected a number in"),
        ("coupled_grpo", {"rate_low": 0.9}, "`rate_low`: expected a number in"),
        ("diffu_grpo_dare_compat", {"beta": 1.0}, "known: none"),
    ],
)
def test_unknown_names_and_options(name, options, message):
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        do.get(name, options)


@pytest.mark.wheel
def test_needs_and_pickling():
    assert do.get("masked_sft").needs == frozenset()
    assert do.get("diffu_grpo").needs == {"old"}
    assert do.get("coupled_grpo", {"beta": 0.01}).needs == {"old", "ref"}
    batch = toy_batch()
    for name in do.names():
        objective = pickle.loads(pickle.dumps(do.get(name)))
        batch = with_records(batch, objective.needs)
        assert torch.equal(objective.plan(batch).inputs, do.get(name).plan(batch).inputs)


def test_missing_rewards_and_reference_are_named():
    batch = toy_batch()
    objective = do.get("diffu_grpo", {"beta": 0.1})
    plan = objective.plan(batch)
    with pytest.raises(ValueError, match="`rewards`: expected one number per row, got None"):
        objective.prepare(batch, plan, None)
    with pytest.raises(ValueError, match="`rewards`: expected shape"):
        objective.prepare(batch, plan, torch.zeros(2))
    for bad in (float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"`rewards`: expected finite numbers, got {bad} in row 2"):
            objective.prepare(batch, plan, torch.tensor([1.0, 0.0, bad, 0.0, bad, 1.0]))
    coeff = objective.prepare(batch, plan, torch.zeros(6))
    with pytest.raises(ValueError, match=r"`ref`: expected the reference's log-probs because beta is 0\.1"):
        objective.loss(torch.zeros(plan.inputs.shape), plan, coeff)


@pytest.mark.wheel
@pytest.mark.parametrize("name", ["diffu_grpo", "coupled_grpo"])
def test_on_policy_loss_is_minus_the_mean_advantage_of_the_tokens(name):
    batch = toy_batch(rows=3, response=1)  # equal lengths
    objective = do.get(name)
    plan = objective.plan(batch)
    coeff = objective.prepare(batch, plan, torch.tensor([1.0, 0.0, 0.25]))
    logp = do.evaluate(ToyWorld.random(3, 5).score, plan).logp
    loss, metrics = objective.loss(logp, plan, coeff)
    assert loss.item() == pytest.approx(0, abs=1e-7)
    assert metrics["ratio"].value == 1
    assert metrics["approx_kl"].value == 0


@pytest.mark.wheel
@pytest.mark.parametrize("name", ["diffu_grpo", "coupled_grpo"])
def test_old_and_reference_from_a_pass_of_their_own(name):
    """Under the same split the ratio is bitwise 1 and the divergence 0; under another both differ by round-off."""
    world, batch = ToyWorld.random(7, 5), toy_batch()
    objective = do.get(name, {"beta": 0.1})
    plan = objective.plan(batch)
    coeff = objective.prepare(batch, plan, torch.arange(6.0))
    with torch.no_grad():
        same = do.evaluate(world.score, objective.plan(batch)).logp
        split = torch.cat([do.evaluate(world.score, plan[[row]]).logp for row in range(6)])
    scored = do.evaluate(world.score, plan)
    _, metrics = objective.loss(scored, plan, coeff, old=same, ref=same)
    assert metrics["ratio"].value == metrics["ratio_max"].value == 1
    assert metrics["log_ratio_max"].value == metrics["kl_ref"].value == 0
    _, metrics = objective.loss(scored, plan, coeff, old=split, ref=split)
    assert metrics["log_ratio_max"].value <= 1e-12
    assert metrics["kl_ref"].value <= 1e-12


@pytest.mark.parametrize("name", do.names())
def test_rows_of_weight_zero_may_be_left_out(name):
    """Leaving out the rows that the objective gives weight 0 changes neither the loss nor the gradient."""
    objective, world = do.get(name), ToyWorld.random(7, 5)
    batch = with_records(toy_batch(), objective.needs)
    plan = objective.plan(batch)
    rewards = None if objective.advantage is None else torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0, 1.0])
    logp = do.evaluate(world.score, plan).logp.detach()
    fixed = {need: logp - 0.1 for need in ("old", "ref") if need in objective.needs}
    coefficients = objective.prepare(replace(batch, **fixed), plan, rewards, logp)
    computed = coefficients.row_weight.nonzero().flatten()
    everywhere = rewards is None or {"old", "ref"} <= objective.needs or name in KL_TO_OLD
    everywhere = everywhere or bool(objective.needs & {"states", "value"})  # rewards of their own, a critic
    assert len(computed) == (6 if everywhere else 3)

    def gradient(rows, coefficients):
        given = {need: value[rows] for need, value in fixed.items()}
        loss, _ = objective.loss(do.evaluate(world.score, plan[rows]), plan[rows], coefficients[rows], **given)
        return loss.detach(), *torch.autograd.grad(loss, world.parameters)

    weight = coefficients.row_weight
    everything = replace(coefficients, row_weight=torch.where(weight == 0, 1.0, weight))
    for few, all_rows in zip(gradient(computed, coefficients), gradient(torch.arange(6), everything), strict=True):
        torch.testing.assert_close(few, all_rows, rtol=1e-12, atol=1e-12)


def test_a_reference_needs_every_row():
    batch = toy_batch()
    objective = do.coupled_grpo(beta=0.1)
    coefficients = objective.prepare(batch, objective.plan(batch), torch.ones(6))
    assert coefficients.row_weight.tolist() == [1.0] * 6


def test_a_group_of_one_is_counted():
    batch = replace(toy_batch(rows=4), group=torch.tensor([5, 5, 7, 5]))
    objective = do.get("coupled_grpo")
    coeff = objective.prepare(batch, objective.plan(batch), torch.tensor([1.0, 0.0, 1.0, 0.0]))
    assert coeff.advantage[2] == 0
    assert coeff.metrics["group_of_one"].value == 0.25
    assert coeff.metrics["reward"].value == 0.5


def test_presets_have_the_published_numbers():
    batch = toy_batch()
    rewards = torch.tensor([1.0, 0.0, 0.5, 1.0, 0.0, 0.25])
    for name in ("diffu_grpo_dare_compat", "coupled_grpo_dare_compat"):
        objective = do.get(name)
        coeff = objective.prepare(batch, objective.plan(batch), rewards)
        assert torch.equal(coeff.advantage, do.group_normalize(rewards, batch.group))
        loss = objective.loss
        assert isinstance(loss, partial)
        assert loss.keywords == {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0, "beta": 0.0}


def test_a_few_steps_on_the_toy_world_raise_the_rewarded_answers():
    world, batch = ToyWorld.random(7, 5), toy_batch()
    objective = do.get("coupled_grpo")
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    plan = objective.plan(batch)
    coeff = objective.prepare(batch, plan, rewards)
    likelihood = []
    for _ in range(3):
        scored = do.evaluate(world.score, plan)
        likelihood.append(float(objective.estimator(scored.logp.detach(), plan)[[0, 3]].sum()))
        loss, _ = objective.loss(scored, plan, coeff)
        with torch.no_grad():
            for weight, slope in zip(world.parameters, torch.autograd.grad(loss, world.parameters), strict=True):
                weight.sub_(0.5 * slope)
    assert likelihood[0] < likelihood[1] < likelihood[2]
