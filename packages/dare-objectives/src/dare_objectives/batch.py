"""The batch: clean sequences and what the data layer knows about them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dare_objectives._errors import expect
from dare_objectives._rows import Rows, select_rows

__all__ = ["Batch"]


@dataclass(frozen=True, eq=False)
class Batch:
    """B clean sequences, right-padded: [prompt; response; pad].

    Random draws are indexed by (key, column), so neither padding columns nor the other rows change them.

    Args:
        tokens: int64 `[B, S]`, the clean tokens.
        valid: bool `[B, S]`, not padding.
        maskable: bool `[B, S]`, trainable positions, a subset of `valid`: the response through its first end token.
        blocks: int32 `[B, S]`, block id of each column, -1 on padding.
        keys: int64 `[B]`, one random key per row (`row_keys`).
        group: int64 `[B]`, rows with equal numbers answer the same prompt.
        mask_id: the mask token.
        old: log-probs of this batch's plan under the old policy.
        ref: log-probs of this batch's plan under the reference policy.
        step_map: int32 `[B, S]`, step at which each position was committed, -1 = never.
        states: rollout record of intermediate states; like the next two, anything that can be indexed by rows;
            no tuple or mapping.
        tree: rollout record of a tree of samples.
        value: values of a critic.

    Raises:
        ValueError: for shapes, dtypes or values that break these rules.
    """

    tokens: Tensor
    valid: Tensor
    maskable: Tensor
    blocks: Tensor
    keys: Tensor
    group: Tensor
    mask_id: int
    old: Tensor | None = None
    ref: Tensor | None = None
    step_map: Tensor | None = None
    states: Any = None
    tree: Any = None
    value: Any = None

    def __post_init__(self) -> None:
        """Check shapes, dtypes and values."""
        sizes: dict[str, int] = {}
        expect("tokens", self.tokens, "B S", sizes, dtype=torch.int64)
        expect("valid", self.valid, "B S", sizes, dtype=torch.bool)
        expect("maskable", self.maskable, "B S", sizes, dtype=torch.bool)
        expect("blocks", self.blocks, "B S", sizes, dtype=torch.int32)
        expect("keys", self.keys, "B", sizes, dtype=torch.int64)
        expect("group", self.group, "B", sizes, dtype=torch.int64)
        if self.step_map is not None:
            expect("step_map", self.step_map, "B S", sizes, dtype=torch.int32)
        for name in ("states", "tree", "value"):
            if isinstance(record := getattr(self, name), tuple | Mapping):
                kind = type(record).__name__
                raise ValueError(f"`{name}`: expected an object that rows index, got a {kind}; wrap it in a class")
        self._check_values()

    def _check_values(self) -> None:
        if bool((self.valid[:, 1:] & ~self.valid[:, :-1]).any()):
            raise ValueError("`valid`: expected right padding, got a valid column after a padded one; move the padding")
        if bool((self.maskable & ~self.valid).any()):
            raise ValueError("`maskable`: expected a subset of `valid`, got a maskable padding column")
        if bool(((self.blocks >= 0) != self.valid).any()):
            raise ValueError("`blocks`: expected -1 exactly where `valid` is False, got another pattern")
        if bool((self.maskable & (self.tokens == self.mask_id)).any()):
            raise ValueError(
                f"`tokens`: a maskable position holds the mask token {self.mask_id}; "
                "leave never-sampled positions out of `maskable`, or correct `mask_id`"
            )

    def __len__(self) -> int:
        """B, the number of rows."""
        return self.tokens.shape[0]

    def __getitem__(self, rows: Rows) -> "Batch":
        """The same record for some rows."""
        return select_rows(self, rows)

    @property
    def columns(self) -> Tensor:
        """int64 `[S]`: the position word of every random draw."""
        return torch.arange(self.tokens.shape[1], device=self.tokens.device)

    @property
    def prompt(self) -> Tensor:
        """bool `[B, S]`: valid columns before the first maskable one."""
        return self.valid & (self.maskable.cumsum(1) == 0)

    @property
    def lengths(self) -> Tensor:
        """int64 `[B]`: number of maskable positions."""
        return self.maskable.sum(1)
