"""Self-distillation towards the better children of a node (d-TreeRPO, arXiv 2512.09675)."""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["SoftTargets", "self_distill", "soft_targets"]


class SoftTargets(NamedTuple):
    """The distribution q over the tokens that a node's better children have at a position, told by child.

    The probability of a token is the sum of the `share` of the children that have it.
    """

    share: Tensor  # [..., S, C], 0 for children that take no part
    log_q: Tensor  # [..., S, C], log-probability of the child's token, 0 where its share is 0


def soft_targets(advantage: Tensor, labels: Tensor, active: Tensor, *, temperature: float) -> SoftTargets:
    """q_i(v) = sum_{c: label_ci = v} w_c / sum_c w_c over active children with A_c > 0, w = softmax(A / tau).

    Args:
        advantage: `[..., C]`, of the children.
        labels: int64 `[..., S, C]`, their tokens.
        active: bool `[..., S, C]`, the tokens that the child set.
        temperature: tau, 0 or more; as it goes to 0 the best child takes all positions, and those that only others set
            drop out.

    Returns:
        `SoftTargets`, without a position where no such child is active.
    """
    better = advantage > 0
    logits = torch.where(better, advantage, -torch.inf) / max(temperature, 1e-6)
    weight = torch.where(better.any(-1, keepdim=True), logits, 0.0).softmax(-1)
    part = torch.where(active & better[..., None, :], weight[..., None, :], 0.0)
    total = part.sum(-1, keepdim=True)
    share = part / torch.where(total > 0, total, 1.0)
    same = labels[..., :, None] == labels[..., None, :]
    q = torch.where(same, share[..., None, :], 0.0).sum(-1)
    return SoftTargets(share, torch.where(share > 0, q, 1.0).log())


def self_distill(logp: Tensor, targets: SoftTargets, weight: Tensor) -> Tensor:
    """sum_i w_i KL(q_i || p_i) = sum_i w_i sum_c share_ci (log q_i - log p_i)(label_ci): no full vocabulary is needed.

    Args:
        logp: `[..., S, C]`, log-probs of the labels.
        targets: of the same labels.
        weight: broadcasts to `[..., S, C]`.

    Returns:
        Scalar, never negative.
    """
    on = targets.share > 0
    return (weight * targets.share * torch.where(on, targets.log_q - logp, 0.0)).sum()
