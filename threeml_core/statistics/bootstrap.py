"""A score's interval where pre-training seeds and test items are two samples at once. No torch.

An item is what was drawn independently: a sentence, or a document if its sentences are alike. All models and seeds
answer the same items; two models are paired by seed. So a score varies by three parts: the seed's own, the items'
(shared by all seeds, so that more seeds do not make it smaller) and their interaction (each seed has its own hard
items). `score_interval` takes each part once, in closed form; `multi_bootstrap` is the published resampling.

Simulated with differences whose seeds vary by 0 to 1.1 points, over 500 to 1,500 sentences of 5 to 20 words,
`score_interval` covers 94 to 98% with three seeds, 95 to 97% with five and 95 to 96% with ten: most where the seeds'
part and the items' are alike, 95% where one is negligible. The percentiles of `multi_bootstrap` are no alternative:
where seeds are what varies, they cover 75% with three, 84% with five and 90% with ten (resampled seeds vary too little,
and Student's t is missing); where the interaction is, above 98%, as it comes in three times (Owen, "The pigeonhole
bootstrap", 2007). With many seeds and items the two agree. What a study could show is
`intervals.detectable_difference`, with the items' error as the shared one.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from numpy.typing import ArrayLike

from threeml_core.statistics.intervals import mean_estimate


@dataclasses.dataclass(frozen=True)
class ScoreInterval:
    """A mean score over seeds, or a mean difference of two, as a fraction of the words, with its interval.

    Attributes:
        mean: over the seeds.
        low: lower bound; None: one seed, no interval.
        high: upper bound.
        seeds: how many.
        items: how many.
        seed_error: standard error by the spread over seeds, their interaction with items included; None: one seed.
        item_error: standard error by the items; of one seed, with the interaction.
    """

    mean: float
    low: float | None
    high: float | None
    seeds: int
    items: int
    seed_error: float | None
    item_error: float


def score_interval(
    first: ArrayLike, second: ArrayLike | None, weights: ArrayLike, level: float = 0.95
) -> ScoreInterval:
    """The mean over seeds of score(first) - score(second); a score is the share of all items' words that are correct.

    The same as `mean_interval` of the scores per seed with `item_error` shared. The items' variance is that of a ratio
    (linearised); what of it is different in every seed, and thus in the spread over seeds already, is taken out.
    Source: expected mean squares of a two-way layout whose seeds and items are random (Searle, Casella and McCulloch,
    "Variance Components", 1992).

    Args:
        first: (S, I) correct words per seed and item.
        second: (S, I) those of the other model, with the same seeds and items; None: the score of `first` alone.
        weights: (I,) words per item.
        level: of the interval.

    Raises:
        ValueError: the shapes do not fit, or a count is not between zero and its item's weight.
    """
    counts, words = _differences(first, second, weights)
    seeds, items = counts.shape
    scores = counts.sum(axis=1) / words.sum()
    residuals = (counts - scores[:, None] * words) / words.sum()
    of_one = float((residuals**2).sum(axis=1).mean()) * items / (items - 1)
    of_mean = float((residuals.mean(axis=0) ** 2).sum()) * items / (items - 1)
    shared = max(0.0, (seeds * of_mean - of_one) / (seeds - 1)) if seeds > 1 else of_one
    estimate = mean_estimate(scores.tolist(), math.sqrt(shared))
    found = estimate.interval(level)
    return ScoreInterval(found.mean, found.low, found.high, seeds, items, estimate.error, estimate.shared)


def multi_bootstrap(
    first: ArrayLike,
    second: ArrayLike | None,
    weights: ArrayLike,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> ScoreInterval:
    """The same by resampling seeds and items together, with percentiles as bounds: only for many seeds.

    Each error is the deviation when only the seeds, or only the items, are resampled; the interaction is in both.
    Source: Sellam et al., "The MultiBERTs: BERT Reproductions for Robustness Analysis" (2022), section 3, paired seeds.

    Args:
        first: see `score_interval`.
        second: see `score_interval`.
        weights: see `score_interval`.
        resamples: how many.
        seed: of the random numbers.
        level: of the interval.

    Raises:
        ValueError: see `score_interval`.
    """
    counts, words = _differences(first, second, weights)
    seeds, items = counts.shape
    rng = np.random.default_rng(seed)
    scores = np.empty((resamples, seeds))
    for row in scores:
        times = np.bincount(rng.integers(items, size=items), minlength=items).astype(float)
        row[:] = counts @ times / (words @ times)
    shares = rng.multinomial(seeds, np.full(seeds, 1 / seeds), size=resamples) / seeds
    observed = counts.sum(axis=1) / words.sum()
    mean, item_error = float(observed.mean()), float(scores.mean(axis=1).std())
    if seeds == 1:
        return ScoreInterval(mean, None, None, seeds, items, None, item_error)
    low, high = np.quantile((shares * scores).sum(axis=1), [(1 - level) / 2, (1 + level) / 2]).tolist()
    return ScoreInterval(mean, low, high, seeds, items, float((shares @ observed).std()), item_error)


def _differences(first: ArrayLike, second: ArrayLike | None, weights: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """(S, I) of counts, first minus second, and (I,) of words."""
    words = np.asarray(weights, float)
    sides = [np.asarray(side, float) for side in (first, second) if side is not None]
    if words.ndim != 1 or len(words) < 2 or not np.all((words > 0) & np.isfinite(words)):
        raise ValueError(f"weights {words.shape}: expected (items,), two or more, each of one word at least")
    for name, side in zip(("first", "second"), sides, strict=False):
        if not side.size or side.shape != (len(sides[0]), len(words)):
            expected = f"(seeds, {len(words)}), the same seeds and items for both models"
            raise ValueError(f"{name} {side.shape}: expected {expected}")
        if not np.all((side >= 0) & (side <= words)):
            raise ValueError(f"{name}: expected correct words per item, from zero to the item's weight")
    return sides[0] - sides[1] if len(sides) > 1 else sides[0], words
