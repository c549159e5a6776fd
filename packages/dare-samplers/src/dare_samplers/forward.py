"""One forward call: from what a policy wants fed to logits at the slots."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from dare_samplers.config import SamplerConfig
from dare_samplers.denoiser import Caches, Denoises
from dare_samplers.parts import Feed
from dare_samplers.state import State

__all__ = ["Answer", "Plan", "Row", "align_cache", "forward", "make_plan", "take"]


class Row(NamedTuple):
    """What the host must know about one row before the next forward."""

    finish: int
    step: int
    wanted: int
    fed: int
    denoise: int
    broken: int
    refresh: int


@dataclass(frozen=True)
class Plan:
    """The next forward of every row.

    Attributes:
        feed: the cache policy's answer, with the context that the model needs.
        wanted: bool `[B, T]`, columns at which logits are needed.
    """

    feed: Feed
    wanted: Tensor

    def read(self, state: State) -> list[Row]:
        """The only place where the loop waits for the device: one small transfer."""
        counts = (self.wanted.sum(-1), self.feed.columns.sum(-1))
        refresh = torch.zeros_like(state.broken) if self.feed.refresh is None else self.feed.refresh
        columns = (state.finish, state.step, *counts, self.feed.denoise, state.broken, refresh)
        table = torch.stack([column.to(torch.int64) for column in columns], -1)
        return [Row(*row) for row in table.tolist()]


@dataclass(frozen=True)
class Answer:
    """Columns `[b, N]` in the order of `take`, which of them are no filler, and each branch's logits `[b, N, V]` there.

    N = 0 where nothing was wanted.
    """

    columns: Tensor
    real: Tensor
    logits: tuple[Tensor, ...]

    def select(self, rows: Tensor) -> "Answer":
        """Of these rows, repeats allowed."""
        columns, real = self.columns.index_select(0, rows), self.real.index_select(0, rows)
        return Answer(columns, real, tuple(one.index_select(0, rows) for one in self.logits))


def make_plan(model: Denoises, config: SamplerConfig, state: State) -> Plan:
    """What to feed and where logits are needed, for all rows."""
    feed = config.cache.plan(state)
    wanted = state.window
    if config.reviser is not None and config.reviser.sees != "open":
        current = state.row_block.unsqueeze(-1)
        near = state.block <= current if config.reviser.sees == "row" else state.block == current
        wanted = wanted | (state.sampled & near)
    wanted = wanted & feed.denoise.unsqueeze(-1)
    columns = feed.columns | wanted
    if config.record.proposals:
        wanted = wanted | (state.open & columns & feed.denoise.unsqueeze(-1))
    context = wanted
    for _ in range(model.left_context):
        context = context | pad(context[:, 1:], (0, 1))
    columns = columns | context
    return Plan(replace(feed, columns=columns), wanted)


def take(mask: Tensor, width: int, *, left: bool = False) -> tuple[Tensor, Tensor]:
    """The first `width` True columns of each row of `mask` `[b, T]`, ascending, and which of them are no filler.

    Filler stands at the end, or with `left` at the beginning: int64 and bool `[b, width]`.
    """
    order = (mask if left else ~mask).to(torch.uint8).argsort(dim=-1, stable=True)
    columns = order[:, mask.shape[1] - width :] if left else order[:, :width]
    return columns, mask.gather(1, columns)


def forward(
    model: Denoises, config: SamplerConfig, state: State, plan: Plan, table: Sequence[Row], rows: tuple[int, ...]
) -> Answer:
    """Logits at the wanted columns of `rows`.

    With a cache `rows` are those of the cache; a row that is not due has fed = 0 in `table`.
    """
    index = torch.tensor(rows, dtype=torch.int64).to(state.tokens.device, non_blocking=True)
    due = torch.tensor([table[row].fed > 0 for row in rows]).to(state.tokens.device, non_blocking=True)
    fed = plan.feed.columns.index_select(0, index) & due.unsqueeze(-1)
    width, wanted = (max(getattr(table[row], name) for row in rows) for name in ("fed", "wanted"))
    columns, real = take(fed, width, left=config.layout == "left")
    at, asked = take(plan.wanted.index_select(0, index), wanted)
    place = (fed.cumsum(-1) - 1).gather(1, at).clamp(min=0)
    if config.layout == "left":
        place = (place + width - fed.sum(-1, keepdim=True)).clamp(max=width - 1)
    call = _Call(model, state, index, columns, real, plan.feed.write)
    logits = call.packed(place, [table[row].fed for row in rows]) if config.layout == "packed" else call.padded(place)
    branches = state.branches
    if logits.shape[:2] != (len(rows) * branches, wanted) or logits.shape[-1] <= model.mask_id:
        raise ValueError(
            f"expected logits [{len(rows) * branches}, {wanted}, V] with V > mask_id={model.mask_id} from the model, "
            f"got {list(logits.shape)}; check `rows` and the size of the head"
        )
    state.nfe += 1
    state.tokens_forwarded += branches * sum(table[row].fed for row in rows)
    return Answer(at, asked, logits.chunk(branches))


@dataclass(frozen=True)
class _Call:
    """Tensors of one call: `columns` of the state's rows `index` `[b]`, `real` where they are no filler, `[b, Q]`."""

    model: Denoises
    state: State
    index: Tensor
    columns: Tensor
    real: Tensor
    write: Tensor | None

    def padded(self, place: Tensor) -> Tensor:
        """Rows side by side."""
        ids, positions, write, added = self.inputs()
        return self.run(ids, positions, write, self.repeat(place), added, None)

    def packed(self, place: Tensor, counts: Sequence[int]) -> Tensor:
        """All rows in one, without filler."""
        ids, positions, write, added = self.inputs()
        size = self.columns.shape[1]
        total = sum(counts)
        flat = [row * size + column for row, count in enumerate(counts) for column in range(count)]
        document = [row for row, count in enumerate(counts) for _ in range(count)]
        starts = torch.tensor([0, *counts]).cumsum(0)[:-1].clamp(max=total - 1)  # a row without tokens asks nothing
        branches = range(self.state.branches)
        b, device = len(counts), ids.device
        keep = torch.tensor([one + branch * b * size for branch in branches for one in flat]).to(device)
        documents = torch.tensor([[row + branch * b for branch in branches for row in document]]).to(device)
        offset = torch.cat([starts + branch * total for branch in branches]).to(device)
        ids, positions = (tensor.flatten().index_select(0, keep)[None] for tensor in (ids, positions))
        write = None if write is None else write.flatten().index_select(0, keep)[None]
        added = None if added is None else added.flatten(0, 1).index_select(0, keep)[None]
        rows = self.repeat(place) + offset.unsqueeze(-1)
        logits = self.run(ids, positions, write, rows.flatten()[None], added, documents)
        return logits.unflatten(1, rows.shape).squeeze(0)

    def inputs(self) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
        """ids, positions, write `[b, Q]` and added `[b, Q, d]`, twice as many rows under guidance."""
        tokens = self.state.tokens.index_select(0, self.index).gather(1, self.columns)
        ids = torch.where(self.real, tokens, self.model.pad_id)
        if self.state.branches == 2:
            slot = self.state.block.index_select(0, self.index).gather(1, self.columns) >= 0
            blank = torch.where(slot | ~self.real, ids, self.model.mask_id)
            ids = torch.cat([ids, blank])
        positions = self.repeat(torch.where(self.real, self.columns, -1))
        write = None
        if self.write is not None:
            write = self.repeat(self.write.index_select(0, self.index).gather(1, self.columns) & self.real)
        added = self.state.memory.get("soft")
        if added is not None:
            soft = added.index_select(0, self.index)
            still = self.state.open.index_select(0, self.index).gather(1, self.columns) & self.real
            soft = soft.gather(1, self.columns.unsqueeze(-1).expand(-1, -1, soft.shape[-1]))
            added = self.repeat(soft * still.unsqueeze(-1))
        return ids, positions, write, added

    def repeat(self, tensor: Tensor) -> Tensor:
        """Once per branch."""
        return torch.cat([tensor] * self.state.branches) if self.state.branches > 1 else tensor

    def run(
        self,
        ids: Tensor,
        positions: Tensor,
        write: Tensor | None,
        rows: Tensor,
        added: Tensor | None,
        documents: Tensor | None,
    ) -> Tensor:
        """Call the model with what it takes."""
        blocks = None
        if self.state.attention_block is not None:
            blocks = positions.div(self.state.attention_block, rounding_mode="floor").to(torch.int32)
        extra = {name: value for name, value in (("added", added), ("documents", documents)) if value is not None}
        call = cast("Callable[..., Tensor]", self.model)
        cache = self.state.cache if write is not None else None
        return call(ids, positions=positions, blocks=blocks, write=write, cache=cache, rows=rows, **extra)


def align_cache(model: Denoises, state: State, rows: tuple[int, ...]) -> None:
    """Make the cache hold exactly these rows, in this order."""
    if state.cache is None:
        if not isinstance(model, Caches):
            raise TypeError(
                f"`cache`: expected a model with `new_cache`, got {type(model).__name__}; use cache=NoCache()"
            )
        state.cache = model.new_cache(len(rows) * state.branches, state.tokens.shape[1])
        state.cache_rows = rows
    elif rows != state.cache_rows:
        state.regroup({row: row for row in rows})
