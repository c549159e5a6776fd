"""Denoisers of a few lines, level 2, that need no transformer."""

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from torch import Tensor

from dare_samplers.keyed import uniform
from dare_samplers.testing.level2 import Level2, PositionCache, Visible

__all__ = ["AdversarialDenoiser", "JointDenoiser", "TableDenoiser", "ToyDenoiser"]


class _Toy(Level2):
    """A formula of what is visible; a cache of token ids is then exact, apart from ids that changed since."""

    def new_cache(self, batch: int, capacity: int) -> PositionCache:
        """An empty cache of the ids at positions below `capacity`."""
        page = torch.zeros(batch, capacity + 1, dtype=torch.int64, device=self.device)
        return PositionCache.empty([page], self.version)

    def __call__(
        self,
        ids: Tensor,
        *,
        positions: Tensor,
        blocks: Tensor | None = None,
        write: Tensor | None = None,
        cache: object | None = None,
        rows: Tensor,
        documents: Tensor | None = None,
    ) -> Tensor:
        """Logits `[B, N, V]` at the columns `rows`; packed, `documents` `[1, Q]` is the row of each token."""
        self.note(positions)
        source = self.source(positions, rows, documents)
        store = PositionCache.of(cache)
        if store is None:
            return self.logits(ids, positions, blocks, source, documents)
        keys = store.visible(positions, blocks, documents)
        seen = store.join(0, ids, documents)
        logits = self.logits(seen, keys.positions, keys.blocks, source + seen.shape[1] - ids.shape[1], keys.documents)
        if write is not None:
            address = store.address(positions, documents, write)
            store.put(0, ids, address)
            store.mark(blocks, address)
        return logits

    def logits(
        self, ids: Tensor, positions: Tensor, blocks: Tensor | None, rows: Tensor, documents: Tensor | None = None
    ) -> Tensor:
        """The formula of the toy, at the columns `rows` and without the shift of a `left_context`."""
        raise TypeError(f"expected a toy with a formula, got {type(self).__name__}; subclass it")


class ToyDenoiser(_Toy):
    """A mixer in one formula, full or block-causal, exact in float64.

    m_i = s * sum over visible j of K[p_j - p_i + R] * E[x_j] and logits_i = tanh(Q[p_i] + m_i) @ H + b, with p the
    position from the row's first token. No pad is visible; block-causal, j is visible from i iff block(j) <= block(i).

    Args:
        embed: E `[V, d]`.
        kernel: K `[2R + 1, d]`.
        position: Q `[R, d]`.
        head: H `[d, V]`.
        bias: b `[V]`; very low at the mask id.
        mask_id: the mask token.
        eos_ids: end tokens.
        pad_id: filler.
        scale: s.
        logit_bias: added to the logits of single ids.
        block_length: attention blocks; None for full attention.
        logit_offset: 1 if the formula at position p - 1 scores the token at p (and position 0 itself too), as in Dream;
            the logits are aligned all the same.
        dtype: of the logits; the formula is evaluated in float64.
        count: fill `fed`.
    """

    def __init__(
        self,
        *,
        embed: Tensor,
        kernel: Tensor,
        position: Tensor,
        head: Tensor,
        bias: Tensor,
        mask_id: int,
        eos_ids: Sequence[int] = (),
        pad_id: int = 0,
        scale: float = 1.0,
        logit_bias: Mapping[int, float] | None = None,
        block_length: int | None = None,
        logit_offset: int = 0,
        dtype: torch.dtype = torch.float64,
        count: bool = False,
    ) -> None:
        """Keep the weights in float64."""
        super().__init__(mask_id=mask_id, vocab_size=head.shape[1], eos_ids=eos_ids, pad_id=pad_id, count=count)
        self.attention = "full" if block_length is None else "block_causal"
        self.block_length = block_length
        self.left_context = logit_offset
        self.embed, self.kernel, self.position, self.head = (t.double() for t in (embed, kernel, position, head))
        self.bias = bias.double().clone()
        for token, value in (logit_bias or {}).items():
            self.bias[token] += value
        self.scale = scale
        self.dtype = dtype

    @classmethod
    def random(
        cls,
        *,
        vocab_size: int = 24,
        width: int = 8,
        reach: int = 64,
        seed: int = 0,
        eos_bias: float = 0.0,
        block_length: int | None = None,
        logit_offset: int = 0,
        dtype: torch.dtype = torch.float64,
        count: bool = False,
    ) -> Self:
        """Weights from a hash of `seed`; mask id V - 1, end token V - 2, pad 0, positions below `reach`."""

        def weight(part: int, *shape: int) -> Tensor:
            key = torch.full((), seed, dtype=torch.int64)
            index = torch.arange(torch.Size(shape).numel()).view(shape)
            return 2 * uniform(key, "data", part, index, dtype=torch.float64) - 1

        return cls(
            embed=weight(0, vocab_size, width),
            kernel=weight(1, 2 * reach + 1, width),
            position=weight(2, reach, width),
            head=weight(3, width, vocab_size) * 3,
            bias=weight(4, vocab_size).index_fill(0, torch.tensor(vocab_size - 1), -50.0),
            mask_id=vocab_size - 1,
            eos_ids=(vocab_size - 2,),
            logit_bias={vocab_size - 2: eos_bias},
            block_length=block_length,
            logit_offset=logit_offset,
            dtype=dtype,
            count=count,
        )

    def logits(
        self, ids: Tensor, positions: Tensor, blocks: Tensor | None, rows: Tensor, documents: Tensor | None = None
    ) -> Tensor:
        """The formula above at `rows`, whatever the `logit_offset`."""
        reach = self.position.shape[0]
        place = positions.clamp(min=0)
        query = place.gather(1, rows)
        visible = Visible(positions, None if self.attention == "full" else blocks, documents).to(rows)
        weight = self.kernel[place.unsqueeze(1) - query.unsqueeze(2) + reach] * visible.unsqueeze(-1)
        mixed = self.scale * (weight * self.embed[ids].unsqueeze(1)).sum(2)
        return (torch.tanh(self.position[query] + mixed) @ self.head + self.bias).to(self.dtype)


class TableDenoiser(_Toy):
    """Logits that depend on the position only: `table[p]`, whatever else is on the canvas.

    Args:
        table: `[positions, V]`.
        mask_id: the mask token.
        eos_ids: end tokens.
        pad_id: filler.
    """

    def __init__(self, table: Tensor, *, mask_id: int, eos_ids: Sequence[int] = (), pad_id: int = 0) -> None:
        """Keep the table."""
        super().__init__(mask_id=mask_id, vocab_size=table.shape[1], eos_ids=eos_ids, pad_id=pad_id)
        self.table = table

    def logits(
        self, ids: Tensor, positions: Tensor, blocks: Tensor | None, rows: Tensor, documents: Tensor | None = None
    ) -> Tensor:
        """Rows of the table."""
        return self.table[positions.gather(1, rows).clamp(min=0)]


class AdversarialDenoiser(_Toy):
    """Everything a sampler must survive: likes the mask best, ties everywhere, infinities, end tokens now and then."""

    def __init__(self, *, vocab_size: int = 8) -> None:
        """Mask id V - 1, end token V - 2."""
        super().__init__(mask_id=vocab_size - 1, vocab_size=vocab_size, eos_ids=(vocab_size - 2,))

    def logits(
        self, ids: Tensor, positions: Tensor, blocks: Tensor | None, rows: Tensor, documents: Tensor | None = None
    ) -> Tensor:
        """By position modulo 4: all equal, one -inf short of all equal, two at +inf, end token."""
        place = positions.gather(1, rows)
        logits = torch.zeros(*place.shape, self.vocab_size)
        logits[..., 0] = torch.where(place % 4 == 1, -torch.inf, 0.0)
        logits[..., 1:3] = torch.where(place % 4 == 2, torch.inf, 0.0).unsqueeze(-1)
        logits[..., self.eos_ids[0]] = torch.where(place % 4 == 3, 9.0, 0.0)
        logits[..., self.mask_id] = 20.0
        return logits


class JointDenoiser(_Toy):
    """The exact conditionals of a known joint law over short responses to an empty prompt.

    Decoding one random slot per step at temperature 1 therefore draws from the joint itself.

    Args:
        joint: probabilities `[V, …, V]`, one axis per slot; the mask id is V.
    """

    def __init__(self, joint: Tensor) -> None:
        """Keep the law in float64."""
        super().__init__(mask_id=joint.shape[0], vocab_size=joint.shape[0] + 1)
        self.joint = joint.double()

    def logits(
        self, ids: Tensor, positions: Tensor, blocks: Tensor | None, rows: Tensor, documents: Tensor | None = None
    ) -> Tensor:
        """log p(x_i | the tokens that are there and not masked); the position is the slot."""
        slots = torch.arange(self.joint.ndim, device=ids.device)
        there = (positions.unsqueeze(-1) == slots).unsqueeze(1)
        if documents is not None:
            there = there & Visible(positions, None, documents).to(rows).unsqueeze(-1)
        given = torch.where(there, ids[:, None, :, None], self.mask_id).amin(2)
        marginals = self._marginals(given).expand(-1, rows.shape[1], -1, -1)
        never = torch.full_like(marginals[..., :1], -torch.inf)
        logits = torch.cat([marginals.log(), never], -1)
        slot = positions.gather(1, rows).clamp(min=0)[..., None, None]
        return logits.gather(2, slot.expand(-1, -1, 1, logits.shape[-1])).squeeze(2)

    def _marginals(self, given: Tensor) -> Tensor:
        """Weights of all tokens at all slots `[B, n, slots, V]`, given the others `[B, n, slots]`, the mask if open."""
        axes = range(self.joint.ndim)
        value = torch.arange(self.mask_id, device=given.device)
        weight = self.joint.expand(*given.shape[:2], *self.joint.shape)
        for slot in axes:
            one = given[..., slot, None]
            fits = (one == value) | (one == self.mask_id)
            weight = weight * fits.view(*given.shape[:2], *(self.mask_id if axis == slot else 1 for axis in axes))
        others = ([axis + 2 for axis in axes if axis != slot] for slot in axes)
        return torch.stack([weight.sum(axis) if axis else weight for axis in others], 2)
