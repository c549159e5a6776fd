"""Scores: the one place where a plan meets a model."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dare_objectives._errors import expect
from dare_objectives._rows import Rows, select_rows
from dare_objectives.gather import at_least_float32, pick_logp
from dare_objectives.plan import Plan

__all__ = ["Score", "Scored", "evaluate", "from_logits", "logp_of"]


@dataclass(frozen=True, eq=False)
class Scored:
    """What a model says about a plan.

    Args:
        logp: `[B, K, S]` log-probs of the plan's labels (`[B, K, S, C]` for several labels), 0 off target.
        entropy: `[B, K, S]` entropies of the whole distribution, 0 off target, if the plan wants them.
        topk: reserved for the k largest log-probs at the targets.
    """

    logp: Tensor
    entropy: Tensor | None = None
    topk: Tensor | None = None

    def __getitem__(self, rows: Rows) -> "Scored":
        """The same record for some rows."""
        return select_rows(self, rows)


class Score(Protocol):
    """A model's side of the contract: any callable with this signature.

    It returns the log-probs `[B, K, S]` of `labels` at `target`, aligned (entry i scores the token at position i) and
    in float32 or better, either as a tensor or as an object with attributes `logp` and, if wanted, `entropy`.
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
    """Score a plan and check what comes back.

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
    arguments = (plan.inputs, plan.clean, plan.target, plan.labels, plan.valid, plan.blocks)
    answer = score(*arguments, want=plan.want, temperature=temperature, support=support, streams=streams)
    return Scored(_logp(answer, plan), _entropy(answer, plan) if "entropy" in plan.want else None)


def _logp(answer: Any, plan: Plan) -> Tensor:
    logp = answer if isinstance(answer, Tensor) else answer.logp
    axes = "BKSC"[: plan.labels.ndim]
    expect("logp", logp, " ".join(axes), dict(zip(axes, plan.labels.shape, strict=True)))
    on = plan.target if plan.labels.ndim == 3 else plan.target[..., None]
    return torch.where(on, at_least_float32(logp), 0.0)


def _entropy(answer: Any, plan: Plan) -> Tensor:
    entropy = getattr(answer, "entropy", None)
    if entropy is None:
        raise ValueError("the plan wants 'entropy', but the score returned none; add it to the score function")
    expect("entropy", entropy, "B K S", dict(zip("BKS", plan.target.shape, strict=True)))
    return torch.where(plan.target, at_least_float32(entropy), 0.0)


def logp_of(scored: Tensor | Scored) -> Tensor:
    """The log-probs of a score given as a tensor or as a `Scored`."""
    return scored if isinstance(scored, Tensor) else scored.logp


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
        logps: list[Tensor] = []
        entropies: list[Tensor] = []
        for some, at, label in zip(inputs.split(size, 1), target.split(size, 1), columns.split(size, 1), strict=True):
            logits = net(some.flatten(0, 1), valid.repeat_interleave(some.shape[1], 0))
            rows = at.flatten().nonzero().squeeze(1)
            chosen, wanted = logits.flatten(0, 1).index_select(0, rows), label.flatten(0, 2).index_select(0, rows)
            logp, entropy = pick_logp(chosen, wanted, temperature, support, want)
            logps.append(_spread(logp, rows, label.shape))
            if entropy is not None:
                entropies.append(_spread(entropy, rows, at.shape))
        whole = torch.cat(logps, 1).reshape(labels.shape)
        return Scored(whole, torch.cat(entropies, 1) if entropies else None)

    return score


def _spread(values: Tensor, rows: Tensor, shape: torch.Size) -> Tensor:
    """Values of the scored rows `[N, ...]` at their places in `[B, K, S, ...]`, 0 elsewhere."""
    return values.new_zeros(shape).flatten(0, 2).index_copy(0, rows, values).reshape(shape)
