"""What the parts of a sampler see and must offer.

A strategy is five choices, each a small frozen dataclass with one method: a schedule (how many slots a step commits), a
proposer (which token), a scorer (how good), a selector (which slots) and a stop rule. Logits rules edit what they see.
Any object with the right method is such a part; nothing has to be inherited or registered.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from dare_samplers.keyed import uniform

if TYPE_CHECKING:
    from dare_samplers.state import State

__all__ = ["Logits", "LogitsRule", "Proposal", "Proposer", "Schedule", "Scorer", "Selector", "Slots", "StopRule"]


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
    """The open slots of each row's current block, in ascending order of position.

    Attributes:
        index: int64 `[b, N]`, position inside the response.
        open: bool `[b, N]`, False in the filler columns of rows with fewer than N slots.
        key: int64 `[b]`, the rows' random keys.
        step: int64 `[b]`, denoising forwards each row has had.
        block_step: int64 `[b]`, the same inside the current block.
        steps: forwards planned for a block; None for one commit per step.
    """

    index: Tensor
    open: Tensor
    key: Tensor
    step: Tensor
    block_step: Tensor
    steps: int | None = None

    @cached_property
    def left(self) -> Tensor:
        """int64 `[b]`, slots still open in the block."""
        return self.open.sum(-1)

    def uniform(self, purpose: str, dtype: torch.dtype) -> Tensor:
        """One uniform number per slot, a hash of (row key, purpose, step, response position): `[b, N]`."""
        return uniform(self.key.unsqueeze(-1), purpose, self.step.unsqueeze(-1), self.index, dtype=dtype)


class Proposal(NamedTuple):
    """A token per slot, `tokens` int64 `[b, N]`, and its log-probability `logq` under the law it was drawn from."""

    tokens: Tensor
    logq: Tensor


@runtime_checkable
class Schedule(Protocol):
    """How many slots a step commits."""

    def quota(self, slots: Slots) -> Tensor:
        """int64 `[b]`, at least 1 for a row with an open slot: a forward that commits nothing is a waste."""
        ...


@runtime_checkable
class LogitsRule(Protocol):
    """Edits the logits that proposer and scorer see; the recorded raw log-probabilities are of the unedited ones."""

    def apply(self, logits: Logits, slots: Slots) -> Logits:
        """New logits of the same shape."""
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
class StopRule(Protocol):
    """Ends a row early. Asked whenever the row has completed a block."""

    def done(self, state: "State", eos_ids: Sequence[int]) -> Tensor:
        """bool `[B]` for all rows of the state."""
        ...
