"""Known bugs of public implementations, by number: batches, padding, end tokens and what is recorded.

Each test shows the published formula failing, in a few lines of our own, and this package right on the same input.
"""

import json

import pytest
import torch

from dare_samplers import Denoiser, LengthStop, Suppress, generate, presets
from dare_samplers.export import write_trajectories
from dare_samplers.scorers import EosLast, EosScaled, PadPenalty, Probability
from dare_samplers.testing import TinyTransformer, ToyDenoiser

PROMPTS = [[5, 1, 2], [3, 1, 4, 1, 5, 9, 2, 6]]
FULL = TinyTransformer.random(eos_bias=-20.0)


def logits_of(model, ids, positions, rows, blocks=None):
    return model(torch.tensor([ids]), positions=torch.tensor([positions]), rows=torch.tensor([rows]), blocks=blocks)[0]


def same_as_alone(model, config, keys=None):
    """Whether each row of a batch is what it is alone, to rounding."""
    keys = torch.tensor([7, 8]) if keys is None else keys
    batch = generate(model, PROMPTS, config, keys=keys)
    for row, prompt in enumerate(PROMPTS):
        alone = generate(model, [prompt], config, keys=keys[row : row + 1])
        slots = alone.step_map.shape[1]
        assert torch.equal(alone.completions[0], batch.completions[row, : alone.completions.shape[1]])
        assert torch.equal(alone.step_map[0], batch.step_map[row, :slots])
        torch.testing.assert_close(alone.logprobs[0], batch.logprobs[row, :slots], rtol=0, atol=1e-9)


def test_b12_left_pads_are_attended():
    """Rows padded on the left, and no mask for the model: what a row becomes depends on the longest prompt."""
    ids = PROMPTS[0] + [FULL.mask_id] * 8
    alone = logits_of(FULL, ids, list(range(11)), list(range(3, 11)))
    published = logits_of(FULL, [0] * 5 + ids, list(range(16)), list(range(8, 16)))
    assert float((published - alone).abs().max()) > 0.5
    assert not torch.equal(published.argmax(-1), alone.argmax(-1))
    masked = logits_of(FULL, [0] * 5 + ids, [-1] * 5 + list(range(11)), list(range(8, 16)))
    torch.testing.assert_close(masked, alone)
    for temperature in (0.0, 1.0):
        same_as_alone(FULL, presets.llada(8, 4, temperature=temperature))
    for cache in ("none", "prefix", "dual"):
        same_as_alone(FULL, presets.fast_dllm(8, 4, 0.5, cache=cache))
    for config in (
        presets.d1(8, 4),
        presets.dllm_rl(8, 4),
        presets.llada(8, guidance=1.0),
    ):
        same_as_alone(FULL, config)

    def net(ids, *, attention_mask, position_ids):
        return FULL(
            ids,
            positions=torch.where(attention_mask.bool(), position_ids, -1),
            rows=torch.arange(ids.shape[1]).expand_as(ids),
        )

    same_as_alone(Denoiser(net, mask_id=FULL.mask_id, level=1), presets.llada(8, 4))
    with pytest.raises(ValueError, match="expected rows of one length for a level-0 model"):
        generate(Denoiser(net, mask_id=FULL.mask_id), PROMPTS, presets.llada(8, 4))


def test_b13_pads_between_prompt_and_answer():
    """Rows padded on the right: even under a mask, the gap moves the answer away from its prompt."""
    ids = PROMPTS[0] + [0] * 5 + [FULL.mask_id] * 8
    real = [0, 1, 2, *[-1] * 5]
    alone = logits_of(FULL, PROMPTS[0] + [FULL.mask_id] * 8, list(range(11)), list(range(3, 11)))
    published = logits_of(FULL, ids, real + list(range(8, 16)), list(range(8, 16)))
    assert not torch.equal(published.argmax(-1), alone.argmax(-1))
    torch.testing.assert_close(logits_of(FULL, ids, real + list(range(3, 11)), list(range(8, 16))), alone)
    for layout in ("left", "right", "packed"):
        same_as_alone(FULL, presets.llada(8, 4).replace(layout=layout))


def test_b13_tail_behind_the_answer():
    """A block-causal model without its mask sees the masks behind the block: longer answers begin differently."""
    model = TinyTransformer.random(attention="block_causal", block_length=4, eos_bias=-20.0)
    prompt = [5, 1, 2, 6]

    def first_block(length, *, blocks):
        place = torch.arange(4 + length)[None]
        table = place // 4 if blocks else None
        return logits_of(model, prompt + [model.mask_id] * length, place[0].tolist(), [4, 5, 6, 7], table)

    assert not torch.allclose(first_block(4, blocks=False), first_block(12, blocks=False), atol=0.1)
    torch.testing.assert_close(first_block(4, blocks=True), first_block(12, blocks=True))
    config = presets.sdar(12, 4, temperature=0.0)
    long = generate(model, [prompt], config)
    for length in (3, 4, 8):
        short = generate(model, [prompt], config.replace(gen_length=length, steps=-(-length // 4) * 4))
        assert torch.equal(short.completions[0, :length], long.completions[0, :length])
    for layout in ("left", "right", "packed"):
        same_as_alone(model, config.replace(layout=layout))


@pytest.mark.parametrize("remasking", ["low_confidence", "random"])
def test_b22_one_generator_for_the_batch(remasking):
    """Noise of shape [B, T, V] from one stream: from the second step on a row's numbers depend on its peers."""

    def published(rows, length):
        generator = torch.Generator().manual_seed(0)
        return [torch.rand(rows, length, 24, generator=generator)[0] for _ in range(2)]

    assert not torch.equal(published(1, 11)[1], published(2, 11)[1])  # one more row
    assert not torch.equal(published(1, 11)[1][:11], published(1, 16)[1][:11])  # wider padding
    model = ToyDenoiser.random(eos_bias=1.0)
    config = presets.llada(8, 4, temperature=1.0, remasking=remasking)
    for layout in ("left", "right", "packed"):
        same_as_alone(model, config.replace(layout=layout))
    keys = torch.tensor([3, 4, 5])
    out = generate(model, [[5, 1], [5, 1], [7]], config, keys=keys)
    other = generate(model, [[7], [5, 1], [2] * 9, [5, 1]], config, keys=keys[[2, 1, 0, 0]])
    assert torch.equal(other.completions[[3, 1, 0]], out.completions)
    assert not torch.equal(out.completions[0], out.completions[1])


def test_b23_step_maps():
    """First snapshot that holds a token: the prompt is indistinguishable from step 0; others count from 1."""
    model = ToyDenoiser.random(eos_bias=-20.0)
    out = generate(model, [[5, 1, 2]], presets.llada(8, 4, 4).replace(stop=LengthStop()))
    snapshots = torch.cat(list(out.history())[1:])
    published = (snapshots != model.mask_id).int().argmax(0)
    assert published[:3].tolist() == [0, 0, 0] and bool((published[3:] == 0).any())
    assert torch.equal(published[3:], out.step_map[0])  # the same where it says something
    first_times = 1 + out.step_map[0]  # what servers count from 1, over all blocks
    assert sorted(set(first_times.tolist())) == [1, 2, 3, 4]
    assert out.block_step[0].tolist() == [
        int(step) - 2 * int(b) for step, b in zip(out.step_map[0], out.block_id[0], strict=True)
    ]
    assert out.step_map.shape == out.completions.shape  # the response alone, no prompt

    partial = generate(model, [[5, 1, 2]], presets.llada(8, 4, 4), until_step=1)
    assert (partial.step_map == 0).sum() == 2 and (partial.step_map == -1).sum() == 6
    ending = ToyDenoiser.random(eos_bias=20.0)
    stopped = generate(ending, [[5, 1, 2]], presets.llada(8, 4, 4))
    assert stopped.step_map[0, 4:].tolist() == [-1] * 4 and stopped.block_step[0, 4:].tolist() == [-1] * 4
    rows = generate(ending, [[5], [6, 7]], presets.llada(8, 4, 4))
    assert rows.step_map.amin(-1).tolist() == [-1, -1] and int(rows.step_map.max()) < rows.nfe


PIECES = ["a", "b", "ab", "ba", "aba"]


def text_of(ids):
    return "".join(PIECES[one % 5] for one in ids)


def encoded(text):
    """Longest piece first."""
    ids = []
    while text:
        ids.append(max((one for one in range(5) if text.startswith(PIECES[one])), key=lambda one: len(PIECES[one])))
        text = text[len(PIECES[ids[-1]]) :]
    return ids


def test_b24_text_and_back_gives_other_ids(tmp_path):
    assert encoded(text_of([0, 1, 0])) == [4]  # shorter than its step map and its log-probabilities
    model = ToyDenoiser.random(vocab_size=7, eos_bias=-20.0)
    model.bias[5] = -50.0  # five pieces, the end token and the mask
    out = generate(model, [[0, 1]] * 20, presets.llada(8, 4, temperature=1.0), keys=2)
    sampled = out.completions.tolist()
    assert sum(encoded(text_of(ids)) != ids for ids in sampled) > 10
    assert out.completions.shape == out.step_map.shape == out.logprobs.shape
    for step in range(8):  # the ids are what was sampled: replayed, they have the recorded log-probabilities
        place = torch.arange(10).expand(20, 10)
        logp = model(out.canvas_at(step), positions=place, rows=place).log_softmax(-1)[:, 2:]
        own = logp.gather(-1, out.completions.unsqueeze(-1)).squeeze(-1)
        torch.testing.assert_close(own[out.step_map == step], out.logprobs[out.step_map == step])
    write_trajectories(out, tmp_path / "rows.jsonl", decode=text_of)
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["completion"] for row in rows] == sampled
    assert [row["text"] for row in rows] == [text_of(ids) for ids in sampled]
    assert [len(row["events"]) for row in rows] == [8] * 20


CONTENT, OTHER, EOS, MASK, PROMPT = range(5)
LENGTH, TRUE = 16, 6


def padded_with_ends(ids):
    """A law as of training data padded with end tokens: behind position 6 of the answer, and left of an end token."""
    logits = torch.full((*ids.shape, 5), -torch.inf)
    place = torch.arange(ids.shape[1]) - 1
    right = torch.nn.functional.pad(ids[:, 1:], (0, 1), value=MASK)
    left = torch.nn.functional.pad(ids[:, :-1], (1, 0), value=MASK)
    p_end = torch.where(place < TRUE, 0.6, 0.9).expand(ids.shape)
    known = (left == CONTENT) | (left == PROMPT)
    p_end = torch.where(known & (place < TRUE), 0.15, p_end)
    p_end = torch.where(right == EOS, 0.97, p_end)
    p_end = torch.where(left == EOS, 0.99, p_end)
    logits[..., EOS], logits[..., CONTENT], logits[..., OTHER] = (
        p_end.log(),
        (1 - p_end).log(),
        (0.01 * (1 - p_end)).log(),
    )
    return logits


def answer(config):
    model = Denoiser(padded_with_ends, mask_id=MASK, eos_ids=(EOS,), pad_id=EOS)
    out = generate(model, [[PROMPT]], config.replace(stop=LengthStop()))
    return out.sequences[0, 1:].tolist()


def test_b26_end_tokens_overflow():
    """One block: the tail is end tokens at once, and each makes its left neighbour one. The answer is empty."""
    canvas = torch.tensor([[PROMPT] + [MASK] * LENGTH])
    for _ in range(LENGTH):
        best = padded_with_ends(canvas).softmax(-1).max(-1)
        place = torch.where(canvas == MASK, best.values, -torch.inf).argmax(-1, keepdim=True)
        canvas = canvas.scatter(1, place, best.indices.gather(1, place))
    assert canvas[0, 1:].tolist() == [EOS] * LENGTH
    assert answer(presets.llada(LENGTH)) == [EOS] * LENGTH  # the same rule, the same answer

    right = [CONTENT] * TRUE + [EOS] * (LENGTH - TRUE)
    plain = presets.llada(LENGTH)
    assert answer(presets.llada(LENGTH, 2)) == right
    assert answer(plain.replace(scorer=EosLast(Probability()))) == right
    assert answer(presets.llada(LENGTH, eos="last")) == right
    assert answer(presets.eoser(LENGTH)) == right
    assert answer(plain.replace(scorer=EosScaled(Probability(), 0.4, 1.0, steps=LENGTH))) == right
    assert answer(plain.replace(scorer=PadPenalty(Probability(), 3.0))) == right
    for never in (plain.replace(rules=(Suppress((EOS,)),)), presets.llada(LENGTH, eos="never", eos_ids=(EOS,))):
        assert answer(never) == [CONTENT] * LENGTH
