"""Known bugs of public implementations, by number: loops, quotas and what they write.

Each test shows the published formula failing, in a few lines of our own, and this package right on the same input.
"""

import pytest
import torch

from dare_samplers import (
    FORCED,
    Denoiser,
    Dual,
    Guidance,
    Infill,
    LengthStop,
    LinearFront,
    Prefix,
    SamplerConfig,
    generate,
    presets,
)
from dare_samplers.scorers import NegEntropy
from dare_samplers.testing import TableDenoiser, TinyTransformer, ToyDenoiser

NEVER = -50.0


def table_of(law, *, left=0):
    """A model of these probabilities, with a mask id behind them and `left` given positions before them."""
    logits = torch.tensor(law, dtype=torch.float64).clamp(min=1e-12).log()
    table = torch.nn.functional.pad(logits, (0, 1, left, 0), value=NEVER)
    return TableDenoiser(table, mask_id=logits.shape[1])


def confidence(model, canvas):
    """Proposals and their probabilities on a whole canvas `[B, T]`, as the published loops have them."""
    column = torch.arange(canvas.shape[1]).expand_as(canvas)
    logits = model(canvas, positions=column, rows=column)
    best = logits.softmax(-1).max(-1)
    return best.indices, best.values


def test_b02_guidance_without_an_attention_mask():
    def published(canvas, attention_mask, scale):
        if scale > 0:
            canvas = torch.cat([canvas, canvas])
            if attention_mask is not None:
                doubled = torch.cat([attention_mask, attention_mask])
            return net(canvas, doubled)
        return net(canvas, attention_mask)

    toy = ToyDenoiser.random()

    def net(ids, attention_mask=None):
        column = torch.arange(ids.shape[1]).expand_as(ids)
        return toy(ids, positions=column, rows=column)

    canvas = torch.tensor([[3, 4, toy.mask_id]])
    assert published(canvas, torch.ones(1, 3), 1.0).shape[0] == 2
    with pytest.raises(UnboundLocalError):
        published(canvas, None, 1.0)

    model = Denoiser(net, mask_id=toy.mask_id, level=0)
    out = generate(model, [[3, 4]], presets.llada(1, guidance=1.0))
    blank = torch.tensor([[toy.mask_id] * 3])
    with_prompt, without = net(canvas)[0, -1], net(blank)[0, -1]
    guided = without + 2 * (with_prompt - without)
    assert int(out.completions[0, 0]) == int(guided[: toy.mask_id].argmax())
    wrapped = generate(toy, [[3, 4], [5]], presets.llada(4).replace(guidance=Guidance(1.0)))
    assert wrapped.sequences[0, :2].tolist() == [3, 4]


def sdar_block_as_published(model, canvas, mask, steps, tau, seed):
    """Quotas from the block's length; unmasked slots take part with confidence -inf."""
    generator = torch.Generator().manual_seed(seed)
    size = canvas.shape[1]
    for step in range(steps):
        if not bool(mask.any()):
            break
        quota = size // steps + (step < size % steps)
        column = torch.arange(size).expand_as(canvas)
        p = model(canvas, positions=column, blocks=column * 0, rows=column).softmax(-1)
        tokens = torch.multinomial(p[0], 1, generator=generator).T
        score = torch.where(mask, p.gather(-1, tokens.unsqueeze(-1)).squeeze(-1), -torch.inf)
        pick = score > tau
        if int(pick.sum()) < quota:
            pick = torch.zeros_like(mask).scatter_(1, score.topk(quota).indices, value=True)
        canvas, mask = torch.where(pick, tokens, canvas), mask & ~pick
    return canvas


@pytest.mark.parametrize(("strategy", "tau"), [("static", 2.0), ("dynamic", 0.85)])
def test_b03_quota_from_the_block_length(strategy, tau):
    """A prompt of 7 in a block of 8 with 4 steps: one mask, a quota of 2, and the prompt's tail is drawn anew."""
    model = ToyDenoiser.random(block_length=8)
    prompt = [3, 1, 4, 1, 5, 9, 2]
    canvas = torch.tensor([[*prompt, model.mask_id]])
    mask = canvas == model.mask_id
    canvases = [sdar_block_as_published(model, canvas, mask, 4, tau, seed) for seed in range(30)]
    assert sum(one[0, :7].tolist() != prompt for one in canvases) > 20

    config = presets.sdar(9, 8, 4, strategy, tau).replace(stop=LengthStop())
    out = generate(model, [prompt] * 30, config, keys=5)
    assert bool((out.sequences[:, :7] == torch.tensor(prompt)).all())
    assert bool((out.n_writes == 1).all())
    assert bool((out.step_map[:, 0] == 0).all()) and bool((out.block_id[:, 1:] == 1).all())


def test_b04_common_quota_from_the_mean_of_the_batch():
    """Rows of 2 and 6 masks, a quota of 4 for both: masks over given tokens in one, masks left over in the other."""
    model = ToyDenoiser.random()
    writable = torch.tensor([[c in (3, 4) for c in range(8)], [c > 1 for c in range(8)]])
    given = torch.arange(1, 9).expand(2, 8)
    canvas = torch.where(writable, model.mask_id, given)
    tokens, p = confidence(model, canvas)
    quota = int(writable.sum() / len(writable))
    place = torch.where(writable, p, -torch.inf).topk(quota).indices
    published = canvas.scatter(1, place, torch.where(writable, tokens, model.mask_id).gather(1, place))
    left = published == model.mask_id
    assert bool((left[0] & ~writable[0]).any()) and int(left[1].sum()) == 2

    config = presets.dream(8, 1, temperature=0.0).replace(layout="right")  # column = position
    out = generate(model, [Infill(row, slots) for row, slots in zip(given, writable, strict=True)], config)
    assert torch.equal(out.sequences[~writable], given[~writable])
    assert not bool((out.sequences == model.mask_id).any()) and out.nfe == 1
    assert (out.step_map == 0).sum(-1).tolist() == [2, 6]


@pytest.mark.parametrize("length", [8, 40])
def test_b05_floors_that_commit_nothing(length):
    """As many steps as slots, and yet an empty first one and two tokens in the last."""
    t = torch.linspace(1, 1e-3, length + 1)
    left, published = length, []
    for step in range(length):
        quota = int(left * (1 - t[step + 1] / t[step])) if step < length - 1 else left
        published.append(quota)
        left -= quota
    assert published[0] == 0 and published[-1] == 2 and len(published) == length

    model = TableDenoiser(torch.randn(length, 6, generator=torch.Generator().manual_seed(0)), mask_id=5)
    out = generate(model, [[]], presets.dream(length, temperature=0.0))
    counts = torch.bincount(out.step_map[0].long(), minlength=out.nfe)
    assert bool((counts > 0).all()) and out.nfe == length - published.count(0)
    even = generate(model, [[]], presets.dream(length, temperature=0.0).replace(schedule=LinearFront()))
    assert even.nfe == length and sorted(even.step_map[0].tolist()) == list(range(length))
    compat = generate(model, [[]], presets.dream(length, temperature=0.0, compat=True))
    assert torch.bincount(compat.step_map[0].long(), minlength=length).tolist() == published


def dream_blocks_as_published(model, canvas, start, size, steps):
    """The first token of each block from its full forward, then steps 1 to `steps` - 1; only row 0 is written."""
    for begin in range(start, canvas.shape[1], size):
        tokens, _ = confidence(model, canvas)
        canvas[0, begin] = tokens[0, begin]
        for _ in range(1, steps):
            tokens, p = confidence(model, canvas)
            inside = torch.arange(canvas.shape[1]) // size * size == begin
            score = torch.where((canvas[0] == model.mask_id) & inside, p[0], -torch.inf)
            canvas[0, score.argmax()] = tokens[0, score.argmax()]
    return canvas


def test_b06_block_loop_with_one_step_and_several_rows():
    model = TinyTransformer.random(shift=1)
    start = torch.full((2, 16), model.mask_id)
    left = dream_blocks_as_published(model, start.clone(), 0, 8, steps=1) == model.mask_id
    assert left.sum(-1).tolist() == [14, 16]
    left = dream_blocks_as_published(model, start.clone(), 0, 8, steps=8) == model.mask_id
    assert left.sum(-1).tolist() == [0, 16]

    prompts = [[], [5, 6, 7]]
    for steps in (1, 2, 8):
        config = SamplerConfig(gen_length=16, block_length=8, steps=2 * steps, scorer=NegEntropy(), cache=Dual())
        config = config.replace(stop=LengthStop())
        out = generate(model, prompts, config)
        assert bool((out.step_map >= 0).all()) and out.nfe == 2 * steps
        for row, prompt in enumerate(prompts):
            assert torch.equal(generate(model, [prompt], config).completions[0], out.completions[row])


def test_b06_the_algorithm_that_is_asked_for():
    """A law whose orders differ: by probability, by lead over the second token and by entropy."""
    law = [[0.5, 0.5, 0.0, 0.0, 0.0], [0.6, 0.1, 0.1, 0.1, 0.1], [0.45, 0.3, 0.25, 0.0, 0.0]]
    entropy = torch.special.entr(torch.tensor(law)).sum(-1)
    published = {
        alg: entropy.argsort().tolist() for alg in ("maskgit_plus", "topk_margin", "entropy")
    }  # whatever it is
    orders = {}
    for alg in published:
        out = generate(table_of(law), [[]], presets.dream(3, 3, alg, 0.0, None).replace(schedule=LinearFront()))
        orders[alg] = out.step_map.argsort()[0].tolist()
    assert orders == {"maskgit_plus": [1, 0, 2], "topk_margin": [1, 2, 0], "entropy": [0, 2, 1]}
    assert [alg for alg in orders if orders[alg] == published[alg]] == ["entropy"]


def prefix_block_as_published(masks, quotas):
    """Forwards of a block: a full one, then at least one more before the masks are counted. No quotas: takes all."""
    forwards, masks = 1, masks - (masks if quotas is None else quotas[0])
    while True:
        forwards += 1
        masks -= 0 if quotas is None else quotas[forwards - 1]
        if masks == 0:
            return forwards


def test_b07_caches_with_one_step_per_block():
    assert prefix_block_as_published(4, [2, 1, 1]) == 3
    with pytest.raises(IndexError):
        prefix_block_as_published(4, [4])
    assert prefix_block_as_published(4, None) == 2
    model = TinyTransformer.random()
    prompts = [[3, 1, 4], [5]]
    for cache in (Prefix(), Dual()):
        for config in (presets.llada(12, 4, 3), presets.fast_dllm(12, 4, 0.0)):
            cached = config.replace(cache=cache, stop=LengthStop())
            out = generate(model, prompts, cached)
            assert out.nfe == 3 and bool((out.step_map >= 0).all())  # one forward per block
            for row, prompt in enumerate(prompts):  # and more than one row
                assert torch.equal(generate(model, [prompt], cached).completions[0], out.completions[row])


def test_b07_noise_that_is_drawn_twice():
    """One generator, and a discarded draw before each that counts: the cache changes tokens where it is exact."""
    p = torch.full((8, 12), 1 / 12)

    def published(draws):
        generator = torch.Generator().manual_seed(0)
        return [[torch.multinomial(p, 1, generator=generator) for _ in range(draws)][-1] for _ in range(2)]

    assert not all(torch.equal(a, b) for a, b in zip(published(1), published(2), strict=True))
    model = TableDenoiser(torch.nn.functional.pad(torch.zeros(12, 12), (0, 1), value=NEVER), mask_id=12)
    runs = [generate(model, [[1, 2]] * 3, presets.fast_dllm(8, 4, 0.9, cache=name, temperature=1.0), keys=4)
            for name in ("none", "prefix", "dual")]  # fmt: skip
    for run in runs[1:]:
        assert torch.equal(run.sequences, runs[0].sequences) and torch.equal(run.step_map, runs[0].step_map)


def test_b08_threshold_without_forced_progress():
    law = [[0.5, 0.3, 0.2], [0.6, 0.2, 0.2], [0.4, 0.35, 0.25]]
    model = table_of(law)
    canvas = torch.full((1, 3), 3)
    for _ in range(50):
        tokens, p = confidence(model, canvas)
        canvas = torch.where((canvas == 3) & (p >= 0.9), tokens, canvas)
    assert canvas.tolist() == [[3, 3, 3]]
    out = generate(model, [[]], presets.threshold(3, 3, 0.9), until_step=9)
    assert out.finish_reason == ("length",)
    assert out.completions.tolist() == [[0, 0, 0]] and out.nfe == 3
    assert out.step_map.tolist() == [[1, 0, 2]] and set(out.origin[0].tolist()) == {FORCED}
