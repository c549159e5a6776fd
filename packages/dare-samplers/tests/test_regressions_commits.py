"""Known bugs of public implementations, by number: which slots are committed, and in how many steps.

Each test shows the published formula failing, in a few lines of our own, and this package right on the same input.
"""

import pytest
import torch

from dare_samplers import (
    SAMPLED,
    LengthStop,
    LinearFront,
    Logits,
    Probability,
    TopK,
    generate,
    presets,
)
from dare_samplers.revisers import RemaskBelow
from dare_samplers.scorers import EosLast, Margin
from dare_samplers.selectors import Factor, SegmentMax
from dare_samplers.testing import AdversarialDenoiser, JointDenoiser, TableDenoiser, ToyDenoiser


def confidence(model, canvas):
    """Proposals and their probabilities on a whole canvas `[B, T]`, as the published loops have them."""
    column = torch.arange(canvas.shape[1]).expand_as(canvas)
    logits = model(canvas, positions=column, rows=column)
    best = logits.softmax(-1).max(-1)
    return best.indices, best.values


def mask_lover(length):
    """The mask has a probability of almost 1 everywhere."""
    return TableDenoiser(torch.linspace(-1, 1, 8).expand(length + 2, 8).index_fill(1, torch.tensor(7), 20.0), mask_id=7)


@pytest.mark.parametrize(
    "config", [presets.dinfer(12, 4), presets.dinfer(12, 4, "hierarchy"), presets.threshold(12, 4)]
)
def test_b09_proposals_of_the_mask_are_never_eligible(config):
    model = mask_lover(12)
    canvas = torch.full((1, 12), model.mask_id)
    for _ in range(50):
        tokens, p = confidence(model, canvas)
        eligible = (canvas == model.mask_id) & (tokens != model.mask_id)
        best = torch.where(eligible, p, -torch.inf).amax()
        canvas = torch.where(eligible & (p >= min(best, 0.9)), tokens, canvas)
    assert bool((canvas == model.mask_id).all())
    config = config.replace(stop=LengthStop())
    for one in (model, AdversarialDenoiser()):
        out = generate(one, [[7, 7], [1]], config)
        assert bool((out.step_map >= 0).all()) and not bool((out.completions == one.mask_id).any())
        assert out.nfe <= 12


def test_b09_fixed_quotas_work():
    """The published decoder's initialisation reads names that are defined nowhere."""
    with pytest.raises(NameError):
        eval("linear_front(block_mask, steps)", {"block": [1, 1, 1], "count": 3})
    out = generate(ToyDenoiser.random(), [[1]], presets.dinfer(8, 4).replace(steps=4, selector=TopK()))
    assert torch.bincount(out.step_map[0].long()).tolist() == [2, 2, 2, 2]


@pytest.mark.parametrize(("scores", "ours"), [([0.99, 0.99, 0.99, 0.05], 3), ([0.99, 0.05], 1), ([0.99, 0.99], 2)])
def test_b09_factor_takes_what_fails_last(slots, scores, ours):
    def published(scores):
        for place, score in enumerate(scores):
            if score < 1 - 1 / (place + 2):
                break
        return place + 1 if place in (0, len(scores) - 1) else place

    assert published(scores) == len(scores)
    pick = Factor().select(torch.tensor([scores]), slots(torch.ones(1, len(scores), dtype=torch.bool)), None)
    assert pick[0].tolist() == [place < ours for place in range(len(scores))]


def test_b09_end_tokens_of_the_prompt_stay():
    model = ToyDenoiser.random(eos_bias=-20.0)
    eos = model.eos_ids[0]
    prompt = [3, eos, 5, eos, 6]
    out = generate(model, [prompt], presets.dinfer(8, 4))
    published = out.sequences[0][out.sequences[0] != eos]
    assert published[:5].tolist() != prompt and len(published) == 11
    assert out.sequences[0, :5].tolist() == prompt and out.finish_reason == ("length",)


def test_b09_one_commit_per_segment(slots):
    """`p == p.max()` in bfloat16: neighbours that differ are all the best of their run."""
    logits = torch.zeros(1, 6, 2, dtype=torch.bfloat16)
    logits[..., 0] = torch.linspace(5.0, 5.5, 6).bfloat16()
    opened = torch.tensor([[True, True, True, False, True, True]])
    tokens = torch.zeros(1, 6, dtype=torch.int64)
    published = logits.softmax(-1)[..., 0]
    runs = (published[:, :3] == published[:, :3].amax()).sum() + (published[:, 4:] == published[:, 4:].amax()).sum()
    assert runs > 2
    score = Probability().score(Logits.of(logits), tokens, slots(opened))
    pick = SegmentMax(None, None).select(score, slots(opened), None)
    assert pick[0].nonzero().flatten().tolist() == [2, 5]
    pick = SegmentMax(None, None).select(torch.full((1, 6), 0.7), slots(opened), None)
    assert pick[0].nonzero().flatten().tolist() == [0, 4]  # and of true equals the first


def end_prone_as_published(model, canvas, quotas, eos):
    """Score 0 for end tokens, at filled slots too, where all others have -inf."""
    for quota in quotas:
        tokens, p = confidence(model, canvas)
        score = torch.where(canvas == model.mask_id, p, -torch.inf).masked_fill(tokens == eos, 0.0)
        place = score.topk(quota).indices
        filled = torch.where(canvas == model.mask_id, tokens, canvas)
        canvas = canvas.scatter(1, place, filled.gather(1, place))
    return canvas


def test_b16_end_tokens_at_filled_slots(slots):
    """They take the place of open ones; masks are left over, and a last line turns them into end tokens."""
    opened = torch.tensor([[False, False, True, True]])
    now = slots(opened, eos_ids=(4,), committed=~opened)
    logits = Logits.of(torch.linspace(-1, 1, 20).view(1, 4, 5))
    score = EosLast(Probability()).score(logits, torch.full((1, 4), 4), now)
    assert bool((score[:, :2] > 0).all()) and bool((score[:, 2:] == -torch.inf).all())
    assert TopK().select(score, now, torch.tensor([2])).tolist() == opened.tolist()
    for seed in range(20):
        model = ToyDenoiser.random(seed=seed, eos_bias=9.0)
        eos = model.eos_ids[0]
        start = torch.full((1, 16), model.mask_id)
        published = end_prone_as_published(model, start, [2] * 8, eos)
        assert bool((published == model.mask_id).any())
        if seed < 5:
            config = presets.llada(16, 16, 8).replace(scorer=EosLast(Probability()), stop=LengthStop())
            out = generate(model, [[]], config)
            assert bool((out.origin == SAMPLED).all()) and out.nfe == 8  # no slot is filled, none is left


def test_b17_steps_of_the_replay():
    """The schedule of a block is given the steps of the response: one token per forward, whatever the budget.

    And what is collected at step `steps` - 1 of a block never is, if a block has fewer.
    """
    steps, size, blocks = 8, 8, 2
    published = [size // steps + (i < size % steps) for i in range(steps)] * blocks
    assert set(published) == {1} and len(published) == 2 * steps
    collected = [i for _ in range(blocks) for i in range(steps // blocks) if i == steps - 1]
    with pytest.raises(RuntimeError, match="non-empty"):
        torch.stack([torch.tensor(i) for i in collected])

    out = generate(ToyDenoiser.random(), [[1], [2]], presets.llada(16, 8, steps, 1.0).replace(stop=LengthStop()))
    assert out.nfe == steps
    canvases = torch.stack(list(out.history()))
    newly = canvases[1:] != canvases[:-1]
    assert newly.shape[0] == steps and bool((newly.sum(-1) == 2).all())
    assert bool((newly.sum(0) <= 1).all()) and torch.equal(newly.any(0), ~out.prompt_mask)
    assert torch.equal(newly[:, :, -16:].int().argmax(0), out.step_map)


def test_b19_mask_id_in_the_prompt():
    """`canvas == mask_id` makes it a slot: it takes the quota of the block, and is overwritten."""
    model = ToyDenoiser.random()
    prompt = [3, model.mask_id, 5]
    canvas = torch.tensor([prompt + [model.mask_id] * 8])
    for _ in range(4):
        tokens, p = confidence(model, canvas)
        score = torch.where(canvas == model.mask_id, p, -torch.inf)
        score[:, 7:] = -torch.inf  # only what is behind the block is kept out
        canvas = canvas.scatter(1, score.topk(1).indices, tokens.gather(1, score.topk(1).indices))
    assert canvas[0, 1] != model.mask_id and bool((canvas[0, 3:7] == model.mask_id).any())
    for config in (presets.llada(8, 4, 8), presets.threshold(8, 4, 0.3), presets.dinfer(8, 4), presets.dream(8)):
        out = generate(model, [prompt], config.replace(stop=LengthStop()))
        assert out.sequences[0, :3].tolist() == prompt and bool((out.step_map >= 0).all())


def test_b19_a_model_that_predicts_the_mask():
    model = mask_lover(8)
    canvas = torch.full((1, 8), model.mask_id)
    for _ in range(8):
        tokens, p = confidence(model, canvas)
        place = torch.where(canvas == model.mask_id, p, -torch.inf).topk(1).indices
        canvas = canvas.scatter(1, place, tokens.gather(1, place))
    assert bool((canvas == model.mask_id).all())
    reviser = RemaskBelow(0.4)
    for config in (presets.llada(8, 4, 4), presets.llada(8, 4, temperature=1.0),
                   presets.threshold(8, 8).replace(reviser=reviser)):  # fmt: skip
        out = generate(model, [[7]], config)
        assert not bool((out.sequences[:, 1:] == model.mask_id).any())


@pytest.mark.parametrize(("steps", "blocks"), [(10, 4), (2, 4), (13, 3)])
def test_b25_steps_that_do_not_divide(steps, blocks):
    """Four behaviours for one question: refuse, round down, give the rest to the first blocks, round up."""
    published = {
        "floor": [max(1, steps // blocks)] * blocks,
        "front": [steps // blocks + (b < steps % blocks) for b in range(blocks)],
        "ceil": [-(-steps // blocks)] * blocks,
    }
    assert len({tuple(per) for per in published.values()}) >= 2
    assert sum(published["floor"]) != steps and sum(published["ceil"]) != steps
    assert min(published["front"]) > 0 or steps < blocks  # a block without a step keeps its masks
    size = 4 * blocks
    with pytest.raises(ValueError, match=f"`steps`={steps} is no multiple of the {blocks} blocks; choose") as error:
        presets.llada(size, 4, steps)
    named = [int(word) for word in str(error.value).split("choose ")[1].split(",")[0].split(" or ")]
    model = ToyDenoiser.random()
    for count in named:
        assert count % blocks == 0
        out = generate(model, [[1]], presets.llada(size, 4, count).replace(stop=LengthStop()))
        assert out.nfe == min(count, size)
    assert generate(model, [[1]], presets.llada(size, 4, 8 * blocks).replace(stop=LengthStop())).nfe == size


def test_b27_parallel_commits_break_the_joint_law():
    """Slots that exclude each other: (0, 1), (1, 0), (0, 2) and (2, 0) are texts, (0, 0) is none.

    Each slot alone is 0 with probability 0.5. At a low threshold, or a high one on a law that a low temperature has
    sharpened, both are committed at once.
    """
    joint = torch.zeros(3, 3, dtype=torch.float64)
    joint[0, 1] = joint[1, 0] = 0.3
    joint[0, 2] = joint[2, 0] = 0.2
    model = JointDenoiser(joint)
    tokens, p = confidence(model, torch.full((1, 2), 3))
    assert p.tolist() == [[0.5, 0.5]] and joint[tuple(tokens[0])] == 0  # what both at once would be
    sharp = (joint.sum(0) ** 10 / (joint.sum(0) ** 10).sum()).amax()
    assert sharp > 0.9
    low = generate(model, [[]], presets.fast_dllm_dream(2, 2, tau=0.5))
    cold = generate(model, [[]], presets.fast_dllm_dream(2, 2, tau=0.9, temperature=0.1))
    for out in (low, cold):  # the published rules, as asked for
        assert out.nfe == 1 and joint[tuple(out.completions[0])] == 0
    config = presets.fast_dllm_dream(2, 2, tau=0.9, temperature=0.1)
    for safe in (
        config.replace(score_law="model"),
        config.replace(selector=Factor(1.0), score_law="model"),
        presets.fast_dllm_dream(2, 2, tau=0.9),
        presets.fast_dllm(2, 2, factor=1.0),
        presets.dream(2, temperature=0.0).replace(scorer=Margin(), schedule=LinearFront()),
    ):
        out = generate(model, [[]], safe)
        assert out.nfe == 2 and joint[tuple(out.completions[0])] > 0


def test_b27_what_factor_commits_at_once_is_the_most_probable_text():
    at_once = 0
    for seed in range(40):
        joint = torch.rand(4, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) ** 150
        joint /= joint.sum()
        out = generate(JointDenoiser(joint), [[]], presets.fast_dllm(3, 3, factor=1.0))
        if out.nfe == 1:
            at_once += 1
            assert joint[tuple(out.completions[0])] == joint.amax()
    assert 5 < at_once < 40
