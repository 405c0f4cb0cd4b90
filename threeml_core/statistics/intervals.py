"""Intervals over seeds, and the smallest difference that they can show. No torch.

Each interval's coverage is what it says to within two points (tested by simulation); where few values would not give
that, there are no bounds.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence

import numpy as np
from scipy import special

FEWEST_OF_TWO_SIDES = 3
"""Values a side from which Welch's interval covers 93 to 97% (tested up to 3 and 5); with two it covers 89 to 98%."""


@dataclasses.dataclass(frozen=True)
class Interval:
    """A mean over seeds with its 95% interval by Student's t; no bounds with fewer than two seeds."""

    mean: float
    low: float | None
    high: float | None
    seeds: int


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A mean with what its intervals are made of.

    Attributes:
        mean: of the values.
        error: its standard error by the spread over seeds; None: one seed, no interval.
        freedom: degrees of freedom of `error`.
        shared: standard error of measurement that all values share, so that more seeds do not make it smaller.
        seeds: how many values there are.
    """

    mean: float
    error: float | None
    freedom: int
    shared: float
    seeds: int

    def interval(self, level: float = 0.95) -> Interval:
        """Student's t over the seeds; an error of measurement is added.

        Source: Banerjee, "On confidence interval for two-means problem" (1961): each part with its own quantile, the
        halves in quadrature, which covers at least `level`.
        """
        if self.error is None:
            return Interval(self.mean, None, None, self.seeds)
        half = _t(level, self.freedom) * self.error
        if self.shared:
            half = math.hypot(half, _normal(level) * self.shared)
        return Interval(self.mean, self.mean - half, self.mean + half, self.seeds)


def mean_estimate(values: Sequence[float], shared: float = 0.0) -> Estimate:
    """Of independent values, one a seed, with a standard error of measurement that they share."""
    seeds = len(values)
    error = statistics.stdev(values) / math.sqrt(seeds) if seeds > 1 else None
    return Estimate(statistics.fmean(values), error, seeds - 1, shared, seeds)


def mean_interval(values: Sequence[float], level: float = 0.95, shared: float = 0.0) -> Interval:
    """Mean and interval of independent values, one a seed; see `Estimate`."""
    return mean_estimate(values, shared).interval(level)


def ratio_interval(values: Sequence[float], level: float = 0.95) -> Interval:
    """Of values that are positive and vary by factors, such as perplexities: computed on logs, given back as values.

    The mean is the geometric one: of a perplexity, the exponential of the mean cross-entropy.
    """
    return exponential(mean_interval([math.log(value) for value in values], level))


def exponential(found: Interval) -> Interval:
    """Of an interval of logs, that of the values."""
    low, high = (None if bound is None else _exp(bound) for bound in (found.low, found.high))
    return Interval(_exp(found.mean), low, high, found.seeds)


def _exp(value: float) -> float:
    return math.inf if value > 700 else math.exp(value)


def difference_interval(first: Sequence[float], second: Sequence[float], level: float = 0.95) -> Interval:
    """Difference of two means of independent values with its interval by Welch's t; no bounds with fewer than three."""
    seeds = min(len(first), len(second))
    if not seeds:
        return Interval(math.nan, None, None, 0)
    mean = statistics.fmean(first) - statistics.fmean(second)
    if seeds < FEWEST_OF_TWO_SIDES:
        return Interval(mean, None, None, seeds)
    errors = [(statistics.variance(values) / len(values), len(values) - 1) for values in (first, second)]
    error = sum(squared for squared, _ in errors)
    if not error:
        return Interval(mean, mean, mean, seeds)
    # scipy's own interval warns where one side is constant, as without pre-training
    freedom = error**2 / sum(squared**2 / own for squared, own in errors)
    half = _t(level, freedom) * math.sqrt(error)
    return Interval(mean, mean - half, mean + half, seeds)


@dataclasses.dataclass(frozen=True)
class Spread:
    """Standard deviation of one seed's values about their model's mean; degrees of freedom are summed over models.

    Attributes:
        deviation: in the unit of the values.
        freedom: degrees of freedom.
        alike: p-value of Bartlett's test that all models vary alike; None: one model, or one that does not vary at all.
    """

    deviation: float
    freedom: int
    alike: float | None = None


def pooled_spread(groups: Iterable[Sequence[float]]) -> Spread | None:
    """The deviation over seeds that all models share, from each one's values; None: no model has two seeds.

    It rests on the assumption that the models vary alike over seeds, which `Spread.alike` checks as far as seeds can.
    """
    several = [values for values in groups if len(values) > 1]
    freedom = sum(len(values) - 1 for values in several)
    if not freedom:
        return None
    variances = [statistics.variance(values) for values in several]
    squares = sum(variance * (len(values) - 1) for variance, values in zip(variances, several, strict=True))
    alike = _alike(several) if len(several) > 1 and min(variances) > 0 else None
    return Spread(math.sqrt(squares / freedom), freedom, alike)


def _alike(groups: Sequence[Sequence[float]]) -> float:
    from scipy.stats import bartlett  # half a second, which most pages have no use for

    return float(bartlett(*groups).pvalue)


def pooled_estimate(differences: Sequence[float], spread: Spread, shared: float = 0.0) -> Estimate:
    """Of the mean difference of two models, with the deviation of a pooled spread instead of these few seeds' own.

    The two models' seeds are taken as independent; if those of a pair go up and down together, as the order of the text
    may make them, the interval is wider than it has to be. `spread` is of one model's values over seeds, `shared` as in
    `Estimate`.
    """
    error = spread.deviation * math.sqrt(2 / len(differences))
    return Estimate(statistics.fmean(differences), error, spread.freedom, shared, len(differences))


def detectable_difference(
    deviation: float, seeds: int, level: float = 0.95, power: float = 0.8, shared: float = 0.0
) -> float:
    """The smallest true mean whose interval leaves out zero with probability `power`; inf with one seed.

    Source: the power of the two-sided t-test of one sample, here of differences paired by seed with this deviation. The
    noncentral t is integrated over the standard error's own distribution, as scipy's has no value for few seeds. A
    `shared` standard error of measurement adds to the interval and to what it is of; see `Estimate`.
    """
    if seeds < 2:
        return math.inf
    error = deviation / math.sqrt(seeds)
    whole = math.hypot(error, shared)
    if whole == 0:
        return 0.0
    from scipy.optimize import brentq  # which most pages have no use for

    freedom = seeds - 1
    bound = _t(level, freedom)
    shares = (np.arange(2000) + 0.5) / 2000
    errors = np.sqrt(special.chdtri(freedom, shares) / freedom)  # estimated over true standard error
    halves = np.hypot(bound * errors * error, _normal(level) * shared) / whole

    def missing(shift: float) -> float:
        return float(np.mean(special.ndtr(shift - halves) + special.ndtr(-shift - halves))) - power

    return float(brentq(missing, 0, 10 * bound)) * whole


def _t(level: float, freedom: float) -> float:
    return float(special.stdtrit(freedom, (1 + level) / 2))


def _normal(level: float) -> float:
    return float(special.ndtri((1 + level) / 2))
