"""Intervals and tests for proportions. Standard library only."""

from collections import Counter
from collections.abc import Callable, Sequence
from math import atan, cos, pi, sin, sqrt
from random import Random
from statistics import NormalDist

__all__ = ["bootstrap", "mcnemar", "paired_interval", "student", "wilson"]


def bootstrap(
    values: Sequence[float], *, level: float = 0.95, resamples: int = 2_000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of a mean (Efron, 1979): quantiles of the means of resampled values.

    The draws are a function of the values, their number and the seed.

    Args:
        values: one per problem, such as differences of paired scores.
        level: confidence level.
        resamples: how many means.
        seed: of the draws.

    Returns:
        Lower and upper limit.

    Raises:
        ValueError: without values, or for a level outside 0 to 1.

    >>> tuple(round(x, 2) for x in bootstrap([0.0] * 80 + [1.0] * 20))
    (0.13, 0.28)
    """
    if not values or resamples < 1:
        raise ValueError(f"expected at least one value and one resample, got {len(values)} and {resamples}")
    _z(level)
    kinds, n = Counter(values), len(values)
    random, population, weights = Random(seed), sorted(kinds), [kinds[value] for value in sorted(kinds)]  # noqa: S311
    means = sorted(sum(random.choices(population, weights, k=n)) / n for _ in range(resamples))
    low = round((1 - level) / 2 * (resamples - 1))
    return means[low], means[resamples - 1 - low]


def wilson(k: float, n: int, level: float = 0.95) -> tuple[float, float]:
    """Score interval of a proportion (Wilson, 1927): all p with |k/n − p| ≤ z √(p(1−p)/n).

    Args:
        k: successes; a fraction where a trial can succeed in part, which makes the interval conservative.
        n: trials.
        level: confidence level.

    Returns:
        Lower and upper limit, within [0, 1].

    Raises:
        ValueError: unless 0 ≤ k ≤ n, n ≥ 1 and 0 < level < 1.

    >>> tuple(round(x, 4) for x in wilson(8, 10))
    (0.4902, 0.9433)
    """
    if n < 1 or not 0 <= k <= n:
        raise ValueError(f"expected 0 <= k <= n with n >= 1, got k={k}, n={n}")
    z2 = _z(level) ** 2
    centre = (k + z2 / 2) / (n + z2)
    half = sqrt(z2 * (k * (n - k) / n + z2 / 4)) / (n + z2)
    # the limits at k = 0 and k = n are exactly 0 and 1; rounding must not move them
    return (0.0 if k == 0 else centre - half), (1.0 if k == n else centre + half)


def paired_interval(only_a: int, only_b: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """Score interval of the difference b − a of two proportions on the same items (Tango, 1998).

    All d with |(only_b − only_a) − n d| ≤ z √(n (2 q + d(1 − d))), where q is the maximum-likelihood probability of
    "only a" given d. The paired counterpart of `wilson`: it stays within [−1, 1] and has a width even where no item is
    discordant.

    Args:
        only_a: items that a solves and b does not.
        only_b: items that b solves and a does not.
        n: all items.
        level: confidence level.

    Returns:
        Lower and upper limit of the accuracy of b minus that of a.

    Raises:
        ValueError: unless the counts are non-negative and sum to at most n ≥ 1.

    >>> tuple(round(x, 4) for x in paired_interval(only_a=5, only_b=15, n=100))
    (0.0134, 0.1924)
    """
    if n < 1 or min(only_a, only_b) < 0 or only_a + only_b > n:
        raise ValueError(f"expected counts >= 0 with a sum of at most n, got {only_a=}, {only_b=}, {n=}")
    return -_upper(only_b, only_a, n, level), _upper(only_a, only_b, n, level)


def mcnemar(only_a: int, only_b: int) -> float:
    """Two-sided exact p-value of "a and b are equally good" from the items on which they differ.

    p = min(1, 2 P[X ≤ min(only_a, only_b)]) for X ~ Binomial(only_a + only_b, ½) (McNemar, 1947, exact form).

    >>> mcnemar(1, 5)
    0.21875
    """
    discordant = only_a + only_b
    ways = tail = 1  # C(discordant, i) and its sum up to i
    for i in range(min(only_a, only_b)):
        ways = ways * (discordant - i) // (i + 1)
        tail += ways
    return min(1.0, 2 * tail / 2**discordant)


def student(level: float, freedom: int) -> float:
    """How many standard errors a two-sided interval of a mean reaches to, by Student's t (1908).

    P(|T| <= t) in its closed form for whole degrees of freedom (Abramowitz & Stegun, 26.7.3 and 26.7.4), solved for t.

    Args:
        level: confidence level.
        freedom: degrees of freedom, values minus one.

    Raises:
        ValueError: for a level outside 0 to 1, or freedom below 1.

    >>> round(student(0.95, 1), 3), round(student(0.95, 29), 3)
    (12.706, 2.045)
    """
    if freedom < 1:
        raise ValueError(f"`freedom`: expected at least 1, got {freedom}; take two values or more")
    high = _z(level)
    while _within(high, freedom) < level:
        high *= 2
    return _last(lambda t: _within(t, freedom) <= level, 0.0, high)


def _within(t: float, freedom: int) -> float:
    """P(|T| <= t)."""
    angle = atan(t / sqrt(freedom))
    term, total, power = 1.0, 0.0, freedom % 2
    cosine = cos(angle)
    for i in range(freedom // 2):
        total += term * cosine ** (2 * i + power)
        term *= (2 * i + 1 + power) / (2 * i + 2 + power)
    return sin(angle) * total if power == 0 else 2 / pi * (angle + sin(angle) * total)


def _z(level: float) -> float:
    if not 0 < level < 1:
        raise ValueError(f"`level`: expected a number between 0 and 1, got {level}")
    return NormalDist().inv_cdf((1 + level) / 2)


def _upper(only_a: int, only_b: int, n: int, level: float) -> float:
    z = _z(level)
    difference = only_b - only_a

    def inside(d: float) -> bool:
        # q: the larger root of 2n q² + B q − only_a d(1−d), the likelihood equation at a fixed difference d
        b = (2 * n - difference) * d - only_a - only_b
        q = (sqrt(max(0.0, b * b + 8 * n * only_a * d * (1 - d))) - b) / (4 * n)
        return n * d - difference <= z * sqrt(max(0.0, n * (2 * q + d * (1 - d))))

    return _last(inside, difference / n, 1.0)


def _last(inside: Callable[[float], bool], low: float, high: float) -> float:
    """Bisect for the largest value between low (inside) and high."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if inside(middle) else (low, middle)
    return low
