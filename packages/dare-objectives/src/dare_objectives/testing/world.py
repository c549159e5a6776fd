"""A denoiser small enough to enumerate every mask."""

import math

import torch
from torch import Tensor

from dare_objectives.keyed import make_key, uniform
from dare_objectives.score import Score, Scored, as_scored, from_logits

__all__ = ["BlockWorld", "ToyWorld", "all_masks", "any_order_nll", "block_causal"]


class ToyWorld:
    """logit[i, v] = own[i, v] + sum_{j != i} pair[i, j, c_j, v] for a context c of tokens 0..V-1 and the mask V.

    Args:
        own: `[S, V]`, float64; both are leaves that collect gradients.
        pair: `[S, S, V + 1, V]`.
    """

    def __init__(self, own: Tensor, pair: Tensor) -> None:
        """A world with these parameters, copied."""
        length, self.vocab = own.shape
        self.mask_id = self.vocab
        self.own = own.detach().clone().requires_grad_()
        self.pair = pair.detach().clone().requires_grad_()
        self._others = ~torch.eye(length, dtype=torch.bool)

    @classmethod
    def random(cls, length: int, vocab: int, *, seed: int = 0) -> "ToyWorld":
        """A world with parameters uniform in (-1, 1)."""
        size = length * vocab * (1 + length * (vocab + 1))
        key = torch.tensor(make_key(seed))
        numbers = 2 * uniform(key, "data", torch.arange(size), dtype=torch.float64) - 1
        own, pair = numbers.split([length * vocab, size - length * vocab])
        return cls(own.reshape(length, vocab), pair.reshape(length, length, vocab + 1, vocab))

    @property
    def parameters(self) -> tuple[Tensor, Tensor]:
        """The two leaves."""
        return self.own, self.pair

    @property
    def score(self) -> Score:
        """The world as a score function with full attention."""
        return from_logits(self.logits)

    def logits(self, ids: Tensor, valid: Tensor | None = None) -> Tensor:
        """Logits `[N, S, V]` of contexts `ids [N, S]`; padding columns (not `valid`) have no influence."""
        width = min(ids.shape[1], self.own.shape[0])
        seen = torch.nn.functional.one_hot(ids[:, :width], self.vocab + 1).to(self.own.dtype)
        if valid is not None:
            seen = seen * valid[:, :width, None]
        pair = self.pair[:width, :width] * self._others[:width, :width, None, None]
        logits = self.own[:width] + torch.einsum("njc,ijcv->niv", seen, pair)
        return torch.nn.functional.pad(logits, (0, 0, 0, ids.shape[1] - width))

    def masked_logp(self, answer: Tensor) -> Tensor:
        """`[2^S, S]`: log p(answer_i | answer with the positions of mask b hidden), 0 where i is not in b."""
        masks = all_masks(len(answer))
        logp = self.logits(answer.masked_fill(masks, self.mask_id)).log_softmax(-1)
        return torch.where(masks, logp.gather(-1, answer.expand_as(masks)[..., None]).squeeze(-1), 0.0)


class BlockWorld(ToyWorld):
    """The same world behind block-causal attention, for plans of block-diffusion models."""

    @property
    def score(self) -> Score:
        """The world as a block-causal score function."""
        return block_causal(super().score, self.mask_id)


def block_causal(score: Score, mask_id: int) -> Score:
    """A block-causal score function made of one with full attention.

    Block b of a stream is scored in a context of its own: the clean tokens before it, its own tokens as the stream has
    them, mask tokens after it. That is what a model sees through [noisy; clean] attention: nothing of the other noisy
    blocks, nothing clean from its own block on.

    Args:
        score: any score function; it is called with one stream for each block of each stream.
        mask_id: the mask token.

    Returns:
        A `Score`.
    """

    def blockwise(
        inputs: Tensor,
        clean: Tensor,
        target: Tensor,
        labels: Tensor,
        valid: Tensor,
        blocks: Tensor,
        *,
        want: tuple[str, ...] = (),
        temperature: float = 1.0,
        support: Tensor | None = None,
        streams: int | None = None,
    ) -> Scored:
        own = blocks[blocks >= 0].unique()[None, None, :, None]  # [1, 1, N, 1], against [B, K, 1, S]
        grid = blocks[:, None, None].long()
        context = torch.where(grid < own, clean[:, None, None], inputs[:, :, None])
        context = torch.where(grid > own, mask_id, context)
        number = own.shape[2]
        at = target[:, :, None] & (grid == own)
        answer = score(
            context.flatten(1, 2),
            clean,
            at.flatten(1, 2),
            labels.repeat_interleave(number, 1),
            valid,
            blocks,
            want=want,
            temperature=temperature,
            support=support,
            streams=streams,
        )
        return as_scored(answer).map(lambda x: _own_block(x, at))

    return blockwise


def _own_block(values: Tensor, at: Tensor) -> Tensor:
    """From `[B, K N, S, ...]` the value of each target, `at [B, K, N, S]`, in the context of its own block."""
    parts = values.unflatten(1, at.shape[1:3])
    return torch.where(at if parts.ndim == 4 else at[..., None], parts, 0).sum(2)


def all_masks(length: int) -> Tensor:
    """bool `[2^length, length]`: every subset; bit i of the row number is position i.

    >>> all_masks(2).int().tolist()
    [[0, 0], [1, 0], [0, 1], [1, 1]]
    """
    return (torch.arange(1 << length)[:, None] >> torch.arange(length) & 1).bool()


def any_order_nll(masked_logp: Tensor) -> Tensor:
    """Exact mean over all orders of the sequence's negative log-likelihood, from `masked_logp [2^L, L]`.

    = sum_i mean over masks b that contain i, with |b| uniform, of -log p(answer_i | b masked).
    """
    length = masked_logp.shape[1]
    masks = all_masks(length)
    size = masks.sum(1)
    choose = torch.tensor([float(math.comb(length, k)) for k in range(length + 1)], dtype=masked_logp.dtype)
    weight = torch.where(size > 0, 1 / (choose[size] * size.clamp(min=1)), 0.0)
    return -(weight[:, None] * torch.where(masks, masked_logp, 0.0)).sum()
