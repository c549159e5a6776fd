"""BGPO, EBPO and ESPO: identities, and published mistakes that the suite finds."""

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

import dare_objectives as do
from dare_objectives.objectives.sequence_policy import SequenceCoefficients
from dare_objectives.testing import ToyWorld, all_masks, objective_conformance, toy_batch

VARIANTS = [
    ("bgpo", {"draws": 3, "counts": "block", "advantage": "center"}),
    ("bgpo", {"draws": 2, "weighting": "length", "clip_low": 0.05, "clip_high": 0.28, "dual_clip": 1.2}),
    ("ebpo", {"draws": 2, "stream_weights": [0.7, 0.3], "beta": 0.1}),
    ("ebpo", {"draws": 3, "beta": 0.1, "divergence": "k3", "dual_clip": 3.0}),
    ("espo", {"pairs": 1, "beta": 0.3, "divergence": "abs", "advantage": "group_normalize"}),
    ("espo", {"pairs": 3, "clip_low": 0.0, "clip_high": 0.0, "beta": 0.0}),
]
REWARDS = torch.tensor([1.0, 0.0, 0.5, 1.0, 0.0, 0.25], dtype=torch.float64)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_conformance_with_options(name, options):
    objective_conformance(do.get(name, options))
    objective_conformance(do.get(name, options), toy_batch(rows=4, response=3, vocab=3, seed=9))


@pytest.mark.parametrize("name", ["bgpo", "ebpo", "espo"])
def test_the_corrected_k1_has_the_gradient_of_a_policy_gradient(name):
    if name == "bgpo":
        with pytest.raises(ValueError, match="unknown option of bgpo 'beta'"):
            do.get(name, {"beta": 0.1})
        return
    world, batch, objective = ToyWorld.random(7, 5), toy_batch(), do.get(name, {"beta": 1.0, "divergence": "k2"})
    corrected = do.get(name, {"beta": 1.0, "divergence": "k1_corrected"})
    plan = objective.plan(batch)
    ref = do.evaluate(world.score, plan).logp.detach() * 1.1
    steady = torch.ones(6, dtype=torch.float64)  # equal rewards: only the divergence has a gradient
    gradients = []
    for one in (objective, corrected):
        loss, _ = one.loss(do.evaluate(world.score, plan), plan, one.prepare(batch, plan, steady), ref=ref)
        gradients.append(torch.autograd.grad(loss, world.own)[0])
    kl_k1_alone = do.elbo_seq(do.evaluate(world.score, plan).logp, plan) / (batch.lengths if name == "espo" else 1)
    (extra,) = torch.autograd.grad(kl_k1_alone.sum() / 6, world.own)
    torch.testing.assert_close(gradients[1], gradients[0] + extra, rtol=1e-10, atol=1e-12)


@pytest.mark.wheel
def test_complementary_pairs_have_their_exact_variance(worlds, tensor, one_answer, check):
    """ESPO's estimator over every mask; whether a pair beats two draws is a matter of the table, not of principle."""
    ratios = []
    for world in worlds:
        for golden in world["answers"]:
            length, logp = len(golden["answer"]), tensor(golden["masked_logp"]).double()
            masks = all_masks(length)
            size = masks.sum(1)
            batch = one_answer(golden["answer"], len(masks))
            count = torch.stack([size, length - size], 1).clamp(min=1)
            plan = do.mask_plan(batch, torch.stack([masks, ~masks], 1), ((length + 1) / count.double())[:, :, None])
            both = torch.stack([logp, logp.flip(0)], 1)  # mask b and its complement 2^L - 1 - b
            score = do.espo(pairs=1).estimator(both, plan)
            choose = torch.tensor([math.comb(length, k) for k in range(length + 1)], dtype=torch.float64)[size]
            probability = 1 / ((length + 1) * choose)
            mean = (probability * score).sum()
            variance = (probability * (score - mean) ** 2).sum()
            exact = golden["estimators"]
            check(mean, -golden["any_order_nll"])
            check(variance, exact["count_0_to_L_complement"]["variance"])
            single = exact["count_0_to_L_single"]["variance"]
            assert exact["count_0_to_L_two_independent"]["variance"] == pytest.approx(single / 2, rel=1e-9)
            ratios.append(float(variance) / (single / 2))
    assert min(ratios) < 1


@pytest.mark.parametrize("length", [1, 4, 7])
def test_a_constant_table_in_closed_form(one_answer, length):
    """(L + 1) c for 0 < k < L and half of that at k = 0 and k = L, L c in the mean."""
    c, rows = 0.7, 400
    batch, objective = one_answer([0] * length, rows), do.espo(pairs=1)
    plan = objective.plan(batch)
    score = -objective.estimator(torch.full(plan.target.shape, -c, dtype=torch.float64), plan)
    k = plan.target[:, 0].sum(1)
    wanted = torch.where((k == 0) | (k == length), (length + 1) * c / 2, (length + 1) * c)
    torch.testing.assert_close(score, wanted.double(), rtol=1e-6, atol=0)
    by_count = [float(wanted[k == count][0]) for count in range(length + 1)]
    assert sum(by_count) / (length + 1) == pytest.approx(length * c, rel=1e-6)


def _padded(loss, scored, plan, coefficients, *, old=None, ref=None):
    """As published: the ratio over the padded length, while the masks count valid tokens."""
    width = torch.full_like(coefficients.length, plan.inputs.shape[2])
    return loss(scored, plan, replace(coefficients, length=width), old=old, ref=ref)


def _dictionary_keys(loss, scored, plan, coefficients, *, old=None, ref=None):
    """As published: the share of a micro-batch is the number of keys of a dictionary, whatever its rows."""
    found, metrics = loss(scored, plan, replace(coefficients, normaliser=torch.tensor(1.0)), old=old, ref=ref)
    return found * 10 / 6, metrics


def _token_mean_of_the_micro_batch(loss, scored, plan, coefficients, *, old=None, ref=None):
    """As published: one number per sequence spread over its tokens, then the mean over those of the micro-batch."""
    here = coefficients.length.sum() * plan.streams
    weighted = replace(coefficients, row_weight=coefficients.row_weight * coefficients.length, normaliser=here)
    return loss(scored, plan, weighted, old=old, ref=ref)


@pytest.mark.wheel
@pytest.mark.parametrize("name", ["bgpo", "espo"])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [(_padded, "padding"), (_dictionary_keys, "gradient on policy"), (_token_mean_of_the_micro_batch, "micro-batches")],
)
def test_conformance_finds_published_mistakes(name, wrong, message):
    objective = do.get(name)
    broken = replace(objective, loss=partial(wrong, objective.loss))
    with pytest.raises(AssertionError, match=message):
        objective_conformance(broken, reinforce=message == "gradient on policy")


def test_the_divergence_does_not_depend_on_the_advantage():
    """The published code replaces d by log(1 + d) where A > 0, which is nan for d <= -1."""
    batch, world = toy_batch(rows=3), ToyWorld.random(7, 5)
    for name, kind in (("ebpo", "k2"), ("ebpo", "k3"), ("espo", "k2")):
        with_kl, without = (do.get(name, {"beta": beta, "divergence": kind}) for beta in (0.3, 0.0))
        plan = with_kl.plan(batch)
        logp = do.evaluate(world.score, plan).logp.detach()
        ref = logp + torch.where(plan.target, 1.5, 0.0)
        assert bool(torch.log1p(do.elbo_seq(logp - ref, plan)).isnan().all())
        terms = []
        for sign in (1.0, -1.0):
            pair = [x.prepare(batch, plan, sign * torch.tensor([1.0, 0.0, 0.3])) for x in (with_kl, without)]
            terms.append(with_kl.loss(logp, plan, pair[0], ref=ref)[0] - without.loss(logp, plan, pair[1])[0])
        assert terms[0].item() == pytest.approx(terms[1].item(), rel=1e-9)
        assert terms[0].item() > 0


@pytest.mark.parametrize("name", ["ebpo", "espo"])
def test_a_missing_reference_is_named(name):
    """The published LoRA run with a divergence ends in a KeyError."""
    batch, objective = toy_batch(), do.get(name, {"beta": 0.1})
    plan = objective.plan(batch)
    logp = do.evaluate(ToyWorld.random(7, 5).score, plan).logp
    with pytest.raises(ValueError, match=r"`ref`: expected the reference's log-probs because beta is 0\.1"):
        objective.loss(logp, plan, objective.prepare(batch, plan, REWARDS))


@pytest.mark.parametrize("name", ["bgpo", "ebpo", "espo"])
def test_coefficients_are_those_of_the_objective(name):
    batch, objective = toy_batch(), do.get(name)
    plan = objective.plan(batch)
    other = do.Coefficients(REWARDS, REWARDS, torch.tensor(1.0))
    with pytest.raises(TypeError, match="expected SequenceCoefficients, got Coefficients"):
        objective.loss(torch.zeros(plan.target.shape), plan, other)


def test_lengths_and_normalisers():
    batch = replace(toy_batch(), maskable=toy_batch().maskable & (torch.arange(6) != 1)[:, None])
    length = batch.lengths
    for name, wanted, normaliser in (
        ("bgpo", length.clamp(min=1), 5 * 16),
        ("bgpo_dare_compat", length.clamp(min=1), int(length.sum()) * 16),
        ("ebpo", torch.ones(6), 5),
        ("espo", length.clamp(min=1), 5),
    ):
        objective = do.get(name)
        coefficients = objective.prepare(batch, objective.plan(batch), REWARDS)
        assert isinstance(coefficients, SequenceCoefficients)
        assert coefficients.length.tolist() == wanted.tolist()
        assert float(coefficients.normaliser) == normaliser
        assert coefficients.row_weight[1] == 0


def test_stream_weights():
    batch, weights = toy_batch(), [0.5, 0.3, 0.2]
    plan, plain = (do.ebpo(draws=3, stream_weights=w).plan(batch) for w in (weights, None))
    logp = do.evaluate(ToyWorld.random(7, 5).score, plan).logp.detach()
    wanted = (do.elbo_draws(logp, plain) * torch.tensor(weights)).sum(1)
    torch.testing.assert_close(do.ebpo().estimator(logp, plan), wanted, rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="`stream_weights`: expected 2 numbers, one per draw, got 3"):
        do.ebpo(draws=2, stream_weights=weights)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("bgpo", {"draws": 0}, "`draws`: expected a count of at least 1"),
        ("bgpo", {"weighting": "lenght"}, "did you mean 'length'"),
        ("bgpo", {"counts": "blok"}, "did you mean 'block'"),
        ("ebpo", {"draws": 0}, "`draws`: expected a count of at least 1"),
        ("ebpo", {"divergence": "k4"}, "unknown divergence 'k4'"),
        ("espo", {"pairs": 0}, "`pairs`: expected a count of at least 1"),
        ("espo", {"beta": -0.1}, "`beta`: expected a number in"),
        ("espo", {"advantage": "centre"}, "did you mean 'center'"),
    ],
)
def test_options_out_of_range_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        do.get(name, options)


def test_presets_have_the_published_numbers():
    batch = toy_batch()
    streams = {"bgpo": 16, "bgpo_dare_compat": 16, "ebpo": 16, "ebpo_dare_compat": 16, "espo": 4, "espo_dare_compat": 4}
    for name, count in streams.items():
        objective = do.get(name)
        plan = objective.plan(batch)
        assert plan.streams == count
        alone = objective.prepare(batch[:1], plan[:1], torch.tensor([0.75])).advantage.item()
        assert alone == pytest.approx(0.75 if name.endswith("compat") else 0, rel=1e-5)
        assert objective.loss.keywords["dual_clip"] == (3.0 if name == "bgpo_dare_compat" else None)
        assert objective.needs == ({"old", "ref"} if name.startswith("espo") else {"old"})


def test_a_few_steps_raise_the_rewarded_answers():
    for name in ("bgpo", "ebpo", "espo"):
        world, batch, objective = ToyWorld.random(7, 5), toy_batch(), do.get(name)
        plan = objective.plan(batch)
        coefficients = objective.prepare(batch, plan, torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]))
        ref = do.evaluate(world.score, plan).logp.detach()
        likelihood = []
        for _ in range(3):
            scored = do.evaluate(world.score, plan)
            likelihood.append(float(do.elbo_seq(scored.logp.detach(), plan)[[0, 3]].sum()))
            loss, _ = objective.loss(scored, plan, coefficients, ref=ref)
            with torch.no_grad():
                for weight, slope in zip(world.parameters, torch.autograd.grad(loss, world.parameters), strict=True):
                    weight.sub_(0.2 * slope)
        assert likelihood[0] < likelihood[1] < likelihood[2]
