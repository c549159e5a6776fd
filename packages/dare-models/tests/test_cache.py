"""The cache: what is fed, stored and seen, against forwards without one."""

import pytest
import torch
from safetensors.torch import load_file

from dare_models import PositionCache, load
from dare_models.network import cache_argument, sources
from dare_models.testing import example

TOLERANCE = 3e-5  # golden/README: float64 against the original's float32


@pytest.fixture(scope="module")
def full():
    return example("llada")


@pytest.fixture
def blocky(make_stock):
    return make_stock()


def row(length=16, batch=2, start=3):
    return (torch.arange(batch * length).reshape(batch, length) * 7 + start) % 17


def at(start, end, batch=2):
    return torch.arange(start, end).expand(batch, -1)


def all_of(ids):
    return torch.ones_like(ids, dtype=torch.bool)


def close(one, other, tolerance=1e-10):
    assert float((one - other).detach().abs().max()) <= tolerance


@pytest.mark.wheel
@pytest.mark.parametrize(("name", "stored", "window"), [("prefix", 8, (8, 24)), ("dual", 24, (8, 12))])
@pytest.mark.parametrize(("dtype", "backend"), [("float64", "sdpa"), ("float64", "eager"), ("float32", "sdpa")])
def test_stale_caches_equal_the_original(golden, name, stored, window, dtype, backend):
    lm, tensors = load(golden, dtype=dtype, backend=backend), load_file(golden / "golden.safetensors")
    cache, write = lm.new_cache(2, 24), torch.zeros(2, 24, dtype=torch.bool)
    write[:, :stored] = True
    with torch.no_grad():
        filled = lm(tensors["input_ids"], positions=at(0, 24), write=write, cache=cache)
    close(filled, tensors["logits_full"], TOLERANCE)
    logits = lm(tensors["cache_input_ids"][:, slice(*window)], positions=at(*window), cache=cache)
    close(logits, tensors[f"logits_{name}_cache"], TOLERANCE)


def test_appended_blocks_equal_one_forward(blocky):
    """Prefill, then per block a view and a commit: each equals the whole row under the block mask."""
    ids, cache = row(), blocky.new_cache(2, 16)
    uncached = blocky(ids)
    close(blocky(ids[:, :8], positions=at(0, 8), write=all_of(ids[:, :8]), cache=cache), uncached[:, :8])
    for start in (8, 12):
        block, positions = ids[:, start : start + 4], at(start, start + 4)
        noisy = block.clone()
        noisy[:, 1::2] = blocky.mask_id
        canvas = torch.cat([ids[:, :start], noisy], 1)
        close(blocky(noisy, positions=positions, cache=cache), blocky(canvas)[:, start:])
        close(blocky(block, positions=positions, write=all_of(block), cache=cache), uncached[:, start : start + 4])


def test_a_fused_commit_equals_a_separate_one(blocky):
    ids, (one, two) = row(12), (blocky.new_cache(2, 12) for _ in range(2))
    first, write = ids[:, :4], torch.zeros(2, 8, dtype=torch.bool)
    blocky(first, positions=at(0, 4), write=all_of(first), cache=one)
    close(blocky(ids[:, 4:12], positions=at(4, 12), cache=one), blocky(ids)[:, 4:])
    blocky(first, positions=at(0, 4), write=all_of(first), cache=two)
    write[:, :4] = True
    fused = blocky(ids[:, 4:12], positions=at(4, 12), write=write, cache=two)
    close(fused, blocky(ids)[:, 4:])
    close(blocky(ids[:, 8:], positions=at(8, 12), cache=two), blocky(ids)[:, 8:])


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_fed_tokens_shadow_the_stored_ones(full, backend):
    """A view leaves the cache as it was; a write replaces what was stored."""
    lm = full if backend == "sdpa" else example("llada", backend="eager")
    tolerance = 1e-10 if backend == "sdpa" else 1e-6
    ids, cache = row(), lm.new_cache(2, 16)
    other = ids.clone()
    other[:, 12:] = lm.mask_id
    lm(ids, positions=at(0, 16), write=all_of(ids), cache=cache)
    tail = lm(ids[:, 12:], positions=at(12, 16), cache=cache)
    stale = lm(other[:, 12:], positions=at(12, 16), cache=cache)
    close(lm(ids[:, 12:], positions=at(12, 16), cache=cache), tail, tolerance)
    assert float((stale - tail).abs().max()) > 1e-3
    close(lm(other[:, 12:], positions=at(12, 16), write=all_of(ids[:, 12:]), cache=cache), stale, tolerance)
    before = lm(ids[:, :2], positions=at(0, 2), cache=cache)
    fresh = lm.new_cache(2, 16)
    lm(ids, positions=at(0, 16), write=all_of(ids), cache=fresh)
    assert float((before - lm(ids[:, :2], positions=at(0, 2), cache=fresh)).abs().max()) > 1e-6


def test_everything_fed_is_everything_fresh(full):
    """Whatever is stored, and whatever is written, a forward of the whole row is exact."""
    ids, cache = row(), full.new_cache(2, 16)
    junk = row(start=5)
    full(junk, positions=at(0, 16), write=all_of(junk), cache=cache)
    for write in (None, torch.rand(2, 16) < 0.5, all_of(ids)):
        close(full(ids, positions=at(0, 16), write=write, cache=cache), full(ids))


def test_a_view_of_what_ends_the_row_leaves_it_stored(full):
    """Fed tokens are put down behind the stored ones, never on them."""
    ids, cache = row(), full.new_cache(2, 16)
    full(ids, positions=at(0, 16), write=all_of(ids), cache=cache)
    want = full(ids[:, :3], positions=at(0, 3), cache=cache)
    junk = row(8, start=1)
    full(junk, positions=at(8, 16), cache=cache)
    close(full(ids[:, :3], positions=at(0, 3), cache=cache), want)


@pytest.mark.parametrize("kind", ["full", "block_causal"])
def test_rows_may_feed_different_windows(kind, make_stock):
    lm = make_stock(attention=kind)
    ids, cache = row(), lm.new_cache(2, 16)
    lm(ids, positions=at(0, 16), write=all_of(ids), cache=cache)
    windows = [(4, 8), (9, 16)]
    fed, positions = torch.zeros(2, 7, dtype=torch.int64), torch.full((2, 7), -1)
    for b, (start, end) in enumerate(windows):
        fed[b, : end - start], positions[b, : end - start] = ids[b, start:end] + 1, torch.arange(start, end)
    write = torch.tensor([[True] * 7, [False] * 7])
    together = lm(fed, positions=positions, write=write, cache=cache.select(torch.tensor([0, 1])))
    for b, (start, end) in enumerate(windows):
        alone = lm(
            fed[b : b + 1, : end - start],
            positions=positions[b : b + 1, : end - start],
            write=write[b : b + 1, : end - start],
            cache=cache.select(torch.tensor([b])),
        )
        close(together[b : b + 1, : end - start], alone)


@pytest.mark.parametrize("kind", ["full", "block_causal"])
@pytest.mark.parametrize(("left", "right"), [(5, 0), (0, 3), (2, 2)])
def test_padding_changes_nothing(kind, left, right, make_stock):
    lm = make_stock(attention=kind)
    ids, plain, padded = row(12, 1), lm.new_cache(1, 12), lm.new_cache(2, 12)
    logits = []
    for start, end, write in ((0, 8, True), (8, 12, False)):
        alone = lm(ids[:, start:end], positions=at(start, end, 1), write=ids[:, start:end] >= -write + 1, cache=plain)
        shape = (left, right + 4 * (not write))
        filler = torch.nn.functional.pad(ids[:, start:end], shape, value=lm.pad_id)
        positions = torch.nn.functional.pad(at(start, end, 1), shape, value=-1)
        longer = torch.arange(filler.shape[1]).clamp(max=11)[None]
        both = lm(
            torch.cat([filler, filler]),
            positions=torch.cat([positions, longer if write else positions * 0 - 1]),
            write=torch.full((2, filler.shape[1]), write),
            cache=padded,
        )
        assert both.isfinite().all()
        logits.append((alone, both[:1, left : left + end - start]))
    for alone, both in logits:
        close(both, alone)


def test_select_copies_and_repeats_rows(blocky):
    ids, cache = row(), blocky.new_cache(2, 16)
    empty = cache.select(torch.tensor([1]))
    assert (empty.batch, empty.capacity) == (1, 16)
    blocky(ids[:, :8], positions=at(0, 8), write=all_of(ids[:, :8]), cache=cache)
    chosen = cache.select(torch.tensor([1, 0, 1]))
    block = ids[[1, 0, 1], 8:12]
    uncached = blocky(ids[[1, 0, 1], :12])[:, 8:]
    close(blocky(block, positions=at(8, 12, 3), write=all_of(block), cache=chosen), uncached)
    close(blocky(ids[:, 8:12], positions=at(8, 12), cache=cache), uncached[[1, 0]])


def test_truncate_forgets(blocky):
    ids, cache = row(), blocky.new_cache(2, 16)
    blocky(ids, positions=at(0, 16), write=all_of(ids), cache=cache)
    cache.truncate(torch.tensor([8, 4]))
    fed = torch.stack([ids[0, 8:12], ids[1, 4:8]])
    positions = torch.stack([torch.arange(8, 12), torch.arange(4, 8)])
    got = blocky(fed, positions=positions, cache=cache)
    want = blocky(ids)
    close(got, torch.stack([want[0, 8:12], want[1, 4:8]]))
    assert cache.stored.sum(1).tolist() == [8, 4]


@pytest.mark.parametrize("kind", ["full", "block_causal"])
def test_packed_rows_equal_separate_ones(kind, make_stock):
    """Documents share a forward, and each has its row of the cache."""
    lm = make_stock(attention=kind)
    ids, cache, rows = row(), lm.new_cache(2, 16), lm.new_cache(2, 16)
    for (a, b), write in (((8, 4), True), ((4, 8), False), ((4, 4), True)):
        starts = (0, 0) if (a, b) == (8, 4) else (8, 4)
        parts = [ids[n, s : s + size] for n, (s, size) in enumerate(zip(starts, (a, b), strict=True))]
        spans = [torch.arange(s, s + size) for s, size in zip(starts, (a, b), strict=True)]
        documents = torch.cat([torch.full((a,), 0), torch.full((b,), 1), torch.tensor([-1, -1])])[None]
        fed, positions = (torch.cat([*x, torch.tensor([-1, -1])])[None] for x in (parts, spans))
        fed = fed.clamp(min=0)
        mark = torch.full(fed.shape, write)
        packed = lm(fed, positions=positions, write=mark, cache=cache, documents=documents)
        bare = lm(fed, positions=positions, documents=documents)
        assert packed.isfinite().all()
        for n, (part, span, offset) in enumerate(zip(parts, spans, (0, a), strict=True)):
            single = rows.select(torch.tensor([n]))
            alone = lm(part[None], positions=span[None], cache=single)
            close(packed[:, offset : offset + len(part)], alone)
            if starts == (0, 0):
                close(bare[:, offset : offset + len(part)], alone)
        width = max(a, b)
        side = torch.stack([torch.nn.functional.pad(p, (0, width - len(p))) for p in parts])
        where = torch.stack([torch.nn.functional.pad(s, (0, width - len(s)), value=-1) for s in spans])
        lm(side, positions=where, write=torch.full(side.shape, write), cache=rows)


@pytest.mark.parametrize("kind", ["full", "block_causal"])
def test_the_shift_takes_one_column_of_context(kind, make_stock):
    """With the column before it, a window's aligned logits are those of the whole row."""
    lm = make_stock(attention=kind, logit_offset=1)
    ids, cache = row(), lm.new_cache(2, 16)
    whole = lm(ids)
    raw = make_stock(attention=kind)(ids)
    assert torch.equal(whole[:, 1:], raw[:, :-1])
    assert torch.equal(whole[:, 0], raw[:, 0])
    lm(ids, positions=at(0, 16), write=all_of(ids), cache=cache)
    rows = torch.arange(1, 5).expand(2, -1)
    end = 12 if kind == "block_causal" else 16
    close(lm(ids[:, 7:end], positions=at(7, end), cache=cache, rows=rows), whole[:, 8:12])
    packed = lm(ids.reshape(1, -1), positions=at(0, 16).reshape(1, -1), documents=at(0, 2, 1).repeat_interleave(16, 1))
    close(packed.reshape(whole.shape), whole)


def test_the_shift_stays_inside_a_document():
    positions, documents = torch.tensor([[0, 1, 2, 3, 7]]), torch.tensor([[0, 0, 1, 1, 1]])
    assert sources(positions, documents).tolist() == [[0, 0, 2, 2, 4]]
    assert sources(positions).tolist() == [[0, 0, 1, 2, 4]]


def test_rows_may_write_unequally_where_all_else_is_visible(full):
    """Row 0 commits what row 1 only views; both have no padding and no gap."""
    ids, cache = row(6), full.new_cache(2, 6)
    first = torch.tensor([[0, 1, -1, -1], [0, 1, 2, 3]])
    full(ids[:, :4], positions=first, write=first >= 0, cache=cache)
    fed, write = torch.tensor([[2, 3], [4, 5]]), torch.tensor([[True, True], [False, False]])
    logits = full(ids.gather(1, fed), positions=fed, write=write, cache=cache.select(torch.tensor([0, 1])))
    for b in range(2):
        alone = cache.select(torch.tensor([b]))
        at_b = slice(b, b + 1)
        close(logits[at_b], full(ids[at_b].gather(1, fed[at_b]), positions=fed[at_b], cache=alone))


def test_the_fast_path_sees_all_and_only_where_all_is_visible(blocky):
    ids, cache = row(), blocky.new_cache(2, 16)
    blocky(ids[:, :8], positions=at(0, 8), write=all_of(ids[:, :8]), cache=cache)
    positions, blocks = at(8, 12), at(8, 12) // 4
    assert cache.begin(positions, blocks, None, None).plan.batch == 1  # Full()
    assert cache.begin(positions, blocks, None, None).keys(2) == 12
    for other in (at(8, 16) // 4, at(0, 4) // 4):  # two blocks; a block before one that is stored and not fed
        plan = cache.begin(at(8, 16) if other.shape[1] == 8 else positions, other, None, None).plan
        assert type(plan).__name__ == "BlockCausal"


def test_keys_are_no_more_than_needed(full):
    """Written tokens stand in the store, so that a forward that writes all has no second copy of them."""
    ids, cache = row(), full.new_cache(2, 16)
    assert cache.begin(at(0, 16), None, all_of(ids), None).keys(2) == 16
    full(ids, positions=at(0, 16), write=all_of(ids), cache=cache)
    assert cache.begin(at(0, 16), None, all_of(ids), None).keys(2) == 16
    half = torch.zeros_like(ids, dtype=torch.bool)
    half[:, :8] = True
    assert full.new_cache(2, 16).begin(at(0, 16), None, half, None).keys(2) == 16


def test_cached_logits_have_no_gradient(full):
    cache = full.new_cache(2, 16)
    assert full(row()).requires_grad
    assert not full(row(), positions=at(0, 16), cache=cache).requires_grad
    assert not full.hidden(row(), positions=at(0, 16), cache=cache).requires_grad


def test_stale_caches_are_refused(make_stock):
    lm = make_stock(layers=1)
    ids, cache = row(), lm.new_cache(2, 16)
    lm(ids, positions=at(0, 16), write=all_of(ids), cache=cache)
    with torch.no_grad():
        lm.module.model.layers[0].mlp.up_proj.weight.mul_(1.01)
    with pytest.raises(ValueError, match="a cache of the weights as they are now"):
        lm(ids, positions=at(0, 16), cache=cache)
    lm.version = 7
    cache = lm.new_cache(2, 16)
    assert cache.version == cache.select(torch.tensor([0])).version == 7
    with torch.no_grad():
        lm.module.lm_head.weight.mul_(1.01)
    lm(ids, positions=at(0, 16), cache=cache)
    lm.version = 8
    with pytest.raises(ValueError, match=r"\(version 8\), got one of version 7"):
        lm(ids, positions=at(0, 16), cache=cache)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": at(1, 17)}, "positions below the cache's capacity 16, got 16"),
        ({"positions": at(0, 16, 1), "ids": row(16, 1)}, "expected 2 rows for this cache, got 1"),
        ({"write": all_of(row(8))}, r"`write` of shape \(2, 16\), got \(2, 8\)"),
        ({"ids": row(16, 1), "positions": at(0, 16, 1), "documents": at(0, 16, 1)}, "documents below.* 2 rows, got 15"),
        ({"documents": at(0, 16)}, "one row of packed documents, got 2"),
        ({"plan": object()}, "plan=None with a cache"),
    ],
)
def test_what_does_not_fit_is_refused(full, changes, message):
    call = {"ids": row(), "positions": at(0, 16), "cache": full.new_cache(2, 16), **changes}
    with pytest.raises(ValueError, match=message):
        full(call.pop("ids"), **call)


def test_other_caches_are_refused(full):
    with pytest.raises(TypeError, match="expected a cache from `new_cache`, got object"):
        full(row(), positions=at(0, 16), cache=object())
    with pytest.raises(ValueError, match="expected a `cache` beside `write`"):
        full(row(), positions=at(0, 16), write=all_of(row()))
    for batch, capacity in ((0, 4), (1, 0)):
        with pytest.raises(ValueError, match="of at least 1"):
            full.new_cache(batch, capacity)


def test_recomputed_activations_leave_no_cache(make_stock):
    lm = make_stock(layers=1)
    lm.recompute_activations()
    lm.module.train()
    with pytest.raises(ValueError, match="eval mode"):
        lm(row(), positions=at(0, 16), cache=lm.new_cache(2, 16))


def test_the_argument_is_read_from_the_network(full):
    class Odd:
        def get_decoder(self):
            return type("Network", (), {"forward": lambda self, ids: ids})()

    assert cache_argument(full.module) in ("cache", "past_key_values")
    assert full.new_cache(1, 1).argument == cache_argument(full.module)
    with pytest.raises(TypeError, match="takes `cache` or `past_key_values`"):
        cache_argument(Odd())


def test_it_is_a_cache_of_transformers(full):
    cache = full.new_cache(2, 16)
    assert isinstance(cache, PositionCache)
    assert len(cache) == 2
    assert (cache.get_seq_length(), cache.layers[0].get_max_length(), cache.layers[0].get_max_cache_shape()) == (
        0,
        16,
        16,
    )
