"""Intervals over seeds and items: closed forms, how often they hold the truth, and the published resampling."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest
from scipy import stats

from threeml_core.statistics.bootstrap import ScoreInterval, multi_bootstrap, score_interval
from threeml_core.statistics.intervals import detectable_difference, mean_interval


@dataclasses.dataclass(frozen=True)
class Population:
    """All seeds and sentences that there are: a study draws some of both, and the truth is known exactly.

    Sentences are hard or easy for all, for a model, and for a seed of it; seeds of a model differ.
    """

    first: np.ndarray
    second: np.ndarray
    words: np.ndarray

    @classmethod
    def make(cls, spread: float, sentences: float, seeds: int = 200, items: int = 10_000) -> Population:
        """`spread`: standard deviation over seeds of the difference; `sentences`: how far they shift a model alone."""
        rng = np.random.default_rng(0)
        words = rng.integers(5, 21, items)
        for_all = rng.uniform(-0.2, 0.2, items)

        def model(ability: float) -> np.ndarray:
            right = ability + for_all + rng.uniform(-sentences, sentences, items)
            right = right + rng.normal(0, spread / 2**0.5, (seeds, 1)) + rng.uniform(-0.03, 0.03, (seeds, items))
            return rng.binomial(words, right.clip(0, 1)).astype(np.int16)

        return cls(model(0.6), model(0.56), words)

    @functools.cached_property
    def truth(self) -> float:
        return float((self.first.mean(axis=0) - self.second.mean(axis=0)).sum() / self.words.sum())

    def draw(self, rng: np.random.Generator, seeds: int, items: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        cells = np.ix_(rng.integers(len(self.first), size=seeds), rng.integers(len(self.words), size=items))
        return self.first[cells], self.second[cells], self.words[cells[1][0]]

    def studies(self, seeds: int, items: int, count: int = 2500) -> list[ScoreInterval]:
        rng = np.random.default_rng(1)
        return [score_interval(*self.draw(rng, seeds, items)) for _ in range(count)]


FEW = 0.985
"""At most: three seeds' part and a like one of the items, their halves in quadrature, cover 98%, never too seldom."""


def coverage(found: list[ScoreInterval], truth: float) -> float:
    return float(np.mean([i.low <= truth <= i.high for i in found]))


@pytest.fixture(scope="module")
def seeds_vary() -> Population:
    return Population.make(0.011, 0.02)


@pytest.fixture(scope="module")
def both_vary() -> Population:
    return Population.make(0.0055, 0.15)


@pytest.mark.parametrize(("seeds", "items"), [(3, 500), (5, 1000), (10, 500)])
def test_an_interval_holds_the_truth_where_seeds_vary_most(seeds_vary: Population, seeds: int, items: int) -> None:
    assert 0.93 < coverage(seeds_vary.studies(seeds, items), seeds_vary.truth) < 0.97


@pytest.mark.parametrize(("seeds", "items", "most"), [(3, 2500, FEW), (5, 1000, 0.97), (10, 500, 0.97)])
def test_an_interval_holds_the_truth_where_both_vary(
    both_vary: Population, seeds: int, items: int, most: float
) -> None:
    """With three seeds it is a little wide; Student's t over the seeds alone is too narrow."""
    found = both_vary.studies(seeds, items)
    assert 0.93 < coverage(found, both_vary.truth) < most
    alone = [stats.t.ppf(0.975, seeds - 1) * i.seed_error for i in found]
    assert np.mean(np.abs([i.mean - both_vary.truth for i in found]) < alone) < 0.94
    errors = np.mean([(i.seed_error**2, i.item_error**2) for i in found], axis=0)
    assert errors.sum() == pytest.approx(np.var([i.mean for i in found]), rel=0.1), "each part is in once"


@pytest.mark.parametrize(("seeds", "sentences"), [(3, 0.15), (3, 0.0), (5, 0.15), (10, 0.0)])
def test_an_interval_holds_the_truth_where_seeds_are_alike(seeds: int, sentences: float) -> None:
    """Without the items' part it is the interaction alone that varies: were it in twice, it would cover 99%."""
    population = Population.make(0.0, sentences)
    share = coverage(population.studies(seeds, 500), population.truth)
    assert 0.93 < share < (FEW if sentences and seeds == 3 else 0.97)


@pytest.mark.parametrize(("seeds", "most"), [(3, FEW), (10, 0.97)])
def test_a_score_alone_holds_the_truth(both_vary: Population, seeds: int, most: float) -> None:
    rng = np.random.default_rng(2)
    truth = both_vary.first.mean(axis=0).sum() / both_vary.words.sum()
    drawn = (both_vary.draw(rng, seeds, 500) for _ in range(2000))
    assert 0.93 < coverage([score_interval(first, None, words) for first, _, words in drawn], truth) < most


def test_what_the_parts_are() -> None:
    """Seeds that are alike: the normal interval over items; items that are alike: Student's over seeds."""
    rng = np.random.default_rng(0)
    row = rng.integers(0, 2, 400)
    found = score_interval(np.tile(row, (3, 1)), None, np.ones(400))
    assert found.seed_error == 0 and found.item_error == pytest.approx(stats.sem(row))
    assert (found.low, found.high) == pytest.approx(stats.norm.interval(0.95, row.mean(), stats.sem(row)))
    by_seed = np.array([[3], [5], [7]]) * np.ones(50)
    found = score_interval(by_seed, by_seed[::-1], np.full(50, 10))
    expected = mean_interval([-0.4, 0.0, 0.4])
    assert found.item_error == pytest.approx(0, abs=1e-9) and (found.seeds, found.items) == (3, 50)
    assert (found.mean, found.low, found.high) == pytest.approx((0.0, expected.low, expected.high))


def test_the_interval_is_that_of_the_scores_with_the_items_error_shared() -> None:
    """So a verdict on the scores per seed is the same; a word weighs the same in a long sentence and in a short one."""
    first, second, words = np.array([[1, 9], [2, 8]]), np.array([[1, 4], [0, 6]]), np.array([2, 10])
    found = score_interval(first, second, words, level=0.9)
    expected = mean_interval([5 / 12, 4 / 12], 0.9, found.item_error)
    assert (found.mean, found.low, found.high) == pytest.approx((expected.mean, expected.low, expected.high))
    assert found.mean == pytest.approx(4.5 / 12)


def test_the_items_error_is_the_covariance_of_two_seeds() -> None:
    """What two seeds have in common, by all pairs of them; none where they have nothing in common."""
    rng = np.random.default_rng(0)
    counts = (rng.uniform(size=300) + rng.uniform(size=(4, 300)) > 1).astype(int)
    pairs = np.cov(counts)[np.triu_indices(4, 1)]
    assert score_interval(counts, None, np.ones(300)).item_error == pytest.approx((pairs.mean() / 300) ** 0.5)
    apart = np.array([[1, 0, 1, 0], [0, 1, 0, 1]])
    assert score_interval(apart, None, np.ones(4)).item_error == 0


def test_one_seed_has_no_interval() -> None:
    for found in (score_interval([[1, 0, 1]], None, [1, 1, 1]), multi_bootstrap([[1, 0, 1]], None, [1, 1, 1], 4000)):
        assert (found.low, found.high, found.seed_error) == (None, None, None) and found.mean == pytest.approx(2 / 3)
        assert found.item_error == pytest.approx(stats.sem([1, 0, 1]), rel=0.2), "a bootstrap's is smaller: sqrt(2/3)"


def test_resampling_and_the_closed_form_agree_in_large_samples() -> None:
    population = Population.make(0.05, 0.25, seeds=60, items=3000)
    drawn = (population.first, population.second, population.words)
    closed, resampled = score_interval(*drawn), multi_bootstrap(*drawn, resamples=4000)
    assert resampled.mean == closed.mean and resampled == multi_bootstrap(*drawn, resamples=4000)
    assert resampled.high - resampled.low == pytest.approx(closed.high - closed.low, rel=0.05)
    assert resampled.low == pytest.approx(closed.low, abs=0.05 * (closed.high - closed.low))
    assert resampled.seed_error == pytest.approx(closed.seed_error, rel=0.05)
    assert resampled.item_error == pytest.approx(closed.item_error, rel=0.05)


def test_resampling_few_seeds_holds_the_truth_too_seldom(seeds_vary: Population) -> None:
    """Three seeds on many items: why the closed form judges."""
    rng = np.random.default_rng(3)
    found = [multi_bootstrap(*seeds_vary.draw(rng, 3, 1500), resamples=200) for _ in range(300)]
    assert coverage(found, seeds_vary.truth) < 0.92


@pytest.mark.parametrize("ability", [0.0, 0.5])
def test_resampling_is_of_seeds_and_items_together(ability: float) -> None:
    """Seed by seed and item by item, words with them, as the paper draws them; a score alone, and a difference."""
    rng = np.random.default_rng(4)
    words = rng.integers(1, 6, 40)
    first, second = rng.binomial(words, 0.6, (4, 40)), rng.binomial(words, ability, (4, 40))
    means = []
    for _ in range(4000):
        seeds, items = rng.integers(4, size=4), rng.integers(40, size=40)
        means.append((first - second)[seeds][:, items].sum() / 4 / words[items].sum())
    found = multi_bootstrap(first, second if ability else None, words, 4000)
    assert (found.low, found.high) == pytest.approx(np.quantile(means, [0.025, 0.975]).tolist(), abs=0.01)


@pytest.mark.parametrize(("seeds", "spread", "share"), [(3, 0.011, 0.3), (5, 0.0055, 1.0), (10, 0.011, 2.0)])
def test_the_smallest_difference_that_an_interval_over_both_shows(seeds: int, spread: float, share: float) -> None:
    """Shown four times in five; the items' error is `share` of the seeds'."""
    error = share * spread / seeds**0.5
    smallest = detectable_difference(spread, seeds, shared=error)
    rng = np.random.default_rng(0)
    draws = smallest + rng.normal(0, spread, (4000, seeds)) + rng.normal(0, error, (4000, 1))
    shown = [found.low > 0 for found in (mean_interval(values, shared=error) for values in draws.tolist())]
    assert np.mean(shown) == pytest.approx(0.8, abs=0.02)
    assert detectable_difference(0.0, seeds, shared=1.0) == pytest.approx(1.959964 + 0.841621, rel=1e-4), "normal"


@pytest.mark.parametrize(
    ("first", "second", "weights", "message"),
    [
        ([[1, 2]], [[1, 2], [0, 1]], [2, 2], r"second \(2, 2\): expected \(seeds, 2\), the same seeds and items"),
        ([[1, 2, 0]], None, [2, 2], r"first \(1, 3\): expected \(seeds, 2\)"),
        ([1, 2], None, [2, 2], r"first \(2,\): expected \(seeds, 2\)"),
        ([[1, 3]], None, [2, 2], "first: expected correct words per item, from zero to the item's weight"),
        ([[1, 2]], [[1, float("nan")]], [2, 2], "second: expected correct words"),
        ([[1]], None, [2], r"weights \(1,\): expected \(items,\), two or more"),
        ([[1, 0]], None, [2, 0], "each of one word at least"),
    ],
)
def test_input_that_does_not_fit_is_one_line(first: list, second: list | None, weights: list, message: str) -> None:
    for interval in (score_interval, multi_bootstrap):
        with pytest.raises(ValueError, match=message):
            interval(first, second, weights)
