"""Scores: what `evaluate` asks, checks and returns."""

from dataclasses import replace

import pytest
import torch

import dare_objectives as do
from dare_objectives.testing import ToyWorld, toy_batch


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


def test_temperature_and_support_are_the_samplers(world):
    plan = do.full_response(toy_batch())
    support = torch.tensor([True, True, False, True, True])
    plan = replace(plan, labels=torch.where(plan.labels == 2, 0, plan.labels))
    found = do.evaluate(world.score, plan, temperature=0.6, support=support).logp
    wanted = _dense(world, plan, 0.6, support).gather(-1, plan.labels[..., None]).squeeze(-1)
    assert torch.allclose(found, torch.where(plan.target, wanted, 0), rtol=0, atol=1e-12)


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
    with pytest.raises(ValueError, match="wants 'entropy'"):
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

    batch = toy_batch()
    for name in do.names():
        objective = do.get(name)
        plan = objective.plan(batch)
        coeff = objective.prepare(batch, plan, torch.arange(6.0))
        losses = [objective.loss(do.evaluate(do.from_logits(f), plan), plan, coeff)[0] for f in (world.logits, shifted)]
        assert torch.equal(*losses)
        wrong = objective.loss(do.evaluate(do.from_logits(early), plan), plan, coeff)[0]
        if name == "masked_sft":
            assert not torch.equal(losses[0], wrong)


def test_a_row_alone_has_the_score_it_has_in_the_batch(world):
    plan = do.coupled(toy_batch())
    whole = do.evaluate(world.score, plan).logp
    parts = torch.cat([do.evaluate(world.score, plan[[row]]).logp for row in range(len(plan))])
    assert torch.allclose(whole, parts, rtol=0, atol=1e-12)
