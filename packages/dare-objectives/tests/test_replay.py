"""Backward passes in the memory of a few streams: the same loss and gradient as one graph for all."""

import weakref
from dataclasses import replace

import pytest
import torch

import dare_objectives as do
from dare_objectives.testing import ToyWorld, toy_batch, with_records

SCORED_ALONE = [
    name for name in do.names() if do.get(name).needs <= {"old", "ref"} and do.get(name).advantage is not None
]
REWARDS = torch.tensor([1.0, 0.0, 0.5, 1.0, 0.0, 0.25], dtype=torch.float64)


def _case(name, options=None):
    """A world, a plan and the function from log-probs to the loss, off policy."""
    world, batch, objective = ToyWorld.random(7, 5), toy_batch(), do.get(name, options or {})
    plan = objective.plan(batch)
    logp = do.evaluate(world.score, plan).logp.detach()
    noise = [do.uniform(batch.keys[:, None, None], "eval", i, batch.columns, dtype=torch.float64) for i in (1, 2)]
    fixed = {need: logp + x / 3 - 0.1 for need, x in zip(("old", "ref"), noise, strict=True) if need in objective.needs}

    def loss_fn(scored):
        coefficients = objective.prepare(replace(batch, **fixed), plan, REWARDS, scored.logp.detach())
        return objective.loss(scored, plan, coefficients, **fixed)

    return world, plan, loss_fn


def _whole(world, plan, loss_fn):
    loss, metrics = loss_fn(do.evaluate(world.score, plan))
    return loss.detach(), torch.autograd.grad(loss, world.parameters), metrics


def _collected(world):
    gradient = tuple(weight.grad for weight in world.parameters)
    for weight in world.parameters:
        weight.grad = None
    return gradient


def _close(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


@pytest.mark.wheel
@pytest.mark.parametrize("name", SCORED_ALONE)
def test_replay_is_autograd_through_all_graphs(name):
    world, plan, loss_fn = _case(name)
    loss, gradient, metrics = _whole(world, plan, loss_fn)
    assert max(float(part.abs().max()) for part in gradient) > 1e-4
    for streams in (1, 2, 5, 100):
        found, same = do.replay_backward(world.score, plan, loss_fn, streams=streams)
        _close((found, *_collected(world)), (loss, *gradient))
        assert not found.requires_grad
        assert same.pop("replay_difference").value <= 1e-12
        assert {name: m.value for name, m in same.items()} == pytest.approx({n: m.value for n, m in metrics.items()})


@pytest.mark.wheel
@pytest.mark.parametrize("name", [name for name in do.names() if do.get(name).sums_over_streams])
def test_sums_over_streams_need_no_second_pass(name):
    world, objective = ToyWorld.random(7, 5), do.get(name)
    batch = with_records(toy_batch(), objective.needs)
    plan = objective.plan(batch)
    logp = do.evaluate(world.score, plan).logp.detach()
    fixed = {need: logp - 0.1 * logp**2 for need in ("old", "ref") if need in objective.needs}
    coefficients = objective.prepare(replace(batch, **fixed), plan, REWARDS, logp)
    loss, gradient, metrics = _whole(world, plan, lambda s: objective.loss(s, plan, coefficients, **fixed))
    calls = []

    def counted(inputs, *rest, **options):
        calls.append(inputs.shape[1])
        return world.score(inputs, *rest, **options)

    def part_loss(scored, part, at):
        return objective.loss(scored, part, coefficients, **{need: x[:, at] for need, x in fixed.items()})

    found, same = do.stream_backward(counted, plan, part_loss, streams=3)
    assert sum(calls) <= plan.streams and max(calls) <= 3
    _close((found, *_collected(world)), (loss, *gradient))
    assert {name: m.value for name, m in same.items()} == pytest.approx({n: m.value for n, m in metrics.items()})


def test_a_bound_of_the_mean_is_no_sum_over_streams():
    """Streaming a loss that is nonlinear in the mean, as ESPO's, gives another gradient: that is what replay is for."""
    world, batch, objective = ToyWorld.random(7, 5), toy_batch(), do.espo(beta=0.0)
    plan = objective.plan(batch)
    coefficients = objective.prepare(batch, plan, REWARDS)
    old = do.evaluate(world.score, plan).logp.detach() * 1.05
    wanted = _whole(world, plan, lambda scored: objective.loss(scored, plan, coefficients, old=old))[1]
    do.stream_backward(
        world.score, plan, lambda scored, part, at: objective.loss(scored, part, coefficients, old=old[:, at])
    )
    found = tuple(weight.grad / plan.streams for weight in world.parameters)
    assert float((found[0] - wanted[0]).abs().max()) > 1e-3 * float(wanted[0].abs().max())


def test_entropies_and_several_labels_are_replayed():
    world, batch = ToyWorld.random(7, 5), toy_batch()
    plan = do.count_stratified(batch, 3)
    labels = torch.stack([plan.labels, (plan.labels + 1) % 5], 3)
    plan = replace(plan, labels=labels, want=("entropy",))

    def loss_fn(scored):
        both = scored.logp.logsumexp(3)[plan.target].sum()
        return both.square() * scored.entropy[plan.target].sum(), {"entropy": do.Mean(scored.entropy.sum().detach())}

    loss, gradient, _ = _whole(world, plan, loss_fn)
    found, _ = do.replay_backward(world.score, plan, loss_fn)
    torch.testing.assert_close(found, loss, rtol=1e-12, atol=0)
    for one, other in zip(_collected(world), gradient, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_the_first_pass_may_be_given():
    world, plan, loss_fn = _case("espo")
    loss, gradient, _ = _whole(world, plan, loss_fn)
    with torch.no_grad():
        first = do.evaluate(world.score, plan)
    calls = []

    def counted(inputs, *rest, **options):
        calls.append(torch.is_grad_enabled())
        return world.score(inputs, *rest, **options)

    found, _ = do.replay_backward(counted, plan, loss_fn, first=first)
    _close((found, *_collected(world)), (loss, *gradient))
    assert calls == [True] * plan.streams


def test_rows_add_up():
    world, batch, objective = ToyWorld.random(7, 5), toy_batch(), do.get("ebpo", {"draws": 3})
    plan = objective.plan(batch)
    coefficients = objective.prepare(batch, plan, REWARDS)
    loss, gradient, _ = _whole(world, plan, lambda scored: objective.loss(scored, plan, coefficients))
    total = torch.zeros((), dtype=torch.float64)
    for rows in torch.arange(6).split([1, 3, 2]):
        part, share = plan[rows], coefficients[rows]
        total += do.replay_backward(world.score, part, lambda s, p=part, c=share: objective.loss(s, p, c))[0]
    _close((total, *_collected(world)), (loss, *gradient))


def test_a_random_forward_is_refused():
    world, plan, loss_fn = _case("espo")
    calls = []

    def dropout(*arguments, **options):
        calls.append(1)
        answer = world.score(*arguments, **options)
        return replace(answer, logp=answer.logp * (1 + len(calls) / 10))

    with pytest.raises(ValueError, match="switch off dropout"):
        do.replay_backward(dropout, plan, loss_fn)
    assert world.own.grad is None
    _, metrics = do.replay_backward(dropout, plan, loss_fn, tolerance=float("inf"))
    assert metrics["replay_difference"].value > 0.1


def test_an_engine_may_do_the_backward_pass():
    world, plan, loss_fn = _case("espo")
    gradient = _whole(world, plan, loss_fn)[1]
    do.replay_backward(world.score, plan, loss_fn, backward=lambda loss: (8 * loss).backward())
    _close([part / 8 for part in _collected(world)], gradient)


class _Held:
    """Bytes that autograd holds at a time."""

    def __init__(self):
        self.now = self.peak = 0

    def pack(self, tensor):
        box = [tensor]
        holder = type("Box", (), {"box": box})()
        self.now += tensor.nbytes
        self.peak = max(self.peak, self.now)
        weakref.finalize(holder, self._free, tensor.nbytes)
        return holder

    def _free(self, size):
        self.now -= size

    def hooks(self):
        return torch.autograd.graph.saved_tensors_hooks(self.pack, lambda holder: holder.box[0])


@pytest.mark.parametrize("name", ["vrpo", "espo", "ebpo", "bgpo"])
def test_one_stream_of_graph_at_a_time(name):
    """The published VRPO holds the graphs of all masks of a pair."""
    option = {"pairs": 8} if name == "espo" else {"draws": 16}
    world, plan, loss_fn = _case(name, option)
    peaks = []
    for run in (lambda: _whole(world, plan, loss_fn), lambda: do.replay_backward(world.score, plan, loss_fn)):
        held = _Held()
        with held.hooks():
            run()
        peaks.append(held.peak)
    assert peaks[1] * 4 <= peaks[0]


def test_streams_below_one_are_refused():
    world, plan, loss_fn = _case("espo")
    for run in (do.replay_backward, do.stream_backward):
        with pytest.raises(ValueError, match="`streams`: expected a count of at least 1, got 0"):
            run(world.score, plan, loss_fn, streams=0)
