"""Supervised fine-tuning: normalisers, block plans, context-adaptive weights; published numbers and mistakes."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import dare_objectives as do
from dare_objectives.objectives.cart_sft import cart_masks
from dare_objectives.testing import ToyWorld, all_masks, objective_conformance, toy_batch

VARIANTS = [
    ("masked_sft", {"normaliser": "batch", "streams": 2}),
    ("d1_sft", {"window": 9, "streams": 2}),
    ("cart_sft", {"p": 0.5, "normaliser": "masked", "streams": 3}),
    ("cart_sft", {"p": 1.0, "normaliser": "token"}),
    ("block_sft", {"low": 0.6, "high": 0.9, "streams": 2}),
    ("block_sft", {"low": 0.0, "normaliser": "sequence"}),
    ("block_sft_sdar", {"tries": 1, "streams": 2}),
    ("block_sft_llada2", {"streams": 3}),
    ("block_sft_llada2", {"normaliser": "token"}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_conformance_with_options(name, options):
    objective_conformance(do.get(name, options))


def _check(case, objective, batch, plan, tensor, check) -> Tensor:
    logp = tensor(case["inputs"]["logp"]).requires_grad_()
    loss, _ = objective.loss(logp, plan, objective.prepare(batch, plan))
    check(loss, case["expected"]["loss"])
    check(torch.autograd.grad(loss, logp)[0], case["expected"]["grad"]["logp"])
    return loss.detach()


@pytest.mark.golden("sft", "sft/masked/")
def test_published_normalisers(case, tensor, check, make_batch):
    inputs, hyper = case["inputs"], case["hyper"]
    batch = make_batch(tensor(inputs["maskable"]))
    plan = do.mask_plan(batch, tensor(inputs["masked"]), 1 / tensor(inputs["rate"])[:, None, None])
    window = {"window": batch.tokens.shape[1]}
    padded = hyper["normalizer"] == "padded_token"
    objective = do.get("d1_sft", window) if padded else do.masked_sft(normaliser=hyper["normalizer"])
    assert not padded or objective.prepare(batch, plan).normaliser == hyper["normalizer_value"]
    _check(case, objective, batch, plan, tensor, check)


@pytest.mark.golden("sft", "sft/masked/token")
def test_dividing_by_the_masked_tokens_weights_twice_by_the_rate(case, tensor, check, make_batch):
    inputs = case["inputs"]
    batch = make_batch(tensor(inputs["maskable"]))
    masked, logp = tensor(inputs["masked"]), tensor(inputs["logp"])
    plan = do.mask_plan(batch, masked, 1 / tensor(inputs["rate"])[:, None, None])
    published = do.weighted_nll(logp, plan.weight, normaliser=masked.sum())
    check(published, case["known_wrong"]["dare_loss_divides_by_masked_count"])
    for objective in (do.masked_sft_dare_compat(), do.block_sft(), do.block_sft_sdar()):
        assert _check(case, objective, batch, plan, tensor, check) < published / 3
    for make in (do.masked_sft, do.block_sft, do.block_sft_sdar):
        with pytest.raises(ValueError, match="unknown normaliser 'masked'"):
            make(normaliser="masked")


@pytest.mark.wheel
@pytest.mark.golden("sft", "sft/cart/")
def test_published_cart(case, tensor, check, make_batch):
    inputs, p = case["inputs"], case["hyper"]["p_geo"]
    batch = make_batch(tensor(inputs["maskable"]))
    everything = torch.ones_like(batch.valid)  # in the published code padding is context like any other token
    batch = replace(batch, valid=everything, blocks=everything.int())
    plan = cart_masks(batch, tensor(inputs["masked"]), p, dtype=torch.float64)
    check(plan.weight, case["expected"]["weight"])
    _check(case, do.cart_sft(p=p, normaliser="token"), batch, plan, tensor, check)


@pytest.mark.wheel
@pytest.mark.golden("sft", "sft/block/")
def test_published_block_sft(case, tensor, check, make_batch):
    inputs, weighting = case["inputs"], case["hyper"]["weight"]
    batch = make_batch(tensor(inputs["maskable"]))
    if weighting == "1/rate":
        weight, objective = 1 / tensor(inputs["rate"])[:, None, None], do.block_sft_sdar()
    elif weighting == "1/block rate":
        rate = tensor(inputs["block_rate"]).gather(1, tensor(inputs["block_id"]).clamp(min=0))
        weight, objective = 1 / rate[:, None], do.block_sft()
    else:
        weight, objective = torch.ones((), dtype=torch.float64), do.block_sft_llada2()
    plan = do.mask_plan(batch, tensor(inputs["masked"]), weight)
    _check(case, objective, batch, plan, tensor, check)


def _legendre(nodes: int) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes and weights on (0, 1)."""
    k = torch.arange(1, nodes, dtype=torch.float64)
    beta = k / (4 * k**2 - 1).sqrt()
    value, vector = torch.linalg.eigh(torch.diag(beta, 1) + torch.diag(beta, -1))
    return (value + 1) / 2, vector[0] ** 2


@pytest.mark.wheel
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_mean_of_block_sft_is_the_block_nll_over_the_length(worlds, tensor, one_answer, check, size):
    """Every mask of every block, rate by rate, later blocks masked as the model of a block sees them."""
    objective = do.block_sft(low=0.0)
    masks, (rates, shares) = all_masks(4), _legendre(6)
    for golden in worlds[0]["answers"]:
        logp = tensor(golden["masked_logp"]).double()
        batch = one_answer(golden["answer"], len(masks))
        total = torch.zeros((), dtype=torch.float64)
        for start in range(0, 4, size):
            inside = torch.arange(4).div(size, rounding_mode="floor") == start // size
            rows = (masks & ~inside).any(1).logical_not()  # the masks of this block
            target = masks & inside
            seen = target | (torch.arange(4) >= start + size)
            found = logp[(seen * 2 ** torch.arange(4)).sum(1)]
            for rate, share in zip(rates, shares, strict=True):
                plan = do.mask_plan(batch, seen[:, None], 1 / rate, target=target[:, None])
                chance = rate ** target.sum(1) * (1 - rate) ** (size - target.sum(1)) * share * rows
                coefficients = objective.prepare(batch, plan)
                whole = replace(coefficients, row_weight=coefficients.row_weight * chance * len(masks))
                total = total + objective.loss(found[:, None], plan, whole)[0]
        check(total, torch.tensor(golden["block"][str(size)]["nll"] / 4, dtype=torch.float64))


def _gradients(loss: Tensor, world: ToyWorld) -> Tensor:
    return torch.autograd.grad(loss, world.own, retain_graph=True)[0]


def test_masked_tokens_are_counted_on_the_whole_batch():
    """A mean over the masked tokens of each micro-batch depends on the split; so does a sum of its gradients."""
    world, batch, objective = ToyWorld.random(7, 5), toy_batch(), do.block_sft_llada2()
    plan = objective.plan(batch)
    coefficients, parts = objective.prepare(batch, plan), torch.arange(6).split(2)
    assert coefficients.normaliser == plan.target.sum()

    def loss(rows, own):
        return objective.loss(do.evaluate(world.score, plan[rows]), plan[rows], own)[0]

    whole = loss(torch.arange(6), coefficients)
    summed = sum(loss(rows, coefficients[rows]) for rows in parts)
    published = [loss(rows, objective.prepare(batch[rows], plan[rows])) for rows in parts]
    assert summed.item() == pytest.approx(whole.item(), rel=1e-12)
    torch.testing.assert_close(_gradients(summed, world), _gradients(whole, world), rtol=1e-12, atol=1e-14)
    assert abs(sum(published).item() / 3 - whole.item()) > 0.01
    assert float((_gradients(sum(published), world) - _gradients(whole, world)).abs().max()) > 0.1


@pytest.mark.wheel
@pytest.mark.parametrize("name", ["block_sft", "block_sft_sdar", "block_sft_llada2", "cart_sft", "d1_sft"])
def test_every_scored_token_is_hidden(name):
    """A path of the published block code scores clean inputs: plain next-token prediction."""
    batch = toy_batch(rows=40)
    plan = do.get(name, {"streams": 2}).plan(batch)
    assert bool((plan.inputs[plan.target] == batch.mask_id).all())
    assert torch.equal(plan.inputs == batch.mask_id, plan.target)


def test_published_weights_and_ranges():
    batch = toy_batch(rows=400, response=8)
    bd3lm, narrow = do.block_sft(), do.block_sft(low=0.51, high=0.6)
    weight = bd3lm.plan(batch).weight
    assert 1 <= float(weight[weight > 0].min()) <= float(weight.max()) <= 1000.0001
    for objective in (narrow, do.block_sft_llada2()):
        plan = objective.plan(batch)
        assert torch.equal(plan.weight, plan.target.float())
    share = do.block_sft_llada2().plan(batch).target.sum() / batch.maskable.sum()
    assert 0.5 < float(share) < 0.6
    sdar = do.block_sft_sdar().plan(batch)
    assert bool(sdar.target.any(2).all())
    assert not bool(do.masked_sft().plan(batch).target.any(2).all())
    for plan in (sdar, do.masked_sft().plan(batch), do.d1_sft().plan(batch)):
        assert bool((plan.weight <= 1000.0001).all())  # without a least rate 1/t has no bound


def _has_one_weight(row: Tensor) -> bool:
    return len({round(weight, 5) for weight in row.tolist() if weight}) <= 1


def test_rates_of_block_sft_differ_between_blocks_and_those_of_the_others_do_not():
    batch = toy_batch(rows=64, response=8)
    assert all(map(_has_one_weight, do.block_sft_sdar().plan(batch).weight[:, 0]))
    assert not all(map(_has_one_weight, do.block_sft().plan(batch).weight[:, 0]))


def test_a_mask_token_that_is_also_the_end_token_is_refused():
    """Published recipes of a large block model name the end token as mask token."""
    batch = toy_batch()
    end = int(batch.tokens[0][batch.maskable[0]][-1])
    with pytest.raises(ValueError, match=f"a maskable position holds the mask token {end}"):
        replace(batch, mask_id=end)


@pytest.mark.wheel
@pytest.mark.parametrize("p", [0.1, 0.3, 1.0])
def test_cart_weights_of_the_plan_equal_a_double_loop(p):
    batch = toy_batch(rows=8, response=8)
    plan = do.cart_sft(p=p, streams=2).plan(batch)
    for b in range(8):
        for k in range(2):
            hidden, valid = plan.target[b, k].tolist(), batch.valid[b].tolist()
            for i in range(len(hidden)):
                seen = [j for j in range(len(hidden)) if valid[j] and not hidden[j]]
                wanted = 0.5 * math.fsum(p * (1 - p) ** (abs(i - j) - 1) for j in seen) if hidden[i] else 0.0
                assert plan.weight[b, k, i].item() == pytest.approx(wanted, abs=1e-6)


def test_cart_has_no_weight_without_context_and_is_symmetric(one_answer):
    batch = one_answer([0, 1, 2, 3, 4])
    masks = torch.tensor([[[1, 1, 1, 1, 1], [0, 1, 0, 1, 0], [1, 0, 0, 0, 1]]]).bool()
    nothing, inner, outer = cart_masks(batch, masks).weight[0]
    assert not bool(nothing.any())
    torch.testing.assert_close(inner[1], inner[3])
    torch.testing.assert_close(outer[0], outer[4])


def test_padding_is_no_context():
    """As published, a row weighs more in a batch with a longer one."""
    batch = toy_batch()
    short = batch[[2]]
    assert not bool(short.valid[:, -1].any())
    plan = cart_masks(short, short.maskable[:, None])
    published = do.cart_weights(short.maskable[:, None])
    assert bool((published > plan.weight + 0.01)[plan.target].any())
    bare = replace(short, maskable=short.valid)
    assert not bool(cart_masks(bare, bare.valid[:, None]).weight.any())


def test_normalisers_count_what_their_names_say():
    batch = toy_batch()
    plan = do.masked_sft(streams=2).plan(batch)
    lengths = batch.lengths
    counts = {"sequence": 6, "token": int(lengths.sum()), "batch": 6}
    for name, wanted in counts.items():
        coefficients = do.masked_sft(normaliser=name, streams=2).prepare(batch, plan)
        assert coefficients.normaliser == wanted
        assert torch.equal(coefficients.row_weight, 1 / lengths if name == "sequence" else torch.ones(6))
    masked = do.cart_sft(normaliser="masked", streams=2).prepare(batch, plan)
    assert (masked.normaliser.item(), masked.row_weight.tolist()) == (plan.target.sum(), [2.0] * 6)
    window = do.d1_sft(window=10).prepare(batch, plan)
    assert window.normaliser == 60 - batch.prompt.sum()


def test_filler_that_is_data_makes_d1_a_mean_over_tokens():
    batch = toy_batch()
    everything = torch.ones_like(batch.valid)
    filled = replace(
        batch, valid=everything, maskable=everything & ~batch.prompt, blocks=torch.zeros_like(batch.blocks)
    )
    plan = do.masked_sft().plan(filled)
    d1, token = do.d1_sft(window=7).prepare(filled, plan), do.masked_sft(normaliser="token").prepare(filled, plan)
    assert d1.normaliser == token.normaliser


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: do.d1_sft(window=0), "`window`: expected a count"),
        (lambda: do.d1_sft(eps=2.0), "`eps`: expected a number in"),
        (lambda: do.d1_sft(window=5).prepare(toy_batch(), do.masked_sft().plan(toy_batch())), "expected at least 7"),
        (lambda: do.cart_sft(p=0.0), "`p`: expected a number in"),
        (lambda: do.cart_sft(normaliser="tokens"), "did you mean 'token'"),
        (lambda: do.block_sft(low=0.7, high=0.6), "`low`: expected a number in"),
        (lambda: do.block_sft(high=1.5), "`high`: expected a number in"),
        (lambda: do.block_sft_sdar(tries=0), "`tries`: expected a count"),
        (lambda: do.block_sft_llada2(streams=0), "`streams`: expected a count"),
    ],
)
def test_options_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
