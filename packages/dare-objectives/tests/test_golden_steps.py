"""Numbers of the published implementations of objectives on denoising steps: loss, gradient, weights, advantages."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

import dare_objectives as do
from dare_objectives.losses import SoftTargets
from dare_objectives.objectives.d_tree_rpo import distill_temperature, distill_weight
from dare_objectives.objectives.just_grpo import per_compared


def _plan(target: Tensor, *, blocks: Tensor | None = None, labels: Tensor | None = None) -> do.Plan:
    """Targets in states that do not matter: the log-probs are given."""
    rows, _, width = target.shape
    inputs = torch.zeros(target.shape, dtype=torch.int64)
    yes = torch.ones(rows, width, dtype=torch.bool)
    blocks = torch.zeros(rows, width, dtype=torch.int32) if blocks is None else blocks
    return do.Plan(
        inputs, target, inputs if labels is None else labels, target.double(), inputs[:, 0], yes, blocks=blocks
    )


def _batch(plan: do.Plan, group: Tensor) -> do.Batch:
    rows = len(plan)
    return do.Batch(
        tokens=plan.clean,
        valid=plan.valid,
        maskable=plan.scored,
        blocks=plan.blocks,
        keys=do.row_keys(0, range(rows)),
        group=group,
        mask_id=9,
        step_map=torch.zeros_like(plan.blocks),
    )


def _compare(case, tensor, check, objective, plan, coefficients):
    inputs, expected = case["inputs"], case["expected"]
    logp = tensor(inputs["logp"]).requires_grad_()
    ref = tensor(inputs["ref"]) if "ref" in inputs else None
    loss, metrics = objective.loss(logp, plan, coefficients, old=tensor(inputs["old"]), ref=ref)
    check(loss, expected["loss"])
    check(torch.autograd.grad(loss, logp)[0], expected["grad"]["logp"])
    return metrics


def _options(hyper):
    return {"clip_low": hyper["clip_lo"], "clip_high": hyper["clip_hi"], "dual_clip": hyper["dual"]}


@pytest.mark.wheel
@pytest.mark.golden("cj", "cj/step_equal/")
def test_cj_grpo_step_equal(case, tensor, check):
    advantage = {"group_mean": "center", "group_std": "group_normalize"}[case["hyper"]["advantage"]]
    options = {**_options(case["hyper"]), "beta": case["hyper"]["beta"], "advantage": advantage}
    objective, plan = do.get("cj_grpo_step_equal", options), _plan(tensor(case["inputs"]["target"]))
    batch = _batch(plan, tensor(case["inputs"]["group"]))
    coefficients = objective.prepare(batch, plan, tensor(case["inputs"]["rewards"]))
    check(coefficients.advantage, case["expected"]["advantage"])
    _compare(case, tensor, check, objective, plan, coefficients)


@pytest.mark.golden("cj", "cj/step_equal/")
def test_the_step_equal_weights_are_not_those_of_transitions(case, tensor):
    options = {**_options(case["hyper"]), "beta": case["hyper"]["beta"]}
    plan = _plan(tensor(case["inputs"]["target"]))
    batch, rewards = _batch(plan, tensor(case["inputs"]["group"])), tensor(case["inputs"]["rewards"])
    fixed = {name: tensor(case["inputs"][name]) for name in ("old", "ref")}
    losses = []
    for name in ("cj_grpo", "cj_grpo_step_equal"):
        objective = do.get(name, options)
        coefficients = objective.prepare(batch, plan, rewards)
        losses.append(float(objective.loss(tensor(case["inputs"]["logp"]), plan, coefficients, **fixed)[0]))
    assert abs(losses[0] - losses[1]) > 1e-3


@pytest.mark.wheel
@pytest.mark.golden("cj", "cj/transition/")
def test_cj_grpo(case, tensor, check):
    inputs = case["inputs"]
    target = tensor(inputs["target"])
    column = torch.arange(target.shape[2]) - 2
    blocks = torch.where(column < 0, 0, 1 + column.clamp(min=0) // inputs["block_size"]).to(torch.int32)
    plan = _plan(target, blocks=blocks.expand(len(target), -1))
    options = {**_options(case["hyper"]), "advantage": "group_normalize", "parallel_blocks": True}
    objective = do.get("cj_grpo", options)
    weight = do.transition_weights(plan, per="block", dtype=torch.float64)
    check(weight, case["expected"]["weight"])
    batch = _batch(plan, tensor(inputs["group"]))
    coefficients = objective.prepare(batch, plan, tensor(inputs["rewards"]))
    check(coefficients.advantage, case["expected"]["advantage"])
    _compare(case, tensor, check, objective, plan, coefficients)
    check(objective.estimator(tensor(inputs["logp"]), plan), weight * tensor(inputs["logp"]))
    if case["hyper"]["dual"]:
        preset = do.get("cj_grpo_dare_compat")
        _compare(case, tensor, check, preset, plan, preset.prepare(batch, plan, tensor(inputs["rewards"])))


def _tracerl(case, tensor, *, normaliser, beta):
    hyper = case["hyper"]
    options = {**_options(hyper), "beta": beta, "divergence": hyper["kl"], "normaliser": normaliser}
    return do.get("tracerl", options), _plan(tensor(case["inputs"]["target"]))


@pytest.mark.wheel
@pytest.mark.golden("tracerl", "tracerl/block/")
def test_tracerl_of_block_models(case, tensor, check):
    inputs, expected = case["inputs"], case["expected"]
    objective, plan = _tracerl(case, tensor, normaliser="padded", beta=case["hyper"]["beta"])
    if "rewards" in inputs:
        coefficients = objective.prepare(_batch(plan, tensor(inputs["group"])), plan, tensor(inputs["rewards"]))
        check(coefficients.advantage, expected["advantage"])
        assert float(coefficients.normaliser) == case["hyper"]["response_length"] * case["hyper"]["rows"]
    else:
        prompt = plan.inputs.shape[2] - len(inputs["token_advantage"][0])
        given = torch.nn.functional.pad(tensor(inputs["token_advantage"]), (prompt, 0))
        normaliser = torch.tensor(float(case["hyper"]["response_length"] * case["hyper"]["rows"]))
        coefficients = do.Coefficients(given[:, None], torch.ones(len(plan)), normaliser)
    _compare(case, tensor, check, objective, plan, coefficients)


@pytest.mark.wheel
@pytest.mark.golden("tracerl", "tracerl/full_attention/")
def test_tracerl_of_full_attention(case, tensor, check):
    """The published divergence is a sum over a round's tokens; here it is a mean, like the policy term."""
    inputs, expected, beta = case["inputs"], case["expected"], case["hyper"]["beta"]
    objective, plan = _tracerl(case, tensor, normaliser="round", beta=0.0)
    batch, old = _batch(plan, tensor(inputs["group"])), tensor(inputs["old"])
    coefficients = objective.prepare(batch, plan, tensor(inputs["rewards"]))
    assert float(coefficients.normaliser) == case["hyper"]["rows"]
    logp = tensor(inputs["logp"]).requires_grad_()
    loss, _ = objective.loss(logp, plan, coefficients, old=old)
    divergence = torch.where(plan.target, do.kl_k3(logp, old), 0.0)
    published = loss + beta * divergence.sum() / case["hyper"]["rows"]
    check(published, expected["loss"])
    check(torch.autograd.grad(published, logp)[0], expected["grad"]["logp"])
    mean, metrics = _tracerl(case, tensor, normaliser="round", beta=beta)[0].loss(logp, plan, coefficients, old=old)
    size = plan.target.sum(2, keepdim=True).clamp(min=1)
    check(mean, (loss + beta * (divergence / size).sum() / case["hyper"]["rows"]).detach())
    assert abs(mean.item() - expected["loss"]) > 1e-5
    assert metrics["kl_old"].value > 0


@pytest.mark.wheel
@pytest.mark.golden("tracerl", "tracerl/value_loss")
def test_value_loss(case, tensor, check):
    inputs = case["inputs"]
    value, mask = tensor(inputs["value"]).requires_grad_(), tensor(inputs["mask"])
    options = {"clip": case["hyper"]["clip"], "normaliser": 6 * len(mask)}
    loss, metrics = do.value_loss(value, tensor(inputs["old_value"]), tensor(inputs["ret"]), mask, **options)
    check(loss, case["expected"]["loss"])
    check(torch.autograd.grad(loss, value)[0], case["expected"]["grad"]["value"])
    assert 0 < metrics["value_clip_fraction"].value < 1


@pytest.mark.wheel
@pytest.mark.golden("tracerl", "tracerl/value_loss")
def test_tracerl_critic(case, tensor, check):
    """The critic's loss with the golden returns in place of its own; all tokens in one round."""
    inputs, mask = case["inputs"], tensor(case["inputs"]["mask"])
    plan = _plan(mask[:, None])
    value = tensor(inputs["value"]).requires_grad_()
    objective = do.get("tracerl_critic", {"normaliser": "padded"})
    batch = replace(_batch(plan, torch.arange(len(mask))), value=do.Values(tensor(inputs["old_value"])))
    coefficients = objective.prepare(batch, plan, torch.ones(len(mask), dtype=torch.float64))
    loss, _ = objective.loss(value[:, None], plan, replace(coefficients, ret=tensor(inputs["ret"])))
    check(loss, case["expected"]["loss"])
    check(torch.autograd.grad(loss, value)[0], case["expected"]["grad"]["value"])


@pytest.mark.wheel
@pytest.mark.golden("mdpo", "mdpo/")
def test_mdpo(case, tensor, check):
    inputs, hyper, expected = case["inputs"], case["hyper"], case["expected"]
    target, confidence = tensor(inputs["target"]), tensor(inputs["confidence"])
    advantage, length = tensor(inputs["advantage"]), hyper["response_length"]
    batch = _answers(target, length)
    states = do.States(
        inputs=batch.tokens[:, None].masked_fill(target, batch.mask_id),
        tokens=torch.ones(target.shape, dtype=torch.int64),
        confidence=confidence,
        rewards=torch.zeros(target.shape[:2], dtype=torch.float64),
    )
    batch = replace(batch, states=states)
    objective = do.get("mdpo", {**_options(hyper), "beta": hyper["beta"]})
    plan = objective.plan(batch)
    assert torch.equal(plan.target, target)
    coefficients = objective.prepare(batch, plan)
    given = replace(coefficients, advantage=advantage[:, :, None], row_weight=torch.ones(len(batch)))
    metrics = _compare(case, tensor, check, objective, plan, given)
    if hyper["beta"]:
        assert metrics["kl_ref"].value == pytest.approx(expected["metrics"]["kl_k2"], rel=1e-9)
    assert metrics["clip_fraction"].value == pytest.approx(expected["metrics"]["clip_fraction"], abs=1e-7)
    guarded = expected["loss_with_original_1e4_guard"]
    assert 0 < abs(guarded - expected["loss"]) < 1e-4


def _answers(target: Tensor, length: int) -> do.Batch:
    rows, _, width = target.shape
    tokens = torch.arange(width).repeat(rows, 1)
    yes = torch.ones_like(tokens, dtype=torch.bool)
    maskable = torch.arange(width).expand_as(tokens) >= width - length
    zero = torch.zeros(rows, dtype=torch.int64)
    return do.Batch(tokens, yes, maskable, zero.int()[:, None].expand(-1, width), do.row_keys(0, range(rows)), zero, 9)


@pytest.mark.wheel
@pytest.mark.golden("justgrpo", "justgrpo/original/")
def test_just_grpo_as_published(case, tensor, check):
    inputs = case["inputs"]
    logp, advantage = tensor(inputs["logp"]).requires_grad_(), tensor(inputs["advantage"])
    objective, plan, wide = _just_grpo(torch.ones(logp.shape, dtype=torch.bool), {"normaliser": "compared"})
    valid = tensor(inputs["valid"])
    coefficients = objective.prepare(wide, plan, advantage)
    published = per_compared(wide, plan, advantage)
    assert float(published) == logp.shape[1] * valid.sum()
    given = replace(coefficients, advantage=advantage, normaliser=published)
    loss, metrics = objective.loss(_spread(logp), plan, given)
    check(loss, case["expected"]["loss"])
    check(torch.autograd.grad(loss, logp)[0], case["expected"]["grad"]["logp"])
    assert metrics["ratio_max"].value == 1


def _just_grpo(mask: Tensor, options) -> tuple[do.Objective, do.Plan, do.Batch]:
    rows, width = mask.shape
    tokens = torch.zeros(rows, width, dtype=torch.int64)
    batch = do.Batch(
        tokens=tokens,
        valid=mask,
        maskable=mask,
        blocks=torch.where(mask, 0, -1).to(torch.int32),
        keys=do.row_keys(0, range(rows)),
        group=torch.arange(rows) // 3,
        mask_id=9,
    )
    objective = do.get("just_grpo", options)
    return objective, objective.plan(batch), batch


def _spread(token: Tensor) -> Tensor:
    """Token t in stream t; elsewhere decoys."""
    return torch.where(torch.eye(token.shape[1]).bool(), token[:, None], -3.0)


@pytest.mark.wheel
@pytest.mark.golden("justgrpo", "justgrpo/token_mean")
def test_just_grpo_as_a_token_mean(case, tensor, check):
    inputs = case["inputs"]
    logp, old = tensor(inputs["logp"]).requires_grad_(), _spread(tensor(inputs["old"]))
    options = {**_options(case["hyper"]), "eps": 1e-6}
    objective, plan, batch = _just_grpo(tensor(inputs["mask"]), options)
    for policy in (objective, do.get("just_grpo_dare_compat")):
        coefficients = policy.prepare(batch, plan, tensor(inputs["rewards"]))
        check(coefficients.advantage, case["expected"]["advantage"])
        loss, metrics = policy.loss(_spread(logp), plan, coefficients, old=old)
        check(loss, case["expected"]["loss"], case["id"])
        check(torch.autograd.grad(loss, logp)[0], case["expected"]["grad"]["logp"], case["id"])
        for name in ("clip_fraction", "dual_clip_fraction"):
            assert metrics[name].value == pytest.approx(case["expected"]["metrics"][name], abs=1e-7)


class _Forest:
    """The golden segments as three rows, one for each parent: a root and its children."""

    def __init__(self, case, tensor):
        inputs = case["inputs"]
        self.group, self.parent, self.child = (tensor(inputs[name]) for name in ("group", "parent", "child"))
        self.mask, self.rows = inputs["mask_symbol"], int(self.group.max()) + 1
        self.place = [(self.group == row).nonzero().flatten().tolist() for row in range(self.rows)]
        width, most = self.child.shape[1], max(map(len, self.place))
        canvas = torch.full((self.rows, 1 + most, width), self.mask)
        parent = torch.full((self.rows, 1 + most), do.NO_NODE)
        for row, members in enumerate(self.place):
            canvas[row, 0], parent[row, 0] = self.parent[members[0]], -1
            canvas[row, 1 : 1 + len(members)], parent[row, 1 : 1 + len(members)] = self.child[members], 0
        progress = case["hyper"].get("self_distill", {}).get("progress", 0.0)
        reward = torch.zeros(parent.shape, dtype=torch.float64)
        tokens = torch.zeros(self.rows, width, dtype=torch.int64)
        yes = torch.ones_like(tokens, dtype=torch.bool)
        self.batch = do.Batch(
            tokens=tokens,
            valid=yes,
            maskable=yes,
            blocks=torch.zeros_like(tokens, dtype=torch.int32),
            keys=do.row_keys(0, range(self.rows)),
            group=torch.arange(self.rows),
            mask_id=self.mask,
            tree=do.Tree(canvas, parent, reward, progress=progress),
        )

    def gather(self, segments: Tensor) -> Tensor:
        """Numbers of the segments `[N, ...]` as `[rows, 1, ..., C]`, 0 where a row has fewer."""
        most = max(map(len, self.place))
        parts = [torch.cat([segments[p], segments.new_zeros(most - len(p), *segments.shape[1:])]) for p in self.place]
        return torch.stack(parts).movedim(1, -1)[:, None]


@pytest.mark.wheel
@pytest.mark.golden("dtree", "dtree/")
def test_d_tree_rpo(case, tensor, check):
    inputs, hyper, expected = case["inputs"], case["hyper"], case["expected"]
    forest = _Forest(case, tensor)
    objective, plan, coefficients = _d_tree(case, tensor, forest)
    active = forest.gather(tensor(inputs["active"]))
    assert torch.equal(coefficients.token_weight > 0, active)
    logits = tensor(inputs["logits"]).requires_grad_()
    logp = logits.log_softmax(-1)[:, None].gather(3, plan.labels)
    fixed = {name: forest.gather(tensor(inputs[name])) for name in ("old", "ref")}
    loss, metrics = objective.loss(logp, plan, coefficients, **fixed)
    check(loss, expected["loss"], case["id"])
    check(torch.autograd.grad(loss, logits)[0], expected["grad"]["logits"], case["id"])
    if "self_distill" in hyper:
        assert metrics["distill"].value == pytest.approx(expected["self_distill"], rel=1e-8)
        for name, schedule in (("lam", distill_weight), ("tau", distill_temperature)):
            assert schedule(hyper["self_distill"]["progress"]) == pytest.approx(hyper["self_distill"][name], abs=1e-6)


def _d_tree(case, tensor, forest):
    """The objective with the golden advantages, which are not those of a tree."""
    distill = {} if "self_distill" in case["hyper"] else {"distill": 0.0}
    options = {**_options(case["hyper"]), "beta": case["hyper"]["beta"], **distill}
    objective = do.get("d_tree_rpo", options)
    given = forest.gather(tensor(case["inputs"]["advantage"]))[:, 0]
    children = torch.nn.functional.pad(given, (1, 0))
    prepare = partial(objective.prepare.func, **{**objective.prepare.keywords, "advantage": lambda *_: children})
    plan = objective.plan(forest.batch)
    return objective, plan, prepare(forest.batch, plan)


@pytest.mark.golden("dtree", "dtree/full")
def test_soft_targets_and_distillation_alone(case, tensor):
    """The distillation of the one parent with better children, from the full distribution."""
    inputs, hyper = case["inputs"], case["hyper"]["self_distill"]
    logp = tensor(inputs["logits"]).log_softmax(-1)[0]
    advantage, child, active = (tensor(inputs[name])[:3] for name in ("advantage", "child", "active"))
    labels = torch.where(active, child, 0).T
    soft = do.soft_targets(advantage, labels, active.T, temperature=hyper["tau"])
    assert isinstance(soft, SoftTargets)
    q = torch.zeros_like(logp).scatter_add(1, labels, soft.share)
    there = q.sum(1) > 0
    assert torch.allclose(q.sum(1)[there], torch.ones(int(there.sum()), dtype=torch.float64))
    wanted = (torch.xlogy(q, q) - q * logp).sum() / there.sum()
    assert float(wanted) == pytest.approx(case["expected"]["self_distill"], rel=1e-7)
    found = do.self_distill(logp.gather(1, labels), soft, 1 / there.sum().double())
    assert float(found) == pytest.approx(float(wanted), rel=1e-12)


@pytest.mark.wheel
@pytest.mark.golden("advantages", "adv/mdpo_steps/")
def test_mdpo_steps(case, tensor, check):
    hyper, expected = case["hyper"], case["expected"]
    advantage = partial(do.group_normalize, eps=hyper["eps"]) if hyper["scale"] == "std" else do.center
    found = do.mdpo_steps(tensor(case["inputs"]["step_rewards"]), tensor(case["inputs"]["group"]), advantage=advantage)
    check(found, expected["advantage"])
    check(found.abs().sum(0), expected["step_importance"])
    order = do.steps_by_importance(found).tolist()
    assert order == expected["steps_by_importance"]
    (top,) = [name for name in expected if name.startswith("top_")]
    assert sorted(order[: int(top.split("_")[1])]) == expected[top]


@pytest.mark.wheel
@pytest.mark.golden("advantages", "adv/tree/")
def test_tree_advantages(case, tensor, check):
    inputs, expected = case["inputs"], case["expected"]
    leaves = tensor(inputs["leaf_value"]).T
    parent = tensor(inputs["parent"]).expand(len(leaves), -1)
    reward = torch.full(parent.shape, 7.0, dtype=torch.float64).index_copy(1, tensor(inputs["leaf_nodes"]), leaves)
    value = do.tree_backup(reward, parent)
    check(value.T, expected["node_value"])
    check(do.sibling_advantage(value, parent, singleton="raw").T, expected["sibling_advantage"])


@pytest.mark.wheel
@pytest.mark.golden("advantages", "adv/gae_steps/")
def test_gae_steps(case, tensor, check):
    inputs, hyper = case["inputs"], case["hyper"]
    reward = torch.tensor([inputs["reward"]], dtype=torch.float64)
    found = do.gae_steps(
        reward, tensor(inputs["value"])[None], tensor(inputs["step_map"])[None], gamma=hyper["gamma"], lam=hyper["lam"]
    )
    check(found.advantage[0], case["expected"]["advantage"])
    check(found.ret[0], case["expected"]["ret"])
