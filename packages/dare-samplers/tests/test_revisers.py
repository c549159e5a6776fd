"""Each reviser alone, on slots made by hand."""

from dataclasses import dataclass, fields, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dare_samplers.parts import Logits, Proposal, RemembersSlots, Reviser, Slots
from dare_samplers.revisers import (
    Levenshtein,
    MultiBlockEdit,
    RemaskBelow,
    ReMaskLowest,
    ReMDM,
    RunningConfidence,
    TokenEdit,
)
from dare_samplers.revisers.places import spread, weakest
from dare_samplers.revisers.splice import splice
from dare_samplers.selectors import Threshold

M, D, I = 9, 8, 7  # noqa: E741 - mask, delete, insert
VOCAB = 10
F = -1  # filler


def slots_of(rows, *, masked=(M,), **values):
    """Slots from rows of tokens: M is open, F is filler, the rest committed."""
    tokens = torch.tensor(rows)
    count = torch.zeros(len(rows), dtype=torch.int64)
    real = tokens != F
    opened = torch.zeros_like(real)
    for one in masked:
        opened |= tokens == one
    given_ = {name: torch.as_tensor(value).expand(len(rows)) for name, value in values.items() if name in COUNTERS}
    other = {name: value for name, value in values.items() if name not in COUNTERS}
    start = {"step": count, "block_step": count, "clock": count, "idle": count, "size": real.sum(-1)}
    return Slots(
        index=torch.arange(tokens.shape[1]).expand_as(tokens),
        open=opened,
        committed=real & ~opened,
        tokens=tokens.where(real, torch.zeros_like(tokens)),
        left=torch.full_like(tokens, M),
        key=torch.arange(len(rows)),
        mask_id=M,
        **(start | given_ | other),
    )


COUNTERS = {"step", "block_step", "clock", "idle", "size"}


def ask(reviser, slots, wanted, chance, *, pick=None, stored=None):
    """Revise with the tokens `wanted` proposed at probability `chance` per slot; the rest spread over token 6."""
    wanted, chance = torch.tensor(wanted), torch.tensor(chance, dtype=torch.float64)
    rest = torch.where(wanted == 6, 5, 6)
    p = torch.full((*wanted.shape, VOCAB), 1e-9, dtype=torch.float64)
    p.scatter_(-1, rest.unsqueeze(-1), (1 - chance).clamp(min=1e-9).unsqueeze(-1))
    p.scatter_(-1, wanted.unsqueeze(-1), chance.unsqueeze(-1))
    logits = Logits.of(p.log())
    proposal = Proposal(wanted, torch.zeros_like(chance), logits)
    pick = torch.zeros_like(slots.open) if pick is None else torch.tensor(pick, dtype=torch.bool) & slots.open
    if stored is None:
        stored = torch.full(slots.open.shape, torch.nan, dtype=torch.float64)
    return reviser.revise(logits, proposal, chance, slots, pick, torch.as_tensor(stored, dtype=torch.float64))


def where(flags):
    return [row.nonzero().flatten().tolist() for row in flags]


def canvas(slots, wanted, revision):
    """What stands there afterwards, by the rules that the loop must follow."""
    tokens = slots.tokens.where(~revision.pick, torch.as_tensor(wanted))
    if revision.write is not None:
        tokens = torch.where(revision.write, revision.tokens, tokens)
    if revision.reopen is not None:
        tokens = tokens.masked_fill(revision.reopen, M)
    return tokens.tolist()


@dataclass(frozen=True)
class Fixed:
    count: int

    def masked_after(self, slots):
        return torch.full_like(slots.size, self.count)


ALL = [
    TokenEdit(0.5),
    MultiBlockEdit(0.0, max_post_steps=0),
    Levenshtein(D, I, 0.5),
    RunningConfidence(Fixed(1)),
    ReMDM("cap", eta=0.5),
    ReMDM("rescale", eta=0.5),
    ReMDM("conf", eta=1.0),
    ReMDM("fb"),
    ReMDM("loop", eta=0.5, t_on=0.6, t_off=0.2),
    ReMaskLowest(1),
    RemaskBelow(0.4),
    RemaskBelow(0.4, Threshold(0.6)),
]


@pytest.mark.wheel
@pytest.mark.parametrize("reviser", ALL, ids=repr)
def test_each_is_a_reviser_and_touches_no_filler(reviser):
    assert isinstance(reviser, Reviser)
    assert isinstance(reviser, RemembersSlots) == hasattr(reviser, "width")
    assert hash(reviser) == hash(replace(reviser))
    slots = slots_of([[1, M, 2, F, F], [M, M, M, M, 3], [F] * 5], steps=8, clock=3, block_step=3)
    wanted = [[4, 4, 4, 4, 4]] * 3
    held = [[0.3, torch.nan, 0.2, torch.nan, torch.nan], [torch.nan] * 4 + [0.1], [torch.nan] * 5]
    out = ask(reviser, slots, wanted, [[0.9, 0.3, 0.8, 0.9, 0.9]] * 3, pick=[[0, 1, 0, 1, 1]] * 3, stored=held)
    real = slots.open | slots.committed
    for flags in (out.pick, out.write, out.moved, out.reopen):
        assert flags is None or not (flags & ~real).any()
    assert out.pick is None or not (out.pick & ~slots.open).any()
    if out.write is not None:
        assert not (out.write & out.pick).any()


@pytest.mark.parametrize("reviser", ALL, ids=repr)
def test_a_row_depends_on_neither_peers_nor_filler(reviser):
    row, other = [2, M, 3, M, 1], [M, M, 4, M, M]
    held = [0.3, torch.nan, 0.6, torch.nan, 0.4]
    chance = [0.7, 0.3, 0.35, 0.8, 0.9]
    common = {"steps": 8, "clock": 4, "block_step": 4}
    alone = ask(reviser, slots_of([row], **common), [[4, D, I, 5, 1]], [chance], stored=[held])
    wide = slots_of([[*row, F, F], [*other, 1, 2]], **common)
    both = ask(
        reviser,
        wide,
        [[4, D, I, 5, 1, 2, 2], [1, 2, I, 4, 5, D, 2]],
        [[*chance, 0.9, 0.9], [0.5, 0.6, 0.7, 0.8, 0.9, 0.9, 0.9]],
        stored=[[*held, torch.nan, torch.nan], [torch.nan] * 5 + [0.2, 0.3]],
    )
    for one, two in zip(alone, both, strict=True):
        if one is not None and one.ndim == 2:
            assert torch.equal(one[0], two[0, :5])
        elif one is not None and one.ndim == 1:
            assert one[0] == two[0]


@pytest.mark.parametrize("reviser", ALL, ids=repr)
def test_no_value_is_read_back_from_the_device(reviser):
    """Tensors on the meta device have no values: reading one is an error."""
    slots = slots_of([[1, M, 2], [M, M, F]], steps=8)
    on_meta = {one.name: getattr(slots, one.name) for one in fields(slots)}
    slots = Slots(**{name: one.to("meta") if isinstance(one, torch.Tensor) else one for name, one in on_meta.items()})
    logits = Logits(torch.empty(2, 3, VOCAB, device="meta"))
    proposal = Proposal(logits.values.argmax(-1), logits.values[..., 0], logits)
    out = reviser.revise(logits, proposal, logits.values[..., 0], slots, slots.open, torch.empty(2, 7, device="meta"))
    shapes = {"hold": (2,), "reopen": (2, 7), "memory": (2, 3, 5 + 16)}
    for name, one in out._asdict().items():
        assert one is None or tuple(one.shape) == shapes.get(name, (2, 3))


def test_weakest_spares_the_lowest_positions_among_equals():
    among = torch.tensor([[True, True, False, True, True]])
    score = torch.tensor([[0.5, 0.2, torch.nan, 0.5, 0.5]])
    for count, expected in ((0, []), (1, [1]), (2, [1, 4]), (3, [1, 3, 4]), (9, [0, 1, 3, 4])):
        assert where(weakest(score, among, torch.tensor([count]))) == [expected]


def test_spread_ignores_filler_that_repeats_an_index():
    slots = replace(slots_of([[1, 2, F]]), index=torch.tensor([[4, 6, 4]]))
    assert where(spread(torch.tensor([[True, False, False]]), slots, 8)) == [[4]]


# --- TokenEdit


def test_edits_are_confident_changes_of_committed_tokens():
    slots = slots_of([[1, 2, 3, 4, M, M]])
    out = ask(TokenEdit(0.5), slots, [[1, 5, 5, 5, 5, 5]], [[0.9, 0.9, 0.5, 0.51, 0.9, 0.9]], pick=[[0, 0, 0, 0, 1, 0]])
    assert where(out.write) == [[1, 3]]  # 0 proposes what is there; 0.5 is not above tau
    assert where(out.pick) == [[4]]
    assert canvas(slots, [[1, 5, 5, 5, 5, 5]], out) == [[1, 5, 3, 5, 5, M]]


def test_edits_do_not_starve_masks():
    """A threshold that nothing reaches and tokens that flip for ever must not stop the row's progress."""
    slots = slots_of([[1, M, M], [1, M, M]])
    out = ask(TokenEdit(0.5), slots, [[2, 2, 2], [1, 2, 2]], [[0.9, 0.2, 0.3], [0.9, 0.2, 0.3]])
    assert where(out.pick) == [[2], []]  # the second row edits nothing: the loop sees to it


@pytest.mark.parametrize(("begun_idle", "edits", "idle", "most", "hold"), [
    (False, False, 0, 16, True),
    (False, True, 0, 16, True),
    (False, False, 0, 0, False),
    (True, False, 0, 16, False),
    (True, True, 0, 16, True),
    (True, True, 14, 16, True),
    (True, True, 15, 16, False),
])  # fmt: skip
def test_when_the_block_is_held(begun_idle, edits, idle, most, hold):
    slots = slots_of([[1, 2 if begun_idle else M]], idle=idle)
    out = ask(TokenEdit(0.5, most), slots, [[3 if edits else 1, 2]], [[0.9, 0.9]], pick=[[0, 1]])
    assert out.hold.tolist() == [hold]


def test_tau_of_one_never_edits():
    slots = slots_of([[1, 2, M]])
    out = ask(TokenEdit(1.0), slots, [[3, 3, 3]], [[1.0, 1.0, 1.0]], pick=[[0, 0, 1]])
    assert where(out.write) == [[]] and where(out.pick) == [[2]]


# --- Levenshtein


def plain_splice(content, drop, insert):
    out = []
    for one, gone, doubled in zip(content, drop, insert, strict=True):
        out += [] if gone else [None, one] if doubled else [one]
    return (out + [None] * len(content))[: len(content)]


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.booleans()), min_size=1, max_size=9))
def test_splice_is_the_list_operation(flags):
    drop, insert, active = (torch.tensor([list(one)]) for one in zip(*flags, strict=True))
    filled, source = splice(drop, insert, active)
    columns = where(active)[0]
    expected = plain_splice(columns, drop[0, columns].tolist(), (insert & ~drop)[0, columns].tolist())
    assert [int(source[0, c]) if filled[0, c] else None for c in columns] == expected
    assert not (filled & ~active).any()


def test_delete_shifts_left_and_pads_with_a_mask():
    slots = slots_of([[1, 2, 3, M]])
    out = ask(Levenshtein(D, I, 0.5), slots, [[1, D, 3, 4]], [[0.9, 0.9, 0.9, 0.9]])
    assert canvas(slots, [[1, D, 3, 4]], out) == [[1, 3, 4, M]]
    assert where(out.moved) == [[1, 2]] and out.source[0, 1:3].tolist() == [2, 3]
    assert out.hold.tolist() == [True]
    assert (out.memory[0, :, 0] & 1).tolist() == [0, 0, 0, 1]  # the padding is no original mask


def test_insert_makes_room_and_cuts_the_tail():
    slots = slots_of([[1, 2, 3, 4]])
    out = ask(Levenshtein(D, I, 0.5), slots, [[1, I, 3, 4]], [[0.9, 0.9, 0.9, 0.9]])
    assert canvas(slots, [[1, I, 3, 4]], out) == [[1, M, 2, 3]]
    assert where(out.reopen) == [[1]] and where(out.moved) == [[2, 3]]


def test_delete_and_insert_cancel_behind_them():
    slots = slots_of([[1, 2, 3, 4]])
    out = ask(Levenshtein(D, I, 0.5), slots, [[D, 2, I, 5]], [[0.9, 0.9, 0.9, 0.9]])
    assert canvas(slots, [[D, 2, I, 5]], out) == [[2, M, 3, 5]]
    assert where(out.moved) == [[0]] and where(out.write) == [[0, 3]]


def test_an_original_mask_takes_neither_mask_nor_insert():
    slots = slots_of([[1, M, 3]])
    out = ask(Levenshtein(D, I, 0.5), slots, [[1, I, 3]], [[0.9, 0.9, 0.9]])
    assert canvas(slots, [[1, I, 3]], out) == [[1, 6, 3]]  # the second best
    assert where(out.write) == [[1]]


def memory_of(reviser, slots, *, introduced, post=0, shifted=True):
    memory = torch.zeros(*slots.open.shape, reviser.width(slots.open.shape[1]), dtype=torch.int64)
    memory[..., 0] = torch.tensor(introduced) + 2 * shifted + 4 * post
    return replace(slots, memory=memory)


def test_enough_masks_are_transferred_to_resolve_an_original_one():
    reviser = Levenshtein(D, I, 0.5)
    slots = memory_of(reviser, slots_of([[M, M, M, M, 1]]), introduced=[[1, 1, 0, 0, 0]])
    out = ask(reviser, slots, [[2, 3, 4, 5, 1]], [[0.9, 0.8, 0.2, 0.1, 0.9]])
    assert where(out.pick) == [[0, 1, 2]]


def test_without_original_masks_all_are_transferred():
    reviser = Levenshtein(D, I, 0.5)
    slots = memory_of(reviser, slots_of([[M, M, 2, 1]]), introduced=[[1, 1, 0, 0]], post=3)
    out = ask(reviser, slots, [[2, 3, 2, 1]], [[0.1, 0.1, 0.9, 0.9]])
    assert where(out.pick) == [[0, 1]] and out.hold.tolist() == [True]
    assert (out.memory[0, :, 0] >> 2).tolist() == [4] * 4


@pytest.mark.parametrize("by", ["post", "rounds"])
def test_the_cleaning_round_writes_no_control_token_and_fills_every_mask(by):
    reviser = Levenshtein(D, I, 0.5, max_post_steps=4)
    slots = slots_of([[M, M, 2, 1]], block_step=8 if by == "rounds" else 5)
    slots = memory_of(reviser, slots, introduced=[[1, 1 if by == "post" else 0, 0, 0]], post=3 if by == "post" else 0)
    out = ask(reviser, slots, [[D, I, D, 4]], [[0.9, 0.9, 0.9, 0.9]])
    assert canvas(slots, [[D, I, D, 4]], out) == [[6, 6, 2, 4]]  # 2 would fall to a token of low probability: it stays
    assert out.hold.tolist() == [False] and where(out.reopen) == [[]]


def test_no_post_steps_clean_up_with_the_last_original_mask():
    slots = slots_of([[M, 2], [M, M]])
    out = ask(Levenshtein(D, I, 0.5, max_post_steps=0), slots, [[D, I], [D, I]], [[0.9, 0.9], [0.9, 0.8]])
    # the second row's deletion moves a mask to where one was: its best slot is committed instead
    assert canvas(slots, [[D, I], [D, I]], out) == [[6, 2], [6, M]]
    assert out.hold.tolist() == [False, True]


def test_a_repeated_state_is_left_by_a_token_never_tried():
    reviser = Levenshtein(D, I, 0.5)
    slots = memory_of(reviser, slots_of([[1, 2, 3]], block_step=2), introduced=[[0, 0, 0]])
    slots.memory[0, :, 1] = torch.tensor([1, 2, 3]) + 1 + ((torch.tensor([0, 6, 5]) + 1) << 21)
    chance = [[0.9, 0.6, 0.7]]
    out = ask(reviser, slots, [[1, 5, 4]], chance)
    assert canvas(slots, [[1, 5, 4]], out) == [[1, 5, 4]]  # slot 1 has tried 6 only, so 5 will do
    slots.memory[0, 1, 1] = 2 + 1 + ((5 + 1) << 21)
    assert canvas(slots, [[1, 5, 4]], ask(reviser, slots, [[1, 5, 4]], chance)) == [[1, 6, 4]]
    fresh = replace(slots, tokens=torch.tensor([[1, 2, 4]]))
    assert canvas(fresh, [[1, 5, 4]], ask(reviser, fresh, [[1, 5, 4]], chance)) == [[1, 5, 4]]


def test_cycles_without_control_tokens_are_left_to_the_budget():
    reviser = Levenshtein(D, I, 0.5)
    slots = memory_of(reviser, slots_of([[1, 2]], block_step=2), introduced=[[0, 0]], shifted=False)
    slots.memory[0, :, 1] = torch.tensor([1, 2]) + 1 + ((torch.tensor([0, 5]) + 1) << 21)
    assert canvas(slots, [[1, 5]], ask(reviser, slots, [[1, 5]], [[0.9, 0.9]])) == [[1, 5]]


def test_a_round_that_would_change_nothing_commits_its_best_slot():
    slots = slots_of([[1, M]])
    out = ask(Levenshtein(D, I, 0.5), slots, [[1, D]], [[0.9, 0.9]])
    assert canvas(slots, [[1, D]], out) == [[1, 6]]


def test_nothing_to_do_ends_the_block():
    out = ask(Levenshtein(D, I, 0.5), slots_of([[1, 2]]), [[1, D]], [[0.9, 0.4]])
    assert out.hold.tolist() == [False] and not out.write.any() and not out.reopen.any()


# --- RunningConfidence


@pytest.mark.wheel
def test_the_weakest_of_the_row_are_masked():
    slots = replace(slots_of([[M, M, M]]), index=torch.tensor([[2, 4, 5]]))
    stored = [[0.2, 0.9, torch.nan, 0.4, 0.1, torch.nan, torch.nan]]  # 4 was reopened: what it had does not count
    for count, pick, reopen in ((0, [0, 1, 2], []), (1, [0, 1, 2], [0]), (2, [0, 2], [0]), (3, [0, 2], [0, 3])):
        out = ask(RunningConfidence(Fixed(count)), slots, [[1, 1, 1]], [[0.6, 0.3, 0.7]], stored=stored)
        assert where(out.pick) == [pick] and where(out.reopen) == [reopen]


def test_equal_confidence_spares_the_lowest_positions():
    out = ask(
        RunningConfidence(Fixed(2)),
        slots_of([[M, M, 1, M]]),
        [[2] * 4],
        [[0.5] * 4],
        stored=[[torch.nan] * 2 + [0.5, torch.nan]],
    )
    assert where(out.pick) == [[0, 1]] and where(out.reopen) == [[2]]


def test_a_schedule_must_know_what_is_left():
    with pytest.raises(TypeError, match="`schedule`: expected one with `masked_after`, got int"):
        RunningConfidence(3)


# --- ReMDM


def tosses(reviser, clock, *, steps=8, opened=2000, held=2000, stored=0.5):
    slots = slots_of([[M] * opened + [1] * held], steps=steps, clock=clock)
    scores = [[torch.nan] * opened + [stored] * held]
    out = ask(reviser, slots, [[2] * (opened + held)], [[0.5] * (opened + held)], stored=scores)
    return out, float(out.pick[0, :opened].double().mean()), float(out.reopen[0, opened:].double().mean())


@pytest.mark.parametrize("clock", range(8))
def test_sigma_zero_is_mdlm(clock):
    for reviser in (ReMDM("cap", eta=0.0), ReMDM("rescale", eta=0.0), ReMDM("cap", eta=0.5, t_on=0.0)):
        out, commits, remasks = tosses(reviser, clock)
        assert remasks == 0 and abs(commits - 1 / (8 - clock)) < 0.04
        slots = slots_of([[M] * 2000 + [1] * 2000], steps=8, clock=clock)
        draws = slots.uniform("order", torch.float64)[:, :2000]
        if clock < 7:
            assert torch.equal(out.pick[:, :2000], draws < 1 / (8 - clock))


@pytest.mark.parametrize(("reviser", "sigma"), [
    (ReMDM("cap", eta=0.1), 0.1),
    (ReMDM("cap", eta=1.0), 3 / 4),
    (ReMDM("rescale", eta=0.4), 0.3),
    (ReMDM("fb"), 1 / 4),
])  # fmt: skip
def test_probabilities_of_a_step(reviser, sigma):
    """From alpha 4/8 to 5/8; the marginal stays: alpha_t (1 - sigma) + (1 - alpha_t) commits = alpha_s."""
    _, commits, remasks = tosses(reviser, 4)
    assert abs(remasks - sigma) < 0.04
    assert abs(commits - (5 / 8 - (1 - sigma) * 4 / 8) / (4 / 8)) < 0.04


def test_confidence_divides_sigma():
    """sigma_i = eta sigma_max softmax(-p)_i: here 4 slots, sigma_max = 1 at clock 0 of 2; open slots follow MDLM."""
    slots = slots_of([[1, 1, M]] * 4000, steps=4, clock=1)
    out = ask(
        ReMDM("conf", eta=1.0), slots, [[2] * 3] * 4000, [[0.5] * 3] * 4000, stored=[[0.9, 0.1, torch.nan]] * 4000
    )
    share = torch.tensor([-0.9, -0.1], dtype=torch.float64).softmax(0)
    torch.testing.assert_close(out.reopen[:, :2].double().mean(0), share, atol=0.03, rtol=0)
    assert abs(float(out.pick[:, 2].double().mean()) - 1 / 3) < 0.03


def test_the_loop_rises_stays_and_rises():
    reviser = ReMDM("loop", eta=0.1, t_on=0.5, t_off=0.25, alpha=0.8)
    rates = [tosses(reviser, clock)[1:] for clock in range(8)]
    for (commits, remasks), (expected, sigma) in zip(
        rates,
        [(0.2, 0), (0.25, 0), (1 / 3, 0), (0.5, 0), (0.4, 0.1), (0.4, 0.1), (0.5, 0), (1, 0)],
        strict=True,
    ):
        assert abs(commits - expected) < 0.04 and abs(remasks - sigma) < 0.04


def test_the_last_step_commits_everything_and_only_it_lets_go():
    for clock in range(9):
        out, commits, remasks = tosses(ReMDM("cap", eta=0.9), clock)
        assert out.hold.tolist() == [clock < 7]
        assert clock < 7 or (commits == 1 and remasks == 0)


def test_time_needs_steps():
    with pytest.raises(ValueError, match="`steps`: expected a number for ReMDM, got None"):
        ask(ReMDM(), slots_of([[M]]), [[1]], [[0.5]])
    with pytest.raises(ValueError, match="`steps`: expected a number for ReMaskLowest, got None"):
        ask(ReMaskLowest(1), slots_of([[M]]), [[1]], [[0.5]])


# --- ReMaskLowest


def test_phases_of_the_late_correction():
    """8 slots in 16 steps: 7 shares, 8 corrections of net 0, 1 share."""
    tokens, held, opened = [M] * 8, [torch.nan] * 8, []
    score = torch.tensor([0.5, 0.9, 0.3, 0.7, 0.6, 0.2, 0.8, 0.4])
    for clock in range(16):
        slots = slots_of([tokens], steps=16, clock=clock)
        out = ask(ReMaskLowest(1), slots, [[2] * 8], [(score + clock / 100).clamp(max=0.99).tolist()], stored=[held])
        for slot in range(8):
            if out.pick[0, slot]:
                tokens[slot], held[slot] = 2, float(score[slot]) + clock / 100
            if out.reopen[0, slot]:
                tokens[slot], held[slot] = M, torch.nan
        opened.append(tokens.count(M))
    assert opened == [7, 6, 5, 4, 3, 2] + [2] * 8 + [1, 0]


def test_a_correction_masks_the_weakest_committed_token():
    slots = slots_of([[1, 1, M, M, 1, 1]], steps=12, clock=6)
    out = ask(
        ReMaskLowest(1, start=0.8),
        slots,
        [[2] * 6],
        [[0.5] * 3 + [0.6] + [0.5] * 2],
        stored=[[0.3, 0.4, torch.nan, torch.nan, 0.3, 0.9]],
    )
    assert where(out.pick) == [[3]] and where(out.reopen) == [[4]]
    weak = ask(
        ReMaskLowest(1, start=0.8), slots, [[2] * 6], [[0.1] * 6], stored=[[0.3, 0.4, torch.nan, torch.nan, 0.3, 0.9]]
    )
    assert where(weak.pick) == [[]] and where(weak.reopen) == [[]]  # committed and masked again: it stays open


def test_more_shares_than_slots_are_no_idle_steps():
    slots = slots_of([[1, 1, 1, M]], steps=100, clock=3)
    out = ask(ReMaskLowest(2, start=1.0), slots, [[2] * 4], [[0.5] * 4], stored=[[0.1, 0.4, 0.3, torch.nan]])
    assert where(out.pick) == [[3]] and where(out.reopen) == [[0, 2]]


def test_corrections_must_leave_steps():
    with pytest.raises(ValueError, match="`rounds`: expected less than the 4 steps of a block, got 4"):
        ask(ReMaskLowest(1, rounds=4), slots_of([[M]], steps=4), [[1]], [[0.5]])


# --- RemaskBelow


def test_unsure_tokens_are_decided_again():
    slots = slots_of([[1, 2, 3, M, M, M]])
    out = ask(
        RemaskBelow(0.4), slots, [[5, 5, 3, 5, 5, 5]], [[0.35, 0.1, 0.9, 0.5, 0.3, 0.2]], pick=[[0, 0, 0, 1, 0, 0]]
    )
    # low are 0 and 1: three are needed, picked 3, then by score 0 and 4
    assert where(out.pick) == [[3, 4]] and where(out.write) == [[0]] and where(out.reopen) == [[1]]
    net = int(out.pick.sum() - out.reopen.sum())
    assert net == 1


def test_a_selector_sees_open_and_unsure_slots_together():
    slots = slots_of([[1, 2, M, M]])
    out = ask(RemaskBelow(0.9, Threshold(0.6)), slots, [[5, 5, 5, 5]], [[0.8, 0.5, 0.3, 0.4]])
    # both committed ones are unsure; selected is 0, topped up to three by score: 1, then 3
    assert where(out.write) == [[0, 1]] and where(out.pick) == [[3]] and where(out.reopen) == [[]]


def test_without_an_open_slot_nothing_is_taken_back():
    out = ask(RemaskBelow(0.9), slots_of([[1, 2]]), [[5, 5]], [[0.1, 0.1]])
    assert not (out.pick.any() or out.write.any() or out.reopen.any())


@given(st.lists(st.tuples(st.sampled_from([M, 1]), st.sampled_from([0.1, 0.3, 0.5, 0.7])), min_size=1, max_size=8))
def test_every_forward_unmasks_one_net(content):
    tokens, chance = zip(*content, strict=True)
    slots = slots_of([list(tokens)])
    out = ask(RemaskBelow(0.4), slots, [[5] * len(tokens)], [list(chance)])
    net = int(out.pick.sum() - out.reopen.sum())
    assert net >= 1 if M in tokens else net == 0
    assert not (out.reopen & (out.write | out.pick)).any()


# --- arguments


@pytest.mark.parametrize(("make", "message"), [
    (lambda: TokenEdit(-0.1), "`tau`: expected a number >= 0, got -0.1"),
    (lambda: TokenEdit(float("nan")), "`tau`: expected a number >= 0, got nan"),
    (lambda: TokenEdit(0.5, -1), "`max_post_steps`: expected at least 0, got -1"),
    (lambda: Levenshtein(3, 3, 0.5), "`delete_id`, `insert_id`: expected two token ids >= 0, got 3 and 3"),
    (lambda: Levenshtein(-1, 3, 0.5), "`delete_id`, `insert_id`: expected two token ids >= 0, got -1 and 3"),
    (lambda: Levenshtein(1, 3, float("inf")), "`tau`: expected a number >= 0, got inf"),
    (lambda: ReMDM("max"), "`kind`: expected one of .*, got 'max'"),
    (lambda: ReMDM(eta=1.5), r"`eta`: expected a number in \[0, 1\], got 1.5"),
    (lambda: ReMDM(t_on=0.2, t_off=0.3), "`t_on`, `t_off`: expected 0 <= t_off <= t_on <= 1, got 0.2 and 0.3"),
    (lambda: ReMDM("loop"), "`t_on`, `t_off`, `alpha`: expected 0 < t_off < t_on < 1"),
    (lambda: ReMaskLowest(0), "`number`: expected at least 1, got 0"),
    (lambda: ReMaskLowest(1, start=0), r"`start`: expected a fraction in \(0, 1\], got 0"),
    (lambda: ReMaskLowest(1, rounds=-1), "`rounds`: expected at least 0, got -1"),
    (lambda: RemaskBelow(float("nan")), "`tau`: expected a number, got nan"),
])  # fmt: skip
def test_bad_arguments_say_what_to_do(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_selector_with_quota_is_refused():
    from dare_samplers.selectors import TopK

    with pytest.raises(ValueError, match="`selector`: expected one without quota, got TopK"):
        RemaskBelow(0.4, TopK())
