"""The loss of wd1 (arXiv 2507.08838): likelihoods with weights that sum to 0 over a group."""

import torch
from torch import Tensor

from dare_objectives._errors import expect, expect_range
from dare_objectives.losses.nll import weighted_nll
from dare_objectives.metrics import Mean, Metrics, masked_mean

__all__ = ["group_softmax", "likelihood_weights", "weighted_likelihood"]


def group_softmax(x: Tensor, group: Tensor) -> Tensor:
    """exp(x_b) / sum of exp(x) over the group of b, without overflow.

    Args:
        x: `[B]`.
        group: int64 `[B]`.

    Returns:
        `[B]`, sums to 1 over each group.

    >>> group_softmax(torch.tensor([0.0, 0.0, 900.0]), torch.tensor([4, 4, 2]))
    tensor([0.5000, 0.5000, 1.0000])
    """
    expect("x", x, "B", sizes := {})
    expect("group", group, "B", sizes, dtype=torch.int64)
    table = torch.where(group[:, None] == group, x, -torch.inf)
    return (x - table.logsumexp(1)).exp()


def likelihood_weights(advantage: Tensor, group: Tensor, *, temperature: float = 1.0) -> Tensor:
    """w = softmax_G(A / T) - softmax_G(-A / T) (wd1, arXiv 2507.08838).

    About 2 A / (G T) for small A. The softmax runs over a group, not over what happens to share a micro-batch.

    Args:
        advantage: `[B]`; a constant added to a group changes nothing.
        group: int64 `[B]`.
        temperature: T, above 0.

    Returns:
        `[B]`, sums to 0 over each group; exactly 0 for equal advantages and for a group of one.
    """
    expect_range("temperature", temperature, 1e-12, torch.inf)
    x = advantage / temperature
    same = group[:, None] == group
    equal = (~same | (advantage == advantage[:, None])).all(1)
    return torch.where(equal, 0.0, group_softmax(x, group) - group_softmax(-x, group))


def weighted_likelihood(score: Tensor, weight: Tensor, *, normaliser: Tensor | float) -> tuple[Tensor, Metrics]:
    """-sum_b w_b s_b / normaliser (wd1, arXiv 2507.08838).

    Args:
        score: `[B]`, log-likelihoods.
        weight: `[B]`, of the whole groups (`likelihood_weights`); rows with weight 0 are ignored, whatever they hold.
        normaliser: computed on the whole batch, so that the losses of micro-batches add up.

    Returns:
        (scalar, metrics `weight_abs`, `score_positive`, `score_negative`).
    """
    metrics: Metrics = {
        "weight_abs": Mean(weight.detach().abs().sum(), len(weight)),
        "score_positive": masked_mean(score, weight > 0),
        "score_negative": masked_mean(score, weight < 0),
    }
    return weighted_nll(score, weight, normaliser=normaliser), metrics
