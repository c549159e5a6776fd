"""Invariants 7-9, 12, 15, 17 and 21-24 of the design's list: strategies that must agree (numbers in brackets)."""

import pytest
import torch
from arbitrary import (
    BLOCK_KV,
    CAUSAL,
    EOS,
    IN_BLOCK,
    MASK,
    ROW_WIDE,
    Scene,
    facts,
    same,
    scenes,
    text,
    writes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dare_samplers import (
    Categorical,
    Dual,
    EosStop,
    Greedy,
    Guidance,
    Horizon,
    Infill,
    LengthStop,
    NoCache,
    PositionScore,
    Prefix,
    SamplerConfig,
    Threshold,
    TopK,
    Vicinity,
    generate,
    presets,
)
from dare_samplers.revisers import RunningConfidence
from dare_samplers.schedules import LinearFront
from dare_samplers.scorers import Margin, NegEntropy, Probability
from dare_samplers.selectors import All, EntropyBudget, Factor, Hybrid, SegmentMax
from dare_samplers.testing import TableDenoiser, ToyDenoiser
from dare_samplers.trace import EDITED

BETA = ["toy", "tiny", "tiny_shift"]


def by(scene: Scene, selector, **changes):
    """The scene with another selector and no plan that depends on it."""
    return scene.run(steps=None, schedule=LinearFront(), selector=selector, **changes)


@settings(max_examples=8)
@given(scenes(revisers=[]), st.sampled_from([Probability(), Margin()]))
def test_a_threshold_that_nothing_passes_is_one_token_per_step(scene, scorer):
    """[7] tau > 1, or = 1 if strict. Not tau = 1 otherwise, since probabilities round to 1. [8] Nor a factor of 0."""
    one = by(scene, TopK(), scorer=scorer)
    for selector in (Threshold(1.1), Threshold(1.0, strict=True), Factor(0.0), Hybrid(1.1)):
        other = by(scene, selector, scorer=scorer)
        for row in range(len(scene.prompts)):
            assert {**facts(one, row), "origin": 0, "events": 0} == {**facts(other, row), "origin": 0, "events": 0}
            assert [event[:-1] for event in writes(one, row)] == [event[:-1] for event in writes(other, row)]


@settings(max_examples=8)
@given(scenes(revisers=[]), st.sampled_from([0.0, -1.0]), st.booleans())
def test_a_threshold_that_all_pass_is_one_step_per_block(scene, tau, high):
    """[7] tau <= 0, and `All`."""
    selector = All() if high else Threshold(tau)
    out = by(scene, selector, scorer=Probability(), stop=LengthStop())
    assert torch.equal(out.step_map, out.block_id)


@settings(max_examples=8)
@given(st.integers(0, 10_000), st.sampled_from([4, 12]), st.lists(st.floats(0, 1.1), min_size=2, max_size=5))
def test_a_lower_threshold_needs_no_more_forwards_on_a_table(seed, block, taus):
    """[7] Where logits do not depend on the canvas."""
    table = 4 * torch.randn(12, 9, generator=torch.Generator().manual_seed(seed))
    model = TableDenoiser(table, mask_id=8)
    counts = [generate(model, [[]], presets.threshold(12, block, tau)).nfe for tau in sorted(taus, reverse=True)]
    assert counts == sorted(counts, reverse=True)


def scores(draw_from: torch.Generator, rows: int, width: int) -> torch.Tensor:
    """Probabilities with ties and certain ones among them."""
    raw = torch.rand(rows, width, generator=draw_from, dtype=torch.float64)
    return torch.where(raw < 0.2, 0.5, torch.where(raw > 0.9, 1.0, raw))


@given(st.integers(0, 10_000), st.integers(1, 9), st.integers(1, 5), st.floats(0, 4))
def test_adaptive_selectors_at_their_ends(slots, seed, width, quota, factor):
    """[8] On scores alone: what each is where its number says nothing, and the prefix that `Factor` takes."""
    generator = torch.Generator().manual_seed(seed)
    score, opened = scores(generator, 4, width), torch.rand(4, width, generator=generator) < 0.7
    now, quotas = slots(opened), torch.full((4,), quota)
    first = TopK().select(score, now, torch.ones_like(quotas))
    best = TopK().select(score, now, quotas)
    assert torch.equal(Factor(0.0).select(score, now, quotas), first)
    assert torch.equal(EntropyBudget(0.0).select(score - 1, now, quotas), first)
    assert torch.equal(EntropyBudget(0.0, "previous").select(score - 1, now, quotas), first)
    assert torch.equal(Hybrid(1.1).select(score, now, quotas), best)
    run = slots(torch.ones(4, width, dtype=torch.bool))
    single = TopK().select(score, run, torch.ones_like(quotas))
    assert torch.equal(SegmentMax(None, None).select(score, run, quotas), single)
    pick = Factor(factor).select(score, now, quotas)
    for row in range(4):
        ranked = sorted(score[row][opened[row]].tolist(), reverse=True)
        longest = 1
        while longest < len(ranked) and (bar := 1 - factor / (longest + 2)) < 1 and ranked[longest] >= bar:
            longest += 1
        assert int(pick[row].sum()) == min(longest, len(ranked))
        assert sorted(score[row][pick[row]].tolist(), reverse=True) == ranked[: int(pick[row].sum())]


@settings(max_examples=6)
@given(scenes(revisers=[]))
def test_adaptive_selectors_at_their_ends_in_a_decode(scene):
    """[8] A budget of nothing, and one run of slots, are one token per step."""
    pairs = [
        (by(scene, EntropyBudget(0.0), scorer=NegEntropy()), by(scene, TopK(), scorer=NegEntropy())),
        (by(scene, SegmentMax(None, None), scorer=PositionScore()), by(scene, TopK(), scorer=PositionScore())),
    ]
    spans = any(isinstance(prompt, Infill) for prompt in scene.prompts)
    for one, other in pairs[: 1 if spans else 2]:
        for row in range(len(scene.prompts)):
            assert facts(one, row)["step_map"] == facts(other, row)["step_map"]
            assert facts(one, row)["canvas"] == facts(other, row)["canvas"]


@settings(max_examples=7)
@given(scenes(BETA))
def test_caches_that_renew_everything_are_none(scene):
    """[9] Full attention: dual, prefix and horizon renewed at each step, a vicinity of everything."""
    none = scene.run(cache=NoCache())
    for policy in (Dual(1), Prefix(1), Horizon(99, 1), Vicinity(99, 99, 0)):
        same(scene.run(cache=policy), none)


@settings(max_examples=8)
@given(scenes(CAUSAL))
def test_every_cache_is_exact_under_block_causal_attention(scene):
    """[9] None, prefix, dual, vicinity, horizon, and blocks stored along with the next one or by themselves."""
    none = scene.run(cache=NoCache())
    for policy in (Prefix(), Dual(), Vicinity(0, 0, 0), Horizon(0), *BLOCK_KV):
        out = scene.run(cache=policy)
        same(out, none)
        assert out.nfe >= none.nfe


@pytest.mark.parametrize("reviser", ROW_WIDE, ids=lambda reviser: type(reviser).__name__)
def test_what_changes_in_old_blocks_is_stored_anew(reviser):
    """[9] Revisers that reach back: keys and values of old blocks, and of all that has seen them, are renewed."""
    schedule = getattr(reviser, "schedule", LinearFront())
    config = SamplerConfig(gen_length=10, block_length=4, grid="zero", proposer=Categorical(0.8), schedule=schedule)
    steps = 3 * config.blocks if isinstance(reviser, RunningConfidence) else None
    scene = Scene("tiny_causal", config.replace(reviser=reviser, steps=steps), [[4, 2, 0, 0, 0], [1, 2]], key=3)
    none = scene.run()
    assert bool((none.events.kind >= EDITED).any())
    for policy in (Prefix(), Dual(), Vicinity(0, 0, 0), Horizon(0), *BLOCK_KV):
        same(scene.run(cache=policy), none)


def greedy_text(scene: Scene, row: int) -> list[int]:
    """What a table of logits says at the slots, up to the first end token that no given token follows."""
    prompt = scene.prompts[row]
    if isinstance(prompt, Infill):
        places = [place for place, slot in enumerate(prompt.writable) if slot]
        last = max((place for place, slot in enumerate(prompt.writable) if not slot), default=-1)
    else:
        places = list(range(len(prompt), len(prompt) + scene.config.gen_length))
        last = len(prompt) - 1
    tokens = scene.model.table[places][:, :MASK].argmax(-1).tolist()
    ends = [i for i, (place, token) in enumerate(zip(places, tokens, strict=True)) if token == EOS and place > last]
    return tokens[: ends[0] + 1] if ends else tokens


@settings(max_examples=20)
@given(scenes(["table"]))
def test_every_strategy_says_the_same_where_there_is_nothing_to_choose(scene):
    """[12] Logits that depend on the position alone, at temperature 0."""
    out = scene.run(proposer=Greedy(), rules=())
    for row in range(len(scene.prompts)):
        assert text(out, row) == greedy_text(scene, row)


@settings(max_examples=10)
@given(scenes(["table", "toy", "tiny", "toy_causal"]))
def test_low_temperature_is_greedy(scene):
    """[15]"""
    cold, greedy = (scene.run(proposer=one, score_law="model") for one in (Categorical(1e-9), Greedy()))
    same(greedy, cold)


@settings(max_examples=8)
@given(scenes(["toy", "tiny", "toy_causal"], revisers=[]), st.sampled_from([0.5, 1.0, 2.0]))
def test_temperature_acts_on_the_proposal_alone(scene, temperature):
    """[15] A score of the model's law is the raw probability of the token; one of the proposal's law is its own."""
    changes = {"proposer": Categorical(temperature), "scorer": Probability(), "rules": (), "guidance": None}
    out = scene.run(**changes, score_law="model")
    torch.testing.assert_close(out.scores, out.logprobs.exp() * (out.step_map >= 0), rtol=1e-9, atol=1e-12)
    out = scene.run(**changes, score_law="proposal")
    torch.testing.assert_close(out.scores, out.sample_logprobs.exp() * (out.step_map >= 0), rtol=1e-9, atol=1e-12)


@settings(max_examples=14)
@given(scenes(revisers=[]))
def test_stopping_early_does_not_change_the_text(scene):
    """[17] Up to the first end token, for no more forwards."""
    if scene.key % 2 and not scene.causal:  # one block, in which end tokens come before what is left of them
        scene = scene.but(block_length=scene.config.gen_length, steps=None)
    whole = scene.run(stop=LengthStop())
    for stop in (EosStop(), EosStop("token")):
        out = scene.run(stop=stop)
        assert [text(out, row) for row in range(len(scene.prompts))] == [
            text(whole, row) for row in range(len(scene.prompts))
        ]
        assert bool((out.row_nfe <= whole.row_nfe).all())
        torch.testing.assert_close(out.logprobs[out.completion_mask], whole.logprobs[out.completion_mask])


@settings(max_examples=8)
@given(scenes(revisers=IN_BLOCK))
def test_stopping_after_a_block_does_not_change_the_text_of_editors(scene):
    """[17] What a block-wise reviser has left, nobody changes."""
    whole, out = scene.run(stop=LengthStop()), scene.run(stop=EosStop())
    for row in range(len(scene.prompts)):
        assert text(out, row) == text(whole, row)


@settings(max_examples=6)
@given(scenes())
def test_guidance_of_nothing_is_none(scene):
    """[21] Scale 0; and with an empty prompt both branches see the same, whatever the scale."""
    same(scene.run(guidance=Guidance(0.0)), scene.run(guidance=None))
    if scene.name == "adversarial":
        return
    empty = Scene(scene.name, scene.config, [[]] * 2, scene.key)
    same(empty.run(guidance=Guidance(1.5)), empty.run(guidance=None))


def rolled(seed: int) -> tuple[ToyDenoiser, ToyDenoiser]:
    """A toy, and one whose logits at p - 1 are those of the first at p, declared as such."""
    generator = torch.Generator().manual_seed(seed)

    def weight(*shape: int) -> torch.Tensor:
        return 2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1

    common = {"embed": weight(24, 8), "head": 3 * weight(8, 24), "bias": weight(24), "mask_id": MASK, "eos_ids": (EOS,)}
    common["bias"][MASK] = -50.0
    kernel, position = weight(129, 8), weight(64, 8)
    plain = ToyDenoiser(**common, kernel=kernel, position=position)
    return plain, ToyDenoiser(**common, kernel=kernel.roll(1, 0), position=position.roll(-1, 0), logit_offset=1)


@settings(max_examples=10)
@given(scenes(["toy"], least=1), st.integers(0, 99))
def test_a_shift_of_logits_rolled_by_one_is_none(scene, seed):
    """[22] Where the first slot has something to its left."""
    plain, shifted = (generate(model, scene.prompts, scene.config, keys=scene.keys) for model in rolled(seed))
    same(plain, shifted)
