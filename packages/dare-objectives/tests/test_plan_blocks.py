"""Plans that look at blocks, or at what a rollout recorded: what they mask and score, and with what chance."""

from dataclasses import replace

import pytest
import torch

import dare_objectives as do
from dare_objectives.plans.per_block_count import LEVELS, block_counts
from dare_objectives.testing import toy_batch


def _rows(rows: int, sizes: tuple[int, ...] = (2, 3, 1), *, prompt: int = 2, behind: int = 0) -> do.Batch:
    """Rows of a prompt, blocks of the given sizes and `behind` columns that are valid but not maskable."""
    ids = [0] * prompt + [1 + b for b, size in enumerate(sizes) for _ in range(size)] + [len(sizes)] * behind
    blocks = torch.tensor(ids, dtype=torch.int32).expand(rows, -1).contiguous()
    column = torch.arange(len(ids)).expand(rows, -1)
    yes = torch.ones_like(column, dtype=torch.bool)
    maskable = (column >= prompt) & (column < len(ids) - behind)
    zero = torch.zeros(rows, dtype=torch.int64)
    return do.Batch(column, yes, maskable, blocks, do.row_keys(3, range(rows)), zero, mask_id=99)


def _near(found: torch.Tensor, expected: float, count: int) -> bool:
    """Shares within 4.5 standard errors."""
    return bool(((found - expected).abs() <= 4.5 * (expected * (1 - expected) / count) ** 0.5).all())


@pytest.mark.wheel
def test_per_block_count_masks_at_least_one_token_of_every_block():
    batch = _rows(4000)
    plan = do.per_block_count(batch, 2)
    for block, size in ((1, 2), (2, 3), (3, 1)):
        inside = (batch.blocks == block)[:, None]
        count = (plan.target & inside).sum(2)
        assert int(count.min()) == 1
        assert all(_near((count == k).double().mean(0), 1 / size, 4000) for k in range(1, size + 1))
        assert torch.allclose((plan.weight * inside).sum(2), torch.tensor(float(size)))
    position = plan.target[:, 0, 4:7].double().mean(0)
    assert _near(position, 2 / 3, 4000)


def test_levels_of_a_row_are_spread_over_its_blocks():
    """Four blocks of 4: over one row every count 1..4 occurs once; the offsets of a batch would not do that."""
    level = torch.arange(8)[:, None] * (LEVELS // 8) + LEVELS // 16
    counts = block_counts(level, torch.full((8, 4), 4))
    assert torch.equal(counts.sort(-1).values, torch.arange(1, 5).expand(8, 1, 4))
    assert torch.equal(counts[:, 0].T.flatten().bincount(minlength=5)[1:], torch.full((4,), 8))
    assert block_counts(torch.tensor([[LEVELS - 1]]), torch.tensor([[7, 0]])).tolist() == [[[7, 1]]]


def test_antithetic_levels_fall_into_distinct_strata_and_are_uniform_in_each_block():
    batch = _rows(6000, (8, 8, 8))
    plan = do.bernoulli_antithetic(batch, low=0.1, high=0.9)
    level = torch.stack([plan.weight[:, 0, start : start + 8].amax(1) for start in (2, 10, 18)], 1)
    level = ((1 / level[(level > 0).all(1)] - 0.1) / 0.8).clamp(0, 1 - 1e-6)
    stratum = (level * 3).long()
    assert torch.equal(stratum.sort(1).values, torch.arange(3).expand_as(stratum))
    total = do.bernoulli_antithetic(batch, low=0.1, high=0.9).weight.sum((1, 2)) / 24
    assert abs(float(total.mean()) - 1) < 4.5 * float(total.std()) / 6000**0.5
    masked = do.bernoulli_antithetic(batch).target[:, 0, 2:].double().mean(0)
    assert _near(masked, 0.5, 6000)


def test_complementary_masks_cover_every_token_once():
    batch = toy_batch()
    plan = do.bernoulli_complementary(batch, low=0.1, high=0.9, pairs=2)
    mask, complement = plan.target[:, :2], plan.target[:, 2:]
    assert torch.equal(mask ^ complement, batch.maskable[:, None].expand_as(mask))
    assert torch.equal(mask | complement, batch.maskable[:, None].expand_as(mask))
    assert torch.equal(mask, do.bernoulli(batch, low=0.1, high=0.9, streams=2).target)
    pair = torch.where(mask, 1 / plan.weight[:, :2].clamp(min=1), 1 - 1 / plan.weight[:, 2:].clamp(min=1))
    for rates, on in zip(pair.flatten(0, 1), batch.maskable.repeat_interleave(2, 0), strict=True):
        assert torch.allclose(rates[on], rates[on][0], atol=1e-6)


def test_spread_levels_differ_by_equal_steps():
    plan = do.bernoulli(_rows(300, (40,)), streams=4, spread=True, low=0.2, high=0.8)
    level = (1 / plan.weight.amax(2)[(plan.target.any(2)).all(1)] - 0.2) / 0.6
    gaps = level.sort(1).values.diff(dim=1)
    assert torch.allclose(gaps, torch.tensor(0.25), atol=1e-4)
    assert 0 <= float(level.min()) < 0.05
    assert 0.95 < float(level.max()) <= 1 + 1e-6


@pytest.mark.wheel
def test_nonempty_draws_again_where_nothing_is_masked():
    batch = _rows(2000)
    plain, plan = do.bernoulli(batch, eps=1e-3), do.bernoulli_nonempty(batch)
    kept = plain.target[:, 0].any(1)
    assert 0.1 < float((~kept).double().mean()) < 0.2  # 1 / (L + 1) = 1 / 7
    assert torch.equal(plan.target[kept], plain.target[kept])
    assert torch.equal(plan.weight[kept], plain.weight[kept])
    assert bool(plan.target.any(2).all())


def test_nonempty_forces_one_random_token_at_last():
    plan = do.bernoulli_nonempty(_rows(6000), low=0.0, high=0.0, eps=1e-8, tries=2)
    assert torch.equal(plan.target.sum(2), torch.ones(6000, 1, dtype=torch.int64))
    assert _near(plan.target[:, 0, 2:].double().mean(0), 1 / 6, 6000)


@pytest.mark.wheel
def test_block_suffix_masks_part_of_a_block_and_all_that_follows():
    batch = _rows(6000, (3, 4, 2), behind=2)
    plan = do.block_suffix(batch, draws=3, context=0.0)
    masked = plan.inputs == batch.mask_id
    assert not bool(masked[:, :, :2].any())
    assert bool(masked[:, :, -2:].all())
    assert not bool(plan.target[:, :, -2:].any())
    counts = torch.stack([plan.target[:, :, 2 + a : 2 + b].sum(2) for a, b in ((0, 3), (3, 7), (7, 9))], 2)
    first = (counts > 0).long().argmax(2)
    assert torch.equal(first.sort(1).values, torch.arange(3).expand(6000, 3))  # three streams, three distinct blocks
    assert all(_near((first[:, 0] == b).double().mean(), 1 / 3, 6000) for b in range(3))
    for b, size in enumerate((3, 4, 2)):
        later = counts[:, :, b + 1 :][first == b]
        assert torch.equal(later, torch.tensor((3, 4, 2))[b + 1 :].expand_as(later))
        own = counts[:, :, b][first == b]
        assert all(_near((own == k).double().mean(), 1 / size, 6000) for k in range(1, size + 1))
    assert torch.allclose(plan.weight.sum(2), torch.tensor(9.0))


def test_block_suffix_masks_earlier_tokens_at_the_context_rate_and_scores_those_of_the_response():
    batch = _rows(6000, (3, 4, 2))
    plan = do.block_suffix(batch, draws=1, context=0.3, max_t=0.5)
    masked = plan.inputs[:, 0] == batch.mask_id
    assert torch.equal(plan.target[:, 0], masked & batch.maskable)
    assert _near(masked[:, :2].double().mean(0), 0.3, 6000)
    last = masked[:, 9:].sum(1) == 1  # one of two, so the last block is the chosen one, with at most 0.5 of it masked
    assert _near(masked[last][:, 2:9].double().mean(0), 0.3, int(last.sum()))
    counts = masked[:, 5:9].sum(1)[_surely_second(batch, masked)]
    assert int(counts.max()) <= 2


def _surely_second(batch: do.Batch, masked: torch.Tensor) -> torch.Tensor:
    """Rows whose chosen block is surely the second: the last one is hidden, the first one seen in full."""
    return masked[:, 9:].all(1) & ~masked[:, 2:5].any(1)


def test_block_suffix_treats_prompt_tokens_inside_a_response_block_as_context():
    """A grid that counts from the first prompt token."""
    batch = _rows(6000, (3, 2))
    batch = replace(batch, blocks=torch.tensor([0, 1, 1, 1, 1, 2, 2], dtype=torch.int32).expand(6000, -1).contiguous())
    plan = do.block_suffix(batch, draws=1, context=0.3)
    assert _near((plan.inputs[:, 0, :2] == batch.mask_id).double().mean(0), 0.3, 6000)
    assert not bool((do.block_suffix(batch, context=0.0).inputs[:, :, :2] == batch.mask_id).any())


def test_block_suffix_takes_blocks_again_after_the_last_one():
    plan = do.block_suffix(_rows(50, (2, 2)), draws=5, context=0.0)
    seen = plan.target[:, :, 2:4].any(2)
    assert torch.equal(seen[:, 0], seen[:, 2])
    assert torch.equal(seen[:, 0], seen[:, 4])
    assert torch.equal(seen[:, 0], ~seen[:, 1])


def test_masked_share_of_the_chosen_block_is_that_of_the_published_code():
    """floor(50 x 0.58) = 28 in Python's numbers; in float32 it is 29."""
    plan = do.block_suffix(_rows(200, (50,)), draws=1, context=0.0, min_t=0.58, max_t=0.58)
    assert torch.equal(plan.target.sum(2), torch.full((200, 1), 28))


@pytest.mark.wheel
def test_transition_scores_what_the_child_sets():
    batch = _rows(1, (4,), prompt=1)
    mask = batch.mask_id
    parent = torch.tensor([[[0, mask, 2, mask, mask], [0, mask, 2, mask, mask]]])
    child = torch.tensor([[[0, 1, 2, mask, 4], [0, 7, 2, mask, mask]]])
    plan = do.transition(batch, parent, child)
    assert plan.target.int().tolist() == [[[0, 1, 0, 0, 1], [0, 1, 0, 0, 0]]]
    assert plan.labels[plan.target].tolist() == [1, 4, 7]
    assert torch.equal(plan.inputs, parent)
    active = torch.tensor([[[True, True, True, True, False]]]).expand(1, 2, 5)
    assert do.transition(batch, parent, child, active).target.int().tolist() == [[[0, 1, 0, 0, 0], [0, 1, 0, 0, 0]]]
    certain = torch.zeros(1, 2, 5)  # tokens of probability 1: the published rule `logp != 0` would drop them
    assert not torch.equal(plan.target, certain != 0)
    with pytest.raises(ValueError, match="`child`: expected the parent's tokens"):
        do.transition(batch, parent, torch.full_like(child, 5))


def test_given_states_score_any_label_at_any_position():
    batch = _rows(2, (3,), prompt=1)
    inputs = batch.tokens[:, None].repeat(1, 2, 1)
    target = batch.maskable[:, None].repeat(1, 2, 1)
    plan = do.given_states(batch, inputs, target)
    assert torch.equal(plan.labels, inputs)
    assert torch.equal(plan.weight, target.float())
    weight = torch.full((2, 2, 4), 0.5, dtype=torch.float64)
    other = do.given_states(batch, inputs, target, labels=inputs + 1, weight=weight)
    assert torch.equal(other.labels, inputs + 1)
    assert torch.equal(other.weight, weight * target)


def test_unweighted_puts_one_at_every_target():
    plan = do.unweighted(do.bernoulli(toy_batch(), low=0.3, high=0.8))
    assert torch.equal(plan.weight, plan.target.float())


@pytest.mark.parametrize(
    "plan", [do.per_block_count, do.block_suffix, do.bernoulli_antithetic, do.bernoulli_nonempty, do.left_to_right]
)
def test_a_batch_without_maskable_tokens_or_rows(plan):
    batch = toy_batch()
    empty = plan(replace(batch, maskable=torch.zeros_like(batch.maskable)))
    assert not bool(empty.target.any())
    assert torch.equal(empty.inputs, batch.tokens[:, None].expand_as(empty.inputs))
    assert len(plan(batch[:0])) == 0
