# ruff: noqa: INP001
"""The sampling step alone: all that happens to a slot's logits between the head and the written token."""

from typing import Any

import torch
from baselines import straightforward_sampling
from measure import clock, median
from torch import Tensor

from dare_samplers import Categorical, Greedy, SamplerConfig, Threshold, generate
from dare_samplers.testing.level2 import Level2

__all__ = ["sampling"]


class Ready(Level2):
    """A model whose logits are there already; the time to hand out a copy is kept apart."""

    def __init__(self, logits: Tensor) -> None:
        """Keep logits `[1, N, V]`; the last token is the mask."""
        super().__init__(mask_id=logits.shape[-1] - 1, vocab_size=logits.shape[-1])
        self.logits = logits
        self.seconds = 0.0

    def __call__(self, ids: Tensor, **_: object) -> Tensor:
        """A fresh copy."""
        begin = clock()
        copy = self.logits.clone()
        self.seconds += clock() - begin
        return copy


def sampling(vocab: int, slots: int, temperature: float) -> dict[str, Any]:
    """Seconds for `slots` rows of logits: float64 arrays over the vocabulary, against the library's whole step.

    Ours is all of `generate` but the model: proposal, score, selection, record and bookkeeping.
    """
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(1, slots, vocab, generator=generator)
    model = Ready(logits)
    proposer = Categorical(temperature) if temperature else Greedy()
    config = SamplerConfig(gen_length=slots, block_length=slots, proposer=proposer, selector=Threshold(0.0))
    theirs, mine = [], []
    for _ in range(6):
        copy = logits.clone()
        begin = clock()
        straightforward_sampling(copy, model.mask_id, temperature=temperature)
        theirs.append(clock() - begin)
        model.seconds = 0.0
        begin = clock()
        generate(model, [[]], config)
        mine.append(clock() - begin - model.seconds)
    return {
        "sampling": "one step",
        "temperature": temperature,
        "vocabulary": vocab,
        "rows": slots,
        "milliseconds_per_row": median([1000 * one / slots for one in mine[1:]]),
        "baseline": {
            "name": "straightforward_sampling",
            "milliseconds_per_row": median([1000 * one / slots for one in theirs[1:]]),
        },
        "ratio_per_row": median([a / b for a, b in zip(theirs[1:], mine[1:], strict=True)]),
        "rows_processed_per_step": {"ours": "open slots of the block", "baseline": "every position of the canvas"},
    }
