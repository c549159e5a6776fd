"""The hinge loss of pairs (SLiC-HF, arXiv 2305.10425)."""

from torch import Tensor

from dare_objectives.losses.pairs import check_beta, pair_metrics, pair_score
from dare_objectives.metrics import Metrics

__all__ = ["hinge", "hinge_terms"]


def hinge(
    chosen: Tensor,
    rejected: Tensor,
    ref_chosen: Tensor,
    ref_rejected: Tensor,
    *,
    beta: float,
    normaliser: Tensor | float,
) -> tuple[Tensor, Metrics]:
    """sum max(0, 1 - beta s) / normaliser, s = (w - w_ref) - (l - l_ref).

    SLiC-HF (arXiv 2305.10425), on scores relative to the reference: no gradient beyond a margin of 1 / beta.

    Args:
        chosen: `[N]`, sequence scores of the preferred answers under the policy (`elbo_seq`, or that over the length).
        rejected: `[N]`, of the other answers.
        ref_chosen: `[N]`, of the preferred answers under the reference, on the same masks; constants.
        ref_rejected: `[N]`, of the other answers.
        beta: above 0; pairs with beta s > 1 are left alone.
        normaliser: number of pairs of the whole batch, so that the losses of micro-batches add up.

    Returns:
        (scalar, metrics `chosen_reward`, `rejected_reward`, `margin`, `accuracy`).

    Raises:
        ValueError: for a beta of 0 or less.
    """
    score = pair_score(chosen, rejected, ref_chosen, ref_rejected)
    metrics = pair_metrics(chosen, rejected, ref_chosen, ref_rejected, beta=beta)
    return hinge_terms(score, beta=beta).sum() / normaliser, metrics


def hinge_terms(score: Tensor, *, beta: float) -> Tensor:
    """The loss of each pair from its score, same shape."""
    check_beta(beta)
    return (1 - beta * score).relu()
