"""GLUE's metrics, their macro average, and the bootstrap. Point values come from scikit-learn and scipy.

Source: section 3.1. All values are fractions (the tables multiply by 100), except correlations, which are -1 to 1.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from scipy import special

from threeml_core.foundation.errors import ParameterError
from threeml_core.glue.tasks import Task
from threeml_core.statistics.intervals import Estimate

Splits = Mapping[str, tuple[np.ndarray, np.ndarray]]
"""Tag of a validation split -> (labels, predictions), both (N,): what a run answered."""

_RESAMPLES_AT_ONCE = 64  # bounds the memory of the bootstrap: 64 x 40,000 weights of QQP are 20 MB


def metric_value(metric: str, labels: np.ndarray, predictions: np.ndarray) -> tuple[float, bool]:
    """One metric (mcc, accuracy, f1 of class 1, pearson, spearman) of (N,) labels and predictions; is it defined?

    MCC and the correlations of constant predictions (or labels) are 0 / 0: they count as 0 and come back as
    undefined, so that no NaN reaches an average and no collapsed run passes for a measured one.
    """
    constant = bool(np.all(predictions == predictions[0]) or np.all(labels == labels[0]))
    if metric in ("mcc", "pearson", "spearman") and constant:
        return 0.0, False
    if metric in ("pearson", "spearman"):
        from scipy import stats

        correlation = stats.pearsonr if metric == "pearson" else stats.spearmanr
        return float(correlation(np.asarray(labels, float), np.asarray(predictions, float)).statistic), True
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef  # pages of records do not wait for it

    if metric == "f1":
        return float(f1_score(labels, predictions, zero_division=0)), True
    return float({"mcc": matthews_corrcoef, "accuracy": accuracy_score}[metric](labels, predictions)), True


def task_metrics(task: Task, splits: Splits) -> tuple[dict[str, float], list[str]]:
    """All metrics of a task, and the names of those that are undefined (and count as 0)."""
    pairs = zip(task.metric_keys, itertools.product(task.validation, task.metrics), strict=True)
    found = {key: metric_value(metric, *splits[tag]) for key, (tag, metric) in pairs}
    undefined = [key for key, (_, is_defined) in found.items() if not is_defined]
    return {key: value for key, (value, _) in found.items()}, undefined


def task_score(task: Task, values: Mapping[str, float]) -> float:
    """The task's one number, as the leaderboard and the paper compute it: the mean of its metrics.

    F1 and accuracy (MRPC, QQP), Pearson and Spearman (STS-B), both accuracies (MNLI). Source: section 3.1.
    """
    return statistics.fmean(values[key] for key in task.metric_keys)


def macro_average(scores: Iterable[float]) -> float:
    """The unweighted mean over tasks. Source: section 3.1."""
    return statistics.fmean(scores)


def weighted_accuracy(accuracies: Sequence[float], examples: Sequence[int]) -> float:
    """MNLI's accuracy in the ablations: both validation sets weighted by their sizes. Source: section 3.1."""
    return float(np.average(accuracies, weights=examples))


# -- bootstrap --------------------------------------------------------------------------------------------------
#
# A resample of N examples is a vector of N counts. All metrics are functions of weighted sums, so a block of
# resamples is one matrix product; tests hold them equal to scikit-learn and scipy on the repeated examples.


def resampled_metric(metric: str, labels: np.ndarray, predictions: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(R,) the metric of each of R resamples; 0 where undefined. `weights`: (R, N) how often each example occurs."""
    if metric == "accuracy":
        return weights @ (labels == predictions) / weights.sum(axis=1)
    if metric in ("mcc", "f1"):
        return _from_confusion(metric, labels, predictions, weights)
    if metric == "spearman":
        return _correlation(_ranks(labels, weights), _ranks(predictions, weights), weights)
    return _correlation(labels[None].astype(float), predictions[None].astype(float), weights)


def _from_confusion(metric: str, labels: np.ndarray, predictions: np.ndarray, weights: np.ndarray) -> np.ndarray:
    classes = int(max(labels.max(), predictions.max(), 1)) + 1
    cells = np.eye(classes * classes)[labels.astype(int) * classes + predictions.astype(int)]
    confusion = (weights @ cells).reshape(-1, classes, classes)  # label by prediction
    correct, total = np.trace(confusion, axis1=1, axis2=2), confusion.sum(axis=(1, 2))
    true, predicted = confusion.sum(axis=2), confusion.sum(axis=1)
    if metric == "f1":
        return _ratio(2 * confusion[:, 1, 1], true[:, 1] + predicted[:, 1])
    covariance = correct * total - (true * predicted).sum(axis=1)
    spread = (total**2 - (true**2).sum(axis=1)) * (total**2 - (predicted**2).sum(axis=1))
    return _ratio(covariance, np.sqrt(spread))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    return np.divide(above, below, out=np.zeros_like(above, dtype=float), where=below > 0)


def _ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(R, N) mid-ranks of the values inside each resample."""
    distinct, place = np.unique(values, return_inverse=True)
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(len(distinct)))
    counts = np.add.reduceat(weights[:, order], starts, axis=1)
    return (np.cumsum(counts, axis=1) - (counts - 1) / 2)[:, place]


def _correlation(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    total = weights.sum(axis=1, keepdims=True)
    x = x - (weights * x).sum(axis=1, keepdims=True) / total
    y = y - (weights * y).sum(axis=1, keepdims=True) / total
    covariance, spread_x, spread_y = ((weights * a * b).sum(axis=1) for a, b in ((x, y), (x, x), (y, y)))
    tiny = 1e-12 * total[:, 0]  # what is left of a constant after rounding
    spread = np.where((spread_x > tiny) & (spread_y > tiny), spread_x * spread_y, 0.0)
    return _ratio(covariance, np.sqrt(spread))


def resampled_metrics(task: Task, runs: Sequence[Splits], resamples: int, rng: np.random.Generator) -> np.ndarray:
    """(resamples, runs, metrics) each metric of each run on each bootstrap sample of the validation examples.

    All runs see the same samples, so that differences between them are paired. Metrics are in the order of
    `Task.metric_keys`.
    """
    values = np.empty((resamples, len(runs), len(task.metric_keys)))
    for start in range(0, resamples, _RESAMPLES_AT_ONCE):
        block, columns = values[start : start + _RESAMPLES_AT_ONCE], []
        for tag in task.validation:
            size = len(runs[0][tag][0])
            draws = (rng.integers(0, size, size) for _ in block)
            weights = np.stack([np.bincount(draw, minlength=size) for draw in draws]).astype(float)
            columns += [[resampled_metric(metric, *run[tag], weights) for run in runs] for metric in task.metrics]
        block[:] = np.array(columns).T
    return values


FEWEST_SEEDS = 3
"""Runs (one a seed) from which their spread gives an interval and a p-value that hold; see `compare`."""


@dataclasses.dataclass(frozen=True)
class _Side:
    """What a model's runs on one task give: (k,) scores on all examples, and (R, k) on each bootstrap sample."""

    scores: np.ndarray
    resampled: np.ndarray

    @property
    def mean(self) -> np.ndarray:
        """(R,) over runs."""
        return self.resampled.mean(axis=1)


def _sides(task: Task, sides: Sequence[Sequence[Splits]], resamples: int, seed: int) -> list[_Side]:
    """All sides on the same bootstrap samples."""
    runs = [run for side in sides for run in side]
    resampled = resampled_metrics(task, runs, resamples, np.random.default_rng(seed)).mean(axis=2)
    scores = np.array([task_score(task, task_metrics(task, run)[0]) for run in runs])
    ends = np.cumsum([len(side) for side in sides])[:-1]
    return list(map(_Side, np.split(scores, ends), np.split(resampled, ends, axis=1)))


def _variances(sides: Sequence[_Side], resampled: np.ndarray) -> tuple[list[float], float]:
    """Of a mean score, or of the difference of two: by the seeds of each side, and by the examples alone.

    Seeds and validation examples are two samples at once (as in Sellam et al., "The MultiBERTs", 2022); what of the
    examples' variance is different in every run, and thus in that over seeds already, is taken out.
    """
    seeds = [float(np.var(side.scores, ddof=1)) / len(side.scores) for side in sides]
    apart = [np.mean(np.var(side.resampled - side.mean[:, None], axis=0)) / (len(side.scores) - 1) for side in sides]
    return seeds, max(0.0, float(np.var(resampled)) - float(sum(apart)))


def score_interval(
    task: Task, runs: Sequence[Splits], resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """Interval of the task's mean score over runs (one a seed), which holds what other seeds and examples would give.

    With fewer than `FEWEST_SEEDS` runs it covers the validation examples alone, for these runs: the percentiles of a
    bootstrap of `resamples` samples.
    """
    (side,) = _sides(task, [runs], resamples, seed)
    if len(runs) < FEWEST_SEEDS:
        return interval(side.mean, level)
    (seeds,), examples = _variances([side], side.mean)
    middle = float(side.scores.mean())
    found = Estimate(middle, math.sqrt(seeds), len(runs) - 1, math.sqrt(examples), len(runs)).interval(level)
    assert found.low is not None and found.high is not None
    lowest = -1.0 if {"mcc", "pearson", "spearman"} & set(task.metrics) else 0.0
    return max(lowest, found.low), min(1.0, found.high)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Of two models on one task: the difference of their scores (first minus second), and how sure it is."""

    difference: float
    """Of the mean scores over runs (one a seed) on all validation examples; `low` to `high` is its 95% interval."""
    low: float
    high: float
    p_value: float | None
    """Two-sided; None: too few seeds, and the interval covers the validation examples alone."""
    resamples: int


def compare(
    task: Task, first: Sequence[Splits], second: Sequence[Splits], resamples: int = 2000, seed: int = 0
) -> Comparison:
    """Two models by the answers of their runs (one a seed), paired by examples; seeds are independent on both sides.

    With equal models it finds p < .05 in 3 to 6% of the cases with 3 and with 5 seeds a side (by simulation), be it
    seeds or examples that vary. With one seed a side, examples alone would find it in up to 60%, as they do not know
    what another seed would give: fewer than `FEWEST_SEEDS` give no p-value. Means stand for the protocol's medians, as
    the median of few runs has no such interval.

    Raises:
        ParameterError: the two did not answer the same examples.
    """
    for run, tag in itertools.product((*first, *second), task.validation):
        if not np.array_equal(run[tag][0], first[0][tag][0]):
            raise ParameterError(
                f"{task.title}: the two sides did not answer the same validation examples; "
                "compare predictions made on the same data"
            )
    sides = _sides(task, [first, second], resamples, seed)
    difference = float(sides[0].scores.mean() - sides[1].scores.mean())
    resampled = sides[0].mean - sides[1].mean
    if min(len(first), len(second)) < FEWEST_SEEDS:
        return Comparison(difference, *interval(resampled), None, resamples)
    seeds, examples = _variances(sides, resampled)
    squared = sum(seeds) + examples
    if not squared:
        return Comparison(difference, difference, difference, float(difference == 0), resamples)
    # Welch's degrees of freedom; scipy's functions of t know no infinity
    parts = sum(of**2 / (len(side.scores) - 1) for of, side in zip(seeds, sides, strict=True))
    freedom = min(squared**2 / parts, 1e9) if parts else 1e9
    error = math.sqrt(squared)
    half = float(special.stdtrit(freedom, 0.975)) * error
    p_value = 2 * float(special.stdtr(freedom, -abs(difference) / error))
    return Comparison(difference, difference - half, difference + half, p_value, resamples)


def interval(values: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Percentile interval of bootstrap values."""
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def chance_level(task: Task, splits: Splits) -> float:
    """Score of the best constant answer on these labels: the majority class, or 0 for a correlation."""
    return max(task_score(task, values) for values in constant_answers(task, splits))


def constant_answers(task: Task, splits: Splits) -> list[dict[str, float]]:
    """Metrics of every constant answer, in the order of the labels; of a regression: zero."""
    if not task.labels:
        return [dict.fromkeys(task.metric_keys, 0.0)]
    return [
        task_metrics(task, {tag: (labels, np.full(len(labels), float(c))) for tag, (labels, _) in splits.items()})[0]
        for c in range(task.num_labels)
    ]
