"""The model contract, and the wrapper that brings any network to it."""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from dare_samplers.state import Cache

__all__ = ["Caches", "Declares", "Denoiser", "Denoises", "Mixes", "Packs"]


@runtime_checkable
class Denoises(Protocol):
    """What `generate` needs of a model. Logits are aligned: row i scores the token at position i."""

    @property
    def level(self) -> int:
        """0: takes no padding, so all rows of a batch must have one length; 1 and 2: knows padding."""
        ...

    @property
    def mask_id(self) -> int:
        """Id that stands on open slots."""
        ...

    @property
    def eos_ids(self) -> Sequence[int]:
        """Ids that end a completion."""
        ...

    @property
    def pad_id(self) -> int:
        """Id put left of short prompts and after a stopped row."""
        ...

    @property
    def vocab_size(self) -> int | None:
        """Width of the logits, where known before the first forward."""
        ...

    @property
    def attention(self) -> str:
        """`full` or `block_causal`."""
        ...

    @property
    def block_length(self) -> int | None:
        """Attention block, counted from a row's first token; None for full attention."""
        ...

    @property
    def left_context(self) -> int:
        """Columns the model needs left of a window that is fed alone."""
        ...

    @property
    def device(self) -> torch.device | str:
        """Where the ids must be."""
        ...

    def __call__(
        self,
        ids: Tensor,
        *,
        positions: Tensor,
        blocks: Tensor | None = None,
        write: Tensor | None = None,
        cache: object | None = None,
        rows: Tensor,
    ) -> Tensor:
        """Logits `[B, N, V]` at the columns `rows` `[B, N]` of `ids` `[B, Q]`.

        `positions` `[B, Q]` counts from the row's first token, -1 on pads; `blocks` `[B, Q]` holds attention block ids,
        or is None for full attention. With a cache, `write` bool `[B, Q]` says which of the tokens to store in it.
        """
        ...


@runtime_checkable
class Caches(Protocol):
    """A level-2 model that keeps keys and values, addressed by row and position.

    A fed token takes the place of the stored one; `write` stores it. A key is visible if it is no pad and,
    block-causal, its block is not later than the query's.
    """

    def new_cache(self, batch: int, capacity: int) -> Cache:
        """An empty cache for `batch` rows and positions below `capacity`."""
        ...


@runtime_checkable
class Packs(Protocol):
    """A model that also takes `documents` `[1, Q]`: the row of each token in a packed batch, also in the cache."""

    @property
    def packs(self) -> bool:
        """Whether it does."""
        ...


@runtime_checkable
class Mixes(Protocol):
    """A model that also takes `added` `[B, Q, d]`, a summand of the input embeddings."""

    def mix(self, probabilities: Tensor) -> Tensor:
        """Expected embeddings `[b, N, d]` under probabilities `[b, N, V]`."""
        ...


@runtime_checkable
class Declares(Protocol):
    """A model that says by name what it can do, such as `token_editing`: `SamplerConfig.needs` are among the names."""

    @property
    def capabilities(self) -> Sequence[str]:
        """The names; none where nobody has said."""
        ...


class Denoiser:
    """Makes a `Denoises` of a network that knows nothing of it.

    Args:
        net: level 0: `ids [B, T] -> logits [B, T, V]`; level 1: `net(ids, attention_mask=, position_ids=)`, an int64
            mask (0 on pads) and positions from each row's first token (0 on pads).
        mask_id: the mask token.
        eos_ids: end tokens; empty where there is none.
        pad_id: filler; by default the first end token, or 0. Only ever seen under `attention_mask` 0.
        level: what `net` takes.
        vocab_size: width of the logits, to check prompts early.
        attention: `full` or `block_causal`.
        block_length: attention block of a block-causal network.
        device: where the ids go; by default the device of the network's first parameter, or the CPU.

    Raises:
        ValueError: for a level other than 0 or 1, block-causal attention without a block length or at level 0.

    >>> net = lambda ids: torch.nn.functional.one_hot(ids * 0 + 2, 5) * 9.0   # always says "2"
    >>> model = Denoiser(net, mask_id=4)
    >>> model(torch.tensor([[1, 4]]), positions=torch.tensor([[0, 1]]), rows=torch.tensor([[1]])).argmax(-1)
    tensor([[2]])
    """

    left_context = 0

    def __init__(
        self,
        net: Callable[..., object],
        *,
        mask_id: int,
        eos_ids: Sequence[int] = (),
        pad_id: int | None = None,
        level: int = 0,
        vocab_size: int | None = None,
        attention: str = "full",
        block_length: int | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        """Check the combination and keep it."""
        if level not in (0, 1):
            raise ValueError(f"`level`: expected 0 or 1, got {level!r}; a level-2 model needs no wrapper")
        if attention not in ("full", "block_causal") or (attention == "block_causal") != (block_length is not None):
            raise ValueError(
                '`attention`: expected "full" without or "block_causal" with a `block_length`, '
                f"got {attention!r} with block_length={block_length!r}"
            )
        if level == 0 and attention == "block_causal":
            raise ValueError(
                "`level`: expected 1 for a block-causal network, got 0; rows of a batch are then fed up to blocks of "
                "their own, which takes padding"
            )
        self.net = net
        if mask_id < 0:
            raise ValueError(f"`mask_id`: expected a token id >= 0, got {mask_id}")
        self.mask_id = mask_id
        self.eos_ids = tuple(eos_ids)
        self.pad_id = pad_id if pad_id is not None else next(iter(self.eos_ids), 0)
        self.level = level
        self.vocab_size = vocab_size
        self.attention = attention
        self.block_length = block_length
        self._device = None if device is None else torch.device(device)

    @property
    def device(self) -> torch.device:
        """Where the ids go: what was given, or where the network's first parameter is now."""
        return _device_of(self.net) if self._device is None else self._device

    def __call__(
        self,
        ids: Tensor,
        *,
        positions: Tensor,
        blocks: Tensor | None = None,
        write: Tensor | None = None,
        cache: object | None = None,
        rows: Tensor,
    ) -> Tensor:
        """Logits `[B, N, V]` at `rows`; see `Denoises`."""
        if cache is not None or write is not None:
            raise ValueError("`cache`: a wrapped network keeps no cache; leave `cache` and `write` None")
        if self.level == 0:
            logits = self.net(ids)
        else:
            mask = (positions >= 0).long()
            logits = self.net(ids, attention_mask=mask, position_ids=positions.clamp(min=0))
        if not isinstance(logits, Tensor) or logits.ndim != 3 or logits.shape[:2] != ids.shape:
            got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
            raise ValueError(f"`net`: expected logits [{ids.shape[0]}, {ids.shape[1]}, V] for these ids, got {got}")
        return logits.gather(1, rows.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))


def _device_of(net: object) -> torch.device:
    if isinstance(net, torch.nn.Module):
        for parameter in net.parameters():
            return parameter.device
    return torch.device("cpu")
