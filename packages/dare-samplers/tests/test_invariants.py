"""Invariants 1-6, 10, 11, 19 and 20 of the design's list, for any strategy on any toy (numbers in brackets).

7-9, 12, 15, 17 and 21-24 are in test_invariants_equal.py, 13, 14, 16 and 25 in test_invariants_laws.py, 18 in
test_invariants_replay.py, 26 in test_syncs.py.
"""

from collections import Counter
from itertools import pairwise

import torch
from arbitrary import (
    EMPTY,
    LAYOUTS,
    SCHEDULES,
    TIMED,
    Scene,
    canvas,
    same,
    scenes,
    writes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dare_samplers import Categorical, Infill, PositionScore, Record, SamplerConfig, TopK, generate
from dare_samplers.revisers import Levenshtein, RemaskBelow, RunningConfidence, TokenEdit
from dare_samplers.schedules import LinearFront
from dare_samplers.selectors import SoftTopK
from dare_samplers.trace import REOPENED

counts = st.integers(1, 24)


def given_tokens(scene: Scene, row: int) -> list[int]:
    prompt = scene.prompts[row]
    if not isinstance(prompt, Infill):
        return prompt
    return [token for token, slot in zip(prompt.tokens, prompt.writable, strict=True) if not slot]


@settings(max_examples=20)
@given(scenes())
def test_given_tokens_stay_and_every_slot_is_filled(scene):
    """[1, 2, 3] Given tokens as they were, with the mask id among them; no slot left open; the mask never written."""
    out = scene.run()
    assert not bool(out.state.open.any())
    assert set(out.finish_reason) <= {"eos", "length"}
    assert not bool((out.state.tokens[out.state.sampled] == scene.model.mask_id).any())
    assert not bool((out.events.new[out.events.kind != REOPENED] == scene.model.mask_id).any())
    for row in range(len(scene.prompts)):
        expected = given_tokens(scene, row)
        assert out.sequences[row][out.prompt_mask[row]].tolist() == expected
        real = out.state.positions[row] >= 0
        assert out.state.tokens[row][real & (out.state.block[row] < 0)].tolist() == expected
        assert bool((out.state.tokens[row][~real] == scene.model.pad_id).all())
        sampled = out.step_map[row] >= 0
        wrote = Counter(position for _, position, _, _, kind in writes(out, row) if kind != REOPENED)
        assert wrote == Counter(dict(enumerate(out.n_writes[row].tolist())))
        assert bool((out.n_writes[row][sampled] >= 1).all())
        if scene.config.reviser is None:
            assert torch.equal(out.n_writes[row], sampled.int())


def most_forwards(scene: Scene, slots: int, blocks: int) -> int:
    """What a row may take: with a plan the plan, otherwise a forward per slot and what editing adds."""
    reviser, steps = scene.config.reviser, scene.config.steps_per_block
    if reviser in TIMED or (isinstance(reviser, RunningConfidence) and steps is not None):
        return steps * blocks
    if isinstance(reviser, TokenEdit):
        return slots + blocks * reviser.max_post_steps
    if isinstance(reviser, Levenshtein):
        return slots + blocks * (reviser.max_post_steps + 1)
    assert reviser is None or isinstance(reviser, RunningConfidence | RemaskBelow)
    return slots


@settings(max_examples=20)
@given(scenes())
def test_it_ends_in_time(scene):
    """[4] Whatever the selector takes, and on a model that loves the mask, ties and infinities."""
    out = scene.run()
    for row in range(len(scene.prompts)):
        slots, blocks = int((out.block_id[row] >= 0).sum()), int(out.block_id[row].max()) + 1
        assert int(out.row_nfe[row]) <= most_forwards(scene, slots, blocks)
        if scene.config.reviser is None:
            assert int(out.row_nfe[row]) == len(set(out.step_map[row][out.step_map[row] >= 0].tolist()))
    assert (
        int(out.row_nfe.max()) <= out.nfe <= int(out.row_nfe.sum()) + len(scene.prompts) * (2 + int(out.block_id.max()))
    )
    if not scene.config.cache.stores:
        assert out.nfe == int(out.row_nfe.max())


@settings(max_examples=60)
@given(st.sampled_from([*SCHEDULES, *EMPTY]), st.sampled_from([TopK(), SoftTopK(0.3)]), counts, st.integers(1, 30))
def test_quotas_add_up(slots, schedule, selector, masks, steps):
    """[5] Every mask is taken, by exactly min(quota, masks left) at each step, for steps above and below the masks."""
    left, clock, forwards = torch.ones(1, masks, dtype=torch.bool), 0, 0
    while left.any():
        now = slots(left, step=clock, steps=steps)
        quota = schedule.quota(now)
        assert int(quota) >= (0 if schedule in EMPTY else 1)
        pick = selector.select(torch.rand(1, masks, generator=torch.Generator().manual_seed(clock)), now, quota)
        assert int(pick.sum()) == min(int(quota), int(left.sum()))
        assert not bool((pick & ~left).any())
        left = left & ~pick
        clock += int(schedule.elapsed(now)) if hasattr(schedule, "elapsed") else 1
        forwards += 1
    assert forwards <= (steps if schedule in EMPTY else masks)


@given(st.integers(1, 40), st.integers(1, 40), st.data())
def test_the_linear_schedule_is_closed_under_resumption(slots, masks, steps, data):
    """[5] schedule(m - what is taken, s - k) is the tail of schedule(m, s)."""

    def table(masks: int, steps: int) -> list[int]:
        out = []
        while masks:
            now = slots(torch.ones(1, masks, dtype=torch.bool), step=len(out), steps=steps)
            out.append(int(LinearFront().quota(now)))
            masks -= out[-1]
        return out

    whole = table(masks, steps)
    assert sum(whole) == masks
    assert len(whole) == min(masks, steps)
    assert whole == sorted(whole, reverse=True)
    done = data.draw(st.integers(0, len(whole) - 1))
    assert table(masks - sum(whole[:done]), steps - done) == whole[done:]


@settings(max_examples=16)
@given(scenes())
def test_blocks_are_decoded_in_order(scene):
    """[6] A block begins when all before it are written; steps inside a block have no gaps."""
    out = scene.run()
    assert bool((out.step_map.amax(-1) < out.row_nfe).all())
    for row in range(len(scene.prompts)):
        written = out.first_step_map[row] >= 0
        block, first = out.block_id[row][written], out.first_step_map[row][written]
        earlier = block[:, None] < block
        assert bool((first[:, None] < first)[earlier].all())
        if scene.config.reviser is not None:
            continue
        for number in set(block.tolist()):
            inside = out.block_step[row][written][block == number]
            assert sorted(set(inside.tolist())) == list(range(len(set(inside.tolist()))))


@settings(max_examples=8)
@given(scenes(revisers=[]), st.sampled_from([TopK(), SoftTopK(1e-6)]))
def test_left_to_right_is_left_to_right(scene, selector):
    """[6]"""
    out = scene.run(scorer=PositionScore(), selector=selector)
    for row in range(len(scene.prompts)):
        steps = out.step_map[row][out.step_map[row] >= 0]
        assert bool((steps.diff() >= 0).all())


@settings(max_examples=10)
@given(scenes(), st.randoms(use_true_random=False), st.sampled_from(LAYOUTS))
def test_a_row_depends_on_nothing_but_itself(scene, random, layout):
    """[10] Batch peers, their order, padding and layout: ids and steps exactly, at any temperature."""
    rows = list(range(len(scene.prompts)))
    whole = scene.run()
    order = [*random.sample(rows, len(rows)), random.choice(rows)]
    same(scene.run(order, layout=layout), whole, list(enumerate(order)))
    for row in rows:
        same(scene.run([row]), whole, [(0, row)])
    wider = generate(
        scene.model,
        [*scene.prompts, [1] * 9],
        scene.config.replace(layout=layout),
        keys=torch.cat([scene.keys, torch.tensor([77])]),
    )
    same(whole, wider, [(row, row) for row in rows])


@settings(max_examples=12)
@given(scenes(), st.booleans(), st.booleans())
def test_the_same_keys_give_the_same_output(scene, entropies, proposals):
    """[11] Whatever is recorded."""
    one, other = scene.run(), scene.run(record=Record(entropies, proposals))
    same(one, other)
    assert (other.entropies is not None) == entropies
    again = scene.run()
    same(one, again)
    assert torch.equal(one.logprobs, again.logprobs)


@settings(max_examples=14)
@given(scenes())
def test_canvases_are_the_history(scene):
    """[19] From the initial canvas to the final one; what a step wrote is the difference of two."""
    out = scene.run()
    canvases = list(out.history())
    initial = scene.run(until_step=0)
    assert torch.equal(canvases[0], initial.sequences)
    assert torch.equal(canvases[-1], out.sequences)
    assert torch.equal(out.canvas_at(int(out.row_nfe.max())), out.sequences)
    for row in range(len(scene.prompts)):
        shown = [
            one[row][out.valid[row] | (initial.sequences[row] == scene.model.mask_id)].tolist() for one in canvases
        ]
        steps = [
            {place for place, (old, new) in enumerate(zip(*pair, strict=True)) if old != new}
            for pair in pairwise(shown)
        ]
        assert len(set().union(*steps)) == int((out.block_id[row] >= 0).sum())
        if scene.config.reviser is None:
            live = steps[: int(out.row_nfe[row])]
            taken = [len(one) for one in live[:-1]]
            assert taken == [int((out.step_map[row] == step).sum()) for step in range(len(taken))]
            assert sum(len(one) for one in steps) == len(set().union(*steps))


@settings(max_examples=11)
@given(scenes(), st.lists(st.integers(0, 9), min_size=1, max_size=3))
def test_stopping_and_going_on_changes_nothing(scene, stops):
    """[20] With any reviser and cache, any number of times."""
    out = scene.run(until_step=0)
    for stop in sorted(stops):
        out = generate(scene.model, config=scene.config, state=out.state, until_step=stop)
        assert bool((out.row_nfe <= stop).all())
        assert bool(((out.row_nfe == stop) | torch.tensor([reason != "steps" for reason in out.finish_reason])).all())
    same(generate(scene.model, config=scene.config, state=out.state), scene.run())


@settings(max_examples=12)
@given(scenes(), st.integers(0, 6), st.integers(1, 3))
def test_children_share_the_past(scene, stop, n):
    """[20] The events up to the fork; with the parent's key a child is the parent; alone it draws the same."""
    past = scene.run(until_step=stop)
    forked = past.state.fork(n)
    out = generate(scene.model, config=scene.config, state=forked)
    pairs = [(row * n + child, row) for row in range(len(scene.prompts)) for child in range(n)]
    for child, row in pairs:
        early = [one for one in writes(out, child) if one[0] < int(past.row_nfe[row])]
        assert early == writes(past, row)
    parents = generate(scene.model, config=scene.config, state=past.state.fork(n, past.state.key.repeat_interleave(n)))
    same(parents, scene.run(), pairs)
    last = len(scene.prompts) - 1
    alone = generate(scene.model, config=scene.config, state=past.state.select([last]).fork(n))
    same(alone, out, [(child, last * n + child) for child in range(n)])


def test_children_draw_apart():
    """[20]"""
    scene = Scene("toy", SamplerConfig(gen_length=6, block_length=6, proposer=Categorical()), [[1, 2]])
    children = generate(scene.model, config=scene.config, state=scene.run(until_step=2).state.fork(8))
    assert len({tuple(canvas(children, row)) for row in range(8)}) > 1
