"""Plans: keyed draws, independent of the batch around a row; what each plan masks, scores and weights."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dare_objectives as do
from dare_objectives.testing import toy_batch

PLANS = {
    "bernoulli": lambda batch: do.bernoulli(batch, eps=1e-3, streams=2),
    "bernoulli per block": lambda batch: do.bernoulli(batch, per="block", low=0.2),
    "bernoulli spread": lambda batch: do.bernoulli(batch, low=0.1, high=0.9, streams=3, spread=True),
    "bernoulli_antithetic": lambda batch: do.bernoulli_antithetic(batch, low=1e-3, streams=2),
    "bernoulli_complementary": lambda batch: do.bernoulli_complementary(batch, low=0.1, high=0.9, pairs=2),
    "bernoulli_nonempty": lambda batch: do.bernoulli_nonempty(batch, streams=2),
    "block_suffix": lambda batch: do.block_suffix(batch, draws=3, context=0.4, min_t=0.2, max_t=0.9),
    "per_block_count": lambda batch: do.per_block_count(batch, 2),
    "full_response": lambda batch: do.full_response(batch, prompt_mask=0.5),
    "coupled": do.coupled,
    "count_stratified": lambda batch: do.count_stratified(batch, 3),
    "count_stratified_llada_compat": lambda batch: do.count_stratified_llada_compat(batch, 3),
    "count_complementary": lambda batch: do.count_complementary(batch, 2),
}
every_plan = pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)


def _equal(a: do.Plan, b: do.Plan) -> bool:
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("inputs", "target", "labels", "weight"))


@pytest.mark.wheel
@every_plan
def test_same_keys_give_the_same_plan_and_leave_generators_alone(plan):
    batch = toy_batch()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    first = plan(batch)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(4)
    assert _equal(first, plan(batch))
    other = replace(batch, keys=do.row_keys(1, range(len(batch))))
    assert not _equal(first, plan(other))


@every_plan
@settings(max_examples=15, deadline=None)
@given(rows=st.lists(st.integers(0, 7), min_size=1, max_size=8), padding=st.integers(0, 4))
def test_a_row_does_not_see_its_batch_or_its_padding(plan, rows, padding):
    batch = toy_batch(rows=8, response=6)
    width = batch.tokens.shape[1]
    pad = torch.nn.functional.pad
    padded = replace(
        batch,
        tokens=pad(batch.tokens, (0, padding)),
        valid=pad(batch.valid, (0, padding)),
        maskable=pad(batch.maskable, (0, padding)),
        blocks=pad(batch.blocks, (0, padding), value=-1),
    )
    found, wanted = plan(padded[rows]), plan(batch)[rows]
    for name in ("inputs", "target", "labels", "weight"):
        assert torch.equal(getattr(found, name)[:, :, :width], getattr(wanted, name))
        if name != "inputs":
            assert not bool(getattr(found, name)[:, :, width:].any())


@pytest.mark.wheel
@every_plan
def test_only_maskable_tokens_are_scored_and_labels_are_clean(plan):
    batch = toy_batch()
    made = plan(batch)
    assert not bool((made.target & ~batch.maskable[:, None]).any())
    assert torch.equal(made.labels, batch.tokens[:, None].expand_as(made.labels))
    assert bool((made.inputs == batch.mask_id)[made.target].all())
    assert bool((made.weight[made.target] > 0).all())
    untouched = ~batch.valid[:, None].expand_as(made.inputs)
    assert torch.equal(made.inputs[untouched], batch.tokens[:, None].expand_as(made.inputs)[untouched])


@every_plan
def test_rows_without_maskable_tokens_are_left_clean(plan):
    batch = toy_batch()
    made = plan(replace(batch, maskable=batch.maskable & (torch.arange(len(batch)) != 2)[:, None]))
    assert not bool(made.target[2].any())
    assert bool(made.weight.isfinite().all())


def _many(rows: int, *, prompt: int = 3, response: int = 4) -> do.Batch:
    column = torch.arange(prompt + response).expand(rows, -1)
    yes = torch.ones_like(column, dtype=torch.bool)
    blocks = (column // 2).to(torch.int32)
    zero = torch.zeros(rows, dtype=torch.int64)
    return do.Batch(column, yes, column >= prompt, blocks, do.row_keys(7, range(rows)), zero, mask_id=99)


def _close_to(share: float, expected: float, count: int) -> bool:
    return abs(share - expected) < 4.5 * (max(expected * (1 - expected), 1e-12) / count) ** 0.5


def test_full_response_masks_prompts_per_row_at_the_given_rate():
    rows = 6000
    plan = do.full_response(_many(rows), prompt_mask=0.15)
    hidden = plan.inputs[:, 0, :3] == 99
    assert bool((plan.inputs[:, 0, 3:] == 99).all())
    assert torch.equal(plan.weight, plan.target.float())
    assert len(hidden.unique(dim=0)) == 8
    assert all(_close_to(float(part.double().mean()), 0.15, rows) for part in hidden.T)


def test_coupled_rates_and_masks_differ_between_rows_and_keys():
    """The published mask comes from seed 42 at each call: one rate, one pattern, the global generator reset."""
    rows = 6000
    plan = do.coupled(_many(rows))
    gamma = 1 / (2 * plan.weight[:, 1].amax(1))
    drawn = gamma[plan.target[:, 1].any(1)]
    assert float(drawn.min()) == pytest.approx(0.2, abs=1e-3)
    assert float(drawn.max()) == pytest.approx(0.8, abs=1e-3)
    patterns = plan.target[:, 1, 3:]
    assert len(patterns.unique(dim=0)) == 16
    assert all(_close_to(float(part.double().mean()), 0.5, rows) for part in patterns.T)
    assert torch.equal(plan.inputs[:, :, :3], torch.arange(3).expand(rows, 3, 3))


@pytest.mark.wheel
def test_coupled_pair_is_disjoint_and_covers_the_response():
    batch = toy_batch()
    target = do.coupled(batch).target
    assert not bool((target[:, 1] & target[:, 2]).any())
    assert torch.equal(target[:, 1] | target[:, 2], batch.maskable)
    assert torch.equal(target[:, 0], batch.maskable)


def test_bernoulli_level_is_shared_by_a_sequence_or_a_block():
    batch = _many(3000)
    whole = do.bernoulli(batch, low=0.3, high=0.9)
    rate = 1 / whole.weight[whole.target]
    assert float(rate.min()) >= 0.3 - 1e-6
    assert float(rate.max()) <= 0.9 + 1e-6
    for row in whole.weight[:50, 0]:
        assert len(row[row > 0].unique()) <= 1
    blocks = do.bernoulli(batch, per="block").weight[:, 0]
    both = (blocks[:, 4] > 0) & (blocks[:, 5] > 0) & (blocks[:, 6] > 0)
    assert torch.equal(blocks[both, 4], blocks[both, 5])
    assert not bool((blocks[both, 5] == blocks[both, 6]).any())


def test_bernoulli_streams_are_independent():
    plan = do.bernoulli(_many(4000), low=0.5, high=0.5, streams=2)
    first, second = (plan.target[:, stream, 3:].double() for stream in (0, 1))
    assert _close_to(float((first * second).mean()), 0.25, first.numel())


@pytest.mark.wheel
def test_count_plans_mask_the_counts_their_weights_say():
    batch = toy_batch()
    length = batch.lengths[:, None]
    plan = do.count_stratified(batch, 3)
    count = plan.target.sum(2)
    assert bool((count >= 1).all())
    assert bool((count <= length).all())
    assert torch.allclose(plan.weight.sum(2), length.expand_as(count).float())
    pairs = do.count_complementary(batch, 2)
    mask, complement = pairs.target[:, :2], pairs.target[:, 2:]
    assert torch.equal(mask ^ complement, batch.maskable[:, None].expand_as(mask))
    assert not bool((mask & complement).any())
    total = torch.where(pairs.target.any(2), (length + 1).float(), 0.0)
    assert torch.allclose(pairs.weight.sum(2), total)


def test_counted_positions_are_uniform():
    rows = 6000
    target = do.count_stratified(_many(rows)).target[:, 0, 3:]
    assert all(_close_to(float(part.double().mean()), 0.625, rows) for part in target.T)
    counts = torch.bincount(target.sum(1), minlength=5)[1:] / rows
    assert all(_close_to(float(part), 0.25, rows) for part in counts)


def test_counts_of_the_compat_plan_are_uneven_and_those_of_the_default_are_not():
    """L = 40, n = 16: rounding half to even draws some counts three times as often as others."""
    batch = _many(6000, response=40)
    counts = [
        plan(batch, 16).target.sum(2).flatten() for plan in (do.count_stratified, do.count_stratified_llada_compat)
    ]
    even, uneven = (torch.bincount(count, minlength=41)[1:] / 6000 for count in counts)
    assert all(abs(float(part) - 0.4) < 4.5 * (0.4 / 6000) ** 0.5 for part in even)
    assert float(uneven.max()) > 2.5 * float(uneven.min())


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda batch: do.bernoulli(batch, low=0.9, high=0.2), "low"),
        (lambda batch: do.bernoulli(batch, eps=2.0), "eps"),
        (lambda batch: do.coupled(batch, low=0.0), "low"),
        (lambda batch: do.full_response(batch, prompt_mask=15), "prompt_mask"),
        (lambda batch: do.bernoulli_antithetic(batch, high=1.5), "high"),
        (lambda batch: do.block_suffix(batch, context=-0.1), "context"),
        (lambda batch: do.block_suffix(batch, min_t=0.9, max_t=0.5), "min_t"),
    ],
)
def test_rates_out_of_range_are_refused(make, word):
    with pytest.raises(ValueError, match=f"`{word}`: expected a number in"):
        make(toy_batch())


@pytest.mark.parametrize("count", [0, -1])
@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda count: do.bernoulli(toy_batch(), streams=count), "streams"),
        (lambda count: do.masked_sft(streams=count), "streams"),
        (lambda count: do.count_stratified(toy_batch(), count), "draws"),
        (lambda count: do.count_complementary(toy_batch(), count), "pairs"),
        (lambda count: do.bernoulli_complementary(toy_batch(), pairs=count), "pairs"),
        (lambda count: do.bernoulli_nonempty(toy_batch(), tries=count), "tries"),
        (lambda count: do.bernoulli_antithetic(toy_batch(), streams=count), "streams"),
        (lambda count: do.per_block_count(toy_batch(), count), "draws"),
        (lambda count: do.block_suffix(toy_batch(), draws=count), "draws"),
        (lambda count: do.left_to_right(toy_batch(), count), "chunk"),
    ],
)
def test_counts_below_one_are_refused(make, word, count):
    with pytest.raises(ValueError, match=f"`{word}`: expected a count of at least 1, got {count}"):
        make(count)
