"""What a floating-point type means for a module, float64 above all."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from dare_models.dtypes import as_dtype
from dare_models.partition import check_partition_dtype, is_partitioned

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def place(module: ModuleT, dtype: str | torch.dtype, device: str | torch.device) -> ModuleT:
    """Cast the parameters of a module and move it, in place; in float64 its norms and routers compute in float64 too.

    Buffers keep their dtype: rotary frequencies in bfloat16 would be wrong angles. transformers' RMS norms and its
    sigmoid routers compute in float32 whatever the dtype, which would leave float64 no better than 1e-8. Parameters
    get memory of their own: in the mapped file they lie where its header ends, and matrix products may round by
    alignment.

    Args:
        module: a transformers model.
        dtype: floating-point type.
        device: where it goes.

    Returns:
        The module.

    Raises:
        ValueError: the parameters are partitioned in another dtype.
    """
    wanted = as_dtype(dtype)
    if is_partitioned(module):
        check_partition_dtype(wanted)
    for parameter in module.parameters():
        parameter.data = parameter.data.to(wanted, copy=True)
    module.to(device=device)
    if wanted is torch.float64:
        for parent in list(module.modules()):
            for name, child in list(parent.named_children()):
                if hasattr(child, "variance_epsilon"):
                    setattr(parent, name, _exact_norm(child))
                elif hasattr(child, "e_score_correction_bias"):
                    setattr(parent, name, ExactRouter(child))
    return module


def _exact_norm(norm: Any) -> nn.RMSNorm:
    """Return torch's own norm around the same weight."""
    exact = nn.RMSNorm(norm.weight.shape, eps=norm.variance_epsilon)
    exact.weight = norm.weight
    return exact


class ExactRouter(nn.Module):
    """Choice of experts by sigmoid scores inside the best groups, in the dtype of the input.

    Args:
        router: transformers' router, whose weight and settings are taken over.
    """

    e_score_correction_bias: Tensor

    def __init__(self, router: Any) -> None:
        super().__init__()
        self.weight: nn.Parameter = router.weight
        self.register_buffer("e_score_correction_bias", router.e_score_correction_bias)
        self.groups: int = router.num_group
        self.open_groups: int = router.topk_group
        self.experts: int = router.top_k
        self.factor: float = router.routed_scaling_factor
        self.normalise: bool = router.norm_topk_prob

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the logits [N, E] of all experts, and weights and ids [N, k] of the chosen ones.

        Args:
            hidden: [..., d].
        """
        logits = nn.functional.linear(hidden.flatten(0, -2), self.weight)
        scores = logits.sigmoid()
        by_group = (scores + self.e_score_correction_bias).unflatten(1, (self.groups, -1))
        best = by_group.topk(2, dim=-1).values.sum(-1).topk(self.open_groups, dim=-1).indices
        closed = torch.ones_like(by_group[..., 0], dtype=torch.bool).scatter(1, best, False)
        chosen = by_group.masked_fill(closed[..., None], -torch.inf).flatten(1).topk(self.experts, dim=-1).indices
        weights = scores.gather(1, chosen)
        if self.normalise:
            weights = weights / weights.sum(-1, keepdim=True)
        return logits, weights * self.factor, chosen
