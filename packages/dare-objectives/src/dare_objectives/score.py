"""Scores: the one place where a plan meets a model."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from dare_objectives._errors import expect
from dare_objectives._rows import Rows, select_rows
from dare_objectives.gather import at_least_float32, pick_logp, topk_wanted
from dare_objectives.plan import Plan

__all__ = ["Score", "Scored", "as_scored", "evaluate", "from_logits", "logp_of", "reference_logp"]


@dataclass(frozen=True, eq=False)
class Scored:
    """What a model says about a plan.

    Args:
        logp: `[B, K, S]` log-probs of the plan's labels (`[B, K, S, C]` for several labels), 0 off target.
        entropy: `[B, K, S]` entropies of the whole distribution, 0 off target, if the plan wants them.
        topk: `[B, K, S, N]` the N largest log-probs at the targets, in falling order, 0 off target, if the plan wants
            `"topk:N"`.
        topk_ids: int64 `[B, K, S, N]`, their tokens, 0 off target.
    """

    logp: Tensor
    entropy: Tensor | None = None
    topk: Tensor | None = None
    topk_ids: Tensor | None = None

    def __getitem__(self, rows: Rows) -> "Scored":
        """The same record for some rows."""
        return select_rows(self, rows)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Scored":
        """The same record with every tensor changed, ids too."""
        entropy, top, ids = (None if x is None else change(x) for x in (self.entropy, self.topk, self.topk_ids))
        return Scored(change(self.logp), entropy, top, ids)


class Score(Protocol):
    """A model's side of the contract: any callable with this signature.

    It returns the log-probs `[B, K, S]` of `labels` at `target`, aligned (entry i scores the token at position i) and
    in float32 or better, either as a tensor or as an object with attributes `logp` and, if wanted, `entropy` or `topk`
    and `topk_ids` (see `Scored`).
    `support` is a bool `[V]` of allowed tokens; at most `streams` of the K streams share one forward.
    """

    def __call__(
        self,
        inputs: Tensor,
        clean: Tensor,
        target: Tensor,
        labels: Tensor,
        valid: Tensor,
        blocks: Tensor,
        *,
        want: tuple[str, ...] = (),
        temperature: float = 1.0,
        support: Tensor | None = None,
        streams: int | None = None,
    ) -> Any:
        """Log-probs of `labels` at `target`."""
        ...


def evaluate(
    score: Score,
    plan: Plan,
    *,
    temperature: float = 1.0,
    support: Tensor | None = None,
    streams: int | None = None,
) -> Scored:
    """Score a plan and check what comes back. Streams without a target in any row are left out of the forward.

    Args:
        score: a model's score function.
        plan: B sequences in K streams.
        temperature: divides the logits.
        support: bool `[V]`, tokens that may occur; None = all.
        streams: at most this many streams in one forward; the result does not depend on it.

    Returns:
        Log-probs (and what `plan.want` names), exactly 0 off target.

    Raises:
        ValueError: if the score has another shape than `labels`, or lacks something wanted.
    """
    kept = plan.target.flatten(2).any(2).any(0).nonzero().squeeze(1)
    if not len(kept):  # one forward at least, so that the scores have a graph
        kept = torch.arange(plan.streams, device=kept.device)[:1]
    part = plan if len(kept) == plan.streams else _streams(plan, kept)
    arguments = (part.inputs, part.clean, part.target, part.labels, part.valid, part.blocks)
    answer = score(*arguments, want=part.want, temperature=temperature, support=support, streams=streams)
    found = _checked(as_scored(answer), part)
    return found if part is plan else found.map(lambda x: _among(x, kept, plan))


def _streams(plan: Plan, kept: Tensor) -> Plan:
    names = ("inputs", "target", "labels", "weight")
    return replace(plan, **{name: getattr(plan, name).index_select(1, kept) for name in names})


def _among(values: Tensor, kept: Tensor, plan: Plan) -> Tensor:
    """Numbers of the kept streams at their places among all, 0 elsewhere."""
    return values.new_zeros(len(plan), plan.streams, *values.shape[2:]).index_copy(1, kept, values)


def as_scored(answer: Any) -> Scored:
    """The answer of a score function as a record: a tensor is `logp`, an object has some of the attributes."""
    return Scored(answer) if isinstance(answer, Tensor) else Scored(answer.logp, *_optional(answer))


def _optional(answer: Any) -> tuple[Any, Any, Any]:
    return getattr(answer, "entropy", None), getattr(answer, "topk", None), getattr(answer, "topk_ids", None)


def _checked(found: Scored, plan: Plan) -> Scored:
    """What the plan asks for, 0 off target."""
    axes = "B K S C"[: 2 * plan.labels.ndim - 1]
    logp = _at_targets("logp", found.logp, axes, plan.labels.shape, plan)
    entropy = top = ids = None
    if "entropy" in plan.want:
        entropy = _at_targets("entropy", found.entropy, "B K S", plan.target.shape, plan)
    if count := topk_wanted(plan.want):
        shape = (*plan.target.shape, count)
        top = _at_targets("topk", found.topk, "B K S N", shape, plan)
        ids = _at_targets("topk_ids", found.topk_ids, "B K S N", shape, plan)
    return Scored(logp, entropy, top, ids)


def _at_targets(name: str, values: Tensor | None, axes: str, shape: tuple[int, ...], plan: Plan) -> Tensor:
    if values is None:
        raise ValueError(f"the plan wants {plan.want}, but the score returned no `{name}`; add it to what it returns")
    expect(name, values, axes, dict(zip(axes.split(), shape, strict=True)))
    on = plan.target if values.ndim == 3 else plan.target[..., None]
    return torch.where(on, at_least_float32(values) if values.is_floating_point() else values, 0)


def logp_of(scored: Tensor | Scored) -> Tensor:
    """The log-probs of a score given as a tensor or as a `Scored`."""
    return scored if isinstance(scored, Tensor) else scored.logp


def reference_logp(ref: Tensor | Scored | None, beta: float) -> Tensor:
    """The reference's log-probs for a divergence of weight `beta`, as constants.

    Raises:
        ValueError: without them.
    """
    if ref is None:
        raise ValueError(f"`ref`: expected the reference's log-probs because beta is {beta}, got None; pass them")
    return logp_of(ref).detach()


def from_logits(net: Callable[[Tensor, Tensor], Tensor]) -> Score:
    """A score function around `net(ids [N, S], valid [N, S]) -> aligned logits [N, S, V]`.

    For small models and tests: it holds the logits of `streams` streams at once. Large models score through
    `gather_logp`, which never does.

    Args:
        net: the model.

    Returns:
        A `Score`.
    """

    def score(
        inputs: Tensor,
        clean: Tensor,
        target: Tensor,
        labels: Tensor,
        valid: Tensor,
        blocks: Tensor,
        *,
        want: tuple[str, ...] = (),
        temperature: float = 1.0,
        support: Tensor | None = None,
        streams: int | None = None,
    ) -> Scored:
        size = streams or max(inputs.shape[1], 1)
        columns = labels if labels.ndim == 4 else labels[..., None]
        parts: list[Scored] = []
        for some, at, label in zip(inputs.split(size, 1), target.split(size, 1), columns.split(size, 1), strict=True):
            logits = net(some.flatten(0, 1), valid.repeat_interleave(some.shape[1], 0))
            rows = at.flatten().nonzero().squeeze(1)
            chosen, wanted = logits.flatten(0, 1).index_select(0, rows), label.flatten(0, 2).index_select(0, rows)
            found = Scored(*pick_logp(chosen, wanted, temperature, support, want))
            parts.append(found.map(partial(_spread, rows=rows, shape=at.shape)))
        logp = torch.cat([part.logp for part in parts], 1).reshape(labels.shape)
        return Scored(logp, *map(_joined, zip(*map(_optional, parts), strict=True)))

    return score


def _joined(parts: tuple[Tensor | None, ...]) -> Tensor | None:
    given = [part for part in parts if part is not None]
    return torch.cat(given, 1) if given else None


def _spread(values: Tensor, rows: Tensor, shape: torch.Size) -> Tensor:
    """Values of the scored rows `[N, ...]` at their places in `[B, K, S, ...]`, 0 elsewhere."""
    zeros = values.new_zeros(shape.numel(), *values.shape[1:])
    return zeros.index_copy(0, rows, values).unflatten(0, shape)
