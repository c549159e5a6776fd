"""How many forwards and tokens a decode costs, against what it must cost at least."""

from itertools import product

import pytest
from strategies import BLOCK, CACHES, PROMPTS, STRATEGIES, Cell, keys_of, padded

from dare_samplers import LengthStop, SamplerConfig, generate
from dare_samplers.caches import BlockKV, Dual, NoCache, Prefix
from dare_samplers.guidance import Guidance
from dare_samplers.proposers import Categorical
from dare_samplers.testing import TinyTransformer

# (prompt, response, block, steps per block)
SIZES = [
    (4, 8, 4, 4),
    (4, 8, 4, 1),
    (8, 12, 4, 2),
    (8, 4, 4, 3),
    (0, 8, 4, 2),
    (3, 8, 4, 2),
    (6, 12, 4, 3),
    (7, 6, 2, 2),
]
GRID = [sizes for sizes in SIZES if sizes[0] % sizes[2] == 0 and sizes[0] > 0]


def counted(attention: str, block: int, shift: int = 0) -> TinyTransformer:
    """A model of its own, which counts."""
    return TinyTransformer.random(
        attention=attention, block_length=None if attention == "full" else block, shift=shift, count=True
    )


def decode(model: TinyTransformer, sizes: tuple[int, int, int, int], cache) -> tuple[int, int]:
    """Forwards and tokens of one prompt, as the model counts them."""
    prompt, length, block, steps = sizes
    config = SamplerConfig(
        gen_length=length,
        block_length=block,
        steps=steps * -(-length // block),
        grid="prompt" if model.attention == "full" else "zero",
        cache=cache,
        stop=LengthStop(),
    )
    out = generate(model, [list(range(1, prompt + 1))], config)
    assert (out.nfe, out.tokens_forwarded) == (len(model.fed), sum(model.fed))
    assert out.finish_reason == ("length",)
    return out.nfe, out.tokens_forwarded


@pytest.mark.wheel
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_no_cache_and_prefix_and_dual_cost_what_they_must(sizes):
    """Ks forwards each; Ks(P + G), K(P + G) + (s - 1) sum (G - k Bk) and K(P + G) + K(s - 1) Bk tokens."""
    P, G, Bk, s = sizes
    K = G // Bk
    assert decode(counted("full", Bk), sizes, NoCache()) == (K * s, K * s * (P + G))
    suffixes = sum(G - k * Bk for k in range(K))
    assert decode(counted("full", Bk), sizes, Prefix()) == (K * s, K * (P + G) + (s - 1) * suffixes)
    assert decode(counted("full", Bk), sizes, Dual()) == (K * s, K * (P + G) + K * (s - 1) * Bk)
    assert decode(counted("full", Bk), sizes, Dual(1)) == (K * s, K * s * (P + G))


@pytest.mark.wheel
@pytest.mark.parametrize("sizes", GRID, ids=str)
def test_block_caches_cost_what_they_must(sizes):
    """Fused: 1 + Ks forwards, P + KsBk + (K - 1) Bk tokens. Separate: K(s + 1), one more with the last block."""
    P, G, Bk, s = sizes
    K = G // Bk
    fused = (1 + K * s, P + K * s * Bk + (K - 1) * Bk)
    separate = (1 + K * (s + 1), P + K * (s + 1) * Bk)
    assert decode(counted("block_causal", Bk), sizes, BlockKV()) == fused
    assert decode(counted("block_causal", Bk), sizes, BlockKV("separate")) == (separate[0] - 1, separate[1] - Bk)
    assert decode(counted("block_causal", Bk), sizes, BlockKV("separate", final_commit=True)) == separate
    assert decode(counted("block_causal", Bk), sizes, BlockKV(final_commit=True)) == (fused[0] + 1, fused[1] + Bk)


@pytest.mark.parametrize(("sizes", "kind"), list(product(SIZES, ["none", "fused", "separate", "final"])), ids=str)
def test_a_block_that_holds_the_prompts_tail_costs_its_own_steps(sizes, kind):
    """r = P mod Bk: the prompt's whole blocks in one forward, if any; K' = ceil((r + G) / Bk) blocks, all of Bk tokens.

    The first has Bk - r slots and takes min(s, Bk - r) forwards.
    """
    P, G, Bk, s = sizes
    r = P % Bk
    K = -(-(r + G) // Bk)
    steps = [min(s, Bk - r)] + [min(s, Bk)] * (K - 1)
    start, first = P - r, int(Bk <= P)
    if kind == "none":
        expected = sum(steps), sum(n * (start + (k + 1) * Bk) for k, n in enumerate(steps))
    else:
        expected = first + sum(steps), start + sum(steps) * Bk + (K - 1) * Bk
    if kind in {"separate", "final"}:
        expected = expected[0] + K - 1, expected[1]
    if kind == "final":
        expected = expected[0] + 1, expected[1] + Bk
    caches = {
        "none": NoCache(),
        "fused": BlockKV(),
        "separate": BlockKV("separate"),
        "final": BlockKV("separate", final_commit=True),
    }
    assert decode(counted("block_causal", Bk), sizes, caches[kind]) == expected


class RightToLeft:
    """The last slot first."""

    def score(self, logits, tokens, slots):
        return slots.index.to(logits.values.dtype)


@pytest.mark.parametrize("cache", [NoCache(), Prefix(), Dual(), BlockKV()], ids=repr)
def test_the_context_of_a_shifted_model_is_one_column(cache):
    """Only where an open slot is the first that is fed: not with a full forward or with the block before."""
    attention = "block_causal" if isinstance(cache, BlockKV) else "full"
    counts = []
    for shift in (0, 1):
        model = counted(attention, 4, shift)
        config = SamplerConfig(
            gen_length=8,
            block_length=4,
            steps=4,
            grid="zero" if attention == "block_causal" else "prompt",
            cache=cache,
            scorer=RightToLeft(),
            stop=LengthStop(),
        )
        counts.append(generate(model, [[5, 1, 4, 2]], config).tokens_forwarded)
    last = 1  # of the two steps of a block, from right to left: the first slot is open in both
    windows = {NoCache: 0, Prefix: 2 * last, Dual: 2 * last, BlockKV: 2 * last + 1}
    assert counts[1] - counts[0] == windows[type(cache)], "one more for the first window behind the prompt"


def test_guidance_costs_twice_and_only_where_it_acts():
    for scale, times in ((0.5, 2), (0.0, 1)):
        model = counted("full", BLOCK)
        config = SamplerConfig(gen_length=8, block_length=4, steps=4, guidance=Guidance(scale), stop=LengthStop())
        out = generate(model, [[1, 2]], config)
        assert (out.nfe, out.tokens_forwarded) == (4, 4 * 10 * times)
        assert model.batches == [times] * 4


@pytest.mark.parametrize("number", range(len(STRATEGIES)), ids=list(STRATEGIES))
def test_every_denoising_forward_commits_something(number):
    """Without a reviser each step of each row has a slot of its own; the test matrix says so for every cache too."""
    strategy, name = list(STRATEGIES)[number], list(CACHES)[number % len(CACHES)]
    causal = name.startswith("block_kv")
    cell = Cell(strategy, name, attention="block_causal" if causal else "full", temperature=0.7)
    out = generate(cell.model(), cell.prompts(range(3)), cell.config(), keys=keys_of(range(3)))
    for row in range(3):
        steps = set(out.events.step[out.events.row == row].tolist())
        if cell.config().reviser is None:
            assert steps == set(range(int(out.row_nfe[row])))
        assert max(steps) <= int(out.row_nfe[row])
    assert out.tpf == int((out.step_map >= 0).sum()) / int(out.row_nfe.sum())
    if name == "none":
        assert out.nfe == int(out.row_nfe.max())
    elif not causal and cell.config().reviser is None:
        assert int(out.row_nfe.max()) <= out.nfe <= waited(out)


def waited(out) -> int:
    """Forwards of a batch whose rows begin every block together: what renewing a cache by whole canvases costs."""
    steps = [
        [len(set(out.step_map[row][out.block_id[row] == block].tolist()) - {-1}) for row in range(len(out.row_nfe))]
        for block in range(int(out.block_id.max()) + 1)
    ]
    return sum(map(max, steps))


@pytest.mark.wheel
@pytest.mark.parametrize("name", ["none", "dual", "prefix", "block_kv", "block_kv_separate"])
def test_a_group_shares_its_first_forwards(name):
    """n completions of one prompt: all that is computed before the first draw is computed once."""
    attention = "block_causal" if name.startswith("block_kv") else "full"
    prompt, n = [5, 1, 4, 2, 6], 6
    config = SamplerConfig(
        gen_length=8,
        block_length=BLOCK,
        grid="zero" if attention == "block_causal" else "prompt",
        proposer=Categorical(1.5),
        cache=CACHES[name],
        stop=LengthStop(),
    )
    single, model = counted(attention, BLOCK), counted(attention, BLOCK)
    generate(single, [prompt], config)
    out = generate(model, [prompt] * n, config, keys=3)
    shared = 2 if attention == "block_causal" else 1
    assert model.batches == [1] * shared + [n] * (len(single.batches) - shared)
    assert model.fed[:shared] == single.fed[:shared]
    assert model.fed[shared:] == [n * one for one in single.fed[shared:]]
    assert out.tokens_forwarded == sum(model.fed) and len({tuple(row) for row in out.completions.tolist()}) > 1


@pytest.mark.parametrize("name", ["none", "dual", "block_kv"])
def test_children_of_a_fork_share_their_next_forward(name):
    attention = "block_causal" if name.startswith("block_kv") else "full"
    config = SamplerConfig(
        gen_length=8,
        block_length=BLOCK,
        grid="zero" if attention == "block_causal" else "prompt",
        proposer=Categorical(1.5),
        cache=CACHES[name],
        stop=LengthStop(),
    )
    model = counted(attention, BLOCK)
    parents = generate(model, [[5, 1, 4, 2], [3, 1, 4, 1]], config, keys=3, until_step=2)
    model.batches.clear()
    model.fed.clear()
    plain = generate(model, config=config, state=parents.state)
    fed = model.fed.copy()
    model.batches.clear()
    model.fed.clear()
    out = generate(model, config=config, state=parents.state.fork(5))
    assert model.batches[0] == 2 and model.fed[0] == fed[0]
    assert set(model.batches[1:]) == {10}
    assert out.tokens_forwarded - parents.tokens_forwarded == sum(model.fed)
    assert out.nfe - parents.nfe == len(model.batches) == plain.nfe - parents.nfe
    for child in range(10):
        past = parents.step_map[child // 5] >= 0
        assert out.step_map[child][past].tolist() == parents.step_map[child // 5][past].tolist()
    assert len({tuple(row) for row in out.completions[:5].tolist()}) > 1


@pytest.mark.parametrize("name", ["none", "dual", "prefix", "vicinity", "horizon"])
def test_finished_rows_leave_the_batch(name):
    """The i-th forward has as many rows as are still running at step i."""
    model = padded("full", 0, 0, 0)
    model.batches.clear()
    config = SamplerConfig(
        gen_length=16, block_length=BLOCK, steps=8, proposer=Categorical(0.7), cache=CACHES[name], layout="left"
    )
    rows = (0, 1, 2, 0, 1, 2)
    prompts = [[*PROMPTS[row], number] for number, row in enumerate(rows)]
    out = generate(model, prompts, config, keys=5)
    assert model.batches == [int((out.row_nfe > step).sum()) for step in range(out.nfe)]
    assert model.batches[-1] < len(rows)


def test_finished_rows_leave_the_block_cache_too():
    model = padded("block_causal", 0, 0, 0)
    model.batches.clear()
    config = SamplerConfig(
        gen_length=16, block_length=BLOCK, steps=16, grid="zero", proposer=Categorical(0.7), cache=BlockKV()
    )
    prompts = [[number + 1] * 4 for number in range(6)]
    out = generate(model, prompts, config, keys=5)
    assert model.batches == [6] + [int((out.row_nfe > step).sum()) for step in range(out.nfe - 1)]
    assert model.batches[-1] < 6
