"""Classifier-free guidance for likelihoods."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dare_objectives._errors import expect_range
from dare_objectives.batch import Batch
from dare_objectives.score import Score, from_logits

__all__ = ["Guided", "guided"]


@dataclass(frozen=True)
class Guided:
    """A model whose score depends on which tokens are the prompt; `log_likelihood` takes it in place of a score.

    Guidance mixes logits, l = l_u + (1 + w)(l_c - l_u), where the unconditional branch u sees mask tokens in place of
    the prompt. Log-probs of single labels do not suffice for that, so it happens inside the score function, which
    needs to know the prompt. `guided` makes one of a small model. Where the head is linear, a large model mixes the
    last hidden states of both branches in the same way, h = h_u + (1 + w)(h_c - h_u), and gathers from h as usual.

    Args:
        given: from a batch to the score function of its rows (`batch.prompt`, `batch.mask_id`). What it returns is only
            asked about plans of these rows, in this order.
    """

    given: Callable[[Batch], Score]


def guided(net: Callable[[Tensor, Tensor], Tensor], scale: float) -> Guided:
    """Classifier-free guidance around a network, l = l_u + (1 + w)(l_c - l_u) (LLaDA, arXiv 2502.09992).

    Args:
        net: `net(ids [N, S], valid [N, S]) -> aligned logits [N, S, V]`, called twice for each forward.
        scale: w >= 0; 0 is no guidance.

    Returns:
        `Guided`.

    >>> from dare_objectives import log_likelihood
    >>> from dare_objectives.testing import ToyWorld, toy_batch
    >>> world, batch = ToyWorld.random(7, 5), toy_batch()
    >>> plain = log_likelihood(world.score, batch).value
    >>> torch.equal(log_likelihood(guided(world.logits, 0.0), batch).value, plain)
    True
    """
    expect_range("scale", scale, 0.0, math.nextafter(math.inf, 0.0))

    def given(batch: Batch) -> Score:
        def mixed(ids: Tensor, valid: Tensor) -> Tensor:
            prompt = batch.prompt.repeat_interleave(len(ids) // len(batch), 0)
            return _mix(net(ids, valid), net(ids.masked_fill(prompt, batch.mask_id), valid), scale)

        return from_logits(mixed)

    return Guided(given)


def _mix(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """The guided logits, exactly the conditional ones at scale 0 and where either branch is infinite."""
    mixed = conditional + scale * (conditional - unconditional)
    return torch.where(conditional.isfinite() & unconditional.isfinite(), mixed, conditional)
