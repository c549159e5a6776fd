"""Direct preference optimisation (arXiv 2305.18290)."""

from torch import Tensor
from torch.nn.functional import logsigmoid

from dare_objectives._errors import expect_range
from dare_objectives.losses.pairs import check_beta, pair_metrics, pair_score
from dare_objectives.metrics import Metrics

__all__ = ["dpo", "dpo_terms"]


def dpo(
    chosen: Tensor,
    rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    *,
    beta: float,
    label_smoothing: float = 0.0,
    normaliser: Tensor | float,
) -> tuple[Tensor, Metrics]:
    """-sum [(1 - e) log sigma(beta s) + e log sigma(-beta s)] / normaliser, s = (w - w_ref) - (l - l_ref).

    DPO (arXiv 2305.18290); e, the probability of a label being wrong, is the conservative variant of the same authors.
    At the reference the loss is log 2 and its gradient -beta (1/2 - e) (grad w - grad l).

    Args:
        chosen: `[N]`, sequence scores of the preferred answers under the policy (`elbo_seq`, or that over the length).
        rejected: `[N]`, of the other answers.
        ref_chosen: `[N]`, of the preferred answers under the reference, on the same masks; constants.
        ref_rejected: `[N]`, of the other answers.
        beta: above 0; scales the implicit rewards.
        label_smoothing: e in [0, 1/2].
        normaliser: number of pairs of the whole batch, so that the losses of micro-batches add up.

    Returns:
        (scalar, metrics `chosen_reward`, `rejected_reward`, `margin`, `accuracy`).

    Raises:
        ValueError: for an option out of range.

    >>> import torch
    >>> zero = torch.zeros(1)
    >>> round(float(dpo(zero, zero, zero, zero, beta=0.2, normaliser=1)[0]), 4)
    0.6931
    """
    score = pair_score(chosen, rejected, ref_chosen, ref_rejected)
    metrics = pair_metrics(chosen, rejected, ref_chosen, ref_rejected, beta=beta)
    return dpo_terms(score, beta=beta, label_smoothing=label_smoothing).sum() / normaliser, metrics


def dpo_terms(score: Tensor, *, beta: float, label_smoothing: float = 0.0) -> Tensor:
    """The loss of each pair from its score, same shape."""
    check_beta(beta)
    expect_range("label_smoothing", label_smoothing, 0.0, 0.5)
    return -(1 - label_smoothing) * logsigmoid(beta * score) - label_smoothing * logsigmoid(-beta * score)
