"""What the parts of a sampler see and must offer.

A strategy is a choice of small frozen dataclasses with one method each: a schedule (how many slots a step commits), a
proposer (which token), a scorer (how good), a selector (which slots), a reviser (which earlier choices to take back), a
cache policy (what to feed) and a stop rule. Logits rules edit what they see. Any object with the right method is such a
part; nothing has to be inherited or registered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from dare_samplers.keyed import uniform

if TYPE_CHECKING:
    from dare_samplers.config import SamplerConfig
    from dare_samplers.state import State

__all__ = [
    "CachePolicy",
    "Checks",
    "Feed",
    "Logits",
    "LogitsRule",
    "Proposal",
    "Proposer",
    "Remembers",
    "RemembersSlots",
    "Reviser",
    "Revision",
    "Schedule",
    "Scorer",
    "Selector",
    "Skips",
    "Slots",
    "StopRule",
]


@dataclass(frozen=True)
class Logits:
    """Logits of the slots in float32 or float64, with a normaliser that is computed at most once.

    Attributes:
        values: `[b, N, V]`; never edited in place.
    """

    values: Tensor

    @classmethod
    def of(cls, values: Tensor) -> "Logits":
        """Upcast half precision and replace +inf by the largest finite number, in a copy."""
        dtype = torch.float64 if values.dtype == torch.float64 else torch.float32
        return cls(values.to(dtype).clamp(max=torch.finfo(dtype).max))

    @cached_property
    def log_norm(self) -> Tensor:
        """`[b, N]` log of the sum of exponentials."""
        return self.values.logsumexp(-1)

    def at(self, tokens: Tensor) -> Tensor:
        """Logit of one token per slot, `[b, N]`."""
        return self.values.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)

    def logp(self, tokens: Tensor) -> Tensor:
        """Log-probability at temperature 1 of one token per slot, `[b, N]`."""
        return self.at(tokens) - self.log_norm

    def entropy(self) -> Tensor:
        """Entropy in nats of every slot, `[b, N]`."""
        logp = self.values - self.log_norm.unsqueeze(-1)
        return -(logp.exp() * logp).nan_to_num(nan=0.0).sum(-1)

    def without(self, ids: Sequence[int]) -> "Logits":
        """The same logits with some token ids at -inf, in a copy.

        Raises:
            ValueError: for an id that the vocabulary does not have.
        """
        width = self.values.shape[-1]
        if outside := [one for one in ids if not 0 <= one < width]:
            raise ValueError(
                f"`ids`: expected token ids in [0, {width}), got {outside[0]}; the model has no such logit"
            )
        values = self.values.clone()
        for one in ids:
            values[..., one] = -torch.inf
        return Logits(values)


@dataclass(frozen=True)
class Slots:
    """The slots that a step may write: the open ones of each row's window, ascending, and what is known about them.

    N columns; rows with fewer slots have filler, which is neither open nor committed. With a reviser that `sees`
    committed slots, these are among them; with `Record(proposals=True)`, open slots outside
    the window, which are not `open` here.

    Attributes:
        index: int64 `[b, N]`, position inside the response.
        open: bool `[b, N]`, slots that may be committed now.
        committed: bool `[b, N]`, slots that hold a sampled token.
        tokens: int64 `[b, N]`, what stands there: the mask id on open slots.
        left: int64 `[b, N]`, the token one column to the left; the mask id where there is none.
        key: int64 `[b]`, the rows' random keys.
        step: int64 `[b]`, denoising forwards each row has had.
        block_step: int64 `[b]`, the same inside the current block.
        clock: int64 `[b]`, schedule steps inside the block; more than `block_step` where empty ones were skipped.
        idle: int64 `[b]`, earlier forwards in the block that began without an open slot.
        size: int64 `[b]`, slots of the current block, written or not.
        steps: schedule steps planned for a block; None for one commit per step.
        total_steps: the same for the whole response.
        mask_id, eos_ids, pad_id: the model's special ids.
        memory: int64 `[b, N, M]`, the reviser's own memory of these slots, zeros at first; None where it keeps none.
    """

    index: Tensor
    open: Tensor
    committed: Tensor
    tokens: Tensor
    left: Tensor
    key: Tensor
    step: Tensor
    block_step: Tensor
    clock: Tensor
    idle: Tensor
    size: Tensor
    steps: int | None = None
    total_steps: int | None = None
    mask_id: int = -1
    eos_ids: tuple[int, ...] = ()
    pad_id: int = 0
    memory: Tensor | None = None

    @cached_property
    def remaining(self) -> Tensor:
        """int64 `[b]`, slots still open in the window."""
        return self.open.sum(-1)

    def uniform(self, purpose: str, dtype: torch.dtype, *words: int) -> Tensor:
        """One uniform number per slot, a hash of (row key, purpose, step, response position, words): `[b, N]`."""
        return uniform(self.key.unsqueeze(-1), purpose, self.step.unsqueeze(-1), self.index, *words, dtype=dtype)


class Proposal(NamedTuple):
    """A token per slot.

    Attributes:
        tokens: int64 `[b, N]`.
        logq: `[b, N]`, their log-probability under the law they were drawn from.
        law: that law (tempered, filtered) as logits; for greedy ones the logits they are the argmax of.
    """

    tokens: Tensor
    logq: Tensor
    law: Logits


class Revision(NamedTuple):
    """What a reviser changes; None leaves everything as the selector wants it.

    Attributes:
        pick: bool `[b, N]`, open slots to commit, in place of the selector's.
        write: bool `[b, N]`, slots that receive `tokens` as an edit.
        tokens: int64 `[b, N]`, for `write`.
        moved: bool `[b, N]`, slots of `write` whose token was not proposed there but shifted there from `source`.
        source: int64 `[b, N]`, for `moved`: index into N of where the token and its record come from.
        reopen: bool `[b, G]` over all response positions: slots to mask again, after the writes.
        hold: bool `[b]`, rows that stay in their block even if no slot is open.
        memory: int64 `[b, N, M]`, what to remember of these slots.
    """

    pick: Tensor | None = None
    write: Tensor | None = None
    tokens: Tensor | None = None
    moved: Tensor | None = None
    source: Tensor | None = None
    reopen: Tensor | None = None
    hold: Tensor | None = None
    memory: Tensor | None = None


@dataclass(frozen=True)
class Feed:
    """What one forward is fed, row by row.

    Attributes:
        columns: bool `[B, T]`, tokens to feed.
        write: bool `[B, T]`, of these, keys and values to store; None without a cache.
        denoise: bool `[B]`, rows whose window is denoised by this forward; the others only store.
        stored: int64 `[B]`, what `State.stored` is after it.
        refresh: bool `[B]`, rows that are fed whole where others feed a window. They wait until all rows do, since one
            whole row would pad all the others; on the packed layout, which has no padding, nobody waits.
    """

    columns: Tensor
    write: Tensor | None
    denoise: Tensor
    stored: Tensor
    refresh: Tensor | None = None


@runtime_checkable
class Schedule(Protocol):
    """How many slots a step commits."""

    def quota(self, slots: Slots) -> Tensor:
        """int64 `[b]`. At least 1 for a row with an open slot: a forward that commits nothing is a waste.

        0 says that this step shall commit nothing; then the loop forces nothing either.
        """
        ...


@runtime_checkable
class Skips(Protocol):
    """A schedule whose empty steps cost no forward."""

    def elapsed(self, slots: Slots) -> Tensor:
        """int64 `[b]`, schedule steps that this forward stands for: 1, and the empty ones before it."""
        ...


@runtime_checkable
class Checks(Protocol):
    """A part that does not go with every config; what is `inner` to a part is asked too."""

    def check(self, config: "SamplerConfig") -> None:
        """Raise a ValueError that says what to change."""
        ...


@runtime_checkable
class LogitsRule(Protocol):
    """Edits the logits that proposer and scorer see; the recorded raw log-probabilities are of the unedited ones."""

    def apply(self, logits: Logits, slots: Slots) -> Logits:
        """New logits of the same shape."""
        ...


@runtime_checkable
class Remembers(Protocol):
    """A logits rule with a memory for every response slot."""

    def width(self, slots_per_block: int) -> int:
        """Numbers to keep per slot, M."""
        ...

    def recall(self, logits: Logits, slots: Slots, memory: Tensor) -> tuple[Logits, Tensor]:
        """New logits, and the new memory, from the one that the last step left: `[b, N, M]`, zeros at first.

        The memory has the precision of the logits, which holds integers up to 2^24.
        """
        ...


@runtime_checkable
class Proposer(Protocol):
    """Chooses a token for every open slot."""

    def propose(self, logits: Logits, slots: Slots) -> Proposal:
        """One token per slot; the mask id has logit -inf here."""
        ...


@runtime_checkable
class Scorer(Protocol):
    """Says how much a proposal deserves to be committed."""

    def score(self, logits: Logits, tokens: Tensor, slots: Slots) -> Tensor:
        """`[b, N]` float, higher commits earlier."""
        ...


@runtime_checkable
class Selector(Protocol):
    """Chooses the slots to commit. Where it takes none of a row, the loop commits the best one."""

    uses_quota: ClassVar[bool]
    """Whether the schedule has a say; if not, `steps` must be None."""

    def select(self, score: Tensor, slots: Slots, quota: Tensor) -> Tensor:
        """bool `[b, N]`."""
        ...


@runtime_checkable
class Reviser(Protocol):
    """Takes back or edits what was committed before."""

    sees: ClassVar[Literal["open", "block", "row"]]
    """Where the head must run beside the open slots: nowhere, at the committed ones of the block, or of all so far."""
    decides: ClassVar[bool]
    """Whether it makes the commits itself, so that a step may commit nothing and the loop forces nothing."""

    def revise(
        self, logits: Logits, proposal: Proposal, score: Tensor, slots: Slots, pick: Tensor, stored: Tensor
    ) -> Revision:
        """The changes of this step.

        Args:
            logits: at the slots, `[b, N, V]`.
            proposal: for every slot.
            score: `[b, N]`.
            slots: where.
            pick: bool `[b, N]`, what the selector wants to commit.
            stored: `[b, G]`, the score that every response position was committed with; NaN where none was.
        """
        ...


@runtime_checkable
class RemembersSlots(Protocol):
    """A reviser with a memory for every response slot, in `Slots.memory` and `Revision.memory`."""

    def width(self, slots_per_block: int) -> int:
        """Integers to keep per slot, M."""
        ...


@runtime_checkable
class CachePolicy(Protocol):
    """What to feed and what to store: the only thing in which caches differ."""

    stores: ClassVar[bool]
    """Whether a cache is needed at all."""

    def plan(self, state: "State") -> Feed:
        """The next forward, for all rows of the state."""
        ...


@runtime_checkable
class StopRule(Protocol):
    """Ends a row early. Asked after every step."""

    def done(self, state: "State", eos_ids: Sequence[int], ended: Tensor) -> Tensor:
        """bool `[B]` for all rows of the state; `ended` bool `[B]` says which have just completed a block."""
        ...
