"""What users of such software run into."""

from itertools import product

import pytest
import torch
from strategies import BLOCK, PROMPTS, keys_of, padded

from dare_samplers import EosStop, LengthStop, RandomScore, SamplerConfig, Suppress, Threshold, generate, presets
from dare_samplers.caches import BlockKV, Dual, Horizon, NoCache, Prefix, Vicinity
from dare_samplers.proposers import Categorical, Greedy
from dare_samplers.rules import LogitsHook
from dare_samplers.scorers import EosLast, Probability
from dare_samplers.testing import AdversarialDenoiser, TableDenoiser, TinyTransformer
from dare_samplers.trace import Record

# ------------------------------------------------------------------------------------- batch and padding invariance

SAMPLERS = {
    "full": {"block_length": 12, "steps": 6},
    "block": {"block_length": 4, "steps": 6},
    "threshold": {"block_length": 4, "selector": Threshold(0.4)},
    "prefix": {"block_length": 4, "selector": Threshold(0.4), "cache": Prefix()},
    "dual": {"block_length": 4, "selector": Threshold(0.4), "cache": Dual()},
}


@pytest.mark.wheel
@pytest.mark.parametrize("attention", ["full", "block_causal"])
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_prompts_of_any_length_decode_alike_alone_and_together(sampler, attention):
    """Prompts of 3, 9 and 14 ids, two orders, 1 and 7 extra pad columns, pads left, right and nowhere."""
    causal = attention == "block_causal"
    config = SamplerConfig(gen_length=12, **SAMPLERS[sampler]).replace(grid="zero" if causal else "prompt")
    if causal:
        config = config.replace(block_length=BLOCK)
    model = padded(attention, 0, 0, 0)
    singles = [generate(model, [PROMPTS[row]], config, keys=keys_of([row])) for row in range(3)]
    runs = [((0, 1, 2), "left", (0, 0)), ((2, 0, 1), "right", (1, 0)), ((1, 2, 0), "packed", (0, 7))]
    for rows, layout, pads in runs:
        wide = padded(attention, 0, *pads)
        out = generate(wide, [PROMPTS[row] for row in rows], config.replace(layout=layout), keys=keys_of(rows))
        for place, row in enumerate(rows):
            width, single = singles[row].step_map.shape[1], singles[row]
            assert out.sequences[place][out.valid[place]].tolist() == single.sequences[0][single.valid[0]].tolist()
            assert out.step_map[place, :width].tolist() == single.step_map[0].tolist()
            assert int(out.row_nfe[place]) == int(single.row_nfe[0])
            torch.testing.assert_close(out.logprobs[place, :width], single.logprobs[0], rtol=0, atol=1e-10)


@pytest.mark.parametrize("layout", ["left", "right", "packed"])
def test_no_gap_between_prompt_and_response(layout):
    out = generate(padded("full", 0, 0, 0), PROMPTS, SamplerConfig(gen_length=4, block_length=4, layout=layout))
    for row, prompt in enumerate(PROMPTS):
        real = torch.arange(out.sequences.shape[1])[out.valid[row]]
        assert bool((real.diff() == 1).all()) and out.prompt_mask[row].sum() == len(prompt)
        assert out.sequences[row][real[: len(prompt)]].tolist() == prompt


def test_a_finished_row_is_frozen():
    model, rows = padded("block_causal", 0, 0, 0), (0, 1, 2)
    config = SamplerConfig(gen_length=16, block_length=4, steps=8, grid="zero", cache=Dual())
    out = generate(model, PROMPTS, config, keys=keys_of(rows))
    first = int(out.row_nfe.argmin())
    assert out.row_nfe.min() < out.row_nfe.max()
    early = generate(model, PROMPTS, config, keys=keys_of(rows), until_step=int(out.row_nfe.min()))
    assert early.finish_reason[first] == "eos"
    for name in ("sequences", "step_map", "logprobs"):
        assert torch.equal(getattr(early, name)[first], getattr(out, name)[first])


# ------------------------------------------------------------------------------------------------- end token policy

CONTENT, EOS, EOT, OTHER, TINY_MASK = 0, 1, 2, 3, 4
ORDERS, TEMPERATURES = ("low_confidence", "random", "threshold"), (0.0, 0.7)
POLICIES = list(product((EOS, EOT), ORDERS, TEMPERATURES))


def end_prone(end: int, content_at: tuple[int, ...] = ()) -> TableDenoiser:
    """`end` has probability 0.99, content 0.6 of the rest; the other way round at the positions `content_at`."""
    weight = torch.full((16, 5), 1e-9, dtype=torch.float64)
    weight[:, CONTENT], weight[:, OTHER], weight[:, EOS], weight[:, EOT] = 0.006, 0.002, 0.001, 0.001
    weight[:, end] = 0.99
    for position in content_at:
        weight[position, CONTENT], weight[position, end] = 0.6, 0.4
    return TableDenoiser(weight.log(), mask_id=TINY_MASK, eos_ids=(EOS, EOT))


def policy(name: str, order: str, temperature: float, block: int = 4) -> SamplerConfig:
    config = SamplerConfig(
        gen_length=8,
        block_length=block,
        proposer=Categorical(temperature) if temperature else Greedy(),
        scorer=RandomScore() if order == "random" else Probability(),
        rules=(Suppress((EOS, EOT)),) if name == "never" else (),
        record=Record(proposals=True),
    )
    if order == "threshold":
        config = config.replace(selector=Threshold(0.9))
    return config.replace(scorer=EosLast(config.scorer)) if name == "last" else config


@pytest.mark.parametrize(("end", "order", "temperature"), POLICIES)
def test_end_tokens_off_counts_the_empty_answer(end, order, temperature):
    out = generate(end_prone(end), [[0]] * 4, policy("off", order, temperature), keys=1)
    assert out.stop_length.tolist() == [1] * 4 and out.completion_mask.sum(-1).tolist() == [1] * 4
    assert out.completions[:, 0].tolist() == [end] * 4
    assert out.finish_reason == ("eos",) * 4


@pytest.mark.wheel
@pytest.mark.parametrize(("end", "order", "temperature"), POLICIES)
def test_end_tokens_never(end, order, temperature):
    """No end token, and probabilities over the rest: content has 0.6 of it, so no threshold of 0.9 is reached."""
    out = generate(end_prone(end), [[0]] * 4, policy("never", order, temperature), keys=1)
    allowed = {CONTENT} if temperature == 0 else {CONTENT, OTHER}
    assert set(out.completions.flatten().tolist()) <= allowed
    assert out.finish_reason == ("length",) * 4
    assert out.row_nfe.tolist() == [8] * 4
    assert bool((out.logprobs.exp() < 0.1).all())


@pytest.mark.parametrize("block", [4, 8])
@pytest.mark.parametrize(("end", "order", "temperature"), POLICIES)
def test_end_tokens_last(end, order, temperature, block):
    """No step commits an end token while content is proposed anywhere in the window."""
    model = end_prone(end, content_at=(2, 4, 5, 8))
    out = generate(model, [[0]] * 4, policy("last", order, temperature, block).replace(stop=LengthStop()), keys=1)
    ends = torch.isin(out.events.new, torch.tensor([EOS, EOT]))
    assert bool(ends.any()) and not bool(ends.all())
    proposed = out.proposals
    current = {(int(s), int(r)): int(p) // block for s, r, p in zip(*out.events[:3], strict=True)}
    for step, row in {(int(s), int(r)) for s, r in zip(out.events.step[ends], out.events.row[ends], strict=True)}:
        here = (proposed.step == step) & (proposed.row == row) & (proposed.position // block == current[step, row])
        assert bool(torch.isin(proposed.new[here], torch.tensor([EOS, EOT])).all())
    if temperature == 0:
        token, index = out.state.tokens.gather(1, out.state.columns), out.block_id
        for row, number in product(range(4), range(8 // block)):
            steps, content = out.step_map[row][index[row] == number], token[row][index[row] == number] == CONTENT
            assert steps[content].max() < steps[~content].min()


@pytest.mark.parametrize("name", ["off", "never", "last"])
@pytest.mark.parametrize(("order", "temperature"), list(product(ORDERS, TEMPERATURES)))
def test_the_two_end_tokens_are_symmetric(name, order, temperature):
    first, second = (
        generate(end_prone(end, (2, 5)), [[0], []], policy(name, order, temperature), keys=1) for end in (EOS, EOT)
    )
    swap = torch.tensor([CONTENT, EOT, EOS, OTHER, TINY_MASK])
    assert torch.equal(first.step_map, second.step_map)
    torch.testing.assert_close(first.scores, second.scores)
    assert first.finish_reason == second.finish_reason
    if temperature == 0:
        assert torch.equal(swap[first.completions], second.completions)


@pytest.mark.parametrize("name", ["off", "never", "last"])
def test_the_presets_have_the_policies(name):
    preset = presets.llada(8, 4, eos=name, eos_ids=(EOS, EOT))
    own = policy(name, "low_confidence", 0.0)
    runs = [generate(end_prone(EOS, (2, 5)), [[0]], config, keys=1) for config in (preset, own)]
    assert torch.equal(runs[0].sequences, runs[1].sequences) and torch.equal(runs[0].step_map, runs[1].step_map)


# ------------------------------------------------------------------------------------------------- no stranded mask

LENGTHS, BLOCKS, STEPS = (1, 7, 8, 12), (1, 3, 4, 8, 12, 16), (1, 2, 5, 12, 20)
WILD = AdversarialDenoiser()
WILD_PROMPTS = ([WILD.mask_id, 1, 2], [5], [])


def assert_filled(config: SamplerConfig, rows: int) -> None:
    """Every slot holds one token, written once, block after block, and nothing else has changed."""
    prompts = WILD_PROMPTS[:rows]
    out = generate(WILD, prompts, config, keys=config.steps or 0)
    slots = (out.state.block >= 0).sum(-1)
    assert not bool((out.state.tokens[out.state.block >= 0] == WILD.mask_id).any())
    assert torch.equal((out.step_map >= 0).sum(-1), slots) and torch.equal(out.n_writes.sum(-1), slots)
    assert bool((slots >= config.gen_length).all()) and int(out.row_nfe.max()) <= int(slots.max())
    assert set(out.finish_reason) == {"length"}
    for row, prompt in enumerate(prompts):
        assert out.sequences[row][out.prompt_mask[row]].tolist() == prompt
    later = (out.block_id[:, :, None] < out.block_id[:, None, :]) & (out.block_id >= 0)[:, :, None]
    assert bool((out.step_map[:, :, None] < out.step_map[:, None, :])[later].all())


def variants(config: SamplerConfig) -> list[SamplerConfig]:
    """The orders and laws with the same sizes."""
    changes = [{}, {"scorer": RandomScore(), "proposer": Categorical(1.0)}]
    if config.steps is None:
        changes += [{"selector": Threshold(0.3)}, {"selector": Threshold(2.0), "proposer": Categorical(0.5)}]
    return [config.replace(stop=LengthStop(), **change) for change in changes]


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("length", LENGTHS)
def test_no_stranded_mask(length, rows):
    """Any sizes on the prompt's grid: either refused with a remedy that works, or all slots are filled."""
    for number, (block, steps) in enumerate(product(BLOCKS, (None, *STEPS))):
        blocks = length // block
        if length % block:
            with pytest.raises(
                ValueError, match=rf"`block_length`={block} .*; choose one of 1\b.*\b{length}$|choose one of 1$"
            ):
                SamplerConfig(gen_length=length, block_length=block, steps=steps)
        elif steps is not None and steps % blocks:
            remedy = max(steps // blocks, 1) * blocks
            with pytest.raises(ValueError, match=rf"`steps`={steps} .*; choose {remedy}\b"):
                SamplerConfig(gen_length=length, block_length=block, steps=steps)
            assert SamplerConfig(gen_length=length, block_length=block, steps=remedy).steps == remedy
        else:
            every = variants(SamplerConfig(gen_length=length, block_length=block, steps=steps))
            for config in every if steps is None and rows > 1 else [every[number % len(every)]]:
                assert_filled(config, rows)


@pytest.mark.parametrize("grid", ["zero", "sizes"])
@pytest.mark.parametrize("length", LENGTHS)
def test_uneven_blocks_leave_no_mask_either(length, grid):
    """The zero grid and explicit sizes take a length that the block does not divide."""
    for number, (block, steps) in enumerate(product(BLOCKS, (None, *STEPS))):
        sizes = (block,) * (length // block) + (length % block,) * bool(length % block)
        chosen = {"block_length": sizes} if grid == "sizes" else {"block_length": block, "grid": "zero"}
        if steps is not None and steps % len(sizes):
            with pytest.raises(ValueError, match=rf"`steps`={steps} .*; choose"):
                SamplerConfig(gen_length=length, steps=steps, **chosen)
            continue
        every = variants(SamplerConfig(gen_length=length, steps=steps, **chosen))
        assert_filled(every[number % len(every)], rows=3)


def test_steps_mean_nothing_to_a_threshold():
    with pytest.raises(ValueError, match="use steps=None"):
        SamplerConfig(gen_length=8, block_length=4, steps=4, selector=Threshold(0.5))


@pytest.mark.parametrize("value", [0.0, 1e30, -1e30])
def test_ties_go_to_the_lowest_slot_and_token(value):
    model = TableDenoiser(torch.full((16, 5), value), mask_id=4)
    out = generate(model, [[1, 2], []], SamplerConfig(gen_length=6, block_length=3))
    assert out.completions.tolist() == [[0] * 6] * 2
    assert out.step_map.tolist() == [list(range(6))] * 2


def test_slots_that_are_never_read_may_hold_nan():
    """NaN anywhere but at the slots asked for changes nothing, and at them it is refused."""
    table = torch.zeros(16, 5).index_fill_(0, torch.tensor([0, 1]), torch.nan)
    out = generate(TableDenoiser(table, mask_id=4), [[1, 2]], SamplerConfig(gen_length=4, block_length=4))
    assert out.finish_reason == ("length",)
    with pytest.raises(ValueError, match="the model returned NaN"):
        generate(TableDenoiser(table, mask_id=4), [[1]], SamplerConfig(gen_length=4, block_length=4))


# --------------------------------------------------------------------------------------------- cached decode exactness

ALWAYS_FRESH = (Dual(1), Prefix(1), Horizon(0, refresh=1), Vicinity(99, 99, 0), Vicinity(0, 0, 99))
STALE = (Dual(), Dual(2), Dual(3), Prefix(), Prefix(2), Horizon(1), Vicinity(1, 2, 1))


def ragged(cache, attention="full", layout="right", shift=0) -> SamplerConfig:
    """Rows that are soon in different blocks with different sets of open slots."""
    return SamplerConfig(
        gen_length=12,
        block_length=4,
        grid="zero" if attention == "block_causal" else "prompt",
        layout=layout,
        selector=Threshold(0.45),
        cache=cache,
        stop=LengthStop(),
    )


def blocks_of(out, step):
    """The block that each row works on at one of its steps."""
    return [int(out.block_id[row][out.step_map[row] >= step].min()) for row in range(len(out.row_nfe))]


def drift(model, out) -> float:
    """Largest difference of a recorded log-probability from that of a full forward on the same canvas."""
    worst = 0.0
    for step, canvas in zip(range(int(out.row_nfe.max())), out.history(), strict=False):
        positions = out.state.positions
        blocks = None if model.block_length is None else positions.div(model.block_length, rounding_mode="floor").int()
        rows = torch.arange(canvas.shape[1]).expand_as(canvas)
        logp = model(canvas, positions=positions, blocks=blocks, rows=rows).log_softmax(-1)
        token = out.state.tokens.unsqueeze(-1)
        fresh = logp.gather(-1, token).squeeze(-1).gather(1, out.state.columns)
        here = out.step_map == step
        worst = max(worst, float(((fresh - out.logprobs).abs() * here).max()))
    return worst


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("cache", ALWAYS_FRESH, ids=repr)
def test_a_cache_that_is_always_fresh_is_exact(cache, shift):
    model = padded("full", shift, 0, 0)
    plain = generate(model, PROMPTS, ragged(NoCache()))
    assert len(set(blocks_of(plain, 3))) > 1
    out = generate(model, PROMPTS, ragged(cache))
    assert torch.equal(out.sequences, plain.sequences) and torch.equal(out.step_map, plain.step_map)
    torch.testing.assert_close(out.logprobs, plain.logprobs, rtol=0, atol=1e-10)
    assert drift(model, out) <= 1e-10


@pytest.mark.parametrize("cache", STALE, ids=repr)
def test_a_stale_cache_drifts_by_a_finite_amount(cache, record_property):
    """Full attention: the drift is a number to look at, not an error; no set of rows has a shape of its own."""
    model = padded("full", 0, 0, 0)
    out = generate(model, PROMPTS, ragged(cache))
    amount = drift(model, out)
    record_property("drift", amount)
    assert 1e-6 < amount < 50
    assert bool(out.logprobs.isfinite().all()) and bool((out.step_map >= 0).all())


@pytest.mark.parametrize("cache", [*STALE, BlockKV(), BlockKV("separate"), BlockKV(final_commit=True)], ids=repr)
@pytest.mark.parametrize("layout", ["left", "packed"])
def test_every_cache_is_exact_under_block_causal_attention(cache, layout):
    model = padded("block_causal", 0, 0, 0)
    plain = generate(model, PROMPTS, ragged(NoCache(), "block_causal"))
    out = generate(model, PROMPTS, ragged(cache, "block_causal", layout))
    assert torch.equal(out.completions, plain.completions) and torch.equal(out.step_map, plain.step_map)
    torch.testing.assert_close(out.logprobs, plain.logprobs, rtol=0, atol=1e-10)


@pytest.mark.parametrize("cache", [Dual(2), Prefix(), Vicinity(1, 1, 1), BlockKV()], ids=repr)
def test_rows_may_resume_at_different_places(cache):
    """A cache that is kept, selected or dropped between two calls."""
    attention = "block_causal" if isinstance(cache, BlockKV) else "full"
    model, config = padded(attention, 0, 0, 0), ragged(cache, attention)
    whole = generate(model, PROMPTS, config)
    half = generate(model, PROMPTS, config, until_step=3)
    for rows in ([0, 1, 2], [2, 0], [1, 1]):
        rest = generate(model, config=config, state=half.state.select(rows))
        for place, row in enumerate(rows):
            assert rest.step_map[place].tolist() == whole.step_map[row].tolist()
            torch.testing.assert_close(rest.logprobs[place], whole.logprobs[row], rtol=0, atol=1e-10)


# -------------------------------------------------------------------------------------------------- prompt alignment


@pytest.mark.parametrize("cache", [BlockKV(), BlockKV("separate")], ids=["fused", "separate"])
@pytest.mark.parametrize("shift", [0, 1])
def test_prompts_of_every_residue(cache, shift):
    """Prompt lengths 5 to 12 on blocks of 4: the first block may hold the prompt's tail, and none of it changes."""
    model = padded("block_causal", shift, 0, 0)
    prompts = [[(3 * i + n) % 20 for i in range(n)] for n in range(5, 13)]
    config = SamplerConfig(gen_length=7, block_length=4, grid="zero", selector=Threshold(0.4), stop=EosStop())
    plain = generate(model, prompts, config)
    out = generate(model, prompts, config.replace(cache=cache))
    for name in ("sequences", "completions", "step_map", "row_nfe", "stop_length"):
        assert torch.equal(getattr(out, name), getattr(plain, name)), name
    torch.testing.assert_close(out.logprobs, plain.logprobs, rtol=0, atol=1e-10)
    for row, prompt in enumerate(prompts):
        assert out.sequences[row][out.prompt_mask[row]].tolist() == prompt
        assert int(out.stop_length[row]) <= 7
        first = out.block_id[row] == 0
        assert int(first.sum()) == 4 - len(prompt) % 4
    assert not bool((out.completions[:, 7:] != model.pad_id).any())


def test_an_empty_prompt_and_one_shorter_than_a_block():
    model = TinyTransformer.random(attention="block_causal", block_length=4)
    config = SamplerConfig(gen_length=8, block_length=4, grid="zero", stop=LengthStop())
    plain = generate(model, [[], [5]], config)
    out = generate(model, [[], [5]], config.replace(cache=BlockKV()))
    assert torch.equal(out.sequences, plain.sequences)


def test_a_hook_that_looks_at_the_canvas_sees_each_row_alone():
    """What a rule may read of a slot is the same alone and in a batch."""
    seen = []

    def hook(logits, slots):
        seen.append((slots.left.tolist(), slots.index.tolist()))
        return logits

    config = SamplerConfig(gen_length=4, block_length=4, rules=(LogitsHook(hook),))
    model = padded("full", 0, 0, 0)
    generate(model, PROMPTS, config, keys=keys_of((0, 1, 2)), until_step=1)
    together = list(zip(*seen.pop(), strict=True))
    for row in range(3):
        generate(model, [PROMPTS[row]], config, keys=keys_of([row]), until_step=1)
        assert list(zip(*seen.pop(), strict=True)) == [together[row]]
