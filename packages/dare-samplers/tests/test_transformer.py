"""The tiny transformer: what a real cache, packing and the shift owe, to the last digits of float64."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dare_samplers.testing import PositionCache, TinyTransformer

BLOCK = 4
FULL = TinyTransformer.random(vocab_size=16, seed=3)
CAUSAL = TinyTransformer.random(vocab_size=16, seed=3, attention="block_causal", block_length=BLOCK)
SHIFTED = TinyTransformer.random(vocab_size=16, seed=3, shift=1)
SHIFTED_CAUSAL = TinyTransformer.random(vocab_size=16, seed=3, attention="block_causal", block_length=BLOCK, shift=1)
MODELS = (FULL, CAUSAL, SHIFTED, SHIFTED_CAUSAL)
MASK = FULL.mask_id
CANVAS = torch.tensor(
    [
        [1, 2, 3, 4, 5, 6, 7, 8, 9, MASK, 11, MASK],
        [5, 3, MASK, 4, 8, MASK, 2, MASK, MASK, 1, 6, MASK],
        [9, 9, 1, 13, 2, 12, MASK, MASK, 3, MASK, MASK, 10],
    ]
)
EXACT = {"atol": 1e-10, "rtol": 0.0}


def places(canvas: torch.Tensor) -> torch.Tensor:
    return torch.arange(canvas.shape[1]).expand_as(canvas)


def blocks_of(positions: torch.Tensor) -> torch.Tensor:
    return positions.div(BLOCK, rounding_mode="floor").int()


def whole(model, canvas: torch.Tensor) -> torch.Tensor:
    positions = places(canvas)
    return model(canvas, positions=positions, blocks=blocks_of(positions), rows=positions)


def spans(canvas: torch.Tensor, bounds) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and positions of one span per row, pads behind it."""
    width = max(1, *(end - start for start, end in bounds))
    positions = torch.stack(
        [torch.tensor([*range(start, end), *[-1] * (width - end + start)]) for start, end in bounds]
    )
    return torch.where(positions >= 0, canvas.gather(1, positions.clamp(min=0)), 0), positions


def feed(model, canvas: torch.Tensor, bounds, cache=None, write=None) -> torch.Tensor:
    """Logits `[B, T, V]` at the columns of the canvas, NaN where nothing was fed; `write` is a bound per row."""
    ids, positions = spans(canvas, bounds)
    stored = None if write is None else positions < torch.tensor(write)[:, None]
    logits = model(
        ids, positions=positions, blocks=blocks_of(positions), write=stored, cache=cache, rows=places(positions)
    )
    assert torch.isfinite(logits).all()
    out = torch.full((*canvas.shape, logits.shape[-1]), torch.nan, dtype=logits.dtype)
    for row, (start, end) in enumerate(bounds):
        out[row, start:end] = logits[row, : end - start]
    return out


def equal_at(got: torch.Tensor, expected: torch.Tensor, bounds) -> None:
    for row, (start, end) in enumerate(bounds):
        torch.testing.assert_close(got[row, start:end], expected[row, start:end], **EXACT)


def left_of(model, bounds):
    return [(max(start - model.left_context, 0), end) for start, end in bounds]


@pytest.mark.parametrize(("model", "first"), [(FULL, 0), (CAUSAL, 4)])
def test_a_token_is_seen_from_its_block_on(model, first):
    changed = (whole(model, CANVAS) - whole(model, CANVAS.index_fill(1, torch.tensor([6]), 14))).abs().amax(-1)
    assert (changed[:, :first] == 0).all()
    assert (changed[:, first:] > 1e-6).all()


@pytest.mark.parametrize("model", [CAUSAL, SHIFTED_CAUSAL])
def test_block_cache_is_exact(model):
    cache = model.new_cache(3, 12)
    prompts, first, second = [4, 0, 8], [(4, 8), (0, 4), (8, 12)], [(8, 12), (4, 8), (8, 12)]
    feed(model, CANVAS, [(0, end) for end in prompts], cache, prompts)
    for token in (MASK, 7, 2):
        canvas = CANVAS.clone()
        canvas[0, 5], canvas[1, 2], canvas[2, 9:11] = token, token, token
        equal_at(feed(model, canvas, left_of(model, first), cache), whole(model, canvas), first)
    clean = CANVAS.clone()
    clean[0, 4:8], clean[1, :4] = torch.tensor([6, 1, 1, 13]), torch.tensor([5, 3, 12, 4])
    fused = [(start, end) for (start, _), (_, end) in zip(first, second, strict=True)]
    got = feed(model, clean, left_of(model, fused), cache, [8, 4, 8])
    equal_at(got, whole(model, clean), fused)
    clean[0, 9], clean[1, 5], clean[2, 10] = 3, 2, 1
    equal_at(feed(model, clean, left_of(model, second), cache), whole(model, clean), second)


@pytest.mark.parametrize("model", MODELS)
def test_feeding_everything_is_no_cache(model):
    cache, everything = model.new_cache(3, 14), [(0, 12)] * 3
    feed(model, CANVAS.flip(1), everything, cache, [12, 7, 0])
    equal_at(feed(model, CANVAS, everything, cache, [12] * 3), whole(model, CANVAS), everything)
    window = [(3, 6), (0, 2), (7, 12)]
    equal_at(feed(model, CANVAS, left_of(model, window), cache), whole(model, CANVAS), window)


def test_a_stale_cache_is_noticed():
    cache = FULL.new_cache(3, 12)
    feed(FULL, CANVAS, [(0, 12)] * 3, cache, [12] * 3)
    canvas = CANVAS.index_fill(1, torch.tensor([9]), 3)
    window = [(8, 12)] * 3
    got = feed(FULL, canvas, window, cache)
    assert (got - whole(FULL, canvas))[:, 8:].abs().max() > 1e-3


@pytest.mark.parametrize("model", MODELS)
def test_a_fed_token_hides_the_stored_one_and_no_more(model):
    full, part = model.new_cache(3, 12), model.new_cache(3, 12)
    feed(model, CANVAS, [(0, 12)] * 3, full, [12] * 3)
    feed(model, CANVAS, [(0, 12)] * 3, part, [6] * 3)
    changed, window, later = CANVAS.flip(0), [(6, 12)] * 3, [(9, 12)] * 3
    before = feed(model, changed, later, full)
    equal_at(feed(model, changed, window, full), feed(model, changed, window, part), window)
    equal_at(feed(model, changed, later, full), before, later)
    feed(model, changed, window, full, [12] * 3)
    assert (feed(model, changed, later, full) - before)[:, 9:].abs().max() > 1e-6


@pytest.mark.parametrize("model", MODELS)
def test_select_copies_rows(model):
    cache = model.new_cache(3, 12)
    feed(model, CANVAS, [(0, 6)] * 3, cache, [6, 4, 5])
    window, index = [(5, 9)] * 3, torch.tensor([2, 0, 2, 1])
    expected = feed(model, CANVAS, window, cache)
    chosen = cache.select(index)
    got = feed(model, CANVAS[index], [(5, 9)] * 4, chosen, [9] * 4)
    equal_at(got, expected[index], [(5, 9)] * 4)
    equal_at(feed(model, CANVAS, window, cache), expected, window)
    assert chosen.version == cache.version == model.version
    assert chosen.capacity == cache.capacity == 12


@pytest.mark.parametrize("model", MODELS)
def test_truncate_forgets(model):
    long, short = model.new_cache(3, 12), model.new_cache(3, 12)
    feed(model, CANVAS, [(0, 9)] * 3, long, [9] * 3)
    feed(model, CANVAS, [(0, 9)] * 3, short, [8, 0, 5])
    long.truncate(torch.tensor([8, 0, 5]))
    window = [(9, 12)] * 3
    equal_at(feed(model, CANVAS, window, long), feed(model, CANVAS, window, short), window)


def packed(canvas: torch.Tensor, bounds, gap: int):
    """One row of all spans, `gap` pads behind each, and the documents."""
    ids, positions, documents = [], [], []
    for row, (start, end) in enumerate(bounds):
        ids += [*canvas[row, start:end].tolist(), *[0] * gap]
        positions += [*range(start, end), *[-1] * gap]
        documents += [*[row] * (end - start), *[-1] * gap]
    return (torch.tensor([one]) for one in (ids, positions, documents))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("gap", [0, 2])
def test_packed_is_row_by_row(model, gap):
    bounds = [(0, 12), (0, 3), (0, 9)]
    ids, positions, documents = packed(CANVAS, bounds, gap)
    blocks = blocks_of(positions)
    logits = model(ids, positions=positions, blocks=blocks, rows=places(ids), documents=documents)
    rows = feed(model, CANVAS, bounds)
    expected = torch.cat([rows[row, start:end] for row, (start, end) in enumerate(bounds)])
    torch.testing.assert_close(logits[0, positions[0] >= 0], expected, **EXACT)


@pytest.mark.parametrize("model", MODELS)
def test_packed_with_a_cache_is_row_by_row(model):
    caches = [model.new_cache(3, 12), model.new_cache(3, 12)]
    for bounds in ([(0, 6), (0, 9), (0, 2)], [(5, 12), (3, 6), (1, 5)], [(2, 4), (7, 12), (6, 7)]):
        rows = feed(model, CANVAS, bounds, caches[0], [5, 8, 9])
        ids, positions, documents = packed(CANVAS, bounds, 1)
        logits = model(
            ids,
            positions=positions,
            blocks=blocks_of(positions),
            write=positions < torch.tensor([5, 8, 9])[documents.clamp(min=0)],
            cache=caches[1],
            rows=places(ids),
            documents=documents,
        )
        expected = torch.cat([rows[row, start:end] for row, (start, end) in enumerate(bounds)])
        torch.testing.assert_close(logits[0, positions[0] >= 0], expected, **EXACT)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cached", [False, True])
def test_filler_columns_change_nothing(model, cached):
    caches = [model.new_cache(3, 12) for _ in range(2)] if cached else [None, None]
    where = torch.tensor([1, 2, 3, 6, 7, 8, 9, 10, 11, 14, 15, 17])
    ids = torch.full((3, 19), 5).index_copy(1, where, CANVAS)
    positions = torch.full((3, 19), -1).index_copy(1, where, places(CANVAS))
    for width in (12, 6):
        keep, padded = places(CANVAS)[:, -width:], where[-width:].expand(3, -1)
        plain = model(
            CANVAS[:, -width:],
            positions=keep,
            blocks=blocks_of(keep),
            write=keep % 2 == 0,
            cache=caches[0],
            rows=places(keep),
        )
        far = torch.where(positions >= 12 - width, positions, -1)
        got = model(ids, positions=far, blocks=blocks_of(far), write=far % 2 == 0, cache=caches[1], rows=padded)
        torch.testing.assert_close(got, plain, **EXACT)


@pytest.mark.parametrize(("shifted", "plain"), [(SHIFTED, FULL), (SHIFTED_CAUSAL, CAUSAL)])
def test_the_shift_rolls_the_logits(shifted, plain):
    assert (shifted.left_context, plain.left_context) == (1, 0)
    unshifted = whole(plain, CANVAS)
    rolled = torch.cat([unshifted[:, :1], unshifted[:, :-1]], 1)
    torch.testing.assert_close(whole(shifted, CANVAS), rolled, **EXACT)


@pytest.mark.parametrize("model", [SHIFTED, SHIFTED_CAUSAL])
def test_a_window_needs_its_left_context(model):
    cache = model.new_cache(3, 12)
    feed(model, CANVAS, [(0, 12)] * 3, cache, [12] * 3)
    window = [(4, 8)] * 3
    equal_at(feed(model, CANVAS, left_of(model, window), cache), whole(model, CANVAS), window)
    bare = feed(model, CANVAS, window, cache)
    equal_at(bare, whole(model, CANVAS), [(5, 8)] * 3)
    assert (bare - whole(model, CANVAS))[:, 4].abs().max() > 1e-3


@pytest.mark.parametrize("model", MODELS)
def test_logits_at_any_columns_in_any_order(model):
    rows = torch.tensor([[3, 3, 11, 0], [0, 1, 2, 3], [11, 5, 7, 5]])
    positions = places(CANVAS)
    logits = model(CANVAS, positions=positions, blocks=blocks_of(positions), rows=rows)
    expected = whole(model, CANVAS).gather(1, rows.unsqueeze(-1).expand(-1, -1, 16))
    torch.testing.assert_close(logits, expected, **EXACT)


@pytest.mark.parametrize("model", MODELS)
def test_a_forward_that_only_stores(model):
    caches = [model.new_cache(3, 12) for _ in range(2)]
    everything, window = [(0, 8)] * 3, [(8, 12)] * 3
    feed(model, CANVAS, everything, caches[0], [8] * 3)
    ids, positions = spans(CANVAS, everything)
    nothing = model(
        ids,
        positions=positions,
        blocks=blocks_of(positions),
        write=positions >= 0,
        cache=caches[1],
        rows=positions[:, :0],
    )
    assert nothing.shape == (3, 0, 16)
    equal_at(feed(model, CANVAS, window, caches[1]), feed(model, CANVAS, window, caches[0]), window)


def test_pads_alone_give_finite_logits():
    cache = CAUSAL.new_cache(2, 4)
    nothing = torch.full((2, 3), -1)
    for store in (None, cache):
        logits = CAUSAL(
            torch.zeros_like(nothing),
            positions=nothing,
            blocks=nothing.int(),
            write=torch.ones_like(nothing, dtype=torch.bool),
            cache=store,
            rows=places(nothing),
        )
        assert torch.isfinite(logits).all()
    assert not cache.stored.any()


def test_added_embeddings_take_the_place_of_a_token():
    law = torch.zeros(3, 12, 16).scatter(-1, torch.full((3, 12, 1), 4), 1.0)
    added = torch.where((CANVAS == MASK).unsqueeze(-1), FULL.mix(law) - FULL.embed[MASK], 0.0)
    positions = places(CANVAS)
    got = FULL(CANVAS, positions=positions, rows=positions, added=added)
    torch.testing.assert_close(got, whole(FULL, CANVAS.masked_fill(CANVAS == MASK, 4)), **EXACT)


class NoSync(TorchDispatchMode):
    """Refuses what would wait for a device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        assert func.name().split("::")[1].split(".")[0] not in ("_local_scalar_dense", "nonzero", "masked_select")
        for index in args[1] if func.name().startswith("aten::index") and isinstance(args[1], list | tuple) else ():
            assert index is None or index.dtype != torch.bool
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("model", MODELS)
def test_no_forward_waits_for_the_device(model):
    cache = model.new_cache(3, 12)
    ids, positions = spans(CANVAS, [(0, 5), (2, 9), (0, 0)])
    blocks, write = blocks_of(positions), positions % 2 == 0
    with NoSync():
        model(ids, positions=positions, blocks=blocks, write=write, cache=cache, rows=places(ids))
        cache.select(torch.tensor([0, 2])).truncate(torch.tensor([1, 1]))
        flat, far, documents = (one.view(1, -1) for one in (ids, positions, torch.zeros_like(ids)))
        model(flat, positions=far, blocks=blocks.view(1, -1), rows=places(flat), documents=documents)


def test_counters():
    model = TinyTransformer.random(vocab_size=16, layers=1, count=True)
    feed(model, CANVAS, [(0, 5), (2, 9), (0, 0)])
    feed(model, CANVAS[:1], [(0, 2)])
    assert (model.batches, model.fed) == ([3, 1], [12, 2])
    quiet = model.to("cpu")
    quiet.count = False
    feed(quiet, CANVAS, [(0, 5)] * 3)
    assert (quiet.batches, quiet.fed) == ([3], [])


def test_precisions_agree_and_no_one_proposes_the_mask():
    single = TinyTransformer.random(vocab_size=16, seed=3, dtype=torch.float32)
    assert whole(single, CANVAS).dtype == torch.float32
    torch.testing.assert_close(whole(single, CANVAS).double(), whole(FULL, CANVAS), atol=1e-3, rtol=0)
    assert not (whole(FULL, CANVAS).argmax(-1) == MASK).any()
    ends = TinyTransformer.random(vocab_size=16, eos_bias=50.0)
    assert (whole(ends, CANVAS).argmax(-1) == 14).all()
    sharp = TinyTransformer.random(vocab_size=16, seed=3, sharpness=4.0)
    torch.testing.assert_close(whole(sharp, CANVAS)[..., :14], 4 * whole(FULL, CANVAS)[..., :14], **EXACT)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="`attention`: expected"):
        TinyTransformer.random(attention="block_causal")
    with pytest.raises(ValueError, match="`width`: expected a multiple of 2"):
        TinyTransformer.random(width=30, heads=4)
    with pytest.raises(TypeError, match="`cache`: expected what `new_cache` made, got dict"):
        FULL(CANVAS, positions=places(CANVAS), rows=places(CANVAS), cache={})
    assert PositionCache.of(None) is None
