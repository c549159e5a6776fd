"""Backward passes that hold the graph of a few streams at a time."""

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

import torch
from torch import Tensor

from dare_objectives._errors import expect_count
from dare_objectives.metrics import Max, Metrics, merge_metrics
from dare_objectives.plan import Plan
from dare_objectives.score import Score, Scored, evaluate

__all__ = ["plan_streams", "replay_backward", "stream_backward"]

Backward = Callable[[Tensor], None]
"""What takes a scalar and adds its gradient to the parameters: `torch.Tensor.backward`, or an engine's own."""


def plan_streams(plan: Plan, streams: slice) -> Plan:
    """The same plan with some of its streams."""
    names = ("inputs", "target", "labels", "weight")
    return replace(plan, **{name: getattr(plan, name)[:, streams] for name in names})


def replay_backward(
    score: Score,
    plan: Plan,
    loss_fn: Callable[[Scored], tuple[Tensor, Metrics]],
    *,
    streams: int = 1,
    first: Scored | None = None,
    temperature: float = 1.0,
    support: Tensor | None = None,
    tolerance: float = 0.1,
    backward: Backward = Tensor.backward,
) -> tuple[Tensor, Metrics]:
    """The gradient of any loss of a plan's log-probs, with the graph of `streams` streams in memory.

    A pass without gradient gives the log-probs l; the loss is taken on them as leaves, which gives g = d loss / d l;
    then, some streams at a time, a second pass with a graph adds the gradient of sum g l. By the chain rule this is
    d loss / d parameters exactly, also where the loss is no sum over streams, as long as both passes give the same
    numbers: no dropout.

    Args:
        score: the model's score function.
        plan: B sequences in K streams.
        loss_fn: from log-probs to (loss, metrics), mostly `lambda scored: objective.loss(scored, plan, coefficients,
            old=old)`. It may call `prepare` with `scored.logp.detach()`, for objectives that couple rows by them.
        streams: at most this many streams in one forward.
        first: the result of the first pass, where there is one already (`evaluate` under `torch.no_grad`).
        temperature: see `evaluate`.
        support: see `evaluate`.
        tolerance: largest difference of a log-prob between the passes; reported as the metric `replay_difference`.
        backward: adds the gradient of a scalar to the parameters.

    Returns:
        (loss, metrics), detached; the gradients are where `backward` leaves them.

    Raises:
        ValueError: if the passes differ by more than `tolerance`: the forward is random, or `first` is of another
            policy. No gradient of the differing streams has been added.

    >>> import dare_objectives as do
    >>> from dare_objectives.testing import ToyWorld, toy_batch
    >>> world, batch, objective = ToyWorld.random(7, 5), toy_batch(), do.get("espo", {"beta": 0.0})
    >>> plan = objective.plan(batch)
    >>> coefficients = objective.prepare(batch, plan, torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 1.0]))
    >>> loss, metrics = replay_backward(world.score, plan, lambda scored: objective.loss(scored, plan, coefficients))
    >>> world.own.grad.shape, metrics["replay_difference"].value
    (torch.Size([7, 5]), 0.0)
    """
    expect_count("streams", streams)
    if first is None:
        with torch.no_grad():
            first = evaluate(score, plan, temperature=temperature, support=support, streams=streams)
    leaf = first.map(lambda x: x.detach().clone().requires_grad_(x.is_floating_point()))
    with torch.enable_grad():
        loss, metrics = loss_fn(leaf)
        slopes = _slopes(loss, leaf)
    for part in _parts(plan.streams, streams):
        second = evaluate(score, plan_streams(plan, part), temperature=temperature, support=support)
        difference = (second.logp.detach() - first.logp[:, part]).abs().max() if second.logp.numel() else 0.0
        if not difference <= tolerance:
            raise ValueError(
                f"`tolerance`: expected log-probs equal to the first pass's within {tolerance}, got a difference of "
                f"{float(difference)} in streams {part.start}..{part.stop - 1}; switch off dropout, or pass no `first`"
            )
        backward(_surrogate(second, slopes, part))
        metrics = merge_metrics([metrics, {"replay_difference": Max(difference)}])
    return loss.detach(), metrics


def stream_backward(
    score: Score,
    plan: Plan,
    loss_fn: Callable[[Scored, Plan, slice], tuple[Tensor, Metrics]],
    *,
    streams: int = 1,
    temperature: float = 1.0,
    support: Tensor | None = None,
    backward: Backward = Tensor.backward,
) -> tuple[Tensor, Metrics]:
    """The gradient of a loss that is a sum over streams, with the graph of `streams` streams in memory and one pass.

    For objectives with `sums_over_streams`; of others the gradient would be another one: they have `replay_backward`.

    Args:
        score: the model's score function.
        plan: B sequences in K streams.
        loss_fn: (log-probs of some streams, the plan of these, the slice of K that they are) -> (loss, metrics), mostly
            `lambda scored, part, at: objective.loss(scored, part, coefficients, old=old[:, at])`.
        streams: at most this many streams in one forward.
        temperature: see `evaluate`.
        support: see `evaluate`.
        backward: adds the gradient of a scalar to the parameters.

    Returns:
        (loss, metrics), detached; the gradients are where `backward` leaves them.
    """
    expect_count("streams", streams)
    losses: list[Tensor] = []
    found: list[Metrics] = []
    for at in _parts(plan.streams, streams):
        part = plan_streams(plan, at)
        loss, metrics = loss_fn(evaluate(score, part, temperature=temperature, support=support), part, at)
        backward(loss)
        losses.append(loss.detach())
        found.append(metrics)
    return torch.stack(losses).sum(), merge_metrics(found)


def _parts(total: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, total)) for start in range(0, total, size))


def _slopes(loss: Tensor, leaf: Scored) -> dict[str, Tensor]:
    """d loss / d of every tensor of a score, ids excepted."""
    values = {field.name: getattr(leaf, field.name) for field in fields(leaf)}
    leaves = {name: x for name, x in values.items() if isinstance(x, Tensor) and x.requires_grad}
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


def _surrogate(scored: Scored, slopes: dict[str, Tensor], part: slice) -> Tensor:
    """sum g l over some streams; where g is 0, l may be anything."""
    terms = [torch.where(g[:, part] != 0, g[:, part] * getattr(scored, name), 0.0).sum() for name, g in slopes.items()]
    return torch.stack(terms).sum()
