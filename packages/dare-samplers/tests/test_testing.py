"""The conformance kit must notice what is wrong."""

from dataclasses import replace

import pytest
import torch

from dare_samplers import Categorical, Logits, Proposal, Slots
from dare_samplers.testing import JointDenoiser, ToyDenoiser, sampler_conformance


class SharedNoise:
    """One draw for the whole batch, from the global generator."""

    def propose(self, logits: Logits, slots: Slots) -> Proposal:
        noise = torch.rand_like(logits.values)
        tokens = (logits.values - (-noise.log()).log()).argmax(-1)
        return Proposal(tokens, logits.logp(tokens), logits)


class HidesItsLaw(Categorical):
    """Draws well and records log q = 0."""

    def propose(self, logits: Logits, slots: Slots) -> Proposal:
        proposal = super().propose(logits, slots)
        return proposal._replace(logq=torch.zeros_like(proposal.logq))


class IgnoresItsKey(Categorical):
    """Every row of a group draws alike."""

    def propose(self, logits: Logits, slots: Slots) -> Proposal:
        return super().propose(logits, replace(slots, key=torch.zeros_like(slots.key)))


class DependsOnPeers:
    """Scores relative to the mean of the batch."""

    def score(self, logits: Logits, tokens: torch.Tensor, slots: Slots) -> torch.Tensor:
        p = logits.logp(tokens).exp()
        return (p - p.mean()).abs()


class LikesTheMask:
    """Proposes the last id, which is the mask."""

    def propose(self, logits: Logits, slots: Slots) -> Proposal:
        tokens = torch.full(logits.values.shape[:2], logits.values.shape[-1] - 1)
        return Proposal(tokens, torch.zeros_like(tokens, dtype=logits.values.dtype), logits)


class EditsInPlace:
    """Suppresses an id in the model's own logits."""

    def apply(self, logits: Logits, slots: Slots) -> Logits:
        logits.values[..., 1] = -torch.inf
        return logits


@pytest.mark.parametrize(
    ("part", "message"),
    [
        (SharedNoise(), r"row \d of a batch|the same keys"),
        (HidesItsLaw(), "drawn with the recorded probability"),
        (IgnoresItsKey(), "drawn with the recorded probability"),
        (DependsOnPeers(), "of a batch gives what it gives alone"),
        (EditsInPlace(), "replay"),
    ],
)
def test_broken_parts_are_found(part, message):
    with pytest.raises(AssertionError, match=message):
        sampler_conformance(part)


def test_a_forbidden_proposal_is_an_error():
    with pytest.raises(ValueError, match="expected a finite logit for every committed token"):
        sampler_conformance(LikesTheMask())


def test_what_is_no_part_is_refused():
    with pytest.raises(TypeError, match="`part`: expected a SamplerConfig or one of its parts"):
        sampler_conformance("llada")


@pytest.mark.wheel
def test_a_sound_part_passes():
    sampler_conformance(Categorical(1.0))


def test_block_causal_toy_ignores_later_blocks():
    model = ToyDenoiser.random(block_length=2)
    ids = torch.tensor([[1, 2, 3, 4]])
    other = torch.tensor([[1, 2, 5, 6]])
    call = {
        "positions": torch.arange(4)[None],
        "blocks": torch.tensor([[0, 0, 1, 1]]),
        "rows": torch.tensor([[0, 1]]),
    }
    assert torch.equal(model(ids, **call), model(other, **call))


def test_joint_toy_gives_exact_conditionals():
    law = torch.tensor([[0.1, 0.2], [0.3, 0.4]])
    model = JointDenoiser(law)
    call = {"positions": torch.arange(2)[None], "rows": torch.tensor([[0, 1]])}
    both = model(torch.tensor([[2, 2]]), **call).softmax(-1)[0, :, :2]
    torch.testing.assert_close(both, torch.tensor([[0.3, 0.7], [0.4, 0.6]], dtype=torch.float64), atol=1e-7, rtol=0)
    given_one = model(torch.tensor([[2, 1]]), **call).softmax(-1)[0, 0, :2]
    torch.testing.assert_close(given_one, torch.tensor([1 / 3, 2 / 3], dtype=torch.float64), atol=1e-7, rtol=0)
