"""Ratios, intervals and noise of turns and sessions."""

from __future__ import annotations

import numpy as np
import pytest

from threeml_core.benchmark import speeds


def test_median_and_interval() -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        found = speeds.interval(rng.normal(1.5, 0.1, 25), 1000)
        assert found.low <= found.value <= found.high
        inside += found.low <= 1.5 <= found.high
    assert 180 <= inside <= 200  # 95% of 200, give or take
    assert speeds.interval(np.array([2.0, 2.0])) == speeds.Interval(2.0, 2.0, 2.0)


def test_ratios_are_taken_within_rounds() -> None:
    """A machine that slows down by half in the middle changes no ratio."""
    drift = np.array([1, 1, 2, 2, 2])
    assert speeds.ratio(3 * drift, 2.0 * drift) == speeds.Interval(1.5, 1.5, 1.5)


@pytest.mark.parametrize(
    ("low", "median", "high", "noisy"),
    [(0.951, 1.0, 1.049, False), (0.899, 0.972, 1.03, True), (0.97, 1.0, 1.051, True), (0.8, 0.99, 1.2, True)],
)
def test_too_noisy(low: float, median: float, high: float, noisy: bool) -> None:
    """The whole interval of the baseline against itself has to lie within the limit, not its median alone."""
    assert speeds.too_noisy(speeds.Interval(median, low, high)) is noisy


def test_over_sessions_stands_students_t() -> None:
    """Mean 2, standard error 1/sqrt(3), t(0.975, 2) = 4.302653."""
    found = speeds.over_sessions([1.0, 2.0, 3.0])
    assert found.value == 2 and found.high - 2 == pytest.approx(4.302653 / 3**0.5, rel=1e-6) == 2 - found.low
