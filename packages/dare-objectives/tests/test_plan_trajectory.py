"""Trajectories: published rounds, what partitions what, and which plans are the same."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dare_objectives as do
from dare_objectives.plans.count import spread_counts
from dare_objectives.testing import toy_batch, with_step_map


def _answer(step_map: list[int], block: int = 99) -> do.Batch:
    step = torch.tensor([step_map], dtype=torch.int32)
    tokens = torch.arange(len(step_map))[None]
    yes = torch.ones_like(tokens, dtype=torch.bool)
    blocks = (tokens // block).to(torch.int32)
    keys = do.row_keys(0, [0])
    return do.Batch(tokens, yes, yes, blocks, keys, torch.zeros_like(keys), mask_id=99, step_map=step)


def _equal(a: do.Plan, b: do.Plan) -> bool:
    return all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("inputs", "target", "labels", "weight"))


@pytest.mark.wheel
@pytest.mark.golden("plans", "plans/parallel_blocks/")
def test_published_rounds_of_parallel_blocks(case):
    inputs = case["inputs"]
    plan = do.trajectory(_answer(inputs["step_map"], inputs["block_size"]), parallel_blocks=True)
    rounds = case["expected"]["rounds"]
    assert plan.target[0].tolist() == [each["target"] for each in rounds]
    assert (plan.inputs == 99)[0].tolist() == [each["masked"] for each in rounds]


@pytest.mark.wheel
@pytest.mark.golden("plans", "plans/shrink/")
def test_published_merging_of_steps(case):
    step_map = torch.tensor([case["inputs"]["step_map"]])
    merged = do.shrink_steps(step_map, step_map >= 0, case["hyper"]["shrink"])
    assert merged[0].tolist() == case["expected"]["step_map"]


@pytest.mark.golden("plans", "plans/stratified/")
def test_published_offsets_of_stratified_counts(case):
    length, draws = case["inputs"]["length"], case["inputs"]["draws"]
    counts = spread_counts(torch.arange(length)[:, None], torch.full((length, 1), length), draws)
    assert counts[0].tolist() == case["expected"]["offsets"]
    assert torch.equal(counts.flatten().bincount(minlength=length), torch.full((length,), draws))
    if case["expected"]["distinct_when_n_le_L"]:
        assert all(len(set(row)) == draws for row in counts.tolist())


@pytest.mark.wheel
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    shrink=st.integers(1, 6),
    per=st.sampled_from(["sequence", "block"]),
    parallel=st.booleans(),
)
def test_targets_of_all_rounds_partition_what_was_sampled(seed, shrink, per, parallel):
    batch = with_step_map(toy_batch(rows=5, response=9, seed=seed), steps=4)
    plan = do.trajectory(batch, shrink=shrink, per=per, parallel_blocks=parallel)
    assert torch.equal(plan.target.sum(1), batch.maskable.long())
    masked = plan.inputs == batch.mask_id
    assert bool((masked | ~plan.target).all())
    assert not bool((masked[:, 1:] & ~masked[:, :-1]).any())  # what has been committed stays
    assert torch.equal(masked[:, :-1] & ~masked[:, 1:], plan.target[:, :-1] & batch.maskable[:, None])
    used = plan.target.any(2)
    assert bool(used.any(0).all())
    assert not bool((used[:, 1:] & ~used[:, :-1]).any())  # empty streams stand at the end
    assert torch.equal(plan.inputs[~used], batch.tokens[:, None].expand_as(plan.inputs)[~used])
    for unit in ("sequence", "block"):
        weight = do.transition_weights(plan, per=unit, dtype=torch.float64)
        assert torch.allclose(weight.sum((1, 2)), (batch.lengths > 0).double(), atol=1e-14)


def _slow_rounds(step_map: list[int], blocks: list[int], shrink: int, *, parallel: bool, per_block: bool):
    """The rounds of one row as sets of (masked, target), by loops over lists."""
    columns = range(len(step_map))
    merged = list(step_map)
    for block in sorted(set(blocks)) if parallel or per_block else [None]:
        own = [i for i in columns if block is None or blocks[i] == block]
        distinct = sorted({step_map[i] for i in own if step_map[i] >= 0})
        for i in own:
            if step_map[i] >= 0:
                merged[i] = distinct[min(distinct.index(step_map[i]) // shrink * shrink + shrink, len(distinct)) - 1]
    rounds = []
    while True:
        masked, target = set(), set()
        for block in sorted(set(blocks)) if parallel else [None]:
            own = [i for i in columns if (block is None or blocks[i] == block) and merged[i] >= 0]
            distinct = sorted({merged[i] for i in own})
            if len(rounds) < len(distinct):
                masked |= {i for i in own if merged[i] >= distinct[len(rounds)]}
                target |= {i for i in own if merged[i] == distinct[len(rounds)]}
        if not target:
            return rounds
        rounds.append((masked, target))


@settings(max_examples=60, deadline=None)
@given(
    step_map=st.lists(st.integers(-1, 6), min_size=1, max_size=9).filter(lambda steps: max(steps) >= 0),
    size=st.integers(1, 5),
    shrink=st.integers(1, 4),
    per=st.sampled_from(["sequence", "block"]),
    parallel=st.booleans(),
)
def test_rounds_equal_those_of_a_loop(step_map, size, shrink, per, parallel):
    batch = _answer(step_map, size)
    plan = do.trajectory(batch, shrink=shrink, per=per, parallel_blocks=parallel)
    wanted = _slow_rounds(step_map, batch.blocks[0].tolist(), shrink, parallel=parallel, per_block=per == "block")
    assert plan.streams == len(wanted)
    for inputs, target, (masked, scored) in zip(plan.inputs[0], plan.target[0], wanted, strict=True):
        assert set((inputs == 99).nonzero().flatten().tolist()) == masked
        assert set(target.nonzero().flatten().tolist()) == scored


@pytest.mark.wheel
def test_left_to_right_is_the_trajectory_of_counting():
    batch = toy_batch(response=9)
    column = torch.where(batch.maskable, batch.columns - 2, -1)
    for chunk in (1, 2, 4, 99):
        step_map = torch.where(column >= 0, column // chunk, -1).to(torch.int32)
        assert _equal(do.left_to_right(batch, chunk), do.trajectory(replace(batch, step_map=step_map)))
    every = do.left_to_right(batch)
    assert every.streams == 9
    assert torch.equal(every.target.sum(2).amax(1), (batch.lengths > 0).long())


@pytest.mark.wheel
def test_one_step_is_the_full_mask():
    batch = replace(toy_batch(), step_map=torch.zeros_like(toy_batch().blocks))
    batch = replace(batch, step_map=torch.where(batch.maskable, 0, -1).to(torch.int32))
    full = do.full_response(batch)
    assert _equal(do.trajectory(batch), full)
    assert _equal(do.left_to_right(batch, 99), full)
    many = with_step_map(batch)
    assert _equal(do.trajectory(many, shrink=99), full)
    assert _equal(do.trajectory(many, segments=1), full)
    assert _equal(do.trajectory(many, shrink=99, parallel_blocks=True), full)


def test_merging_all_steps_of_a_block_decodes_block_by_block():
    """The `step_merge` of DARE."""
    batch = with_step_map(toy_batch(response=9))
    by_block = replace(batch, step_map=torch.where(batch.maskable, batch.blocks, -1).to(torch.int32))
    assert _equal(do.trajectory(batch, shrink=99, per="block"), do.trajectory(by_block))


def test_segments_cut_the_steps_into_equal_parts():
    batch = _answer([0, 7, 3, 4, 2, 7, 5, 1])
    plan = do.trajectory(batch, segments=2)
    assert plan.target[0].int().tolist() == [[1, 0, 1, 0, 1, 0, 0, 1], [0, 1, 0, 1, 0, 1, 1, 0]]
    assert plan.inputs[0, 1].eq(99).int().tolist() == [0, 1, 0, 1, 0, 1, 1, 0]
    assert _equal(do.trajectory(batch, segments=8), do.trajectory(batch))
    assert _equal(do.trajectory(batch, segments=50), do.trajectory(batch))
    uneven = do.trajectory(_answer([0, 1, 2, 3, 4]), segments=2)
    assert uneven.target[0].int().tolist() == [[1, 1, 1, 0, 0], [0, 0, 0, 1, 1]]


def test_tokens_after_the_end_are_hidden_while_they_were_open_and_never_scored():
    batch = _answer([0, 2, 1, 0, 3])
    batch = replace(batch, maskable=torch.tensor([[True, True, True, False, False]]))
    plan = do.trajectory(batch)
    assert plan.inputs.eq(99)[0].int().tolist() == [[1, 1, 1, 1, 1], [0, 1, 1, 0, 1], [0, 1, 0, 0, 1]]
    assert plan.target[0].int().tolist() == [[1, 0, 0, 0, 0], [0, 0, 1, 0, 0], [0, 1, 0, 0, 0]]


def test_steps_that_committed_nothing_maskable_have_no_round():
    batch = replace(_answer([0, 1, 2]), maskable=torch.tensor([[True, False, True]]))
    plan = do.trajectory(batch)
    assert plan.inputs[0].tolist() == [[99, 99, 99], [0, 1, 99]]
    assert plan.target[0].int().tolist() == [[1, 0, 0], [0, 0, 1]]


def test_positions_that_were_never_sampled_keep_their_token():
    plan = do.trajectory(_answer([0, -1, 1]))
    assert plan.inputs[0].tolist() == [[99, 1, 99], [0, 1, 99]]
    assert not bool(plan.target[:, :, 1].any())


def test_left_to_right_sees_the_turns_of_others_once_they_are_past():
    maskable = torch.tensor([[False, True, True, False, False, True, False]])
    batch = replace(_answer([0] * 7), maskable=maskable)
    seen = do.left_to_right(batch).inputs[0].ne(99).int().tolist()
    assert seen == [[1, 0, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0]]
    assert do.left_to_right(batch, 2).inputs[0].ne(99).int().tolist() == [[1, 0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 0, 0]]


@settings(max_examples=15, deadline=None)
@given(rows=st.lists(st.integers(0, 5), min_size=1, max_size=6), parallel=st.booleans())
def test_a_row_does_not_see_its_batch(rows, parallel):
    batch = with_step_map(toy_batch(rows=6, response=6))
    whole = do.trajectory(batch, parallel_blocks=parallel)[rows]
    some = do.trajectory(batch[rows], parallel_blocks=parallel)
    for name in ("inputs", "target", "labels", "weight"):
        assert torch.equal(getattr(some, name), getattr(whole, name)[:, : some.streams])
    assert not bool(whole.target[:, some.streams :].any())


def test_a_missing_step_map_and_mixed_options_are_refused():
    with pytest.raises(ValueError, match="`step_map`: expected the rollout's record, got None"):
        do.trajectory(toy_batch())
    batch = with_step_map(toy_batch())
    for options in ({"shrink": 2}, {"parallel_blocks": True}):
        with pytest.raises(ValueError, match="`segments`: expected None together with"):
            do.trajectory(batch, segments=2, **options)
    for options in ({"shrink": 0}, {"segments": 0}):
        with pytest.raises(ValueError, match="expected a count of at least 1, got 0"):
            do.trajectory(batch, **options)
