"""The toys: their caches are exact, packed rows are rows, and an offset is aligned."""

import pytest
import torch

from dare_samplers.testing import AdversarialDenoiser, JointDenoiser, TableDenoiser, ToyDenoiser

BLOCK = 3
CANVAS = torch.tensor([[1, 2, 3, 7, 5, 7, 7, 1, 7], [4, 7, 7, 2, 6, 3, 7, 7, 2]])
FULL = ToyDenoiser.random(vocab_size=8, reach=16, seed=2)
CAUSAL = ToyDenoiser.random(vocab_size=8, reach=16, seed=2, block_length=BLOCK)
OFFSET = ToyDenoiser.random(vocab_size=8, reach=16, seed=2, logit_offset=1)
TABLE = TableDenoiser(torch.arange(72, dtype=torch.float64).view(9, 8).sin(), mask_id=7)
MODELS = (FULL, CAUSAL, OFFSET, TABLE, AdversarialDenoiser())
EXACT = {"atol": 1e-10, "rtol": 0.0}


def places(canvas: torch.Tensor) -> torch.Tensor:
    return torch.arange(canvas.shape[1]).expand_as(canvas)


def blocks_of(positions: torch.Tensor) -> torch.Tensor:
    return positions.div(BLOCK, rounding_mode="floor").int()


def call(model, ids, positions, **rest) -> torch.Tensor:
    """Logits at all columns."""
    return model(ids, positions=positions, blocks=blocks_of(positions), rows=places(ids), **rest)


@pytest.mark.parametrize("model", MODELS)
def test_a_cached_forward_is_the_uncached_one(model):
    cache = model.new_cache(2, 9)
    positions = places(CANVAS)
    call(model, CANVAS, positions, cache=cache, write=positions < torch.tensor([[6], [3]]))
    changed = CANVAS.clone()
    changed[0, 6:], changed[1, 3:] = 4, 5
    start = torch.tensor([[5], [2]])
    window = positions.gather(1, start + torch.arange(7).clamp(max=3))
    window = torch.where(torch.arange(7) < torch.tensor([[4], [7]]), start + torch.arange(7), -1)
    got = call(model, changed.gather(1, window.clamp(min=0)), window, cache=cache)
    expected = call(model, changed, positions)
    torch.testing.assert_close(got[0, 1:4], expected[0, 6:], **EXACT)
    torch.testing.assert_close(got[1, 1:], expected[1, 3:], **EXACT)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("cached", [False, True])
def test_packed_is_row_by_row(model, cached):
    caches = [model.new_cache(2, 9) if cached else None for _ in range(2)]
    for first, width in ((0, 5), (3, 6)):
        ids, positions = (one[:, first : first + width] for one in (CANVAS, places(CANVAS)))
        rows = call(model, ids, positions, cache=caches[0], write=positions < 4)
        flat = torch.cat([ids[:1], torch.zeros(1, 1, dtype=torch.int64), ids[1:]], 1)
        places_ = torch.cat([positions[:1], torch.full((1, 1), -1), positions[1:]], 1)
        documents = torch.tensor([[0] * width + [-1] + [1] * width])
        packed = call(model, flat, places_, cache=caches[1], write=places_ < 4, documents=documents)
        torch.testing.assert_close(packed[0, :width], rows[0], **EXACT)
        torch.testing.assert_close(packed[0, width + 1 :], rows[1], **EXACT)


@pytest.mark.parametrize("model", MODELS)
def test_filler_columns_change_nothing(model):
    where = torch.tensor([1, 2, 5, 6, 7, 8, 10, 11, 12])
    ids = torch.full((2, 14), 3).index_copy(1, where, CANVAS)
    positions = torch.full((2, 14), -1).index_copy(1, where, places(CANVAS))
    torch.testing.assert_close(call(model, ids, positions)[:, where], call(model, CANVAS, places(CANVAS)), **EXACT)


@pytest.mark.parametrize("model", [*MODELS, JointDenoiser(torch.full((7, 7), 1 / 49))])
def test_no_columns_asked(model):
    documents = torch.zeros(1, 9, dtype=torch.int64)
    for ids, rest in ((CANVAS, {}), (CANVAS[:1], {"documents": documents})):
        positions = places(ids)
        logits = model(ids, positions=positions, rows=positions[:, :0], cache=model.new_cache(2, 9), **rest)
        assert logits.shape == (len(ids), 0, 8)


def test_select_and_truncate():
    cache = FULL.new_cache(2, 9)
    positions = places(CANVAS)
    call(FULL, CANVAS, positions, cache=cache, write=positions >= 0)
    chosen = cache.select(torch.tensor([1, 1]))
    window = positions[:, 4:]
    expected = call(FULL, CANVAS, positions)[1, 4:]
    torch.testing.assert_close(call(FULL, CANVAS[[1, 1], 4:], window, cache=chosen)[0], expected, **EXACT)
    chosen.truncate(torch.tensor([0, 2]))
    alone = call(FULL, CANVAS[:, 4:], window)
    got = call(FULL, CANVAS[[1, 1], 4:], window, cache=chosen)
    torch.testing.assert_close(got[0], alone[1], **EXACT)
    kept = torch.tensor([[0, 1, 4, 5, 6, 7, 8]])
    torch.testing.assert_close(got[1], call(FULL, CANVAS[1:, kept[0]], kept)[0, 2:], **EXACT)
    torch.testing.assert_close(call(FULL, CANVAS[:, 4:], window, cache=cache)[1], expected, **EXACT)


def test_the_offset_is_aligned():
    assert (OFFSET.left_context, FULL.left_context) == (1, 0)
    plain, got = (call(model, CANVAS, places(CANVAS)) for model in (FULL, OFFSET))
    torch.testing.assert_close(got, torch.cat([plain[:, :1], plain[:, :-1]], 1), **EXACT)


def test_joint_conditionals_in_any_layout():
    model = JointDenoiser(torch.arange(1.0, 9.0, dtype=torch.float64).view(2, 2, 2) / 36)
    ids, positions = torch.tensor([[2, 1, 2], [0, 2, 2]]), places(torch.zeros(2, 3))
    rows = model(ids, positions=positions, rows=positions)
    torch.testing.assert_close(
        rows.exp()[0, 2, 0] / rows.exp()[0, 2].sum(), torch.tensor(10 / 22, dtype=torch.float64), **EXACT
    )
    documents = torch.tensor([[0, 0, 0, 1, 1, 1]])
    flat = (ids.view(1, -1), positions.reshape(1, -1))
    packed = model(flat[0], positions=flat[1], rows=torch.arange(6)[None], documents=documents)
    torch.testing.assert_close(packed.view(2, 3, 3), rows, **EXACT)
    cache = model.new_cache(2, 3)
    model(ids[:, :2], positions=positions[:, :2], rows=positions[:, :1], cache=cache, write=positions[:, :2] >= 0)
    last = model(ids[:, 2:], positions=positions[:, 2:], rows=positions[:, :1], cache=cache)
    torch.testing.assert_close(last[:, 0], rows[:, 2], **EXACT)


def test_counters_and_levels():
    model = ToyDenoiser.random(vocab_size=8, reach=16, count=True)
    call(model, CANVAS, torch.where(places(CANVAS) < 4, places(CANVAS), -1))
    assert (model.batches, model.fed, model.level, model.packs) == ([2], [8], 2, True)
    call(FULL, CANVAS, places(CANVAS))
    assert FULL.fed == []


def test_wrong_cache():
    with pytest.raises(TypeError, match="`cache`: expected what `new_cache` made, got str"):
        call(FULL, CANVAS, places(CANVAS), cache="none")
