"""Known bugs of public implementations, by number: laws, scores and precision.

Each test shows the published formula failing, in a few lines of our own, and this package right on the same input.
"""

import math
from dataclasses import replace

import pytest
import torch
from torch.overrides import TorchFunctionMode

from dare_samplers import (
    Categorical,
    Greedy,
    Guidance,
    LengthStop,
    Logits,
    Probability,
    Record,
    Suppress,
    TopK,
    generate,
    presets,
    uniform,
)
from dare_samplers.rules import RepeatPenalty
from dare_samplers.scorers import EosLast, EosScaled, Margin, NegEntropy
from dare_samplers.testing import TableDenoiser, TinyTransformer, ToyDenoiser

EOS, EOT, MASK = 4, 5, 6
END_PRONE = torch.tensor([[0.3, 0.05, 0, 0, 0.6, 0.05], [0.55, 0.1, 0.1, 0.05, 0.1, 0.1]]).log().repeat(4, 1)
ZIPF = -1.5 * torch.arange(1, 4097, dtype=torch.float64).log()


def gumbel(logits, temperature, generator):
    """The published noise: at temperature 0 it returns its argument itself."""
    if temperature == 0:
        return logits
    logits = logits.double()
    u = torch.rand(logits.shape, generator=generator, dtype=torch.float64)
    return logits.exp() / (-u.log()) ** temperature


def end_tokens_last_as_published(logits, temperature):
    """The option that writes -inf into the noisy logits after the argmax."""
    logits = logits.clone()
    noisy = gumbel(logits, temperature, torch.Generator().manual_seed(0))
    tokens = noisy.argmax(-1)
    noisy[..., EOS] = logits[..., EOT] = -torch.inf
    return tokens, logits.softmax(-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def test_b01_end_tokens_last_depends_on_temperature():
    """No effect on the end token above temperature 0; at 0 probabilities are renormalised and the score is 0."""
    p = END_PRONE.softmax(-1)
    tokens, score = end_tokens_last_as_published(END_PRONE, 0.7)
    ends = tokens == EOS
    assert bool(ends.any()) and bool((score[ends] >= p[..., EOS][ends]).all())  # as if the option were off
    assert bool(ends[score.argmax()])
    tokens, score = end_tokens_last_as_published(END_PRONE, 0.0)
    assert set(score[tokens == EOS].tolist()) == {0.0}  # which is not below a token of probability 0
    assert bool((score > 0.65)[tokens == 0].all())  # 0.55 in the model's law; a threshold of 0.65 now takes it


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_b01_end_tokens_come_last_at_every_temperature(slots, temperature):
    model = TableDenoiser(torch.nn.functional.pad(END_PRONE, (0, 1), value=-50.0), mask_id=MASK, eos_ids=(EOS, EOT))
    config = presets.llada(8, temperature=temperature, eos="last")
    out = generate(model, [[]] * 20, config.replace(stop=LengthStop(), record=Record(proposals=True)), keys=3)
    ends = (out.sequences == EOS) | (out.sequences == EOT)
    assert bool((out.scores[ends] == -torch.inf).all()) and bool(ends.any()) and bool((~ends).any())
    torch.testing.assert_close(out.scores[~ends], out.logprobs[~ends].exp())  # nothing is renormalised
    proposed = out.proposals
    other = (proposed.new != EOS) & (proposed.new != EOT)
    choice = set(zip(proposed.row[other].tolist(), proposed.step[other].tolist(), strict=True))
    rows, places = ends.nonzero(as_tuple=True)
    assert not choice & set(zip(rows.tolist(), out.step_map[rows, places].tolist(), strict=True))
    assert EosLast(Probability()).score(
        Logits.of(END_PRONE[None]), torch.full((1, 8), EOS), slots(torch.ones(1, 8, dtype=torch.bool), eos_ids=(EOS,))
    ).tolist() == [[-math.inf] * 8]


def test_b10_sign_of_negative_entropy(slots):
    """Two references return +H under the name of -H, and commit the most uncertain position first."""
    law = torch.tensor([[[0.97, 0.01, 0.01, 0.01], [0.25, 0.25, 0.25, 0.25]]], dtype=torch.float64)
    published = -(law * (law + 1e-10).log()).sum(-1)
    assert published[0].argmax() == 1
    opened = slots(torch.ones(1, 2, dtype=torch.bool))
    score = NegEntropy().score(Logits.of(law.log()), law.argmax(-1), opened)
    assert score[0].argmax() == 0 and bool((score <= 0).all())
    torch.testing.assert_close(score, (law * law.log()).sum(-1))
    table = torch.nn.functional.pad(law[0].flip(0).log(), (0, 1), value=-50.0)
    out = generate(TableDenoiser(table, mask_id=4), [[]], presets.dllm_rl(2, 2, target="neg_entropy", temperature=1.0))
    assert out.step_map.tolist() == [[1, 0]]


def test_b11_half_precision_noise_loses_the_tail(slots):
    """Zipf law over 4096 tokens: 0.065 of the mass lies beyond rank 100. In bfloat16 u takes 256 values."""
    logits = ZIPF.to(torch.bfloat16)
    u = torch.rand(2000, 4096, generator=torch.Generator().manual_seed(0), dtype=torch.bfloat16)
    published = (logits.exp() / -u.log()).argmax(-1)
    law = logits.double().softmax(-1)
    tail, top = float(law[100:].sum()), float(law[0])
    assert float((published >= 100).double().mean()) < tail / 4
    assert float((published == 0).double().mean()) > top + 0.04
    opened = torch.ones(1000, 1, dtype=torch.bool)
    ours = torch.cat(
        [
            Categorical().propose(Logits.of(logits.expand(1000, 1, -1)), slots(opened, step=step)).tokens
            for step in range(8)
        ]
    )
    for share, mass in ((ours >= 100, tail), (ours == 0, top)):
        assert abs(float(share.double().mean()) - mass) < 4 * math.sqrt(mass * (1 - mass) / 8000)


def test_b14_temperature_zero_is_no_draw():
    """The published code skips the division by 0 and still draws, at temperature 1."""
    table = torch.nn.functional.pad(torch.linspace(0, 1, 20), (0, 1), value=-50.0).expand(8, 21)
    published = torch.multinomial(table[:, :20].softmax(-1), 1, generator=torch.Generator().manual_seed(0))
    assert not bool((published == 19).all())
    model = TableDenoiser(table, mask_id=20)
    out = generate(model, [[]] * 3, presets.llada2(8, 4, 4, temperature=0.0).replace(cache=presets.llada(4).cache))
    assert bool((out.completions == 19).all())
    assert isinstance(presets.llada2(8, temperature=0.0).proposer, Greedy)


def ended_as_published(canvas, prompt, eos, early):
    """What the published loop returns, and whether it stops: the whole row is searched, the shape depends on how."""
    found = bool((canvas == eos).any())
    if found and early:
        return canvas[:, : int((canvas == eos).nonzero()[0, 1]) + 1], True
    return canvas[:, prompt:], found


def test_b14_end_tokens_of_the_prompt_and_the_shape_of_the_output():
    model = ToyDenoiser.random(block_length=4, eos_bias=-20.0)
    eos = model.eos_ids[0]
    prompt = [3, eos, 5, eos, 6]  # a conversation of several turns
    canvas = torch.tensor([prompt + [model.mask_id] * 11])
    returned, stopped = ended_as_published(canvas, 5, eos, early=True)
    assert stopped and returned.shape[1] < 5  # before the first token
    assert ended_as_published(canvas[:, [0, 2, 4, *range(5, 16)]], 3, eos, early=True)[0].shape[1] == 11
    config = presets.llada2(11, 4, 4)
    out = generate(model, [prompt], config)
    assert out.finish_reason == ("length",) and out.completions.shape == (1, 11) and bool(out.completion_mask.all())
    assert out.sequences[0, :5].tolist() == prompt
    model = ToyDenoiser.random(block_length=4, eos_bias=20.0)
    early = generate(model, [prompt], config)
    assert early.finish_reason == ("eos",) and early.completions.shape == (1, 11) and early.stop_length.tolist() == [1]
    assert early.sequences.shape == out.sequences.shape


def test_b15_temperature_zero_crashes_and_the_entropy_bound_is_dead_code(slots):
    """Division by 0, then a draw from NaN; and an "entropy" of the drawn tokens' probabilities over positions."""
    law = torch.tensor([[0.97, 0.02, 0.01], [0.9, 0.05, 0.05], [0.4, 0.3, 0.3]], dtype=torch.float64)
    with pytest.raises(RuntimeError, match="probability tensor contains"):
        torch.multinomial((law.log() / 0.0).softmax(-1), 1)
    confidence = law.amax(-1)[None]
    published = -(confidence * confidence.log()).sum(-1)
    assert published.shape == (1,)
    with pytest.raises(IndexError):
        published.sort(dim=1)  # there is nothing to put in order

    table = torch.nn.functional.pad(law.log(), (0, 1), value=-50.0)
    model = TableDenoiser(table, mask_id=3)
    entropy = torch.special.entr(law).sum(-1)
    gamma = float(entropy[0] + entropy[1]) + 1e-6
    for strategy in ("static", "dynamic", "sequential", "entropy_bounded"):
        config = presets.sdar(3, 3, strategy=strategy, gamma=gamma, temperature=0.0)
        out = generate(model, [[]], config.replace(cache=presets.llada(4).cache))
        assert out.completions.tolist() == [[0, 0, 0]]
    assert out.step_map.tolist() == [[0, 0, 1]]


def test_b18_gamma_counts_the_steps_of_the_response(slots):
    """The reference divides the step inside the block by the steps of the response: with two blocks it ends at 0.66."""
    logits, tokens = Logits.of(END_PRONE[None]), torch.full((1, 8), EOS)
    opened = torch.ones(1, 8, dtype=torch.bool)
    plain = Probability().score(logits, tokens, slots(opened))
    gammas = []
    for step in range(8):
        now = replace(slots(opened, step=step, eos_ids=(EOS,)), block_step=torch.tensor([step % 4]), total_steps=8)
        gammas.append(float((EosScaled(Probability()).score(logits, tokens, now) / plain).mean()))
    published = [0.4 + 0.6 * (step % 4) / 7 for step in range(8)]
    assert max(published) < 0.7 and published[4] < published[3]
    assert gammas == pytest.approx([0.4 + 0.6 * step / 7 for step in range(8)])
    model = ToyDenoiser.random(eos_bias=20.0)  # nothing but end tokens, in a decode of two blocks
    out = generate(model, [[1]], presets.eoser(8, 4, 8).replace(stop=LengthStop()))
    ratio = (out.scores / out.logprobs.exp()).gather(1, out.step_map.argsort().long())[0]
    assert ratio.tolist() == pytest.approx(gammas)


def test_b20_ties_go_to_the_lowest_position(slots):
    """torch.topk leaves the order of equal values open; argmax and topk of the same values differ."""
    picks = [torch.full((n,), 0.5).topk(3).indices.sort().values.tolist() for n in range(4, 70)]
    assert any(pick != [0, 1, 2] for pick in picks)
    assert any(int(torch.full((n,), 0.5).topk(1).indices) != int(torch.full((n,), 0.5).argmax()) for n in range(4, 70))
    for n in range(4, 70):
        opened = slots(torch.ones(1, n, dtype=torch.bool))
        for quota in (1, 3):
            pick = TopK().select(torch.full((1, n), 0.5), opened, torch.tensor([quota]))
            assert pick[0].nonzero().flatten().tolist() == list(range(quota))


def test_b20_half_precision_confidence_ties_where_there_is_an_order(slots):
    """bfloat16 has 128 values in [0.5, 1): distinct logits, equal confidence. Scores are computed in float32 here."""
    lead = torch.linspace(2, 6, 40).bfloat16()
    logits = torch.zeros(1, 40, 2, dtype=torch.bfloat16)
    logits[..., 0] = lead
    assert len(lead.unique()) == 40
    published = logits.softmax(-1)[..., 0]
    assert len(published.unique()) < 30
    tokens = torch.zeros(1, 40, dtype=torch.int64)
    for scorer in (Probability(), Margin()):
        score = scorer.score(Logits.of(logits), tokens, slots(torch.ones(1, 40, dtype=torch.bool)))
        assert bool((score.diff(dim=-1) > 0).all())


class NoDouble(TorchFunctionMode):
    """Tensors say they are on an accelerator without float64, and without a generator to trust."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func == torch.Tensor.device.__get__:
            return torch.device("mps")
        name = getattr(func, "__name__", "")
        if name in {"rand", "randn", "rand_like", "exponential_", "uniform_", "normal_", "multinomial", "bernoulli"}:
            raise AssertionError(f"torch.{name}: this device's generator may return 0")
        args = tuple(map(self.here, args))
        out = func(*args, **{key: self.here(value) for key, value in (kwargs or {}).items()})
        if isinstance(out, torch.Tensor) and out.dtype == torch.float64:
            raise TypeError(f"{name}: this device has no float64")
        return out

    @staticmethod
    def here(value):
        return torch.device("cpu") if isinstance(value, torch.device) else value


FULL = {
    "llada": presets.llada(8, 4, 4, temperature=0.7, eos="last"),
    "guided": presets.llada(8, 4, 4, guidance=1.0),
    "dream": presets.dream(8),
    "dream_origin": presets.dream(8, alg="origin", temperature=1.0),
    "fast_dllm_dual": presets.fast_dllm(8, 4, cache="dual", temperature=0.7),
    "fast_dllm_factor": presets.fast_dllm(8, 4, factor=1.0),
    "dinfer": presets.dinfer(8, 4, "hierarchy", remask=0.4),
    "dinfer_credit": presets.dinfer(8, 4, "credit"),
    "dinfer_smoothing": presets.dinfer(8, 4, "smoothing"),
    "rcr": presets.rcr(8, steps=4, gamma="cosine"),
    "remdm": presets.remdm(8, 8),
    "eoser": presets.eoser(8, 4, 8),
    "ascending": presets.ascending(8, gamma_min=0.01),
    "dllm_rl": presets.dllm_rl(8, 4, further_horizon=4, cache=True, pad_penalty=2.0),
}
CAUSAL = {
    "sdar": presets.sdar(8, 4),
    "sdar_entropy": presets.sdar(8, 4, strategy="entropy_bounded"),
    "llada21": presets.llada21(gen_length=8, block_length=4, mode="speed"),
}


@pytest.mark.parametrize("name", [*FULL, *CAUSAL])
def test_b21_devices_without_float64(name):
    """The published noise casts the whole vocabulary to float64. Simulated: the mode above, not such a device."""
    logits = torch.randn(2, 4, 24, generator=torch.Generator().manual_seed(0))
    with NoDouble(), pytest.raises(TypeError, match="no float64"):
        gumbel(logits, 0.7, torch.Generator().manual_seed(0))
    model = TinyTransformer.random(
        dtype=torch.float32,
        attention="full" if name in FULL else "block_causal",
        block_length=None if name in FULL else 4,
    )
    config = (FULL | CAUSAL)[name].replace(stop=LengthStop())
    with NoDouble():
        out = generate(model, [[1, 2, 3], [4]], config)
    assert not bool(out.state.open.any())
    assert {tensor.dtype for tensor in (out.logprobs, out.sample_logprobs, out.scores)} == {torch.float32}


def test_b21_a_generator_that_returns_zero():
    """An exponential race p / E takes any token whose E is 0; uniform numbers here are never 0 or 1."""
    p = torch.tensor([0.999, 0.001])
    assert int((p / torch.tensor([1.0, 0.0])).argmax()) == 1
    keys = torch.arange(1 << 20)
    for dtype in (torch.float32, torch.float64):
        u = uniform(keys, "token", dtype=dtype)
        assert float(u.min()) > 0 and float(u.max()) < 1
    for bits, dtype in ((23, torch.float32), (52, torch.float64)):  # the extreme words
        low, high = ((torch.tensor(word).to(dtype) + 0.5) * 2.0**-bits for word in (0, 2**bits - 1))
        assert float(low) > 0 and float(high) < 1


def test_b28_edits_in_place_leak_into_what_is_recorded():
    """-inf at the end token, written into the logits that the log-probability is then read from."""
    table = torch.randn(6, 7, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    table[:, MASK], table[:, EOS] = -50.0, 2.0
    raw = table.log_softmax(-1)
    shared = table.clone()
    view = shared[None]
    view[..., EOS] = -torch.inf
    token = int(view[0, 0].argmax())
    assert float(shared[0].log_softmax(-1)[token]) > float(raw[0, token]) + 0.3
    assert shared[0, EOS] == -torch.inf  # the caller's tensor

    rules = ((Suppress((EOS,)),), (RepeatPenalty(3.0),), (Suppress((EOS,)), RepeatPenalty(1.0)))
    for number, given in enumerate(rules):
        served = table.clone()
        model = TableDenoiser(served, mask_id=MASK, eos_ids=(EOS,))
        model.logits = lambda ids, positions, blocks, rows, documents=None, served=served: served[None]
        config = presets.llada(6, 6, 1, temperature=0.5).replace(rules=given, stop=LengthStop())
        out = generate(model, [[]], config, keys=number)
        assert torch.equal(served, table)
        torch.testing.assert_close(out.logprobs[0], raw.gather(1, out.sequences.T)[:, 0])
    guided = presets.llada(6, 6, 1).replace(guidance=Guidance(2.0), stop=LengthStop())
    model = ToyDenoiser.random()
    out = generate(model, [[3, 4]], guided)
    ids = out.canvas_at(0)
    logits = model(ids, positions=torch.arange(8)[None], rows=torch.arange(2, 8)[None])
    torch.testing.assert_close(out.logprobs, logits.log_softmax(-1).gather(2, out.sequences[:, 2:, None])[..., 0])
