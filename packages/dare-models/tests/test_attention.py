"""Plans become masks, or are refused."""

import pytest
import torch

from dare_models import BlockCausal, Dense, Documents, Full, NoisyClean
from dare_models.attention import materialise

VALID = torch.tensor([[True, True, False], [False, False, False]])
BLOCKS = torch.tensor([[-1, 0, 0, 1, 1, 2]])
FLEX, FLASH = "flex_attention", "flash_attention_2"


def mask(plan, backend="sdpa", queries=3, keys=3, dtype=torch.float32):
    return materialise(plan, backend=backend, dtype=dtype, queries=queries, keys=keys)


def seen(plan, queries, keys):
    """[B, Q, K] bool by sdpa's mask, [Q, K] if there is one row."""
    visible = mask(plan, queries=queries, keys=keys)
    visible = visible.reshape(-1, *visible.shape[-2:])
    visible = visible.expand(len(visible), queries, keys)
    return visible[0] if len(visible) == 1 else visible


@pytest.mark.parametrize("backend", ["sdpa", "eager", FLASH, "any_other"])
def test_no_padding_needs_no_mask(backend):
    assert mask(Full(), backend) is None
    assert mask(Full(), FLEX, queries=128, keys=256) is None


def test_a_row_of_padding_sees_itself():
    assert mask(Full(VALID)).tolist() == [[[[True, True, False]]], [[[True, True, True]]]]


def test_block_causal():
    expected = BLOCKS[0] <= BLOCKS[0][:, None]
    expected[1:, 0] = False
    assert torch.equal(seen(BlockCausal(BLOCKS), 6, 6), expected)
    some = BlockCausal(BLOCKS, queries=torch.tensor([[1, -1]]))
    assert torch.equal(seen(some, 2, 6), expected[[3, 0]])


def test_noisy_clean_is_the_union_of_three_rules():
    noisy, clean = torch.tensor([[0, 0, 1, 1, 2]]), torch.tensor([[0, 0, 1, 1]])
    block, copy = torch.cat([noisy, clean], 1)[0], torch.tensor([1] * 5 + [0] * 4)
    visible = seen(NoisyClean.halves(noisy, clean), 9, 9)
    for q in range(9):
        for k in range(9):
            own = copy[q] == copy[k] and block[q] == block[k]
            before = copy[k] == 0 and block[k] < block[q]
            assert bool(visible[q, k]) == bool(own or before), (q, k)


def test_documents_never_leak_and_padding_sees_padding():
    ids = torch.tensor([[0, 0, 1, 1, -1, -1]])
    for inner in (Full(), BlockCausal(torch.tensor([[0, 1, 0, 0, -1, -1]])), Dense(torch.zeros(6, 6).bool())):
        visible = seen(Documents(ids, inner), 6, 6)
        assert not visible[:2, 2:].any() and not visible[2:4, [0, 1, 4, 5]].any() and not visible[4:, :4].any()
        assert visible.diagonal().all()
    assert seen(Documents(ids, Full(), queries=torch.tensor([[1, -1]])), 2, 6).tolist() == [
        [False, False, True, True, False, False],
        [False, False, False, False, True, True],
    ]


def test_dense_is_taken_as_it_is_but_for_queries_that_see_nothing():
    visible = torch.tensor([[True, False], [False, False]])
    assert seen(Dense(visible), 2, 2).tolist() == [[True, False], [True, True]]
    assert seen(Dense(torch.stack([visible, ~visible])), 2, 2).tolist() == [
        [[True, False], [True, True]],
        [[False, True], [True, True]],
    ]


PLANS = {
    "full": Full(torch.tensor([[False, True, True, True, True, True]])),
    "blocks": BlockCausal(BLOCKS),
    "halves": NoisyClean.halves(BLOCKS[:, :3], BLOCKS[:, 3:]),
    "documents": Documents(torch.tensor([[0, 0, 0, 1, 1, -1]]), BlockCausal(torch.tensor([[0, 0, 1, 0, 1, -1]]))),
    "dense": Dense(torch.eye(6).bool()),
}


@pytest.mark.parametrize("name", PLANS)
def test_eager_gets_an_additive_mask_never_a_bool_one(name):
    boolean = mask(PLANS[name], queries=6, keys=6)
    additive = mask(PLANS[name], "eager", queries=6, keys=6, dtype=torch.float64)
    assert additive.dtype == torch.float64
    lowest = torch.full((), torch.finfo(torch.float64).min, dtype=torch.float64)
    assert torch.equal(additive, torch.where(boolean, torch.zeros_like(lowest), lowest))
    assert boolean.any(-1).all()


@pytest.mark.parametrize("streams", [1, 3])
def test_flex_gets_the_same_plan(streams):
    blocks = torch.arange(32).expand(2, -1) // 8
    plan = NoisyClean.halves(blocks.repeat(1, 3), blocks, streams=streams)
    tile = mask(plan, FLEX, queries=128, keys=128).mask_mod
    row, query, key = torch.arange(2), torch.arange(128), torch.arange(128)
    dense = tile(row[:, None, None], torch.tensor(0), query[:, None], key)
    copies = NoisyClean(plan.blocks, plan.copies)
    assert torch.equal(dense, mask(copies, queries=128, keys=128)[:, 0])


def test_flash_gets_key_padding_and_documents_that_stand_together():
    assert mask(Full(VALID), FLASH) is VALID
    lengths = mask(Documents(torch.tensor([[4, 4, 4, 2, -1, -1]]), Full()), FLASH, queries=6, keys=6)
    assert lengths.cu_seq_lens_q.tolist() == lengths.cu_seq_lens_k.tolist() == [0, 3, 4, 6]
    assert lengths.max_length_q == lengths.max_length_k == 3


@pytest.mark.parametrize(
    ("plan", "backend"),
    [
        (PLANS["blocks"], FLASH),
        (PLANS["halves"], FLASH),
        (PLANS["dense"], FLASH),
        (PLANS["documents"], FLASH),
        (Documents(torch.tensor([[0, 0, 1, 1, 0, 0]]), Full()), FLASH),
        (Documents(torch.zeros(2, 6), Full()), FLASH),
        (PLANS["full"], "any_other"),
    ],
)
def test_what_a_backend_cannot_express_is_refused(plan, backend):
    with pytest.raises(ValueError, match=rf"express {type(plan).__name__}, got '{backend}'.*backend='sdpa'"):
        mask(plan, backend, queries=6, keys=6)


def test_flash_takes_no_key_padding_beside_a_cache():
    with pytest.raises(ValueError, match="express Full"):
        mask(Full(VALID), FLASH, queries=2, keys=3)


@pytest.mark.parametrize(("queries", "keys"), [(24, 24), (128, 130), (4, 128)])
def test_flex_on_the_cpu_wants_whole_tiles(queries, keys):
    with pytest.raises(ValueError, match=r"multiples of 128.*backend='sdpa'"):
        mask(Full(), FLEX, queries=queries, keys=keys)


@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_streams_share_a_clean_half_with_flex_only(backend):
    plan = NoisyClean.halves(BLOCKS[:, 1:5], BLOCKS, streams=2)
    for one in (plan, Documents(torch.zeros(1, 10), plan)):
        with pytest.raises(ValueError, match=r"one corrupted copy per clean one.*backend='flex_attention'"):
            mask(one, backend, queries=10, keys=10)


def test_plans_that_make_no_sense_are_refused():
    with pytest.raises(ValueError, match="give padding the id -1"):
        Documents(torch.zeros(1, 3), Full(VALID[:1]))
    with pytest.raises(ValueError, match=r"\[B, Q, K\] or \[Q, K\] bool, got torch.float32 \[2, 2\]"):
        Dense(torch.zeros(2, 2))
    with pytest.raises(ValueError, match="3 copies of equal length, got 4 columns"):
        NoisyClean.halves(BLOCKS[:, 1:5], BLOCKS, streams=3)
