"""What the preference losses share: the score of a pair and its metrics."""

import torch
from torch import Tensor

from dare_objectives.metrics import Mean, Metrics

__all__ = ["check_beta", "pair_metrics", "pair_score"]


def check_beta(beta: float) -> None:
    """Refuse a beta that no preference loss has a meaning for."""
    if not beta > 0:
        raise ValueError(f"`beta`: expected a number above 0, got {beta!r}; at 0 the pairs say nothing")


def pair_score(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor) -> Tensor:
    """s = (chosen - ref_chosen) - (rejected - ref_rejected), each `[N]`; the reference is constant."""
    return (chosen - ref_chosen.detach()) - (rejected - ref_rejected.detach())


def pair_metrics(chosen: Tensor, rejected: Tensor, ref_chosen: Tensor, ref_rejected: Tensor, *, beta: float) -> Metrics:
    """Implicit rewards beta (policy - reference) of both sides, their margin and the share of pairs in order."""
    better, worse = beta * (chosen - ref_chosen).detach(), beta * (rejected - ref_rejected).detach()
    values = {
        "chosen_reward": better,
        "rejected_reward": worse,
        "margin": better - worse,
        "accuracy": (better > worse).to(torch.float32),
    }
    return {name: Mean(value.sum(), len(value)) for name, value in values.items()}
