"""Long texts in windows."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dare_objectives as do
from dare_objectives.testing import BlockWorld, ToyWorld


@pytest.mark.wheel
@settings(deadline=None, max_examples=80)
@given(length=st.integers(1, 60), window=st.integers(1, 24), data=st.data())
def test_scored_positions_partition_the_text(length, window, data):
    stride = data.draw(st.integers(1, window))
    text = torch.arange(length) + 100
    batch = do.rolling(text, window, stride, mask_id=0)
    assert torch.equal(batch.tokens[batch.maskable], text)
    assert len(batch) == 1 + max(0, math.ceil((length - window) / stride))
    assert batch.tokens.shape[1] == min(window, length)
    for row in range(len(batch)):
        seen = batch.tokens[row][batch.valid[row]]
        assert torch.equal(seen, torch.arange(int(seen[0]), int(seen[0]) + len(seen)))
        assert int(batch.lengths[row]) <= (stride if row else window)
        if row:
            assert int(batch.prompt[row].sum()) == window - stride
    assert len(batch.keys.unique()) == len(batch)


@pytest.mark.wheel
def test_the_sum_over_windows_bounds_the_text():
    """Each window is scored given the text before it, as far as it fits: by hand with a plan of its own."""
    world, text = ToyWorld.random(6, 5), torch.tensor([4, 0, 2, 2, 1, 3, 3, 0, 1, 4, 2])
    batch = do.rolling(text, 6, 2, mask_id=5)
    found = do.log_likelihood(world.score, batch)
    assert found.length.tolist() == [6, 2, 2, 1]
    by_hand = 0.0
    for start, first, end in ((0, 0, 6), (2, 6, 8), (4, 8, 10), (6, 10, 11)):
        tokens = text[None, start:end]
        yes = torch.ones_like(tokens, dtype=torch.bool)
        one = do.Batch(
            tokens, yes, yes & (torch.arange(start, end) >= first), (tokens * 0).int(), *torch.zeros(2, 1).long(), 5
        )
        by_hand += float(do.log_likelihood(world.score, one).total)
    assert float(found.total) == pytest.approx(by_hand, abs=1e-12)
    assert float(found.perplexity) == pytest.approx(math.exp(-by_hand / 11))
    drawn = do.log_likelihood(world.score, batch, draws=4000, replicates=400, exact_up_to=0)
    assert abs(float(drawn.total - found.total)) < 3 * float(drawn.total_error)
    parts = [do.log_likelihood(world.score, batch[rows]).total for rows in torch.arange(4).split(3)]
    assert float(sum(parts)) == pytest.approx(by_hand, abs=1e-12)


def test_blocks_start_with_the_window():
    world, text = BlockWorld.random(8, 5), torch.arange(19) % 5
    batch = do.rolling(text, 8, 4, mask_id=5, block_length=2, key=do.make_key(3))
    assert batch.blocks[0].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert batch.blocks[-1].tolist() == [0, 0, 1, 1, 2, 2, 3, -1]
    found = do.log_likelihood(world.score, batch, estimator="block_count")
    assert found.draws.tolist() == [3] * 4
    whole = do.log_likelihood(world.score, batch, exact_up_to=8)
    assert float(found.total) == pytest.approx(float(whole.total), abs=1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": torch.zeros(0, dtype=torch.int64)}, "`tokens`: expected a count of at least 1"),
        ({"tokens": torch.zeros(1, 9, dtype=torch.int64)}, "`tokens`: expected shape"),
        ({"window": 0}, "`window`: expected a count of at least 1"),
        ({"stride": 5}, r"`stride`: expected 1..4, so that no token is left out, got 5"),
        ({"stride": 0}, r"`stride`: expected 1..4"),
        ({"block_length": 4}, "`block_length`: expected a divisor of 4 and 2, got 4"),
        ({"mask_id": 3}, "holds the mask token 3"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    good = {"tokens": torch.arange(9), "window": 4, "stride": 2, "mask_id": 9}
    with pytest.raises(ValueError, match=message):
        do.rolling(**(good | change))
