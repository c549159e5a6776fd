# ruff: noqa: INP001
"""A small network, and the straightforward way to train it: all streams in one graph, logits of every position.

The formulas of this file are written down from the papers for a batch of equal lengths; they share no code with the
library.
"""

import math
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from dare_objectives import Plan

__all__ = ["FORMULAS", "Known", "Net", "full_logp"]


class Layer(nn.Module):
    """Pre-norm attention in both directions and an MLP."""

    def __init__(self, width: int, heads: int) -> None:
        """Random weights."""
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """`[N, S, d]` to the same."""
        q, k, v = (
            part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.project(self.norms[0](x)).chunk(3, 2)
        )
        x = x + self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(functional.gelu(self.up(self.norms[1](x))))


class Net(nn.Module):
    """Embedding, layers, head; `rows` counts the sequences that went through it."""

    def __init__(self, vocab: int, width: int, layers: int, length: int) -> None:
        """Random weights; token `vocab` is the mask."""
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.place = nn.Embedding(vocab + 1, width), nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, max(1, width // 64)) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Parameter(torch.randn(vocab, width) / math.sqrt(width))
        self.rows = 0

    def forward(self, ids: Tensor) -> Tensor:
        """Last hidden states `[N, S, d]` of `[N, S]` tokens."""
        self.rows += len(ids)
        x = self.embed(ids) + self.place(torch.arange(ids.shape[1]))
        return self.norm(self.layers(x))


def full_logp(net: Net, plan: Plan) -> Tensor:
    """Log-probs of the labels, from logits `[B, K, S, V]` of all streams and positions in one graph."""
    logits = functional.linear(net(plan.inputs.flatten(0, 1)), net.head).unflatten(0, plan.inputs.shape[:2])
    labels = plan.labels if plan.labels.ndim == 4 else plan.labels[..., None]
    on = plan.target[..., None]
    return torch.where(on, logits.log_softmax(-1).gather(-1, labels), 0.0).reshape(plan.labels.shape)


class Known(NamedTuple):
    """What a formula is given besides log-probs and plan: rows of one length, groups side by side."""

    old: Tensor
    ref: Tensor
    rewards: Tensor
    group_size: int
    length: int


Formula = Callable[[Tensor, Plan, Known], Tensor]


def _bound(logp: Tensor, plan: Plan) -> Tensor:
    """Evidence lower bound of each draw `[B, K]`."""
    return (plan.weight * logp).sum(2)


def _groups(known: Known) -> Tensor:
    return known.rewards.view(-1, known.group_size)


def _z_score(known: Known) -> Tensor:
    r = _groups(known)
    return ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-6)).flatten()


def _centered(known: Known) -> Tensor:
    r = _groups(known)
    return (r - r.mean(1, keepdim=True)).flatten()


def _clipped(ratio: Tensor, advantage: Tensor) -> Tensor:
    return torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.2))


def vrpo(logp: Tensor, plan: Plan, known: Known) -> Tensor:
    """Mean over pairs of -log sigma(0.2 (gain of the winner - gain of the loser)); groups are pairs."""
    gain = (_bound(logp, plan).mean(1) - _bound(known.ref, plan).mean(1)).view(-1, 2)
    sign = torch.where(known.rewards[::2] > known.rewards[1::2], 1.0, -1.0)
    return -functional.logsigmoid(0.2 * sign * (gain[:, 0] - gain[:, 1])).mean()


def bgpo(logp: Tensor, plan: Plan, known: Known) -> Tensor:
    """Mean over draws of the clipped objective of 1 + d for A >= 0, exp(d) for A < 0."""
    d = (_bound(logp, plan) - _bound(known.old, plan)) / known.length
    A = _z_score(known)[:, None]
    return _clipped(torch.where(A < 0, d.exp(), 1 + d), A).mean()


def ebpo(logp: Tensor, plan: Plan, known: Known) -> Tensor:
    """One raw ratio per sequence."""
    ratio = (_bound(logp, plan).mean(1) - _bound(known.old, plan).mean(1)).exp()
    return _clipped(ratio, _z_score(known)).mean()


def espo(logp: Tensor, plan: Plan, known: Known) -> Tensor:
    """One ratio per sequence, over the length, and k2 of the raw bounds over the length."""
    score = _bound(logp, plan).mean(1)
    ratio = ((score - _bound(known.old, plan).mean(1)) / known.length).exp()
    A = _centered(known) * known.group_size / (known.group_size - 1)
    distance = (score - _bound(known.ref, plan).mean(1)) ** 2 / 2 / known.length
    return (_clipped(ratio, A) + 1e-3 * distance).mean()


def spg(logp: Tensor, plan: Plan, known: Known) -> Tensor:
    """Lower bound for A > 0, half upper and half lower bound for A < 0, with powers 1.5 of probabilities."""
    size = plan.target.sum(2)
    lower = (logp.sum(2) / size).mean(1)
    power = (logp.exp() ** 1.5 * plan.target * (known.length / size)[:, :, None]).mean(1)
    scored = plan.target.any(1)
    upper = (torch.where(scored, power, 1.0).log() / 1.5).sum(1) / scored.sum(1)
    A = _centered(known)
    return -(A * torch.where(A < 0, (upper + lower) / 2, lower)).mean()


FORMULAS: Final[Mapping[str, Formula]] = {"vrpo": vrpo, "bgpo": bgpo, "ebpo": ebpo, "espo": espo, "spg": spg}
