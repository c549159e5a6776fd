"""Intervals and tests against closed values, hand-worked numbers and brute force."""

from itertools import product
from math import comb, log, sqrt
from random import Random
from statistics import NormalDist

import pytest

from dare_eval import bootstrap, mcnemar, paired_interval, wilson
from dare_eval.stats import student

Z = NormalDist().inv_cdf(0.975)

pytestmark = pytest.mark.wheel


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_wilson_closed_values(n: int) -> None:
    """At k = 0 the equation p = z √(p(1−p)/n) has the solutions 0 and z²/(n + z²); k = n mirrors it."""
    assert wilson(0, n) == (0.0, pytest.approx(Z**2 / (n + Z**2), rel=1e-12))
    assert wilson(n, n) == (pytest.approx(n / (n + Z**2), rel=1e-12), 1.0)


@pytest.mark.parametrize(("k", "n"), [(1, 3), (507, 1024), (19, 20)])
@pytest.mark.parametrize("level", [0.8, 0.95, 0.99])
def test_wilson_limits_solve_the_score_equation(k: int, n: int, level: float) -> None:
    z = NormalDist().inv_cdf((1 + level) / 2)
    for p in wilson(k, n, level):
        assert abs(k / n - p) == pytest.approx(z * sqrt(p * (1 - p) / n), rel=1e-9)


def test_wilson_published_value() -> None:
    """Newcombe (1998), table I: 81 of 263 gives 0.2553 to 0.3662."""
    assert wilson(81, 263) == (pytest.approx(0.2553, abs=5e-5), pytest.approx(0.3662, abs=5e-5))


@pytest.mark.parametrize(("k", "n", "level"), [(1, 0, 0.95), (-1, 5, 0.95), (6, 5, 0.95), (1, 5, 1.0), (1, 5, 0.0)])
def test_wilson_refuses(k: int, n: int, level: float) -> None:
    with pytest.raises(ValueError, match="expected"):
        wilson(k, n, level)


def test_mcnemar_by_hand() -> None:
    """1 against 5: 2 (C(6,0) + C(6,1)) / 2⁶ = 14/64."""
    assert mcnemar(1, 5) == mcnemar(5, 1) == 14 / 64
    assert mcnemar(0, 0) == mcnemar(3, 3) == 1.0
    assert mcnemar(0, 10) == 2 / 2**10


@pytest.mark.parametrize(("only_a", "only_b"), [(0, 3), (2, 6), (4, 5), (7, 1)])
def test_mcnemar_enumerates_all_coin_sequences(only_a: int, only_b: int) -> None:
    """Under the null every assignment of the discordant items is equally likely: count those at least as extreme."""
    n, seen = only_a + only_b, abs(only_a - only_b)
    extreme = sum(abs(2 * sum(flips) - n) >= seen for flips in product((0, 1), repeat=n))
    assert mcnemar(only_a, only_b) == extreme / 2**n


@pytest.mark.parametrize("n", [1, 30, 1024])
def test_paired_interval_closed_values(n: int) -> None:
    """No discordant item: √(n d/(1−d)) = z, so d = z²/(n+z²). All for b: √(n (1−d)/(1+d)) = z, so d = (n−z²)/(n+z²)."""
    width = Z**2 / (n + Z**2)
    assert paired_interval(0, 0, n) == (pytest.approx(-width, rel=1e-9), pytest.approx(width, rel=1e-9))
    low, high = paired_interval(0, n, n)
    assert (low, high) == (pytest.approx((n - Z**2) / (n + Z**2), rel=1e-9, abs=1e-9), pytest.approx(1, abs=1e-9))


def _score_statistic(only_a: int, only_b: int, n: int, d: float) -> float:
    """Tango's statistic with the constrained likelihood maximised on a fine grid instead of by its equation."""
    low, high = max(0.0, -d), (1 - d) / 2
    grid = [low + (high - low) * i / 20_000 for i in range(1, 20_000)]

    def likelihood(q: float) -> float:
        rest = 1 - 2 * q - d
        return only_b * log(q + d) + only_a * log(q) + (n - only_a - only_b) * log(rest)

    q = max(grid, key=likelihood)
    return (only_b - only_a - n * d) / sqrt(n * (2 * q + d * (1 - d)))


@pytest.mark.parametrize(("only_a", "only_b", "n"), [(5, 15, 100), (2, 12, 50), (3, 3, 20), (40, 130, 1024)])
def test_paired_interval_brute_force(only_a: int, only_b: int, n: int) -> None:
    low, high = paired_interval(only_a, only_b, n)
    assert _score_statistic(only_a, only_b, n, low) == pytest.approx(Z, abs=2e-3)
    assert _score_statistic(only_a, only_b, n, high) == pytest.approx(-Z, abs=2e-3)


def test_paired_interval_covers_by_enumeration() -> None:
    """Exact coverage over all outcomes of 20 items, averaged over several truths, is near the level."""
    n, truths = 20, [(0.1, 0.1), (0.05, 0.25), (0.3, 0.1), (0.2, 0.4), (0.02, 0.4)]
    intervals = {(a, b): paired_interval(a, b, n) for a in range(n + 1) for b in range(n + 1 - a)}
    covered = []
    for p_a, p_b in truths:
        inside = [counts for counts, (low, high) in intervals.items() if low <= p_b - p_a <= high]
        covered.append(
            sum(comb(n, a) * comb(n - a, b) * p_a**a * p_b**b * (1 - p_a - p_b) ** (n - a - b) for a, b in inside)
        )
    assert min(covered) > 0.92
    assert sum(covered) / len(covered) == pytest.approx(0.95, abs=0.02)


def test_paired_interval_mirrors_and_contains_the_difference() -> None:
    for a, b, n in product(range(6), range(6), (12, 300)):
        low, high = paired_interval(a, b, n)
        assert -1 <= low <= (b - a) / n <= high <= 1
        assert paired_interval(b, a, n) == (-high, -low)


@pytest.mark.parametrize(("only_a", "only_b", "n"), [(1, 1, 0), (-1, 2, 5), (3, 3, 5)])
def test_paired_interval_refuses(only_a: int, only_b: int, n: int) -> None:
    with pytest.raises(ValueError, match="expected counts"):
        paired_interval(only_a, only_b, n)


@pytest.mark.parametrize(
    ("level", "freedom", "table"),
    [
        (0.95, 1, 12.7062),
        (0.95, 2, 4.3027),
        (0.95, 5, 2.5706),
        (0.95, 10, 2.2281),
        (0.99, 15, 2.9467),
        (0.9, 29, 1.6991),
    ],
)
def test_student_quantiles_of_the_tables(level: float, freedom: int, table: float) -> None:
    assert student(level, freedom) == pytest.approx(table, abs=6e-5)
    assert student(level, 10_000) == pytest.approx(NormalDist().inv_cdf((1 + level) / 2), abs=1e-3)
    with pytest.raises(ValueError, match="`freedom`: expected at least 1"):
        student(level, 0)


def test_bootstrap_is_keyed_and_covers() -> None:
    """Of 200 samples of 60 with mean 0.3 the interval holds it about 95 times in 100 (binomial: 0.9 and more)."""
    values = [0.0] * 42 + [1.0] * 18
    assert bootstrap(values) == bootstrap(values) == bootstrap(list(reversed(values)))
    assert bootstrap(values, seed=1) != bootstrap(values, resamples=300)
    low, high = bootstrap(values)
    assert (low, high) == pytest.approx(wilson(18, 60), abs=0.03)
    assert bootstrap([1.0] * 5) == (1.0, 1.0)
    random = Random(5)
    covered = 0
    for _ in range(200):
        low, high = bootstrap([float(random.random() < 0.3) for _ in range(60)], resamples=400)
        covered += low <= 0.3 <= high
    assert covered >= 180
    with pytest.raises(ValueError, match="expected at least one value"):
        bootstrap([])
    with pytest.raises(ValueError, match="`level`"):
        bootstrap(values, level=1.0)
