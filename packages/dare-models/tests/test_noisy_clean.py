"""Block-causal scores: one forward over corrupted and clean halves says what a sampler's cached forwards say."""

import os
import shutil

import pytest
import torch

from dare_models import BlockCausal, Documents, NoisyClean
from dare_models.network import run
from dare_models.noisy_clean import noisy_clean_layout
from dare_models.scoring import positions_of
from dare_models.testing import dense_gather

LENGTHS = (11, 8, 5)


def example(k=3, left=(0, 2, 1)):
    """Rows of several lengths with padding on both sides; blocks of 4 from each row's first token."""
    width = 14
    valid = torch.zeros(3, width, dtype=torch.bool)
    for b, (length, skip) in enumerate(zip(LENGTHS, left, strict=True)):
        valid[b, skip : skip + length] = True
    positions = positions_of(valid)
    blocks = torch.where(valid, positions // 4, -1)
    clean = ((torch.arange(3 * width).reshape(3, width) * 11 + 5) % 38 + 1).masked_fill(~valid, 0)
    wide = torch.arange(3 * k * width).reshape(3, k, width)
    target = (wide * 7 % 5 < 2) & valid[:, None] & (positions >= 3)[:, None]
    inputs = torch.where(target, 39, clean[:, None])
    return (
        {"inputs": inputs, "clean": clean, "target": target, "labels": clean[:, None].expand(-1, k, -1)},
        valid,
        blocks,
    )


def score(lm, data, valid, blocks, streams=None, **options):
    return lm.score(**data, valid=valid, blocks=blocks, gather=dense_gather, streams=streams, **options)


def sequential(lm, data, valid, blocks):
    """What a sampler computes: for each block, its corrupted tokens after the clean blocks before, from a cache."""
    out = torch.zeros(data["inputs"].shape, dtype=lm.dtype)
    for b in range(3):
        real = valid[b].nonzero().squeeze(1)
        clean, grid = data["clean"][b, real][None], blocks[b, real][None]
        for k in range(data["inputs"].shape[1]):
            noisy, cache = data["inputs"][b, k, real][None], lm.new_cache(1, len(real))
            for block in range(int(grid.max()) + 1):
                [columns] = (grid[0] == block).nonzero(as_tuple=True)
                start = int(columns[0])
                shift = lm.left_context if start else 0  # the column before is committed: clean
                fed = torch.cat([clean[:, start - shift : start], noisy[:, columns]], 1)
                positions = torch.arange(start - shift, int(columns[-1]) + 1)[None]
                rows = torch.arange(shift, fed.shape[1])[None]
                logits = lm(fed, positions=positions, blocks=positions // 4, cache=cache, rows=rows)
                picked = logits.log_softmax(-1).gather(2, clean[:, columns, None])[0, :, 0]
                out[b, k, real[columns]] = picked
                commit = torch.ones(1, len(columns), dtype=torch.bool)
                lm(clean[:, columns], positions=columns[None], blocks=grid[:, columns], write=commit, cache=cache)
    return out.masked_fill(~data["target"], 0.0)


def gradients(lm, logp):
    weights = torch.arange(logp.numel(), dtype=logp.dtype).reshape(logp.shape)
    return torch.autograd.grad((logp * weights).sum(), list(lm.module.parameters()))


@pytest.mark.wheel
@pytest.mark.parametrize("logit_offset", [0, 1])
def test_scores_are_the_samplers_conditionals(make_stock, logit_offset):
    lm = make_stock(logit_offset=logit_offset)
    data, valid, blocks = example()
    expected = sequential(lm, data, valid, blocks)
    for streams in (None, 1, 2, 3, 5):
        got = score(lm, data, valid, blocks, streams)
        assert float((got.logp - expected).detach().abs().max()) < 1e-10
        assert torch.equal(got.logp != 0, data["target"])


@pytest.mark.parametrize("logit_offset", [0, 1])
def test_chunks_of_streams_have_equal_gradients(make_stock, logit_offset):
    lm = make_stock(logit_offset=logit_offset)
    data, valid, blocks = example()
    one, three = (gradients(lm, score(lm, data, valid, blocks, streams).logp) for streams in (1, 3))
    for a, b in zip(one, three, strict=True):
        assert float((a - b).abs().max()) < 1e-9


@pytest.mark.parametrize("logit_offset", [0, 1])
def test_copies_that_share_a_clean_half_score_the_same(make_stock, logit_offset):
    """The layout of the flex backend, under a dense mask."""
    lm = make_stock(logit_offset=logit_offset)
    data, valid, blocks = example()
    layout = noisy_clean_layout(data["clean"], valid, blocks, offset=logit_offset, shared=True)
    fed = layout(data["inputs"], data["target"])
    assert (len(fed.ids), fed.ids.shape[1] % 128, fed.plan.streams) == (3, 0, 3)
    states = run(lm.module, fed.ids, fed.positions, NoisyClean(fed.plan.blocks, fed.plan.copies))
    logp = (states.flatten(0, 1)[fed.source] @ lm.head_weight.T).log_softmax(-1)
    picked = logp.gather(1, data["labels"][data["target"]][:, None])[:, 0]
    assert float((score(lm, data, valid, blocks).logp[data["target"]] - picked).detach().abs().max()) < 1e-10


@pytest.mark.skipif(shutil.which(os.environ.get("CXX", "g++")) is None, reason="flex is compiled: no C++ compiler")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own, while it compiles
def test_flex_scores_the_same(make_stock):
    """One row per sequence, filled up to tiles of 128."""
    flex = make_stock(logit_offset=1, backend="flex_attention", dtype="float32", layers=1)
    dense = make_stock(logit_offset=1, dtype="float32", layers=1)
    data, valid, blocks = example()
    with torch.no_grad():
        expected = score(dense, data, valid, blocks).logp
        for streams in (1, 3):
            assert float((score(flex, data, valid, blocks, streams).logp - expected).abs().max()) < 1e-4


def test_eager_equals_sdpa(make_stock):
    data, valid, blocks = example()
    one, other = (score(make_stock(backend=name), data, valid, blocks).logp for name in ("sdpa", "eager"))
    assert float((one - other).detach().abs().max()) < 1e-5  # eager takes its softmax in float32


def test_blocks_default_to_the_models_own(make_stock):
    lm, (data, valid, blocks) = make_stock(), example()
    assert torch.equal(score(lm, data, valid, None).logp, score(lm, data, valid, blocks).logp)
    assert not torch.allclose(score(lm, data, valid, blocks // 2).logp, score(lm, data, valid, blocks).logp)


def test_several_labels_entropy_temperature_and_support(make_stock):
    lm, (data, valid, blocks) = make_stock(), example()
    support = torch.ones(40, dtype=torch.bool)
    support[39] = False
    options = {"temperature": 0.7, "support": support}
    several = {**data, "labels": torch.stack([data["labels"], (data["labels"] + 3) % 39], -1)}
    one = score(lm, data, valid, blocks, **options).logp
    got = score(lm, several, valid, blocks, want=("entropy", "topk:3"), **options)
    assert float((got.logp[..., 0] - one).detach().abs().max()) < 1e-12
    assert torch.equal(got.entropy > 0, data["target"])
    assert torch.equal(got.topk.ne(0).all(-1), data["target"])
    assert got.topk_ids.shape == (3, 3, 14, 3)


def test_nothing_to_score_is_zero_with_a_gradient(make_stock):
    lm, (data, valid, blocks) = make_stock(), example()
    logp = score(lm, {**data, "target": torch.zeros_like(data["target"])}, valid, blocks).logp
    assert logp.abs().max() == 0
    logp.sum().backward()


def test_recomputed_activations_leave_the_gradients(make_stock):
    lm, (data, valid, blocks) = make_stock(), example()
    plain = gradients(lm, score(lm, data, valid, blocks).logp)
    lm.recompute_activations()
    lm.module.train()
    for one, other in zip(gradients(lm, score(lm, data, valid, blocks).logp), plain, strict=True):
        assert float((one - other).abs().max()) < 1e-12


def test_only_what_matters_is_fed():
    """The corrupted half holds blocks with a target; the clean half those before the last of them."""
    valid = torch.ones(1, 16, dtype=torch.bool)
    blocks, clean = torch.arange(16)[None] // 4, torch.arange(16)[None]
    target = torch.zeros(1, 1, 16, dtype=torch.bool)
    target[0, 0, 9] = True
    layout = noisy_clean_layout(clean, valid, blocks, offset=0, shared=False)
    fed = layout(clean[:, None] + 100, target)
    assert fed.ids.tolist() == [[*range(108, 112), *range(8)]]
    assert fed.positions.tolist() == [[*range(8, 12), *range(8)]]
    assert fed.source.tolist() == [1]
    target[0, 0, 8] = True
    shifted = noisy_clean_layout(clean, valid, blocks, offset=1, shared=False)(clean[:, None] + 100, target)
    assert shifted.source.tolist() == [4 + 7, 0]  # clean token 7, corrupted token 8


def test_the_clean_half_is_the_block_causal_forward(make_stock):
    lm, ids = make_stock(), torch.arange(24).reshape(2, 12)
    blocks, positions = torch.arange(12).expand(2, -1) // 4, torch.arange(12).expand(2, -1)
    plan = NoisyClean.halves(blocks, blocks)
    logits = lm(torch.cat([ids + 1, ids], 1), positions=positions.repeat(1, 2), plan=plan)
    assert float((logits[:, 12:] - lm(ids, plan=BlockCausal(blocks))).detach().abs().max()) < 1e-10
    assert float((lm(ids) - lm(ids, plan=BlockCausal(blocks))).detach().abs().max()) == 0


def test_documents_of_halves_equal_separate_ones(make_stock):
    """noisy, clean, noisy, clean of two documents in one row."""
    lm, lengths, parts, alone = make_stock(), (6, 9), [], []
    for n, length in enumerate(lengths):
        positions = torch.arange(length)[None]
        ids = (positions * 5 + n) % 38
        noisy = ids.clone()
        noisy[:, ::2] = 39
        plan = NoisyClean.halves(positions // 4, positions // 4)
        both, where = torch.cat([noisy, ids], 1), positions.repeat(1, 2)
        alone.append(lm(both, positions=where, plan=plan))
        parts.append((both, where, plan.blocks, plan.copies, torch.full_like(both, n)))
    ids, positions, blocks, copies, documents = (torch.cat(column, 1) for column in zip(*parts, strict=True))
    packed = lm(ids, positions=positions, plan=Documents(documents, NoisyClean(blocks, copies)))
    assert float((packed - torch.cat(alone, 1)).detach().abs().max()) < 1e-10


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (torch.zeros(3, 13), r"`blocks` of shape \(3, 14\), got \(3, 13\)"),
        (torch.full((3, 14), -1), "start at 0 and never fall"),
        (torch.arange(14).flip(0).expand(3, -1), "start at 0 and never fall"),
    ],
)
def test_what_is_no_grid_is_refused(make_stock, blocks, message):
    data, valid, _ = example()
    with pytest.raises(ValueError, match=message):
        score(make_stock(layers=1), data, valid, blocks)
