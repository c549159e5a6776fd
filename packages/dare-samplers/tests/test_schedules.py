import json
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dare_samplers import LinearFront, Schedule, Slots, TopK
from dare_samplers.parts import Skips
from dare_samplers.schedules import Ascending, Bernoulli, DreamBudget, DreamFloor, LinearRound, MaskGit

SIZES = st.integers(1, 40)
GAMMAS = ["linear", "cosine", "pow2", "pow0.5", "log", "exp"]
SCHEDULES = [
    LinearFront(),
    LinearFront("block"),
    LinearRound(),
    LinearRound("cosine"),
    DreamFloor(),
    DreamBudget(),
    Ascending(5),
    Bernoulli(),
    *[MaskGit(gamma) for gamma in GAMMAS],
]


def at(slots, left: int, size: int, step: int, clock: int, steps: int | None, key: int = 0) -> Slots:
    opened = torch.arange(size)[None] < left
    return replace(slots(opened, step=step, steps=steps, key=key), clock=torch.tensor([clock]))


def run(schedule: Schedule, slots, masks: int, steps: int | None, *, key: int = 0) -> list[tuple[int, int]]:
    """Schedule step and quota of every forward, as the loop runs it with a selector that takes the quota."""
    forwards, left, clock = [], masks, 0
    while left:
        now = at(slots, left, masks, len(forwards), clock, steps, key)
        quota = int(schedule.quota(now))
        elapsed = int(schedule.elapsed(now)) if isinstance(schedule, Skips) else 1
        assert 0 <= quota <= left or isinstance(schedule, LinearFront)
        clock += elapsed
        forwards.append((clock - 1, min(quota, left)))
        left -= forwards[-1][1]
        assert len(forwards) <= masks + (steps or 0)
    return forwards


def quotas(schedule: Schedule, slots, masks: int, steps: int | None) -> list[int]:
    return [quota for _, quota in run(schedule, slots, masks, steps)]


def table(schedule: Schedule, slots, masks: int, steps: int) -> list[int]:
    """Quotas of all schedule steps, with 0 for those without a forward."""
    commits = dict(run(schedule, slots, masks, steps))
    return [commits.get(step, 0) for step in range(steps)]


@pytest.fixture
def unit(golden_path):
    return json.loads((golden_path / "unit_schedules.json").read_text())


def test_golden_maskgit(unit, slots):
    for row in unit["maskgit"]:
        for gamma in ("linear", "cosine", "pow2"):
            expected = row[gamma]
            assert table(MaskGit(gamma), slots, row["masks"], row["steps"]) == expected
            assert quotas(MaskGit(gamma, empty_steps=True), slots, row["masks"], row["steps"]) == expected


def test_golden_ascending(unit, slots):
    for row in unit["ascending"]:
        assert quotas(Ascending(row["steps"]), slots, row["gen_length"], None) == row["quota"]


def test_golden_dream_floor(unit, slots):
    for row in unit["dream_floor"]:
        masks, steps, expected = row["masks"], row["steps"], row["quota"]
        assert quotas(DreamFloor(row["eps"], empty_steps=True), slots, masks, steps) == expected
        assert quotas(DreamFloor(row["eps"]), slots, masks, steps) == [quota for quota in expected if quota]


@given(SIZES, SIZES, st.sampled_from(SCHEDULES))
def test_every_forward_commits_and_all_is_committed(slots, masks, steps, schedule):
    """More steps than slots, fewer, or no multiple: four behaviours in the references, none of them a lost slot."""
    forwards = run(schedule, slots, masks, steps)
    assert sum(quota for _, quota in forwards) == masks
    assert all(quota > 0 for _, quota in forwards)
    assert all(one < other for (one, _), (other, _) in pairwise(forwards))
    if not isinstance(schedule, Ascending):
        assert forwards[-1][0] < steps


@given(SIZES, st.sampled_from(SCHEDULES))
def test_one_step_or_none_planned(slots, masks, schedule):
    if not isinstance(schedule, Ascending):
        assert quotas(schedule, slots, masks, 1) == [masks]
        assert quotas(schedule, slots, masks, None) == [1] * masks


@given(SIZES, SIZES, st.sampled_from(SCHEDULES))
def test_rows_do_not_mix(slots, masks, steps, schedule):
    """Two rows of different numbers of slots: one reference gives both the quota of their mean."""
    half = max(masks // 2, 1)
    opened = torch.arange(masks) < torch.tensor([[masks], [half]])
    both = replace(slots(opened, steps=steps), size=torch.tensor([masks, half]))
    together = schedule.quota(both).tolist()
    second = replace(at(slots, half, half, 0, 0, steps), key=torch.tensor([1]))
    alone = [int(schedule.quota(at(slots, masks, masks, 0, 0, steps))), int(schedule.quota(second))]
    assert together == alone


def test_the_mean_of_a_batch_is_no_quota(slots):
    """Rows with 16 and 4 masks and one step: the mean, 10, is too many for one and too few for the other."""
    opened = torch.arange(16) < torch.tensor([[16], [4]])
    now = replace(slots(opened, steps=1), size=torch.tensor([16, 4]))
    reference = int(opened.sum() / len(opened))
    assert reference == 10
    assert DreamFloor().quota(now).tolist() == [16, 4]


@given(SIZES, SIZES)
def test_linear_front(slots, masks, steps):
    front = [masks // steps + (i < masks % steps) for i in range(steps)]
    assert quotas(LinearFront(), slots, masks, steps) == [q for q in front if q]
    assert quotas(LinearFront("block"), slots, masks, steps) == [q for q in front if q]
    assert quotas(DreamBudget(), slots, masks, steps) == [q for q in front if q]
    if masks % steps:
        assert steps * (masks // steps) < masks  # what a reference commits that drops the remainder


@given(SIZES, SIZES, st.data())
def test_linear_front_is_closed_under_resumption(slots, masks, steps, data):
    whole = quotas(LinearFront(), slots, masks, steps)
    done = data.draw(st.integers(0, len(whole) - 1))
    left = masks - sum(whole[:done])
    assert int(LinearFront().quota(at(slots, left, masks, done, done, steps))) == whole[done]
    rest = at(slots, left, left, 0, 0, max(steps - done, 1))
    assert int(LinearFront().quota(rest)) == whole[done]


def test_linear_front_of_the_block_takes_no_more_than_is_left(slots):
    """SDAR's quota comes from the block, not from its masks: top-k of 2 with one mask left rewrites a given token."""
    score = torch.full((1, 8), -torch.inf)
    score[0, 7] = 0.5
    assert score.topk(2, -1).indices.tolist() != [[7]]
    opened = torch.arange(8)[None] == 7
    now = slots(opened, steps=4)
    quota = LinearFront("block").quota(now)
    assert quota.tolist() == [1]
    assert TopK().select(score, now, torch.tensor([2])).nonzero().tolist() == [[0, 7]]
    assert LinearFront("block").quota(at(slots, 7, 8, 1, 1, 3)).tolist() == [3]
    assert LinearFront("left").quota(at(slots, 7, 8, 1, 1, 3)).tolist() == [4]


def test_linear_round(slots):
    """Not the table of linear_front, and halves go by the float32 ratio."""
    assert quotas(LinearRound(), slots, 4, 3) == [1, 1, 2]
    assert quotas(LinearFront(), slots, 4, 3) == [2, 1, 1]
    assert table(LinearRound(), slots, 2, 8) == [0, 0, 0, 0, 0, 1, 0, 1]


@given(SIZES, st.integers(1, 40), st.sampled_from(["linear", "cosine"]))
def test_linear_round_is_the_published_recursion(slots, masks, steps, alpha):
    left, expected = masks, []
    t = torch.arange(steps, -1, -1) / steps
    masked = 1 - ((1 - t) if alpha == "linear" else 1 - torch.cos(torch.pi / 2 * (1 - t)))
    for now, then in pairwise(masked):
        expected.append(min(int((left * (1 - then / now)).round()), left))
        left -= expected[-1]
    assert table(LinearRound(alpha), slots, masks, steps) == expected


def test_dream_starts_with_an_empty_step(slots):
    """As many steps as slots: the published table begins with a forward for nothing and ends with two slots."""
    published = quotas(DreamFloor(empty_steps=True), slots, 32, 32)
    assert published[0] == 0 and published[-1] == 2 and len(published) == 32
    assert quotas(DreamFloor(), slots, 32, 32) == published[1:]
    assert [quotas(DreamFloor(empty_steps=True), slots, n, n).count(0) for n in (512, 1024)] == [1, 2]


def test_dream_budget_carries_over_and_goes_on(slots):
    """What the selector drops is offered again; after the last step everything is."""
    assert DreamBudget().quota(at(slots, 14, 16, 1, 1, 8)).tolist() == [2]
    assert DreamBudget().quota(at(slots, 15, 16, 1, 1, 8)).tolist() == [3]
    assert DreamBudget().quota(at(slots, 3, 16, 1, 1, 8)).tolist() == [1]
    assert DreamBudget().quota(at(slots, 5, 16, 9, 9, 8)).tolist() == [5]


@given(SIZES, SIZES, st.sampled_from(GAMMAS))
def test_maskgit_says_what_stays_masked(slots, masks, steps, gamma):
    for schedule in (MaskGit(gamma), MaskGit(gamma, empty_steps=True)):
        left = masks
        for clock, quota in run(schedule, slots, masks, steps):
            now = at(slots, left, masks, 0, clock, steps)
            left -= quota
            assert schedule.masked_after(now).tolist() == [left]
    assert MaskGit(gamma).masked_after(at(slots, masks, masks, 0, 0, None)).tolist() == [0]


def test_maskgit_linear_is_no_linear_front(slots):
    assert quotas(MaskGit("linear"), slots, 64, 48)[:6] == [2, 1, 1, 2, 1, 1]
    assert 2 in quotas(MaskGit("linear"), slots, 100, 100)


def test_ascending_over_blocks(slots):
    """128 slots in blocks of 15, 16, 32 and 65: 2^i by the step of the whole response."""
    step, seen = 0, []
    for size in (15, 16, 32, 65):
        left = size
        while left:
            quota = int(Ascending(7).quota(at(slots, left, size, step, 0, None)))
            seen.append(quota)
            left, step = left - quota, step + 1
    assert seen == [1, 2, 4, 8, 16, 32, 65]
    assert Ascending(200).quota(at(slots, 9, 9, 100, 0, None)).tolist() == [9]


def test_bernoulli_is_the_published_law(slots):
    """Steps and numbers of the first two forwards, against independent coins at every step."""
    rows, masks, steps, eps = 20_000, 3, 5, 1e-3
    t = torch.linspace(1, eps, steps + 1, dtype=torch.float64)
    p = 1 - t[1:] / t[:-1]
    p[-1] = 1.0
    now = slots(torch.ones(rows, masks, dtype=torch.bool), steps=steps)
    quota, elapsed = Bernoulli(eps).quota(now), Bernoulli(eps).elapsed(now)
    empty = 1.0
    for step in range(steps):
        for count in range(1, masks + 1):
            ways = {1: 3, 2: 3, 3: 1}[count]
            law = empty * ways * float(p[step] ** count * (1 - p[step]) ** (masks - count))
            seen = float(((elapsed == step + 1) & (quota == count)).double().mean())
            assert abs(seen - law) < 4 * (max(law * (1 - law), 1e-9) / rows) ** 0.5 + 1e-9
        empty *= float((1 - p[step]) ** masks)
    later = replace(now, step=now.step + 1, clock=now.clock + 3)
    first = float((Bernoulli(eps).elapsed(later) == 1).double().mean())
    assert abs(first - (1 - float((1 - p[3]) ** masks))) < 4 * (0.25 / rows) ** 0.5


def test_bernoulli_never_forwards_in_vain(slots):
    """Independent coins at every step leave more than a third of these steps empty."""
    assert all(1 <= len(run(Bernoulli(), slots, 32, 32, key=key)) < 28 for key in range(20))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LinearFront("row"), '`of`: expected "left" or "block"'),
        (lambda: LinearRound("square"), '`alpha`: expected "linear" or "cosine"'),
        (lambda: DreamFloor(1.0), r"`eps`: expected a number in \[0, 1\), got 1.0"),
        (lambda: Bernoulli(-0.1), "`eps`"),
        (lambda: MaskGit("sine"), "`gamma`: expected .* got 'sine'"),
        (lambda: MaskGit("pow-1"), "`gamma`"),
        (lambda: MaskGit("pow"), "`gamma`"),
        (lambda: Ascending(0), "`steps`: expected at least 1, got 0"),
    ],
)
def test_options_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()
