"""How a block-causal family scores: each corrupted copy beside the clean sequence, in one forward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_models.attention import FLEX_TILE, NoisyClean
from dare_models.network import sources
from dare_models.scoring import Layout, Sequences, positions_of, some_columns

__all__ = ["check_blocks", "noisy_clean_layout"]


def noisy_clean_layout(clean: Tensor, valid: Tensor, blocks: Tensor, *, offset: int, shared: bool) -> Layout:
    """Feed [corrupted ; clean], both halves at the same positions.

    A corrupted block sees itself and the clean blocks before it: what a sampler sees that has committed these. Blocks
    without a target are left out of the corrupted half, and blocks that no target's comes after out of the clean one.

    Args:
        clean: [B, S] int64.
        valid: [B, S] bool.
        blocks: [B, S] block ids; what they are on padding does not matter.
        offset: 1 where the state of the token before scores a token: the corrupted one inside a block, the clean one
            for the first token of a block.
        shared: one row for all streams of a sequence, [corrupted 1 ; … ; corrupted k ; clean], with lengths that suit
            flex attention; else a row, and a clean half, for each.
    """
    positions = positions_of(valid)
    ids = blocks.to(torch.int64).masked_fill(~valid, -1)
    return _NoisyClean(clean, positions, ids, offset, shared)


def check_blocks(valid: Tensor, blocks: Tensor) -> None:
    """Refuse block ids that are no grid.

    Args:
        valid: [B, S] bool.
        blocks: [B, S] block ids.

    Raises:
        ValueError: another shape, negative ids on real tokens, or ids that fall from left to right.
    """
    if blocks.shape != valid.shape:
        raise ValueError(f"expected `blocks` of shape {tuple(valid.shape)}, got {tuple(blocks.shape)}")
    falls = (blocks[:, 1:] < blocks[:, :-1]) & valid[:, 1:] & valid[:, :-1]
    if bool((falls.any() | ((blocks < 0) & valid).any()).item()):
        raise ValueError("expected block ids that start at 0 and never fall from left to right, got others")


@dataclass(frozen=True)
class _NoisyClean:
    """The layout of some sequences; see `noisy_clean_layout`."""

    clean: Tensor
    positions: Tensor
    blocks: Tensor
    offset: int
    shared: bool

    def __call__(self, inputs: Tensor, target: Tensor) -> Sequences:
        """Feed these streams: inputs and target [B, k, S]."""
        noisy, clean = self.columns(target.any(dim=1))
        streams = inputs.shape[1]
        width = len(noisy)
        source = self.source(target.shape, noisy, clean, width * (streams if self.shared else 1))
        copies = inputs.index_select(2, noisy)
        if self.shared:
            ids = [copies.flatten(1), self.clean.index_select(1, clean)]
            numbers = torch.arange(streams, device=inputs.device)[:, None] * width
            in_copy = source < streams * width
            source = torch.where(in_copy, source + numbers, source)
        else:
            repeated = self.clean.index_select(1, clean).repeat_interleave(streams, dim=0)
            ids = [copies.flatten(0, 1), repeated]
        fed = torch.cat(ids, dim=1)
        positions, plan = self.halves(noisy, clean, streams)
        if missing := -fed.shape[1] % FLEX_TILE if self.shared else 0:
            fed, positions = pad(fed, (0, missing)), pad(positions, (0, missing), value=-1)
            plan = NoisyClean(pad(plan.blocks, (0, missing), value=-1), pad(plan.copies, (0, missing)), plan.streams)
        rows = torch.arange(len(fed), device=fed.device).reshape(len(inputs), -1, 1) * fed.shape[1]
        slots = target.flatten().nonzero().squeeze(1)
        return Sequences(fed, positions, plan, (source + rows).flatten().index_select(0, slots))

    def columns(self, target: Tensor) -> tuple[Tensor, Tensor]:
        """Columns of the corrupted and of the clean half, for targets [B, S]."""
        entries = self.blocks + 1
        table = entries.new_zeros(len(entries), int(entries.amax()) + 1)
        hit = table.scatter_add(1, entries, target.to(table.dtype)).gather(1, entries) > 0
        last = torch.where(target, self.blocks, -1).amax(dim=1, keepdim=True)
        real = self.blocks >= 0
        return some_columns((hit & real).any(dim=0)), ((self.blocks < last) & real).any(dim=0).nonzero().squeeze(1)

    def source(self, shape: torch.Size, noisy: Tensor, clean: Tensor, start: int) -> Tensor:
        """Where the state that scores each column comes out in a row whose clean half starts at `start`: [B, k, S]."""
        columns = torch.arange(shape[2], device=noisy.device)
        place, behind = torch.zeros_like(columns), torch.zeros_like(columns)
        place = place.index_copy(0, noisy, torch.arange(len(noisy), device=noisy.device))
        behind = behind.index_copy(0, clean, torch.arange(len(clean), device=noisy.device) + start)
        if not self.offset:
            return place.expand(shape)
        left = sources(self.positions)
        inside = self.blocks.gather(1, left) == self.blocks
        found = torch.where(inside, place[left], behind[left])
        return found[:, None].expand(shape)

    def halves(self, noisy: Tensor, clean: Tensor, streams: int) -> tuple[Tensor, NoisyClean]:
        """Positions of what is fed, and the plan."""
        together, apart = (streams, 1) if self.shared else (1, streams)

        def both(values: Tensor) -> tuple[Tensor, Tensor]:
            one, other = values.index_select(1, noisy).repeat(1, together), values.index_select(1, clean)
            return one.repeat_interleave(apart, dim=0), other.repeat_interleave(apart, dim=0)

        return torch.cat(both(self.positions), dim=1), NoisyClean.halves(*both(self.blocks), streams=together)
