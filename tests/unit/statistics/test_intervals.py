"""Intervals: closed forms, other packages, and how often they hold the truth in simulated studies."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from threeml_core.statistics.intervals import (
    Interval,
    Spread,
    detectable_difference,
    difference_interval,
    mean_interval,
    pooled_estimate,
    pooled_spread,
    ratio_interval,
)

STUDIES = 6_000
"""Simulated: the share of intervals that hold the truth is then known to 0.3 points (one standard deviation)."""


def coverage(draw: Callable[[np.random.Generator], Interval], truth: float, studies: int = STUDIES) -> float:
    rng = np.random.default_rng(0)
    found = [draw(rng) for _ in range(studies)]
    return float(np.mean([i.low <= truth <= i.high for i in found]))


def test_the_interval_is_student_t() -> None:
    """Mean 2, standard error 1/sqrt(3), t(0.975, 2) = 4.302653."""
    found = mean_interval([1.0, 2.0, 3.0])
    assert found.mean == 2 and found.seeds == 3
    assert found.high - 2 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert 2 - found.low == pytest.approx(found.high - 2)
    one = mean_interval([5.0])
    assert (one.mean, one.low, one.high, one.seeds) == (5.0, None, None, 1)


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_an_interval_of_a_mean_holds_the_truth(seeds: int) -> None:
    share = coverage(lambda rng: mean_interval(rng.normal(1, 2, seeds).tolist()), 1)
    assert 0.93 < share < 0.97


@pytest.mark.parametrize(("seeds", "error"), [(2, 0.3), (2, 1.0), (3, 0.3), (3, 1.0), (5, 1.0), (5, 5.0)])
def test_an_interval_with_an_error_of_measurement_holds_the_truth_at_least_as_often(seeds: int, error: float) -> None:
    """All seeds share the error: the spread over seeds alone would miss it."""

    def draw(rng: np.random.Generator, known: float) -> Interval:
        shared = rng.normal(0, error)
        return mean_interval((rng.normal(1, 1, seeds) + shared).tolist(), shared=known)

    assert coverage(lambda rng: draw(rng, error), 1) > 0.945
    if error > 1:
        assert coverage(lambda rng: draw(rng, 0.0), 1) < 0.5


@pytest.mark.parametrize("sides", [(3, 3), (3, 5), (5, 5)])
@pytest.mark.parametrize("ratio", [1.0, 2.0])
def test_an_interval_of_a_difference_holds_the_truth(sides: tuple[int, int], ratio: float) -> None:
    def draw(rng: np.random.Generator) -> Interval:
        first, second = rng.normal(2, 1, sides[0]), rng.normal(1, ratio, sides[1])
        return difference_interval(first.tolist(), second.tolist())

    assert 0.93 < coverage(draw, 1) < 0.97


@pytest.mark.parametrize(("models", "seeds"), [(21, 2), (5, 3), (4, 5)])
def test_a_pooled_interval_holds_the_truth(models: int, seeds: int) -> None:
    """Of the difference of two of the models; narrower than that of their own few seeds."""

    def draw(rng: np.random.Generator) -> Interval:
        values = rng.normal(0, 3, (models, seeds)) + np.arange(models)[:, None]
        spread = pooled_spread(values.tolist())
        return pooled_estimate((values[1] - values[0]).tolist(), spread).interval()

    assert 0.93 < coverage(draw, 1, 2500) < 0.97


@pytest.mark.parametrize("seeds", [3, 5])
def test_an_interval_of_a_perplexity_holds_the_truth(seeds: int) -> None:
    """Losses vary by 1 nat around 3: the interval of the perplexity is right, and above zero."""

    def draw(rng: np.random.Generator) -> Interval:
        return ratio_interval(np.exp(rng.normal(3, 1, seeds)).tolist())

    assert 0.93 < coverage(draw, math.exp(3)) < 0.97
    assert draw(np.random.default_rng(0)).low > 0


def test_a_perplexity_is_the_exponential_of_the_mean_loss() -> None:
    found, logs = ratio_interval([10.0, 40.0, 20.0]), mean_interval([math.log(v) for v in (10.0, 40.0, 20.0)])
    assert (found.mean, found.low, found.high) == pytest.approx([math.exp(v) for v in (logs.mean, logs.low, logs.high)])
    assert ratio_interval([7.0]) == Interval(pytest.approx(7.0), None, None, 1)
    assert ratio_interval([1.0, 1e200]).high == math.inf


def test_a_pooled_spread_sums_squares_and_degrees_of_freedom() -> None:
    """Squares about the means are 2 and 8, degrees of freedom 1 and 2; a model with one seed says nothing."""
    spread = pooled_spread([[1.0, 3.0], [0.0, 2.0, 4.0], [9.0], []])
    assert spread == Spread(pytest.approx(math.sqrt(10 / 3)), 3, spread.alike)
    assert pooled_spread([[1.0], []]) is None
    # Bartlett's statistic of variances 2 and 4 with 1 and 2 degrees of freedom, by hand: chi-squared with one
    statistic = (3 * math.log(10 / 3) - math.log(2) - 2 * math.log(4)) / (1 + (1 + 1 / 2 - 1 / 3) / 3)
    assert spread.alike == pytest.approx(math.erfc(math.sqrt(statistic / 2)))
    assert pooled_spread([[1.0, 1.0], [0.0, 2.0]]).alike is pooled_spread([[1.0, 2.0], [3.0]]).alike is None
    found = pooled_estimate([1.0, 3.0], Spread(0.5, 26)).interval()
    assert found.mean == 2 and found.high - 2 == pytest.approx(2.055529 * 0.5, rel=1e-6), "t(0.975, 26)"


@pytest.mark.parametrize(("seeds", "shift"), [(3, 3.2640), (4, 2.1279), (5, 1.6820), (10, 0.9960), (20, 0.6601)])
def test_the_smallest_difference_that_shows(seeds: int, shift: float) -> None:
    """Against power tables of the t-test (two-sided 5%, power 80%), and against draws."""
    assert detectable_difference(2.0, seeds) == pytest.approx(2 * shift, rel=2e-3)
    rng = np.random.default_rng(0)
    draws = rng.normal(shift, 1, (4000, seeds))
    seen = sum(found.low > 0 for found in map(mean_interval, draws.tolist()))
    assert seen / 4000 == pytest.approx(0.8, abs=0.02)


def test_what_one_seed_shows() -> None:
    assert detectable_difference(1.0, 1) == math.inf and detectable_difference(0.0, 2) == 0


def test_the_interval_of_a_difference() -> None:
    """Welch's, as scipy has it; none where a side has two values or fewer; no warning where a side is constant."""
    first, second = [3.0, 4.0, 8.0], [1.0, 1.5, 3.0]
    known = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    found = difference_interval(first, second)
    assert (found.low, found.high) == pytest.approx((known.low, known.high))
    with warnings.catch_warnings(action="error"):
        constant = [50.91743119266054, 50.91743119266055, 50.91743119266054]
        assert difference_interval([60.0, 61.0, 62.0], constant).low == pytest.approx(
            10.0826 - 4.302653 / 3**0.5, rel=1e-4
        )
    assert difference_interval([1.0, 2.0], second).low is None and difference_interval([], second).seeds == 0
    assert difference_interval([2.0] * 3, [1.0] * 3).low == 1.0
