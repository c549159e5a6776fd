"""Estimators and diagnostics against their formulas, written out as loops."""

import math

import pytest
import torch

import dare_objectives as do
from dare_objectives.testing import toy_batch, with_step_map


def _logp(plan: do.Plan, *, requires_grad: bool = False) -> torch.Tensor:
    row = torch.arange(len(plan))[:, None, None]
    stream = torch.arange(plan.streams)[None, :, None]
    column = torch.arange(plan.inputs.shape[2])
    return (-0.1 - ((row * 7 + stream * 3 + column * 5) % 11).double() / 4).requires_grad_(requires_grad)


def _targets(plan: do.Plan, row: int) -> list[list[int]]:
    return [stream.nonzero().flatten().tolist() for stream in plan.target[row]]


@pytest.mark.wheel
@pytest.mark.golden("spg", "spg/")
def test_published_bounds(case, tensor, check):
    inputs, expected, beta = case["inputs"], case["expected"], case["hyper"]["beta"]
    target, length = tensor(inputs["target"]), tensor(inputs["length"]).double()
    valid = torch.ones_like(target[:, 0])
    tokens = torch.zeros_like(valid, dtype=torch.int64)
    weight = length[:, None, None] / target.sum(2, keepdim=True) * target
    ids = tokens[:, None].expand(target.shape)
    plan = do.Plan(ids, target, ids, weight, tokens, valid, tokens.to(torch.int32))
    logp = tensor(inputs["logp"]).requires_grad_()
    upper = do.eubo_mean(logp, plan, beta)
    check(upper, expected["eubo_mean"])
    if "token_eubo" in expected:  # a power of e^-900 is 0, and the published code takes the token for an unmasked one
        check(do.eubo_token(logp, plan, beta), expected["token_eubo"])
        check(torch.autograd.grad(upper.sum(), logp)[0], expected["grad"]["logp"])
        shares = torch.where(target, (beta * logp).exp() * weight, 0.0).mean(1)
        published = torch.where(shares > 0, shares, 1.0).log().sum(1) / (shares > 0).sum(1) / beta
        assert abs(float((published - upper).detach())) > 1
    else:
        check(do.elbo_mean(logp, plan), expected["elbo_mean"])
        check(do.elbo_seq(logp, plan) / length, expected["elbo_mean"])


@pytest.mark.wheel
def test_bounds_equal_loops():
    batch = toy_batch(rows=6, response=7)
    plan = do.block_suffix(batch, draws=3, context=0.3)
    logp = _logp(plan)
    lower, upper = do.elbo_mean(logp, plan), do.eubo_mean(logp, plan, 1.5)
    for row in range(len(batch)):
        streams, length = _targets(plan, row), int(batch.lengths[row])
        means = [sum(float(logp[row, k, i]) for i in on) / len(on) for k, on in enumerate(streams)]
        assert float(lower[row]) == pytest.approx(sum(means) / 3, abs=1e-12)
        tokens = sorted({i for on in streams for i in on})
        shares = [
            sum(math.exp(1.5 * float(logp[row, k, i])) * length / len(on) for k, on in enumerate(streams) if i in on)
            for i in tokens
        ]
        wanted = sum(math.log(share / 3) / 1.5 for share in shares) / len(tokens)
        assert float(upper[row]) == pytest.approx(wanted, abs=1e-6)  # the plan's weights are float32


@pytest.mark.wheel
def test_with_one_stream_both_bounds_have_the_same_gradient():
    """Hence the mixture of SPG has no effect with one stream, the default of DARE."""
    plan = do.block_suffix(toy_batch(response=7), draws=1, context=0.3)
    logp = _logp(plan, requires_grad=True)
    lower = torch.autograd.grad(do.elbo_mean(logp, plan).sum(), logp)[0]
    upper = torch.autograd.grad(do.eubo_mean(logp, plan, 1.5).sum(), logp)[0]
    assert torch.allclose(lower, upper, atol=1e-14)


def test_small_beta_turns_the_upper_bound_into_the_weighted_mean():
    """Weights with mean 1 over the streams: 1/beta log E_w p^beta -> E_w l, and never below it (Jensen)."""
    batch = toy_batch(response=6)
    plan = do.coupled(batch)
    weight = torch.where(plan.target, 1.5, 0.0).double()  # each token is scored in two of three streams
    plan = do.Plan(plan.inputs, plan.target, plan.labels, weight, plan.clean, plan.valid, plan.blocks)
    logp = _logp(plan)
    lower = do.weighted_token_logp(logp, plan) / 3
    assert torch.allclose(do.eubo_token(logp, plan, 1e-7), lower, atol=1e-5)
    for beta in (0.1, 1.0, 2.0):
        assert bool((do.eubo_token(logp, plan, beta) >= lower - 1e-12).all())


def test_estimators_of_nothing_are_zero_with_zero_gradient():
    batch = toy_batch()
    plan = do.trajectory(with_step_map(batch))
    plan = do.Plan(plan.inputs, plan.target & False, plan.labels, plan.weight * 0, plan.clean, plan.valid, plan.blocks)
    logp = torch.full(plan.target.shape, -torch.inf, dtype=torch.float64, requires_grad=True)
    total = do.eubo_mean(logp, plan, 1.0).sum() + do.elbo_mean(logp, plan).sum() + do.seq_sum(logp, plan).sum()
    assert float(total.detach()) == 0
    assert not bool(torch.autograd.grad(total, logp)[0].any())


@pytest.mark.wheel
def test_seq_sum_counts_every_target_once():
    plan = do.trajectory(with_step_map(toy_batch()))
    logp = _logp(plan)
    decoy = torch.where(plan.target, logp, torch.nan)
    wanted = [sum(float(logp[row, k, i]) for k, on in enumerate(_targets(plan, row)) for i in on) for row in range(6)]
    assert torch.allclose(do.seq_sum(decoy, plan), torch.tensor(wanted, dtype=torch.float64))


@pytest.mark.wheel
@pytest.mark.golden("sft", "sft/cart/")
def test_published_cart_weights(case, tensor, check):
    masked = tensor(case["inputs"]["masked"])
    check(do.cart_weights(masked, case["hyper"]["p_geo"], dtype=torch.float64), case["expected"]["weight"])


@pytest.mark.wheel
@pytest.mark.parametrize("p", [0.05, 0.3, 0.5, 1.0])
def test_cart_weights_equal_a_double_loop(p):
    batch = toy_batch(rows=6, response=13)
    masked = do.bernoulli(batch, streams=2).target
    visible = batch.valid[:, None] & ~masked
    found = do.cart_weights(masked, p, visible=visible, dtype=torch.float64)
    for weight, hidden, seen in zip(found.flatten(0, 1), masked.flatten(0, 1), visible.flatten(0, 1), strict=True):
        for i, value in enumerate(weight.tolist()):
            near = [p * (1 - p) ** (abs(i - j) - 1) for j, on in enumerate(seen.tolist()) if on and j != i]
            assert value == pytest.approx(sum(near) / 2 if hidden[i] else 0.0, abs=1e-14)


@pytest.mark.wheel
def test_cart_weights_are_symmetric_zero_without_context_and_blind_to_padding():
    masked = torch.tensor([[False, True, False, False, True, False], [True] * 6])
    weight = do.cart_weights(masked, 0.3)
    assert weight[0, 1] == weight[0, 4]
    assert not bool(weight[1].any())
    wide = torch.nn.functional.pad(masked, (0, 27))
    visible = torch.nn.functional.pad(~masked, (0, 27))
    assert torch.equal(do.cart_weights(wide, 0.3, visible=visible)[:, :6], weight)


@pytest.mark.wheel
@pytest.mark.golden("cj", "cj/transition/")
def test_published_transition_weights(case, tensor, check):
    inputs = case["inputs"]
    target, maskable = tensor(inputs["target"]), tensor(inputs["maskable"])
    rows, width = maskable.shape
    column, size = torch.arange(width), inputs["block_size"]
    tokens = torch.zeros(rows, width, dtype=torch.int64)
    step = torch.nn.functional.pad(tensor(inputs["local_step"]), (2, 0), value=-1)
    blocks = torch.where(column < 2, 0, 1 + (column - 2) // size).to(torch.int32).expand(rows, -1)
    yes, group = torch.ones_like(maskable), torch.zeros(rows, dtype=torch.int64)
    batch = do.Batch(
        tokens, yes, maskable, blocks, do.row_keys(0, range(rows)), group, 9, step_map=step.to(torch.int32)
    )
    plan = do.trajectory(batch, parallel_blocks=True)
    assert torch.equal(plan.target, target)
    check(do.transition_weights(plan, per="block", dtype=torch.float64), case["expected"]["weight"])


@pytest.mark.wheel
def test_effective_size():
    equal = torch.full((2, 5), -700.0)
    assert do.effective_size(equal).tolist() == [5, 5]
    weight = torch.tensor([[1.0, 2.0, 4.0, 8.0]], dtype=torch.float64)
    assert float(do.effective_size(weight.log())) == pytest.approx(15**2 / 85)
    mask = torch.tensor([[True, False, True, False]])
    assert float(do.effective_size(weight.log(), mask)) == pytest.approx(25 / 17)
    assert do.effective_size(torch.tensor([[1e5, 0.0]])).tolist() == [1]
    assert do.effective_size(equal, torch.zeros(2, 5, dtype=torch.bool)).tolist() == [0, 0]


def test_diagnostics_merge_over_micro_batches():
    plan = do.count_stratified(toy_batch(), 4)
    draws = do.elbo_draws(_logp(plan), plan)
    whole = do.draw_metrics(draws) | do.weight_metrics(draws)
    parts = do.merge_metrics(do.draw_metrics(part) | do.weight_metrics(part) for part in draws.split([1, 3, 2]))
    for name, metric in whole.items():
        assert parts[name].value == pytest.approx(metric.value, rel=1e-12)
    assert whole["draw_variance"].value == pytest.approx(float(draws.var(1).mean()))
    assert whole["estimate_variance"].value == pytest.approx(float(draws.var(1).mean()) / 4)
    assert do.weight_metrics(torch.zeros(3, 4))["effective_share"].value == 1
    assert do.draw_metrics(draws[:, :1]) == {}
    some = do.draw_metrics(draws, rows=torch.arange(6) == 1)
    assert some["draw_variance"].value == pytest.approx(float(draws[1].var()))
