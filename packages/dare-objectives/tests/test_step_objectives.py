"""Policies on denoising steps: identities by enumeration, and tests that fail on the references' formulas."""

import math
from dataclasses import replace
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor

import dare_objectives as do
from dare_objectives.testing import (
    ToyWorld,
    objective_conformance,
    toy_batch,
    toy_states,
    toy_tree,
    with_records,
    with_step_map,
)

VARIANTS = [
    ("cj_grpo", {"clip_low": 0.5, "clip_high": 0.5, "beta": 0.04, "parallel_blocks": True}),
    ("cj_grpo", {"shrink": 2, "per": "block", "dual_clip": 3.0, "advantage": "leave_one_out"}),
    ("cj_grpo_step_equal", {"beta": 0.1, "shrink": 2}),
    ("just_grpo", {"normaliser": "compared", "beta": 0.1, "chunk": 2}),
    ("tracerl", {"normaliser": "padded", "anchor": "ref", "divergence": "k2"}),
    ("tracerl", {"normaliser": "round", "shrink": 2, "beta": 0.0}),
    ("tracerl_value", {"gamma": 0.9, "lam": 0.8, "shrink": 2, "parallel_blocks": True, "beta": 0.0}),
    ("mdpo", {"steps": 2, "beta": 0.04}),
    ("mdpo", {"steps": None, "dual_clip": 2.0}),
    ("d_tree_rpo", {"distill": 0.0, "beta": 0.0}),
]


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_conformance_with_options(name, options):
    objective_conformance(do.get(name, options))


@pytest.mark.parametrize("options", [{"normaliser": "round", "clip": None}, {"normaliser": "padded", "gamma": 0.9}])
def test_conformance_of_the_critic(options):
    objective_conformance(do.get("tracerl_critic", options), reinforce=False)


@pytest.mark.parametrize("branch", [1, 3])
def test_conformance_on_other_trees(branch):
    batch = replace(toy_batch(), tree=toy_tree(toy_batch(), branch=branch, progress=0.0))
    objective_conformance(do.get("d_tree_rpo"), batch)
    objective_conformance(do.get("d_tree_rpo_dare_compat"), batch)


def _equal_lengths(rows: int = 6, response: int = 4, seed: int = 0) -> do.Batch:
    """Two prompt columns and as many response columns in all rows, decoded from left to right."""
    column = torch.arange(2 + response)
    keys = do.row_keys(seed, range(rows))
    yes = torch.ones(rows, 2 + response, dtype=torch.bool)
    return do.Batch(
        tokens=(do.uniform(keys[:, None], "data", column) * 5).long().clamp(max=4),
        valid=yes,
        maskable=yes & (column >= 2),
        blocks=(column // 3).expand(rows, -1).to(torch.int32),
        keys=keys,
        group=torch.arange(rows) // 3,
        mask_id=5,
        step_map=(column - 2).clamp(min=-1).expand(rows, -1).to(torch.int32),
    )


def _gradient(objective: do.Objective, batch: do.Batch, world: ToyWorld, rewards: Tensor, *, off: float = 0.1):
    """Loss and gradient, with an old policy that differs by up to `off` in each token."""
    plan = objective.plan(batch)
    logp = do.evaluate(world.score, plan).logp
    shift = off * (do.uniform(batch.keys[:, None], "eval", batch.columns, dtype=torch.float64) - 0.5)
    known = {"old": logp.detach() + shift[:, None], "ref": logp.detach() - shift[:, None]}
    given = {name: known[name] for name in known if name in objective.needs}
    loss, _ = objective.loss(logp, plan, objective.prepare(batch, plan, rewards), **given)
    return loss.detach(), *torch.autograd.grad(loss, world.parameters)


def _close(one, other, tolerance: float = 1e-12) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


REWARDS = torch.tensor([1.0, 0.0, 0.5, 0.0, 0.25, 1.0], dtype=torch.float64)


@pytest.mark.wheel
@pytest.mark.parametrize("off", [0.0, 0.6])
def test_just_grpo_cj_grpo_and_tracerl_agree_on_a_left_to_right_trajectory(off):
    batch, world = _equal_lengths(), ToyWorld.random(6, 5)
    wanted = _gradient(do.just_grpo(eps=0.0, beta=0.1), batch, world, REWARDS, off=off)
    same = partial(do.group_normalize, eps=0.0)
    rivals = [do.get(name, {"beta": 0.1}) for name in ("cj_grpo", "cj_grpo_step_equal")] + [
        do.get("tracerl", {"beta": 0.1, "anchor": "ref", "normaliser": how}) for how in ("token", "round")
    ]
    for rival in rivals:
        prepare = partial(rival.prepare, advantage=same)
        _close(_gradient(replace(rival, prepare=prepare), batch, world, REWARDS, off=off), wanted)
    assert float(wanted[0]) != 0


@pytest.mark.wheel
def test_the_published_normalisers_of_full_rows_differ_by_the_length():
    batch, world = _equal_lengths(), ToyWorld.random(6, 5)
    token = _gradient(do.just_grpo(), batch, world, REWARDS)
    compared = _gradient(do.just_grpo(normaliser="compared"), batch, world, REWARDS)
    _close(token, [5 / 6 * x for x in compared])  # 24 tokens; 4 positions of the 5 rows with an advantage
    padded = _gradient(do.tracerl(normaliser="padded", beta=0.0), batch, world, REWARDS)
    rounds = _gradient(do.tracerl(beta=0.0), batch, world, REWARDS)
    _close([4 * x for x in padded], rounds)


@pytest.mark.wheel
@pytest.mark.parametrize("off", [0.0, 0.6])
@pytest.mark.parametrize("name", ["cj_grpo", "cj_grpo_step_equal"])
def test_one_transition_is_diffu_grpo_without_prompt_masks(name, off):
    batch, world = _equal_lengths(), ToyWorld.random(6, 5)
    at_once = replace(batch, step_map=torch.where(batch.maskable, 0, -1).to(torch.int32))
    wanted = _gradient(do.diffu_grpo(prompt_mask=0.0, beta=0.1), batch, world, REWARDS, off=off)
    _close(_gradient(do.get(name, {"beta": 0.1}), at_once, world, REWARDS, off=off), wanted)
    _close(_gradient(do.get(name, {"beta": 0.1, "shrink": 99}), batch, world, REWARDS, off=off), wanted)


STEP_MAPS = [[0, 1, 2], [2, 0, 1], [0, 0, 0], [1, 0, 1], [3, 3, 0]]


@pytest.mark.wheel
@pytest.mark.parametrize("step_map", STEP_MAPS)
def test_a_trajectory_is_a_distribution_over_answers_and_its_policy_gradient_exact(step_map):
    """By enumeration of all answers y: sum p(y) = 1, and the losses weighted by p add up to -d E[r]."""
    world = ToyWorld.random(3, 3)
    answers = torch.tensor(list(product(range(3), repeat=3)))
    rows = len(answers)
    yes = torch.ones_like(answers, dtype=torch.bool)
    batch = do.Batch(
        tokens=answers,
        valid=yes,
        maskable=yes,
        blocks=torch.zeros_like(answers, dtype=torch.int32),
        keys=do.row_keys(0, range(rows)),
        group=torch.arange(rows) // 2,
        mask_id=3,
        step_map=torch.tensor(step_map, dtype=torch.int32).expand(rows, -1),
    )
    reward = do.uniform(batch.keys, "eval", dtype=torch.float64)
    objective = do.tracerl(beta=0.0)
    plan = objective.plan(batch)
    logp = do.evaluate(world.score, plan).logp
    p = do.seq_sum(logp, plan).exp()
    assert float(p.sum().detach()) == pytest.approx(1, abs=1e-12)
    wanted = torch.autograd.grad((p * reward).sum(), world.parameters, retain_graph=True)
    coefficients = do.Coefficients(reward, p.detach(), torch.tensor(1.0))
    loss, _ = objective.loss(logp, plan, coefficients)
    _close([-x for x in torch.autograd.grad(loss, world.parameters)], wanted)


@pytest.mark.wheel
def test_the_weights_of_each_trajectory_add_up_to_one():
    batch = with_step_map(toy_batch(response=9))
    for options in ({}, {"parallel_blocks": True}, {"shrink": 2}):
        objective = do.cj_grpo(**options)
        plan = objective.plan(batch)
        ones = torch.ones(plan.target.shape, dtype=torch.float64)
        total = objective.estimator(ones, plan).sum((1, 2))
        torch.testing.assert_close(total, plan.target.any((1, 2)).double(), rtol=0, atol=1e-12)


def _step_means(scored, plan, coefficients, *, old=None, ref=None):
    """As published: means over the tokens that the micro-batch, not the batch, commits at each step."""
    size = plan.target.sum((0, 2)).clamp(min=1).double()
    here = replace(coefficients, token_weight=(1 / size)[None, :, None].expand(len(plan), -1, -1))
    return do.cj_grpo_step_equal().loss(scored, plan, here, old=old, ref=ref)


def _token_mean(scored, plan, coefficients, *, old=None, ref=None):
    """As DARE: a mean over the tokens of the micro-batch."""
    here = replace(coefficients, normaliser=plan.target.sum().clamp(min=1).float())
    return do.just_grpo().loss(scored, plan, here, old=old, ref=ref)


@pytest.mark.wheel
@pytest.mark.parametrize(
    ("base", "broken", "message"),
    [
        ("cj_grpo_step_equal", _step_means, "micro-batches of"),
        ("just_grpo", _token_mean, "micro-batches of"),
    ],
)
def test_conformance_finds_means_over_micro_batches(base, broken, message):
    with pytest.raises(AssertionError, match=message):
        objective_conformance(replace(do.get(base), loss=broken), reinforce=False)


@pytest.mark.wheel
def test_steps_without_tokens_do_not_count_in_the_mean_over_steps():
    """DARE divides by all steps of the schedule, the empty ones included."""
    batch, world = _equal_lengths(), ToyWorld.random(6, 5)
    gaps = replace(batch, step_map=torch.where(batch.maskable, 3 * batch.step_map, -1).to(torch.int32))
    objective = do.cj_grpo_step_equal()
    _close(_gradient(objective, gaps, world, REWARDS), _gradient(objective, batch, world, REWARDS))
    assert float(objective.prepare(gaps, objective.plan(gaps), REWARDS).normaliser) == 4


@pytest.mark.parametrize(
    "name", ["cj_grpo", "just_grpo", "tracerl", "tracerl_critic", "tracerl_value", "mdpo", "d_tree_rpo"]
)
def test_rows_with_nothing_to_score_need_no_forward(name):
    objective = do.get(name)
    batch = with_records(toy_batch(), objective.needs)
    first_empty = replace(batch, maskable=batch.maskable & (torch.arange(6) > 0)[:, None])
    weight = objective.prepare(first_empty, objective.plan(first_empty), REWARDS).row_weight
    assert weight[0] == 0
    assert weight[5] > 0


def test_short_answers_count_as_much_as_long_ones():
    """Transition weights: a row's share does not depend on the lengths of the others, as in step_equal."""
    batch = with_step_map(toy_batch())
    rewards = torch.tensor([1.0, 0.0, 0.5, 1.0, 0.0, 0.5], dtype=torch.float64)
    shares = {}
    for name in ("cj_grpo", "cj_grpo_step_equal"):
        objective = do.get(name)
        plan = objective.plan(batch)
        coefficients = objective.prepare(batch, plan, rewards)
        term = objective.estimator(torch.ones(plan.target.shape, dtype=torch.float64), plan)
        factor = 1 if coefficients.token_weight is None else coefficients.token_weight
        shares[name] = (term * factor).sum((1, 2)) / coefficients.normaliser
    torch.testing.assert_close(shares["cj_grpo"], torch.full((6,), 1 / 6).double(), rtol=0, atol=1e-7)
    assert float(shares["cj_grpo_step_equal"].std()) > 0.05


@pytest.mark.wheel
def test_a_divergence_from_the_old_policy_vanishes_on_policy_and_pulls_back_off_it():
    batch, world = _equal_lengths(), ToyWorld.random(6, 5)
    free, held = (do.tracerl(beta=beta) for beta in (0.0, 1.0))
    _close(_gradient(held, batch, world, REWARDS, off=0.0), _gradient(free, batch, world, REWARDS, off=0.0))
    same = torch.full((6,), 0.5, dtype=torch.float64)
    loss, *gradient = _gradient(held, batch, world, same, off=0.5)
    assert float(loss) > 0
    assert any(bool(part.any()) for part in gradient)
    assert held.needs == {"old", "step_map"}
    assert do.tracerl(anchor="ref").needs == {"old", "ref", "step_map"}
    with pytest.raises(ValueError, match=r"`ref`: expected the reference's log-probs because beta is 0\.01"):
        _gradient(replace(do.tracerl(anchor="ref"), needs=frozenset({"old"})), batch, world, REWARDS)


@pytest.mark.wheel
@pytest.mark.parametrize("shrink", [1, 2])
def test_the_critic_and_the_policy_with_a_critic(shrink):
    batch = with_records(toy_batch(), {"step_map", "value"})
    policy, critic = do.tracerl_value(shrink=shrink), do.tracerl_critic(shrink=shrink)
    plan, rewards = policy.plan(batch), REWARDS
    advantage = policy.prepare(batch, plan, rewards).advantage[:, 0]
    scored = plan.scored
    wanted = torch.where(scored, rewards[:, None] - batch.value.value, 0.0)
    torch.testing.assert_close(advantage, wanted, rtol=0, atol=1e-12)
    coefficients = critic.prepare(batch, critic.plan(batch), rewards)
    torch.testing.assert_close(coefficients.ret, torch.where(scored, rewards[:, None], 0.0), rtol=0, atol=1e-12)
    value = torch.where(plan.target, batch.value.value[:, None], 5.0).requires_grad_()
    loss, metrics = critic.loss(value, plan, coefficients)
    (gradient,) = torch.autograd.grad(loss, value)
    error = torch.where(plan.target, (batch.value.value - rewards[:, None])[:, None], 0.0)
    torch.testing.assert_close(gradient, error / scored.sum(), rtol=0, atol=1e-12)
    assert metrics["value_error"].value == pytest.approx(float((error**2).sum() / scored.sum()))
    with pytest.raises(TypeError, match="expected ValueCoefficients, got Coefficients"):
        critic.loss(value, plan, policy.prepare(batch, plan, rewards))


def test_a_perfect_critic_leaves_the_policy_alone():
    batch = with_step_map(toy_batch())
    perfect = replace(batch, value=do.Values(REWARDS[:, None].expand(6, 7).contiguous()))
    objective = do.tracerl_value(beta=0.0)
    coefficients = objective.prepare(perfect, objective.plan(perfect), REWARDS)
    assert not coefficients.row_weight.any()
    merged = do.tracerl_value(gamma=0.5, shrink=99, beta=0.0)
    assert not merged.prepare(perfect, merged.plan(perfect), REWARDS).row_weight.any()  # one step: no discount


def _mdpo_batch(steps: int = 5) -> do.Batch:
    return replace(toy_batch(response=6), states=toy_states(toy_batch(response=6), steps=steps))


def _oracle(batch: do.Batch, logp: Tensor, chosen: list[int], lam) -> Tensor:
    """The on-policy loss of MDPO in loops; `lam(row, open positions)`."""
    states = batch.states
    advantage = do.mdpo_steps(states.rewards, batch.group, advantage=partial(do.group_normalize, eps=1e-4))
    total, count = torch.zeros((), dtype=torch.float64), 0
    for row, step in product(range(len(batch)), chosen):
        open_ = (states.inputs[row, step] == batch.mask_id) & batch.maskable[row]
        term = (logp[row, step].exp() / logp[row, step].exp().detach()) * states.confidence[row, step]
        total = total - advantage[row, step] * lam(row, int(open_.sum())) * term[open_].sum()
        count += int(open_.sum())
    return total / count


@pytest.mark.wheel
def test_mdpo_in_loops_and_not_with_a_constant_lambda():
    batch, world = _mdpo_batch(), ToyWorld.random(8, 5)
    objective = do.mdpo(steps=2)
    plan = objective.plan(batch)
    coefficients = objective.prepare(batch, plan)
    chosen = coefficients.token_weight.flatten(2).any(2).any(0).nonzero().flatten().tolist()
    assert len(chosen) == 2
    assert torch.equal(plan.labels[plan.target], batch.states.tokens[plan.target])
    assert not torch.equal(plan.labels[plan.target], batch.tokens[:, None].expand_as(plan.labels)[plan.target])
    logp = do.evaluate(world.score, plan).logp
    loss, _ = objective.loss(logp, plan, coefficients)
    length = batch.lengths.tolist()
    wanted = _oracle(batch, logp, chosen, lambda row, size: length[row] / max(size, 1))
    _close(
        [loss, *torch.autograd.grad(loss, world.parameters, retain_graph=True)],
        [wanted, *torch.autograd.grad(wanted, world.parameters, retain_graph=True)],
    )
    for published in (lambda row, size: 1.0, lambda row, size: 6 / max(size, 1)):  # constant; the padded length
        assert abs(float((_oracle(batch, logp, chosen, published) - loss).detach())) > 1e-4


@pytest.mark.wheel
def test_mdpo_keeps_the_steps_that_matter_most_and_needs_no_other_forward():
    batch, world = _mdpo_batch(), ToyWorld.random(8, 5)
    objective = do.mdpo(steps=2, beta=0.1)
    plan = objective.plan(batch)
    coefficients = objective.prepare(batch, plan)
    order = do.steps_by_importance(coefficients.advantage[:, :, 0])
    cut = do.active_streams(plan, coefficients)
    assert set(cut.target.any(2).any(0).nonzero().flatten().tolist()) == set(order[:2].tolist())
    seen = []

    def score(inputs, *rest, **options):
        seen.append(inputs.shape[1])
        return world.score(inputs, *rest, **options)

    ref = do.evaluate(world.score, plan).logp.detach() - 0.1
    results = []
    for part in (plan, cut):
        loss, _ = objective.loss(do.evaluate(score, part), part, coefficients, ref=ref)
        results.append([loss.detach(), *torch.autograd.grad(loss, world.parameters)])
    _close(*results)
    assert seen[1] == 2 < seen[0]
    rows = torch.tensor([3, 1])
    small = do.active_streams(plan[rows], coefficients[rows])
    assert torch.equal(small.target, cut.target[rows])


def test_active_streams_of_objectives_without_token_weights():
    batch = toy_batch()
    objective = do.diffu_grpo()
    plan = objective.plan(batch)
    assert do.active_streams(plan, objective.prepare(batch, plan, REWARDS)) is plan


def test_mdpo_needs_the_reference_that_the_published_code_never_computes():
    assert do.mdpo().needs == {"states", "old"}
    objective, batch = do.mdpo(beta=0.1), _mdpo_batch()
    assert objective.needs == {"states", "old", "ref"}
    plan = objective.plan(batch)
    with pytest.raises(ValueError, match="`ref`: expected the reference's log-probs"):
        objective.loss(torch.zeros(plan.inputs.shape), plan, objective.prepare(batch, plan))


def _tree_batch(progress: float = 0.5) -> do.Batch:
    batch = toy_batch(rows=4, response=5)
    return replace(batch, tree=toy_tree(batch, branch=3, progress=progress))


def _segments(batch: do.Batch):
    """(row, stream, label, advantage, active columns) of each segment, in loops."""
    tree = batch.tree
    value = do.tree_backup(tree.reward, tree.parent)
    advantage = do.sibling_advantage(value, tree.parent)
    branches = tree.branches()
    for row, stream, label in product(*map(range, branches.child.shape)):
        child, parent = int(branches.child[row, stream, label]), int(branches.parent[row, stream])
        if child < 0:
            continue
        before, after = tree.canvas[row, parent], tree.canvas[row, child]
        changed = (before == batch.mask_id) & (after != batch.mask_id) & batch.maskable[row]
        yield row, stream, label, float(advantage[row, child]), changed


def _tree_oracle(batch: do.Batch, logp: Tensor, changed_by=lambda changed, logp: changed) -> Tensor:
    """The on-policy loss of the segments; `changed_by(changed, logp)` says what changed."""
    losses = []
    for row, stream, label, advantage, changed in _segments(batch):
        token = logp[row, stream, :, label]
        on = changed_by(changed, token)
        ratio = (token - token.detach()).exp()
        if bool(changed.any()):
            losses.append(-advantage * ratio[on].sum() / max(1, int(on.sum())))
    return torch.stack(losses).mean()


@pytest.mark.wheel
def test_d_tree_rpo_in_loops_and_not_with_changes_read_from_log_probs():
    batch, world = _tree_batch(), ToyWorld.random(7, 5)
    objective = do.d_tree_rpo(distill=0.0, beta=0.0)
    plan = objective.plan(batch)
    coefficients = objective.prepare(batch, plan)
    logp = do.evaluate(world.score, plan).logp

    def published(changed, token):
        return changed & (token != 0)

    def compare(logp, changed_by, *, same):
        loss, _ = objective.loss(logp, plan, coefficients)
        wanted = _tree_oracle(batch, logp, changed_by)
        gradients = [torch.autograd.grad(x, logp, retain_graph=True)[0] for x in (loss, wanted)]
        assert torch.allclose(*gradients, rtol=0, atol=1e-12) == same

    compare(logp, lambda changed, token: changed, same=True)
    compare(logp, published, same=True)
    certain = torch.where(plan.labels == 0, 0.0, logp)  # token 0 has probability 1
    compare(certain, lambda changed, token: changed, same=True)
    compare(certain, published, same=False)


@pytest.mark.wheel
def test_distillation_equals_that_of_the_full_distributions():
    """No table of the vocabulary is needed: the labels of the children carry all of q."""
    batch, world = _tree_batch(progress=0.6), ToyWorld.random(7, 5)
    with_it, without = do.d_tree_rpo(distill=0.7, beta=0.0), do.d_tree_rpo(distill=0.0, beta=0.0)
    plan = with_it.plan(batch)
    logp = do.evaluate(world.score, plan).logp
    found = [x.loss(logp, plan, x.prepare(batch, plan))[0] for x in (with_it, without)]
    tau, lam = 2.0 * 0.4**0.7, 0.7 * math.expm1(1.2) / math.expm1(2.0)
    table = world.logits(plan.inputs.flatten(0, 1), plan.valid.repeat_interleave(plan.streams, 0))
    table = table.log_softmax(-1).unflatten(0, plan.inputs.shape[:2])
    teachers: dict[tuple[int, int], list] = {}
    for row, stream, label, advantage, changed in _segments(batch):
        if advantage > 0:
            teachers.setdefault((row, stream), []).append((label, advantage, changed))
    total, count = torch.zeros((), dtype=torch.float64), 0
    for (row, stream), members in teachers.items():
        weight = torch.tensor([a / tau for _, a, _ in members], dtype=torch.float64).softmax(0)
        for column in range(plan.inputs.shape[2]):
            q = torch.zeros(5, dtype=torch.float64)
            for (label, _, changed), w in zip(members, weight, strict=True):
                if changed[column]:
                    q[plan.labels[row, stream, column, label]] += w
            if q.sum() > 0:
                q = q / q.sum()
                total, count = total + (torch.xlogy(q, q) - q * table[row, stream, column]).sum(), count + 1
    assert count > 5
    difference, wanted = found[0] - found[1], lam * total / count
    _close(
        [difference, *torch.autograd.grad(difference, world.parameters, retain_graph=True)],
        [wanted, *torch.autograd.grad(wanted, world.parameters)],
    )


@pytest.mark.wheel
def test_siblings_in_other_micro_batches_are_distilled_all_the_same():
    """As published, segments are shuffled apart, so that a parent rarely meets two of its children."""
    batch, world, objective = _tree_batch(), ToyWorld.random(7, 5), do.d_tree_rpo(beta=0.0)
    plan = objective.plan(batch)
    coefficients = objective.prepare(batch, plan)
    parts = [
        objective.loss(do.evaluate(world.score, plan[[row]]), plan[[row]], coefficients[[row]]) for row in range(4)
    ]
    whole, metrics = objective.loss(do.evaluate(world.score, plan), plan, coefficients)
    merged = do.merge_metrics([found for _, found in parts])
    assert merged["distill"].value == pytest.approx(metrics["distill"].value, rel=1e-12)
    assert metrics["distill"].value > 0
    assert sum(float(loss.detach()) for loss, _ in parts) == pytest.approx(float(whole.detach()), rel=1e-12)


@pytest.mark.wheel
def test_impossible_labels_of_other_children_do_not_matter():
    batch, objective = _tree_batch(), do.d_tree_rpo()
    plan = objective.plan(batch)
    coefficients = objective.prepare(batch, plan)
    logp = do.evaluate(ToyWorld.random(7, 5).score, plan).logp.detach()
    unused = plan.target[..., None] & (coefficients.token_weight == 0)
    assert unused.any()
    found = []
    for decoy in (-3.0, -torch.inf, torch.nan):
        given = torch.where(unused, decoy, logp).requires_grad_()
        loss, _ = objective.loss(given, plan, coefficients, old=given.detach(), ref=given.detach() - 0.1)
        found.append([loss.detach(), torch.autograd.grad(loss, given)[0]])
    _close(found[0], found[1])
    _close(found[0], found[2])


@pytest.mark.wheel
def test_text_behind_a_childs_end_token_is_not_scored():
    batch = _tree_batch()
    tree = batch.tree
    end = torch.full_like(tree.parent, 4)
    objective = do.d_tree_rpo()
    cut = replace(batch, tree=replace(tree, end=end))
    whole, part = (objective.prepare(b, objective.plan(b)).token_weight for b in (batch, cut))
    assert (part[:, :, 4:] == 0).all()
    assert ((part > 0) == (whole > 0))[:, :, :4].all()
    assert (part[:, :, 2] >= whole[:, :, 2]).all()


def test_an_only_child_teaches_nothing():
    batch = replace(toy_batch(), tree=toy_tree(toy_batch(), branch=1))
    for name, rows in (("d_tree_rpo", 0), ("d_tree_rpo_dare_compat", 6)):
        objective = do.get(name)
        coefficients = objective.prepare(batch, objective.plan(batch))
        assert not coefficients.share.any()
        assert int((coefficients.advantage.flatten(1) != 0).any(1).sum()) == rows
    assert coefficients.metrics["only_child"].value == 1


@pytest.mark.wheel
@pytest.mark.parametrize("name", ["d_tree_rpo", "mdpo", "tracerl"])
def test_replay_holds_one_graph_at_a_time(name):
    objective, world = do.get(name), ToyWorld.random(7, 5)
    batch = with_records(toy_batch(), objective.needs)
    plan = objective.plan(batch)
    logp = do.evaluate(world.score, plan).logp
    fixed = {need: logp.detach() - 0.1 for need in ("old", "ref") if need in objective.needs}
    coefficients = objective.prepare(batch, plan, REWARDS)
    loss, _ = objective.loss(logp, plan, coefficients, **fixed)
    wanted = torch.autograd.grad(loss, world.parameters)
    do.replay_backward(world.score, plan, lambda scored: objective.loss(scored, plan, coefficients, **fixed))
    _close([x.grad for x in world.parameters], wanted)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("tracerl", {"normaliser": "pad"}, "unknown normaliser 'pad'; did you mean 'padded'"),
        ("tracerl", {"anchor": "olds"}, "unknown anchor 'olds'; did you mean 'old'"),
        ("tracerl", {"divergence": "k4"}, "unknown divergence 'k4'"),
        ("tracerl_value", {"lam": 1.5}, "`lam`: expected a number in"),
        ("tracerl_critic", {"clip": -1.0}, "`clip`: expected a number in"),
        ("just_grpo", {"normaliser": "valid"}, "unknown normaliser 'valid'"),
        ("mdpo", {"steps": 0}, "`steps`: expected a count of at least 1, got 0"),
        ("mdpo", {"dual_clip": 0.5}, "`dual_clip`: expected a number above 1"),
        ("d_tree_rpo", {"temperature": -1.0}, "`temperature`: expected a number in"),
        ("d_tree_rpo", {"beta": -1.0}, "`beta`: expected a number in"),
    ],
)
def test_options_out_of_range_are_refused(name, options, message):
    with pytest.raises(ValueError, match=message):
        do.get(name, options)


def test_presets_have_the_numbers_of_dare():
    clips = {"clip_low": 0.2, "clip_high": 0.2, "dual_clip": 3.0, "beta": 0.0}
    for name in ("cj_grpo_dare_compat", "cj_grpo_step_equal_dare_compat", "just_grpo_dare_compat"):
        objective = do.get(name)
        batch = with_records(toy_batch(rows=4), objective.needs)
        rewards = torch.tensor([1.0, 0.0, 0.5, 0.7])
        plan = objective.plan(batch)
        wanted = do.group_normalize(rewards, batch.group, singleton="raw")
        assert torch.equal(objective.prepare(batch, plan, rewards).advantage, wanted)
        assert isinstance(objective.loss, partial)
        assert {key: objective.loss.keywords[key] for key in clips} == clips
    mdpo = do.get("mdpo_dare_compat")
    assert isinstance(mdpo.loss, partial)
    assert mdpo.loss.keywords == {**clips, "dual_clip": None}
