"""Scores: what `evaluate` asks, checks and returns."""

from dataclasses import replace

import pytest
import torch

import dare_objectives as do
from dare_objectives.testing import BlockWorld, ToyWorld, toy_batch, with_records


@pytest.fixture
def world() -> ToyWorld:
    return ToyWorld.random(7, 5)


def _dense(world: ToyWorld, plan: do.Plan, temperature: float = 1.0, support=None) -> torch.Tensor:
    valid = plan.valid.repeat_interleave(plan.streams, 0)
    logits = world.logits(plan.inputs.flatten(0, 1), valid) / temperature
    if support is not None:
        logits = logits.masked_fill(~support, -torch.inf)
    return logits.log_softmax(-1).unflatten(0, plan.inputs.shape[:2])


@pytest.mark.wheel
@pytest.mark.parametrize("streams", [None, 1, 2, 7])
def test_scores_equal_the_dense_formula_for_every_stream_count(world, streams):
    plan = replace(do.coupled(toy_batch()), want=("entropy",))
    found = do.evaluate(world.score, plan, streams=streams)
    logp = _dense(world, plan)
    wanted = torch.where(plan.target, logp.gather(-1, plan.labels[..., None]).squeeze(-1), 0)
    assert torch.allclose(found.logp, wanted, rtol=0, atol=1e-12)
    entropy = torch.where(plan.target, -(logp.exp() * logp).sum(-1), 0)
    assert found.entropy is not None
    assert torch.allclose(found.entropy, entropy, rtol=0, atol=1e-12)


@pytest.mark.wheel
@pytest.mark.parametrize("streams", [None, 1])
def test_top_k_at_the_targets(world, streams):
    plan = replace(do.coupled(toy_batch()), want=("topk:2", "entropy"))
    some = replace(plan, target=plan.target & (torch.arange(3) > 0)[:, None], weight=plan.weight * 0)
    top, ids = _dense(world, plan).topk(2)
    for part in (plan, some):  # streams without targets are left out, and come back as zeros
        found = do.evaluate(world.score, part, streams=streams)
        assert found.topk is not None
        assert found.topk_ids is not None
        assert torch.equal(found.topk_ids, torch.where(part.target[..., None], ids, 0))
        assert torch.allclose(found.topk, torch.where(part.target[..., None], top, 0), rtol=0, atol=1e-12)
        rows = found[[1, 3]]
        assert rows.topk_ids is not None
        assert torch.equal(rows.topk_ids, found.topk_ids[[1, 3]])
    with pytest.raises(ValueError, match="returned no `topk`"):
        do.evaluate(lambda inputs, *_, **__: torch.zeros(inputs.shape), replace(plan, want=("topk:2",)))


def test_replay_has_the_gradient_of_the_top_k(world):
    plan = replace(do.coupled(toy_batch()), want=("topk:2",))

    def margin(scored):
        return (scored.topk[..., 0] - scored.topk[..., 1]).square().sum() + scored.logp.sum(), {}

    wanted = torch.autograd.grad(margin(do.evaluate(world.score, plan))[0], world.parameters)
    do.replay_backward(world.score, plan, margin)
    for leaf, gradient in zip(world.parameters, wanted, strict=True):
        assert torch.allclose(leaf.grad, gradient, rtol=0, atol=1e-12)


def test_a_block_causal_score_passes_top_k_on():
    world, batch = BlockWorld.random(7, 5), toy_batch()
    plan = replace(do.per_block_count(batch, 2), want=("topk:2", "entropy"))
    whole = replace(plan, blocks=torch.where(plan.valid, 0, -1).to(torch.int32))
    found, dense = do.evaluate(world.score, whole), do.evaluate(ToyWorld(*world.parameters).score, plan)
    blocked = do.evaluate(world.score, plan)
    assert found.topk is not None
    assert dense.topk is not None
    assert torch.allclose(found.topk, dense.topk, rtol=0, atol=1e-12)
    assert torch.equal(found.topk_ids, dense.topk_ids)
    assert blocked.topk is not None
    assert blocked.topk.shape == dense.topk.shape
    assert bool((blocked.topk[..., 0] >= blocked.topk[..., 1]).all())


def test_temperature_and_support_are_the_samplers(world):
    plan = do.full_response(toy_batch())
    support = torch.tensor([True, True, False, True, True])
    plan = replace(plan, labels=torch.where(plan.labels == 2, 0, plan.labels))
    found = do.evaluate(world.score, plan, temperature=0.6, support=support).logp
    wanted = _dense(world, plan, 0.6, support).gather(-1, plan.labels[..., None]).squeeze(-1)
    assert torch.allclose(found, torch.where(plan.target, wanted, 0), rtol=0, atol=1e-12)


@pytest.mark.wheel
def test_streams_without_targets_are_left_out_of_the_forward(world):
    """Neither the steps that an objective does not keep nor the ends of short trajectories cost a forward."""
    seen = []

    def score(inputs, *rest, **options):
        seen.append(inputs.shape[1])
        return world.score(inputs, *rest, **options)

    plan = replace(do.coupled(toy_batch()), want=("entropy",))
    keep = torch.tensor([False, True, False])[None, :, None]
    some = replace(plan, target=plan.target & keep, weight=plan.weight * keep)
    whole, part = do.evaluate(score, plan), do.evaluate(score, some)
    none = do.evaluate(score, replace(some, target=plan.target & False, weight=plan.weight * 0))
    assert seen == [3, 1, 1]
    assert part.entropy is not None
    assert whole.entropy is not None
    assert torch.equal(part.logp, torch.where(keep, whole.logp, 0.0))
    assert torch.equal(part.entropy, torch.where(keep, whole.entropy, 0.0))
    assert not none.logp.any()
    assert none.logp.requires_grad


def test_several_labels_at_one_position(world):
    plan = do.full_response(toy_batch())
    several = replace(plan, labels=torch.stack([plan.labels, (plan.labels + 1) % 5], -1))
    found = do.evaluate(world.score, several).logp
    assert torch.equal(found[..., 0], do.evaluate(world.score, plan).logp)


@pytest.mark.wheel
def test_answers_are_zero_off_target_and_at_least_float32():
    plan = do.coupled(toy_batch())
    found = do.evaluate(lambda inputs, *_, **__: torch.full(inputs.shape, -1.5, dtype=torch.bfloat16), plan)
    assert found.logp.dtype == torch.float32
    assert torch.equal(found.logp, torch.where(plan.target, -1.5, 0.0))


def test_answers_of_another_shape_or_without_what_is_wanted_are_refused(world):
    plan = do.coupled(toy_batch())
    with pytest.raises(ValueError, match="`logp`: expected shape"):
        do.evaluate(lambda inputs, *_, **__: torch.zeros(inputs.shape[0], 3), plan)
    with pytest.raises(ValueError, match="but the score returned no `entropy`"):
        do.evaluate(lambda inputs, *_, **__: torch.zeros(inputs.shape), replace(plan, want=("entropy",)))
    with pytest.raises(ValueError, match="did you mean 'entropy'"):
        replace(plan, want=("entropi",))


@pytest.mark.wheel
def test_a_shift_inside_the_family_changes_nothing(world):
    """A model whose logits stand one position early, shifted back by its adapter, is the aligned model."""

    def early(ids, valid):
        return torch.cat([world.logits(ids, valid)[:, 1:], torch.zeros(len(ids), 1, 5, dtype=torch.float64)], 1)

    def shifted(ids, valid):
        logits = early(ids, valid)
        return torch.cat([logits[:, :1], logits[:, :-1]], 1)

    for name in do.names():
        objective = do.get(name)
        batch = with_records(toy_batch(), objective.needs)
        plan = objective.plan(batch)
        logp = do.evaluate(world.score, plan).logp.detach()
        fixed = {need: logp - 0.1 for need in ("old", "ref") if need in objective.needs}
        coeff = objective.prepare(replace(batch, **fixed), plan, torch.arange(6.0), logp)
        losses = [
            objective.loss(do.evaluate(do.from_logits(net), plan), plan, coeff, **fixed)[0]
            for net in (world.logits, shifted, early)
        ]
        assert torch.equal(*losses[:2])
        wrong = losses[2]
        if name == "masked_sft":
            assert not torch.equal(losses[0], wrong)


def test_a_row_alone_has_the_score_it_has_in_the_batch(world):
    plan = do.coupled(toy_batch())
    whole = do.evaluate(world.score, plan).logp
    parts = torch.cat([do.evaluate(world.score, plan[[row]]).logp for row in range(len(plan))])
    assert torch.allclose(whole, parts, rtol=0, atol=1e-12)
