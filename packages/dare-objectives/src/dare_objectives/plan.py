"""The plan: what a model sees, which positions are scored, against what, with what weight."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dare_objectives._errors import expect
from dare_objectives._rows import Rows, select_rows
from dare_objectives.batch import Batch
from dare_objectives.gather import check_wants

__all__ = ["Plan", "mask_plan", "unweighted"]


@dataclass(frozen=True, eq=False)
class Plan:
    """K corrupted streams of each of B sequences.

    Args:
        inputs: int64 `[B, K, S]`, what the model sees.
        target: bool `[B, K, S]`, the scored positions; they need not be masked.
        labels: int64 `[B, K, S]`, what is scored there; `[B, K, S, C]` for several labels at one position.
        weight: floating `[B, K, S]`, the estimator's weight of one draw, 0 off target.
        clean: int64 `[B, S]`, the clean tokens.
        valid: bool `[B, S]`, not padding.
        blocks: int32 `[B, S]`, block ids, -1 on padding.
        want: further numbers that the loss uses at the scored positions (`"entropy"`).

    Raises:
        ValueError: for shapes or dtypes other than these, targets on padding, weights off target or not finite.
    """

    inputs: Tensor
    target: Tensor
    labels: Tensor
    weight: Tensor
    clean: Tensor
    valid: Tensor
    blocks: Tensor
    want: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check shapes, dtypes and values."""
        sizes: dict[str, int] = {}
        expect("inputs", self.inputs, "B K S", sizes, dtype=torch.int64)
        expect("target", self.target, "B K S", sizes, dtype=torch.bool)
        expect("labels", self.labels, "B K S" if self.labels.ndim == 3 else "B K S C", sizes, dtype=torch.int64)
        expect("weight", self.weight, "B K S", sizes, dtype=(torch.float32, torch.float64))
        expect("clean", self.clean, "B S", sizes, dtype=torch.int64)
        expect("valid", self.valid, "B S", sizes, dtype=torch.bool)
        expect("blocks", self.blocks, "B S", sizes, dtype=torch.int32)
        check_wants(self.want)
        self._check_values()

    def _check_values(self) -> None:
        if bool((self.target & ~self.valid[:, None]).any()):
            raise ValueError("`target`: expected scored positions inside `valid`, got a target on padding")
        if bool(((self.weight != 0) & ~self.target).any()):
            raise ValueError("`weight`: expected 0 off target, got a weight where nothing is scored")
        if not bool(self.weight.isfinite().all()):
            raise ValueError("`weight`: expected finite numbers; is a mask rate of 0 among the draws?")

    def __len__(self) -> int:
        """B, the number of rows."""
        return self.inputs.shape[0]

    def __getitem__(self, rows: Rows) -> "Plan":
        """The same record for some rows."""
        return select_rows(self, rows)

    @property
    def streams(self) -> int:
        """K, the number of forwards per sequence."""
        return self.inputs.shape[1]

    @property
    def scored(self) -> Tensor:
        """bool `[B, S]`: positions scored by at least one stream."""
        return self.target.any(1)


def mask_plan(batch: Batch, masked: Tensor, weight: Tensor, *, target: Tensor | None = None) -> Plan:
    """The plan that replaces `masked` tokens by the mask token and scores the clean ones.

    Args:
        batch: B sequences.
        masked: bool `[B, K, S]`, where the mask token goes.
        weight: weight of one draw, anything that broadcasts to `[B, K, S]`; set to 0 off target here.
        target: bool `[B, K, S]`, the scored positions; default: all masked ones.

    Returns:
        A plan of K streams, with `weight`'s dtype.
    """
    target = masked if target is None else target
    return Plan(
        inputs=batch.tokens[:, None].masked_fill(masked, batch.mask_id),
        target=target,
        labels=batch.tokens[:, None].expand_as(masked),
        weight=torch.where(target, weight, torch.zeros((), dtype=weight.dtype, device=weight.device)),
        clean=batch.tokens,
        valid=batch.valid,
        blocks=batch.blocks,
    )


def unweighted(plan: Plan) -> Plan:
    """The same plan with weight 1 at every target, for losses that leave 1/t out."""
    return replace(plan, weight=plan.target.to(plan.weight.dtype))
