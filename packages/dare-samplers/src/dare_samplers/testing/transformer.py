"""A small real transformer, level 2: depth makes stale caches wrong, which the toys of one formula cannot show."""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import gelu, rms_norm, scaled_dot_product_attention

from dare_samplers.keyed import make_key, uniform
from dare_samplers.testing.level2 import Level2, PositionCache, Visible

__all__ = ["TinyTransformer"]


@dataclass(frozen=True)
class _Layer:
    """Weights of one layer: attention `[d, 3d]` and `[d, d]`, MLP `[d, 4d]` and `[4d, d]`."""

    mix_in: Tensor
    mix_out: Tensor
    mlp_in: Tensor
    mlp_out: Tensor


@dataclass(frozen=True)
class _Context:
    """What all layers of one forward share."""

    mask: Tensor
    real: Tensor
    turn: tuple[Tensor, Tensor]
    documents: Tensor | None
    cache: PositionCache | None
    address: tuple[Tensor, Tensor] | None


class TinyTransformer(Level2):
    """A pre-norm transformer with rotary positions and a key/value cache; build it with `random`.

    x = E[ids] + 2 sinusoids(p), then per layer x += attention(norm x), x += MLP(norm x); logits = norm(x) @ H + b, at
    the asked columns only. The sinusoids tell apart the positions of a canvas that holds nothing but masks. With
    `shift=1` the state of position p - 1 scores the token at p, as in Dream; the logits are aligned all the same.

    Args:
        embed: E `[V, d]`.
        layers: the weights of each layer.
        head: H `[d, V]`.
        bias: b `[V]`.
        heads: attention heads; d / heads is even.
        block_length: attention blocks; None for full attention.
        shift: 0 or 1.
        version: names the weights, for caches.
        count: fill `fed`.
    """

    def __init__(
        self,
        *,
        embed: Tensor,
        layers: tuple[_Layer, ...],
        head: Tensor,
        bias: Tensor,
        heads: int,
        block_length: int | None = None,
        shift: int = 0,
        version: int = 0,
        count: bool = False,
    ) -> None:
        """Keep the weights."""
        size = len(embed)
        super().__init__(mask_id=size - 1, vocab_size=size, eos_ids=(size - 2,), count=count)
        self.attention = "full" if block_length is None else "block_causal"
        self.block_length = block_length
        self.left_context = shift
        self.version = version
        self.device = embed.device
        self.dtype = embed.dtype
        self.heads = heads
        self.embed = embed
        self.layers = layers
        self.head = head
        self.bias = bias

    @classmethod
    def random(
        cls,
        *,
        vocab_size: int = 24,
        width: int = 32,
        layers: int = 2,
        heads: int = 2,
        seed: int = 0,
        attention: str = "full",
        block_length: int | None = None,
        shift: int = 0,
        eos_bias: float = 0.0,
        sharpness: float = 1.0,
        dtype: torch.dtype = torch.float64,
        count: bool = False,
    ) -> Self:
        """Weights from a hash of `seed`; mask id V - 1, end token V - 2, pad 0.

        Args:
            vocab_size: V.
            width: d.
            layers: how many.
            heads: attention heads.
            seed: of the weights.
            attention: `full` or `block_causal`.
            block_length: of block-causal attention.
            shift: 1 for logits that come from the position to the left.
            eos_bias: added to the end token's logit.
            sharpness: factor on the logits, whose standard deviation is about 3 at 1.
            dtype: of weights and logits.
            count: fill `fed`, the tokens of every forward, at the price of waiting for the device.

        Raises:
            ValueError: for an attention that does not go with the block length, or a width that the heads cannot share.
        """
        if attention not in ("full", "block_causal") or (attention == "block_causal") != (block_length is not None):
            raise ValueError(
                '`attention`: expected "full" without or "block_causal" with a `block_length`, '
                f"got {attention!r} with block_length={block_length!r}; change one of them"
            )
        if width % (2 * heads):
            raise ValueError(
                f"`width`: expected a multiple of 2 * heads = {2 * heads}, got {width}; change one of them"
            )

        def weight(part: int, fan_in: int, fan_out: int) -> Tensor:
            key = torch.full((), make_key(seed, part), dtype=torch.int64)
            index = torch.arange(fan_in * fan_out).view(fan_in, fan_out)
            return ((2 * uniform(key, "data", index, dtype=torch.float64) - 1) * (3 / fan_in) ** 0.5).to(dtype)

        def layer(number: int) -> _Layer:
            part, hidden = 4 * number + 3, 4 * width
            return _Layer(
                mix_in=weight(part, width, 3 * width) * 1.5,
                mix_out=weight(part + 1, width, width) * 4,
                mlp_in=weight(part + 2, width, hidden),
                mlp_out=weight(part + 3, hidden, width) * 2,
            )

        bias = torch.zeros(vocab_size, dtype=dtype)
        bias[vocab_size - 1] = -50.0 * max(sharpness, 1.0)
        bias[vocab_size - 2] = eos_bias
        return cls(
            embed=weight(0, vocab_size, width) * vocab_size**0.5,
            layers=tuple(layer(number) for number in range(layers)),
            head=weight(1, width, vocab_size) * (3 * sharpness),
            bias=bias,
            heads=heads,
            block_length=block_length,
            shift=shift,
            version=make_key(seed, vocab_size, width, layers, heads),
            count=count,
        )

    def to(self, device: torch.device | str) -> Self:
        """The same model on another device, with counters of its own."""
        layers = tuple(
            _Layer(*(one.to(device) for one in (layer.mix_in, layer.mix_out, layer.mlp_in, layer.mlp_out)))
            for layer in self.layers
        )
        return type(self)(
            embed=self.embed.to(device),
            layers=layers,
            head=self.head.to(device),
            bias=self.bias.to(device),
            heads=self.heads,
            block_length=self.block_length,
            shift=self.left_context,
            version=self.version,
            count=self.count,
        )

    def new_cache(self, batch: int, capacity: int) -> PositionCache:
        """An empty cache of keys and values for positions below `capacity`."""
        shape = (batch, capacity + 1, self.heads, self.embed.shape[1] // self.heads)
        pages = [torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(2 * len(self.layers))]
        return PositionCache.empty(pages, self.version)

    def mix(self, probabilities: Tensor) -> Tensor:
        """Expected embeddings `[b, N, d]` under laws over the vocabulary `[b, N, V]`."""
        return probabilities.to(self.dtype) @ self.embed

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
        added: Tensor | None = None,
    ) -> Tensor:
        """Logits `[B, N, V]` at the columns `rows`.

        Args:
            ids: int64 `[B, Q]`; packed, `[1, Q]`.
            positions: int64 `[B, Q]`, -1 on pads.
            blocks: int `[B, Q]`; None, or full attention, lets everything see everything.
            write: bool `[B, Q]`, what to store; nothing if None.
            cache: from `new_cache`.
            rows: int64 `[B, N]`.
            documents: int64 `[1, Q]`, the row of every packed token, which is its row of the cache too; -1 on pads.
            added: `[B, Q, d]`, added to the embeddings.
        """
        self.note(positions)
        if self.attention == "full":
            blocks = None
        x = self.embed[ids] if added is None else self.embed[ids] + added.to(self.dtype)
        angles = _angles(positions, x.shape[-1], slowest=0.1)
        x = x + 2 * torch.cat([angles.sin(), angles.cos()], -1).to(self.dtype)
        store = PositionCache.of(cache)
        context = self._context(positions, blocks, write, store, documents)
        for number, layer in enumerate(self.layers):
            x = x + self._attend(_norm(x) @ layer.mix_in, number, context) @ layer.mix_out
            x = x + gelu(_norm(x) @ layer.mlp_in) @ layer.mlp_out
        if store is not None and context.address is not None:
            store.mark(blocks, context.address)
        column = self.source(positions, rows, documents).unsqueeze(-1)
        return _norm(x.gather(1, column.expand(-1, -1, x.shape[-1]))) @ self.head + self.bias

    def _context(
        self,
        positions: Tensor,
        blocks: Tensor | None,
        write: Tensor | None,
        cache: PositionCache | None,
        documents: Tensor | None,
    ) -> _Context:
        keys = Visible(positions, blocks, documents) if cache is None else cache.visible(positions, blocks, documents)
        start = keys.positions.shape[1] - positions.shape[1]
        column = torch.arange(keys.positions.shape[1], device=positions.device)
        query = column[start:]
        # A pad sees itself, so that no query is without a key; what it gathers is thrown away.
        mask = keys.to(query.expand_as(positions)) | (query.unsqueeze(1) == column)
        angles = _angles(positions, self.embed.shape[1] // self.heads, slowest=1e-4).unsqueeze(2)
        return _Context(
            mask=mask.unsqueeze(1),
            real=(positions >= 0).unsqueeze(-1).to(self.dtype),
            turn=(angles.cos().to(self.dtype), angles.sin().to(self.dtype)),
            documents=documents,
            cache=cache,
            address=None if cache is None or write is None else cache.address(positions, documents, write),
        )

    def _attend(self, mixed: Tensor, number: int, context: _Context) -> Tensor:
        """What every query gathers, `[B, Q, d]`, 0 on pads; stores keys and values."""
        query, key, value = mixed.unflatten(-1, (3, self.heads, -1)).unbind(2)
        query, key = _rotate(query, context.turn), _rotate(key, context.turn)
        keys, values = key, value
        if context.cache is not None:
            keys = context.cache.join(2 * number, key, context.documents)
            values = context.cache.join(2 * number + 1, value, context.documents)
        heads = (one.transpose(1, 2) for one in (query, keys, values))
        gathered = scaled_dot_product_attention(*heads, attn_mask=context.mask)
        if context.cache is not None and context.address is not None:
            context.cache.put(2 * number, key, context.address)
            context.cache.put(2 * number + 1, value, context.address)
        return gathered.transpose(1, 2).flatten(2) * context.real


def _norm(x: Tensor) -> Tensor:
    return rms_norm(x, x.shape[-1:], eps=1e-6)


def _angles(positions: Tensor, width: int, slowest: float) -> Tensor:
    """Position times frequency, `[B, Q, width / 2]`; the frequencies fall from 1 to `slowest`."""
    dtype = torch.float64 if positions.device.type == "cpu" else torch.float32
    rate = slowest ** (torch.arange(0, width, 2, device=positions.device, dtype=dtype) / width)
    return positions.clamp(min=0).unsqueeze(-1) * rate


def _rotate(x: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
    """Rotary positions on `[B, Q, heads, d]` (arXiv 2104.09864): pair (i, i + d/2) turns by the angle."""
    cos, sin = turn
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)
