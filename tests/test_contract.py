"""Every model family is a denoiser for dare-samplers and a score for dare-objectives, and both see the same model."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from families import FAMILIES

import dare_models
import dare_objectives
import dare_samplers
from dare_objectives.testing import with_records
from dare_train.batching import collate

PROMPTS = ["42>", "7>", "90125>"]
ALPHABET = "0123456789>"


@pytest.fixture(params=FAMILIES)
def lm(request: pytest.FixtureRequest) -> dare_models.DiffusionLM:
    family, _, blocks = request.param.partition(" ")
    tokenizer = dare_models.tiny_tokenizer(ALPHABET)
    lm = dare_models.tiny(family, tokenizer=tokenizer, dtype="float64")
    if not blocks and lm.block_length is None:
        return lm
    return dare_models.tiny(family, tokenizer=tokenizer, dtype="float64", block_length=4)


def decode(
    lm: dare_models.DiffusionLM, rows: list[int], *, steps: int, block_length: int = 8
) -> dare_samplers.SamplerOutput:
    config = dare_samplers.presets.llada(gen_length=8, block_length=block_length, steps=steps, temperature=1.0)
    if lm.attention == "block_causal":
        config = config.replace(steps=max(steps, 2), block_length=4, grid="zero")
    keys = torch.tensor([11, 12, 13]).index_select(0, torch.tensor(rows))
    return dare_samplers.generate(lm, [lm.encode(PROMPTS[row]) for row in rows], config, keys=keys)


def as_batch(lm: dare_models.DiffusionLM, out: dare_samplers.SamplerOutput) -> dare_objectives.Batch:
    """What was sampled, as training data."""
    sampled = out.step_map >= 0
    response = out.state.tokens.gather(1, out.state.columns)
    return collate(
        [row[mask].tolist() for row, mask in zip(out.sequences, out.prompt_mask, strict=True)],
        [row[mask].tolist() for row, mask in zip(response, sampled, strict=True)],
        keys=dare_objectives.row_keys(0, range(len(PROMPTS))),
        group=[0, 0, 1],
        block_length=lm.block_length or 8,
        grid="zero" if lm.attention == "block_causal" else "prompt",
        pad_id=lm.pad_id,
        mask_id=lm.mask_id,
    )


def test_a_family_decodes(lm: dare_models.DiffusionLM) -> None:
    assert isinstance(lm, dare_samplers.Denoises)
    together = decode(lm, [0, 1, 2], block_length=4, steps=4)
    for row in range(3):
        alone = decode(lm, [row], block_length=4, steps=4)
        slots = alone.step_map.shape[1]
        assert alone.completions[0].equal(together.completions[row, :slots])
        assert alone.step_map[0].equal(together.step_map[row, :slots])


def test_a_family_scores_what_it_sampled_as_it_sampled_it(lm: dare_models.DiffusionLM) -> None:
    out = decode(lm, [0, 1, 2], steps=1)  # one step per block: every token is drawn from the fully masked canvas
    batch = as_batch(lm, out)
    score = partial(lm.score, gather=dare_objectives.gather_logp)
    scored = dare_objectives.evaluate(score, dare_objectives.full_response(batch))
    again = scored.logp[:, 0][batch.maskable]
    torch.testing.assert_close(again, out.logprobs[out.step_map >= 0].to(again), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", dare_objectives.names())
def test_a_family_learns_by_every_objective(lm: dare_models.DiffusionLM, name: str) -> None:
    objective = dare_objectives.get(name)
    batch = with_records(as_batch(lm, decode(lm, [0, 1, 2], steps=2)), objective.needs)
    plan = objective.plan(batch)
    score = partial(lm.score, gather=dare_objectives.gather_logp)
    scored = dare_objectives.evaluate(score, plan)
    one_by_one = dare_objectives.evaluate(score, plan, streams=1)
    torch.testing.assert_close(scored.logp, one_by_one.logp, rtol=0, atol=1e-10)
    fixed = {need: scored.logp.detach() - 0.1 for need in ("old", "ref") if need in objective.needs}
    rewards = torch.tensor([1.0, 0.0, 0.5])
    coefficients = objective.prepare(replace(batch, **fixed), plan, rewards, scored.logp.detach())
    loss, _ = objective.loss(scored, plan, coefficients, **fixed)
    loss.backward()
    assert all(parameter.grad is not None for parameter in lm.module.parameters())
    assert any(bool(parameter.grad.any()) for parameter in lm.module.parameters())
