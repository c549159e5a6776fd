"""Numbers of the published implementations: loss, gradient, weights, advantages, metrics."""

from functools import partial

import pytest
import torch

import dare_objectives as do


def _advantage_cases(kind):
    return pytest.mark.golden("advantages", f"adv/{kind}")


@pytest.mark.wheel
@_advantage_cases("group_std/")
def test_group_normalize(case, tensor, check):
    _check_advantage(case, tensor, check, partial(do.group_normalize, singleton="raw"))


@_advantage_cases("group_mean/")
def test_center(case, tensor, check):
    _check_advantage(case, tensor, check, partial(do.center, singleton="raw"))


@_advantage_cases("leave_one_out/")
def test_leave_one_out(case, tensor, check):
    _check_advantage(case, tensor, check, partial(do.leave_one_out, singleton="raw"))


@_advantage_cases("population_std/")
def test_population_std(case, tensor, check):
    _check_advantage(case, tensor, check, partial(do.group_normalize, correction=0, eps=0.0))


@_advantage_cases("group_std_eps1e-4")
def test_group_normalize_with_another_eps(case, tensor, check):
    _check_advantage(case, tensor, check, partial(do.group_normalize, eps=1e-4))


def _check_advantage(case, tensor, check, advantage):
    rewards, group = (tensor(case["inputs"][name]) for name in ("rewards", "group"))
    check(advantage(rewards, group), case["expected"]["advantage"])


KL = {"k1": do.kl_k1, "k2": do.kl_k2, "k3": do.kl_k3, "abs": do.kl_abs}


@pytest.mark.golden("kl", "kl/")
def test_kl(case, tensor, check):
    inputs, expected, kind = case["inputs"], case["expected"], case["hyper"]["kind"]
    ref = tensor(inputs["ref"])
    logp = tensor(inputs.get("logp", inputs.get("score"))).requires_grad_()
    value = (do.kl_k1_corrected if case["id"] == "kl/seq_k1" else KL[kind])(logp, ref)
    check(value, expected.get("token_kl", expected.get("value")))
    if "mask" in inputs:
        mask = tensor(inputs["mask"])
        loss = (value * mask).sum() / mask.sum()
        check(loss, expected["loss"])
        check(torch.autograd.grad(loss, logp)[0], expected["grad"]["logp"])
    else:
        wanted = expected.get("grad_of_sum", expected.get("token_grad"))
        check(torch.autograd.grad(value.sum(), logp)[0], wanted)


@pytest.mark.wheel
@pytest.mark.golden("ppo", "ppo/")
def test_ppo(case, tensor, check):
    inputs, hyper, expected = case["inputs"], case["hyper"], case["expected"]
    logp = tensor(inputs["logp"]).requires_grad_()
    mask = tensor(inputs["mask"])
    rows = mask.shape[0]
    weight, normaliser = {
        "token-mean": (mask, mask.sum()),
        "seq-mean-token-sum": (mask, rows),
        "seq-mean-token-mean": (mask / mask.sum(1, keepdim=True).double(), rows),
        "seq-mean-token-sum-norm": (mask, mask.shape[1]),
    }[hyper["aggregate"]]
    loss, metrics = do.ppo_token(
        logp,
        tensor(inputs["old"]),
        tensor(inputs["advantage"])[:, None],
        weight,
        clip_low=hyper["clip_lo"],
        clip_high=hyper["clip_hi"],
        dual_clip=hyper["dual"],
        normaliser=normaliser,
    )
    check(loss, expected["loss"], case["id"])
    check(torch.autograd.grad(loss, logp)[0], expected["grad"]["logp"], case["id"])
    for name in ("clip_fraction", "dual_clip_fraction"):
        assert metrics[name].value == pytest.approx(expected["metrics"][name], abs=1e-7)


def _sft_plan(case, tensor, make_batch):
    inputs = case["inputs"]
    batch = make_batch(tensor(inputs["maskable"]))
    weight = 1 / tensor(inputs["rate"])[:, None, None]
    return batch, do.mask_plan(batch, tensor(inputs["masked"]), weight)


@pytest.mark.golden("sft", "sft/masked/")
def test_weighted_nll(case, tensor, check, make_batch):
    hyper, expected = case["hyper"], case["expected"]
    batch, plan = _sft_plan(case, tensor, make_batch)
    logp = tensor(case["inputs"]["logp"]).requires_grad_()
    length = batch.maskable.sum(1)
    row_weight, normaliser = {
        "token": (torch.ones(len(batch)), length.sum()),
        "sequence": (1 / length.double(), len(batch)),
        "batch": (torch.ones(len(batch)), len(batch)),
        "padded_token": (torch.ones(len(batch)), hyper.get("normalizer_value")),
    }[hyper["normalizer"]]
    loss = do.weighted_nll(logp, plan.weight * row_weight[:, None, None], normaliser=normaliser)
    check(loss, expected["loss"])
    check(torch.autograd.grad(loss, logp)[0], expected["grad"]["logp"])
    if "weight" in expected:
        check(plan.weight, expected["weight"])


@pytest.mark.wheel
@pytest.mark.golden("sft", "sft/masked/")
def test_masked_sft(case, tensor, check, make_batch):
    normaliser = case["hyper"]["normalizer"]
    if normaliser not in {"token", "sequence"}:
        return
    batch, plan = _sft_plan(case, tensor, make_batch)
    objective = do.get("masked_sft", {"normaliser": normaliser})
    logp = tensor(case["inputs"]["logp"]).requires_grad_()
    loss, _ = objective.loss(logp, plan, objective.prepare(batch, plan))
    check(loss, case["expected"]["loss"])
    check(torch.autograd.grad(loss, logp)[0], case["expected"]["grad"]["logp"])
    for wrong in case.get("known_wrong", {}).values():
        assert abs(loss.item() - wrong) > 1


def _check_policy(case, objective, batch, plan, tensor, check):
    inputs, expected = case["inputs"], case["expected"]
    logp = tensor(inputs["logp"]).requires_grad_()
    coeff = objective.prepare(batch, plan, tensor(inputs["rewards"]))
    check(coeff.advantage, expected["advantage"])
    loss, metrics = objective.loss(logp, plan, coeff, old=tensor(inputs["old"]), ref=tensor(inputs["ref"]))
    check(loss, expected["loss"])
    check(torch.autograd.grad(loss, logp)[0], expected["grad"]["logp"])
    if case["id"].startswith("coupled"):  # d1's own metric counts the tokens outside the range that are NOT clipped
        assert metrics["clip_fraction"].value == pytest.approx(expected["metrics"]["clip_fraction"], abs=1e-9)
    if "kl_ref" in metrics:
        assert metrics["kl_ref"].value == pytest.approx(expected["metrics"]["kl_k3"], abs=1e-9)


def _options(hyper, advantage):
    return {
        "clip_low": hyper["clip_lo"],
        "clip_high": hyper["clip_hi"],
        "dual_clip": hyper["dual"],
        "beta": hyper["beta"],
        "advantage": advantage,
    }


@pytest.mark.wheel
@pytest.mark.golden("d1", "d1/")
def test_diffu_grpo(case, tensor, check, make_batch):
    advantage = "group_normalize" if case["hyper"]["scale"] == "std" else "center"
    objective = do.get("diffu_grpo", _options(case["hyper"], advantage))
    target = tensor(case["inputs"]["target"])
    batch = make_batch(target[:, 0])
    plan = objective.plan(batch)
    assert torch.equal(plan.target, target)
    _check_policy(case, objective, batch, plan, tensor, check)


@pytest.mark.wheel
@pytest.mark.golden("coupled", "coupled/")
def test_coupled_grpo(case, tensor, check, make_batch):
    inputs, expected = case["inputs"], case["expected"]
    advantage = {"group_std": "group_normalize"}.get(case["hyper"]["advantage"], "leave_one_out")
    objective = do.get("coupled_grpo", _options(case["hyper"], advantage))
    batch = make_batch(tensor(inputs["maskable"]))
    gamma = torch.full((len(batch),), case["hyper"]["gamma"], dtype=torch.float64)
    plan = do.coupled_masks(batch, tensor(inputs["target"])[:, 1], gamma)
    assert torch.equal(plan.target, tensor(inputs["target"]))
    check(plan.weight, expected["weight"])
    check(objective.estimator(tensor(inputs["logp"]), plan)[:, 2:], expected["token_score"])
    _check_policy(case, objective, batch, plan, tensor, check)
