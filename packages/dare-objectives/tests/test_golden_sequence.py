"""Numbers of the published implementations: sequence policies and preferences."""

from dataclasses import replace
from functools import partial

import pytest
import torch

import dare_objectives as do
from dare_objectives.objectives.ebpo import weigh_streams

PROMPT = 2


@pytest.fixture(scope="module")
def sized_batch(make_batch):
    """A batch with two prompt columns and `length[b]` maskable tokens."""

    def build(length: torch.Tensor, width: int, group: torch.Tensor) -> do.Batch:
        column = torch.arange(width)
        return make_batch((column >= PROMPT) & (column < PROMPT + length[:, None]), group=group)

    return build


def _count_plan(batch: do.Batch, target: torch.Tensor, size: torch.Tensor) -> do.Plan:
    """Weight `size / number of targets` in each stream."""
    count = target.sum(2).clamp(min=1).double()
    return do.mask_plan(batch, target, (size[:, None] / count)[:, :, None])


def _check_policy(case, objective, batch, plan, tensor, check, *, names):
    inputs, expected = case["inputs"], case["expected"]
    logp = tensor(inputs["logp"]).requires_grad_()
    old, ref = (tensor(inputs[name]) if name in inputs else None for name in ("old", "ref"))
    coefficients = objective.prepare(batch, plan, tensor(inputs["rewards"]))
    check(coefficients.advantage, expected["advantage"], case["id"])
    check(objective.estimator(logp, plan), expected["elbo"])
    loss, metrics = objective.loss(logp, plan, coefficients, old=old, ref=ref)
    check(loss, expected["loss"], case["id"])
    check(torch.autograd.grad(loss, logp)[0], expected["grad"]["logp"], case["id"])
    for name, wanted in names.items():
        if wanted in expected.get("metrics", {}):
            assert metrics[name].value == pytest.approx(expected["metrics"][wanted], abs=1e-7)
    ratio = tensor(expected["ratio"])
    assert metrics["ratio"].value == pytest.approx(float(ratio.mean()), rel=1e-9)


def _clips(hyper) -> dict:
    return {"clip_low": hyper["clip_lo"], "clip_high": hyper["clip_hi"], "dual_clip": hyper["dual"]}


@pytest.mark.wheel
@pytest.mark.golden("bgpo", "bgpo/")
def test_bgpo(case, tensor, check, sized_batch):
    if "elbo" in case["inputs"]:
        return _check_bgpo_loss(case, tensor, check)
    inputs = {name: tensor(case["inputs"][name]) for name in ("target", "length", "group")}
    weighting = "length" if case["id"].endswith("length_mean") else "sequence"
    objective = do.get("bgpo", {**_clips(case["hyper"]), "draws": 4, "weighting": weighting})
    batch = sized_batch(inputs["length"], inputs["target"].shape[2], inputs["group"])
    plan = _count_plan(batch, inputs["target"], inputs["length"])
    names = ("clip_fraction", "dual_clip_fraction") if weighting == "sequence" else ()  # theirs count tokens
    return _check_policy(case, objective, batch, plan, tensor, check, names=dict(zip(names, names, strict=True)))


def _check_bgpo_loss(case, tensor, check):
    elbo = tensor(case["inputs"]["elbo"]).requires_grad_()
    old, advantage, length = (tensor(case["inputs"][name]) for name in ("old", "advantage", "length"))
    loss, _ = do.bgpo_loss(
        elbo, old, advantage, torch.ones(2), length=length, normaliser=elbo.numel(), **_clips(case["hyper"])
    )
    check(loss, case["expected"]["loss"])
    check(torch.autograd.grad(loss, elbo)[0], case["expected"]["grad"]["elbo"])
    assert bool(torch.log(1 + (elbo.detach() - old) / length[:, None]).isnan().any())  # as published: exp of this


@pytest.mark.wheel
@pytest.mark.golden("ebpo", "ebpo/")
def test_ebpo(case, tensor, check, make_batch):
    if "elbo" in case["inputs"]:
        return _check_extreme_ratios(case, tensor, check)
    inputs, hyper = case["inputs"], case["hyper"]
    target, weight, maskable = (tensor(inputs[name]) for name in ("target", "weight", "maskable"))
    options = {"beta": hyper["beta"], "divergence": hyper["kl"] or "k2", "draws": target.shape[1]}
    objective = do.get("ebpo", {**_clips(hyper), **options, "stream_weights": hyper["stream_weights"]})
    batch = make_batch(maskable, group=tensor(inputs["group"]))
    blocks = torch.where(batch.valid, tensor(inputs["block_id"]) + 1, -1).to(torch.int32)
    batch = replace(batch, blocks=blocks)
    drawn = do.get("ebpo", {"draws": 3}).plan(batch)  # the plan's own weights are those of the fixture
    for index in range(2):
        inside = maskable & (tensor(inputs["block_id"]) == index)
        for made, given in ((drawn.target, drawn.weight), (target, weight)):
            count = (made & inside[:, None]).sum(2, keepdim=True)
            wanted = (inside.sum(1)[:, None, None] / count.clamp(min=1)).expand_as(made)[made & inside[:, None]]
            torch.testing.assert_close(given[made & inside[:, None]].double(), wanted.double(), rtol=1e-6, atol=0)
    plan = weigh_streams(do.mask_plan(batch, target, weight), hyper["stream_weights"])
    names = {"clip_fraction": "clip_fraction", "clip_low_fraction": "low_clip_fraction"}
    return _check_policy(case, objective, batch, plan, tensor, check, names=names)


def _check_extreme_ratios(case, tensor, check):
    elbo = tensor(case["inputs"]["elbo"]).requires_grad_()
    old, advantage = (tensor(case["inputs"][name]) for name in ("old", "advantage"))
    loss, metrics = do.ppo_seq(elbo, old, advantage, torch.ones(6), normaliser=6, **_clips(case["hyper"]))
    check(loss, case["expected"]["loss"])
    check(torch.autograd.grad(loss, elbo)[0], case["expected"]["grad"]["elbo"])
    assert metrics["clip_fraction"].value == pytest.approx(case["expected"]["metrics"]["clip_fraction"])


@pytest.mark.wheel
@pytest.mark.golden("espo", "espo/")
def test_espo(case, tensor, check, sized_batch):
    inputs, hyper = case["inputs"], case["hyper"]
    target, length, count = (tensor(inputs[name]) for name in ("target", "length", "mask_count"))
    objective = do.get("espo", {**_clips(hyper), "beta": hyper["beta"], "pairs": hyper["draws"]})
    batch = sized_batch(length, target.shape[2], tensor(inputs["group"]))
    assert torch.equal(target.sum(2), torch.stack([count, length[:, None] - count], 2).flatten(1))
    plan = _count_plan(batch, target, length + 1)
    check(plan.weight / plan.streams, case["expected"]["weight"])
    names = {
        "clip_fraction": "clip_fraction",
        "clip_low_fraction": "low_clip_fraction",
        "clip_high_fraction": "high_clip_fraction",
        "kl_ref": "kl_k2_per_token",
        "nll": "nll_per_token",
    }
    _check_policy(case, objective, batch, plan, tensor, check, names=names)


def _elbo(tensor, inputs, side: str, logp: torch.Tensor) -> torch.Tensor:
    masked, length = tensor(inputs[f"{side}_masked"]), tensor(inputs[f"{side}_length"])
    weight = length[:, None].double() / masked.sum(2)
    return (weight * torch.where(masked, logp, 0.0).sum(2)).mean(1)


def _pair_loss(hyper):
    options = {"beta": hyper["beta"]}
    losses = {"hinge": do.hinge, "ipo": do.ipo, "smoothing0.1": partial(do.dpo, label_smoothing=0.1)}
    return partial(losses.get(hyper.get("loss"), do.dpo), **options)


@pytest.mark.wheel
@pytest.mark.golden("dpo", "dpo/")
def test_pair_losses(case, tensor, check):
    inputs, hyper, expected = case["inputs"], case["hyper"], case["expected"]
    sides = ("chosen", "rejected")
    leaves = [tensor(inputs[side]).requires_grad_() for side in sides]
    scale = [tensor(inputs[f"{side}_length"]) if hyper["length_norm"] else 1 for side in sides]
    policy = [_elbo(tensor, inputs, side, x) / L for side, x, L in zip(sides, leaves, scale, strict=True)]
    ref = [_elbo(tensor, inputs, side, tensor(inputs[f"ref_{side}"])) / L for side, L in zip(sides, scale, strict=True)]
    loss, metrics = _pair_loss(hyper)(*policy, *ref, normaliser=3)
    check(loss, expected["loss"])
    for side, slope in zip(sides, torch.autograd.grad(loss, leaves), strict=True):
        check(slope, expected["grad"][side])
    for name in ("accuracy", "margin"):
        if name in expected.get("metrics", {}):
            assert metrics[name].value == pytest.approx(expected["metrics"][name], abs=1e-9)
    for wrong in case.get("known_wrong", {}).values():
        padded = [x / (leaves[0].shape[2] - PROMPT) for x in (*policy, *ref)]
        assert do.dpo(*padded, beta=hyper["beta"], normaliser=3)[0].item() == pytest.approx(wrong, abs=1e-9)
        assert abs(loss.item() - wrong) > 1e-3


@pytest.mark.golden("dpo", "dpo/")
def test_vrpo(case, tensor, check):
    """Through `prepare` and a loss that is a sum over rows: the same loss and gradient."""
    inputs, hyper, expected = case["inputs"], case["hyper"], case["expected"]
    name, extra = {
        "hinge": ("vrpo_hinge", {}),
        "ipo": ("vrpo_ipo", {}),
        "smoothing0.1": ("vrpo", {"label_smoothing": 0.1}),
    }.get(hyper.get("loss"), ("vrpo", {}))
    options = {"beta": hyper["beta"], "draws": 3, "per_token": bool(hyper["length_norm"])}
    objective = do.get(name, options | extra)

    def both(name: str) -> torch.Tensor:
        return torch.cat([tensor(inputs[name.format(side)]) for side in ("chosen", "rejected")])

    batch, plan = _pair_batch(both)
    logp = both("{}").requires_grad_()
    coefficients = objective.prepare(
        replace(batch, ref=both("ref_{}")), plan, torch.tensor([1.0] * 3 + [0.0] * 3), logp.detach()
    )
    parts = [objective.loss(logp[[row]], plan[[row]], coefficients[[row]])[0] for row in range(6)]
    loss = torch.stack(parts).sum()
    check(loss, expected["loss"])
    slope = torch.autograd.grad(loss, logp)[0]
    check(slope, torch.cat([tensor(expected["grad"][side]) for side in ("chosen", "rejected")]))
    for name in ("accuracy", "margin"):
        if name in expected.get("metrics", {}):
            assert coefficients.metrics[name].value == pytest.approx(expected["metrics"][name], abs=1e-9)


def _pair_batch(both) -> tuple[do.Batch, do.Plan]:
    masked, length = both("{}_masked"), both("{}_length")
    yes = torch.ones(6, masked.shape[2], dtype=torch.bool)
    column = torch.arange(masked.shape[2]).expand(6, -1)
    maskable = masked.any(1)  # grown to the stated length, for rows whose masks miss a token
    while bool((short := maskable.sum(1) < length).any()):
        first = (~maskable).int().argmax(1)
        maskable = maskable | (short[:, None] & (column == first[:, None]))
    blocks = torch.zeros_like(column, dtype=torch.int32)
    group = torch.arange(3).repeat(2)
    batch = do.Batch(column, yes, maskable, blocks, torch.arange(6), group, mask_id=99)
    return batch, _count_plan(batch, masked, length)
