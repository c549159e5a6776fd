import pytest
import torch

from dare_samplers import fold, make_key, row_keys, uniform


def splitmix(key: int, word: int) -> int:
    """The hash in Python integers."""
    x = ((key ^ word) + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


@pytest.mark.wheel
def test_fold_is_the_published_hash():
    for key, word in [(0, 0), (1, 2), (2**63 - 1, 5), (17, 2**40)]:
        assert int(fold(torch.tensor(key), word)) % 2**64 == splitmix(key, word)


def test_uniform_is_uniform_and_open():
    key = row_keys(0, list(range(1000)))
    for dtype in (torch.float32, torch.float64):
        u = uniform(key[:, None], "token", torch.arange(100), dtype=dtype)
        assert float(u.min()) > 0
        assert float(u.max()) < 1
        counts = torch.bincount((u * 20).long().flatten(), minlength=20).double()
        assert float(((counts - 5000) ** 2 / 5000).sum()) < 56.5  # 0.99999 quantile, 19 degrees of freedom


def test_words_and_purposes_matter():
    key = torch.tensor(make_key(3))
    draws = [float(uniform(key, p, *w)) for p in ("token", "order") for w in [(0, 1), (1, 0), (1, 1)]]
    assert len(set(draws)) == len(draws)
