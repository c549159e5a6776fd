import torch
from hypothesis import given
from hypothesis import strategies as st

from dare_samplers import LinearFront, Slots


def quota(left: int, step: int, steps: int | None) -> int:
    opened = torch.arange(max(left, 1))[None] < left
    count = torch.tensor([step])
    return int(LinearFront().quota(Slots(torch.arange(max(left, 1))[None], opened, count, count, count, steps)))


def table(masks: int, steps: int, begin: int = 0) -> list[int]:
    quotas: list[int] = []
    while masks:
        quotas.append(min(quota(masks, begin + len(quotas), steps), masks))
        masks -= quotas[-1]
    return quotas


@given(st.integers(1, 80), st.integers(1, 80))
def test_sums_to_the_masks_without_empty_steps(masks, steps):
    quotas = table(masks, steps)
    front = [masks // steps + (i < masks % steps) for i in range(steps)]
    assert quotas == [q for q in front if q]


@given(st.integers(1, 60), st.integers(1, 60), st.data())
def test_closed_under_resumption(masks, steps, data):
    whole = table(masks, steps)
    done = data.draw(st.integers(0, len(whole)))
    assert table(masks - sum(whole[:done]), steps, done) == whole[done:]


def test_without_steps_one_at_a_time():
    assert [quota(5, step, None) for step in range(3)] == [1, 1, 1]
