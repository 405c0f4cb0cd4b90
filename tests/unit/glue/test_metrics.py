"""GLUE's metrics and average: scikit-learn and scipy, the paper's own rows, closed forms, the bootstrap."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn_metrics

from threeml_core.foundation.errors import ParameterError
from threeml_core.glue import metrics
from threeml_core.glue.tasks import GLUE_TASKS
from threeml_core.paper import reported_values

REFERENCE = {
    "accuracy": sklearn_metrics.accuracy_score,
    "f1": sklearn_metrics.f1_score,
    "mcc": sklearn_metrics.matthews_corrcoef,
    "pearson": lambda x, y: stats.pearsonr(x, y).statistic,
    "spearman": lambda x, y: stats.spearmanr(x, y).statistic,
}


def made_up(metric: str, size: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    if metric in ("pearson", "spearman"):
        labels = np.round(rng.uniform(0, 5, size), 1)  # ties, as in STS-B
        return labels, np.round(labels + rng.normal(0, 2, size), 1)
    labels = rng.integers(0, 2, size)
    return labels, np.where(rng.random(size) < 0.7, labels, 1 - labels)


@pytest.mark.parametrize("metric", REFERENCE)
def test_point_values(metric: str) -> None:
    for seed in range(5):
        labels, predictions = made_up(metric, 50, seed)
        assert metrics.metric_value(metric, labels, predictions) == (
            pytest.approx(REFERENCE[metric](labels, predictions), abs=1e-12),
            True,
        )


def test_closed_forms() -> None:
    """TP 3, FP 1, FN 2, TN 4."""
    labels = np.array([1] * 5 + [0] * 5)
    predictions = np.array([1, 1, 1, 0, 0, 1, 0, 0, 0, 0])
    expected = {"accuracy": 7 / 10, "f1": 6 / 9, "mcc": (3 * 4 - 1 * 2) / (4 * 5 * 5 * 6) ** 0.5}
    for metric, value in expected.items():
        assert metrics.metric_value(metric, labels, predictions)[0] == pytest.approx(value)


@pytest.mark.parametrize("metric", ["mcc", "pearson", "spearman"])
def test_constant_predictions_are_zero_and_undefined(metric: str) -> None:
    """No NaN, no warning turned into an error, and the record says that the value is undefined."""
    labels = np.array([0, 1, 1, 0])
    assert metrics.metric_value(metric, labels, np.ones(4)) == (0.0, False)
    assert metrics.metric_value(metric, np.ones(4), labels) == (0.0, False)
    assert metrics.resampled_metric(metric, labels, np.full(4, 0.1), np.ones((3, 4))) == pytest.approx([0, 0, 0])


def test_f1_without_a_positive_prediction_is_zero() -> None:
    assert metrics.metric_value("f1", np.array([0, 1]), np.array([0, 0])) == (0.0, True)


def test_score_of_two_metrics_and_two_sets() -> None:
    labels, predictions = np.array([0, 1, 1, 0]), np.array([0, 1, 0, 0])
    values, undefined = metrics.task_metrics(GLUE_TASKS["mrpc"], {"": (labels, predictions)})
    assert values == pytest.approx({"f1": 2 / 3, "accuracy": 3 / 4}) and undefined == []
    assert metrics.task_score(GLUE_TASKS["mrpc"], values) == pytest.approx((2 / 3 + 3 / 4) / 2)
    three = np.array([0, 1, 2, 2])
    values, _ = metrics.task_metrics(
        GLUE_TASKS["mnli"], {"matched": (three, three), "mismatched": (three, np.array([0, 1, 0, 0]))}
    )
    assert values == {"matched_accuracy": 1.0, "mismatched_accuracy": 0.5}
    assert metrics.task_score(GLUE_TASKS["mnli"], values) == 0.75
    assert metrics.weighted_accuracy([1.0, 0.5], [3, 1]) == 0.875


def complete_rows() -> dict[tuple[str, str], dict[str, float]]:
    rows: dict[tuple[str, str], dict[str, float]] = {}
    for value in reported_values():
        if value.artefact == "Table 3":
            rows.setdefault((value.recipe, value.model), {})[value.metric] = value.value
    return {key: row for key, row in rows.items() if "mrpc_f1" in row}


def test_there_are_eleven_complete_rows() -> None:
    assert len(complete_rows()) == 11


@pytest.mark.parametrize("key", complete_rows(), ids="-".join)
def test_average_of_the_papers_rows(key: tuple[str, str]) -> None:
    """Each reported average follows from the reported cells, by the code that averages ours."""
    row = complete_rows()[key]
    scores = []
    for task in GLUE_TASKS.values():
        scores.append(metrics.task_score(task, {name: row[f"{task.name}_{name}"] for name in task.metric_keys}))
    assert round(metrics.macro_average(scores), 1) == row["glue_average"]


def test_electras_metrics_keep_the_marked_averages() -> None:
    """Table 3's footnote: with accuracy for MRPC and QQP and Spearman for STS-B the marked rows keep their average."""
    singles = {"mrpc": ["accuracy"], "qqp": ["accuracy"], "stsb": ["spearman"]}
    marked = {model: row for (recipe, model), row in complete_rows().items() if model.endswith("K")}
    assert len(marked) == 5
    for row in marked.values():
        scores = [
            np.mean([row[f"{task.name}_{name}"] for name in singles.get(task.name, task.metric_keys)])
            for task in GLUE_TASKS.values()
        ]
        assert round(metrics.macro_average(scores), 1) == row["glue_average"]


@pytest.mark.parametrize("metric", REFERENCE)
def test_a_resample_equals_the_repeated_examples(metric: str) -> None:
    labels, predictions = made_up(metric, 40, 1)
    weights = np.random.default_rng(2).multinomial(40, [1 / 40] * 40, size=20)
    found = metrics.resampled_metric(metric, labels, predictions, weights.astype(float))
    for row, value in zip(weights, found, strict=True):
        assert value == pytest.approx(REFERENCE[metric](np.repeat(labels, row), np.repeat(predictions, row)))


def test_interval_of_an_accuracy_is_binomial() -> None:
    """One run of 400 examples, 80% right: the bootstrap gives the normal approximation's interval."""
    labels = np.zeros(400, int)
    predictions = np.array([0] * 320 + [1] * 80)
    low, high = metrics.score_interval(GLUE_TASKS["sst2"], [{"": (labels, predictions)}], 4000)
    half = 1.96 * (0.8 * 0.2 / 400) ** 0.5
    assert (low, high) == (pytest.approx(0.8 - half, abs=0.006), pytest.approx(0.8 + half, abs=0.006))
    assert (low, high) == metrics.score_interval(GLUE_TASKS["sst2"], [{"": (labels, predictions)}], 4000)


def test_interval_holds_the_seeds_as_well() -> None:
    """Three seeds on many examples: Student's interval of 0.9, 0.8, 0.7; scores end at 1."""
    labels = np.zeros(20_000, int)

    def interval(*wrong: int) -> tuple[float, float]:
        runs = [{"": (labels, (np.arange(20_000) < count).astype(int))} for count in wrong]
        return metrics.score_interval(GLUE_TASKS["sst2"], runs, 300)

    assert interval(2000, 4000, 6000) == pytest.approx((0.8 - 4.302653 * 0.1 / 3**0.5, 1.0), abs=0.002)
    assert interval(3000, 4000, 5000) == pytest.approx(
        (0.8 - 4.302653 * 0.05 / 3**0.5, 0.8 + 4.302653 * 0.05 / 3**0.5), abs=0.002
    )
    assert interval(2000, 6000) == pytest.approx((0.8, 0.8), abs=0.01), "with two seeds: of the examples alone"


def models(rng: np.random.Generator, seeds: tuple[int, ...], of_seed: float, of_model: float) -> list[list[dict]]:
    """Models of the same ability: examples are easy or hard, for all, for a model, for a run; seeds shift a run."""
    size = 60
    labels, ease = rng.integers(0, 2, size), rng.normal(0.8, 1, size)
    found = []
    for count in seeds:
        own = ease + rng.normal(0, of_model, size)
        right = [own + rng.normal(0, of_seed) + rng.normal(0, 0.3, size) > 0 for _ in range(count)]
        found.append([{"": (labels, np.where(of, labels, 1 - labels))} for of in right])
    return found


@pytest.mark.parametrize(("seeds", "of_seed", "of_model"), [((3, 3), 0.1, 0.5), ((5, 5), 0.4, 0.5), ((3, 3), 0.4, 0.0)])
def test_equal_models_seldom_differ(seeds: tuple[int, int], of_seed: float, of_model: float) -> None:
    """With 3 and 5 seeds a side, be it seeds or examples that vary: p < .05 in 3 to 7%, and so does the interval."""
    studies = 1500
    pairs = (models(np.random.default_rng(i), seeds, of_seed, of_model) for i in range(studies))
    found = [metrics.compare(GLUE_TASKS["sst2"], *pair, resamples=60) for pair in pairs]
    assert 0.03 < np.mean([of.p_value < 0.05 for of in found]) < 0.07
    assert 0.93 < np.mean([of.low <= 0 <= of.high for of in found]) < 0.97


@pytest.mark.parametrize(("seeds", "of_seed"), [(3, 0.1), (5, 0.2)])
def test_an_interval_of_a_score_holds_the_truth(seeds: int, of_seed: float) -> None:
    """What all seeds and examples together would give: Φ(0.8/σ), as all that varies is normal."""
    truth = stats.norm.cdf(0.8 / (1 + of_seed**2 + 0.3**2 + 0.5**2) ** 0.5)
    found = []
    for i in range(1500):
        (runs,) = models(np.random.default_rng(i), (seeds,), of_seed, 0.5)
        found.append(metrics.score_interval(GLUE_TASKS["sst2"], runs, 60))
    assert 0.93 < np.mean([low <= truth <= high for low, high in found]) < 0.97


@pytest.mark.parametrize("seeds", [(1, 1), (1, 5), (2, 3)])
def test_few_seeds_give_no_p_value(seeds: tuple[int, int]) -> None:
    """Equal models whose seeds differ: their examples alone would often say that they are not."""
    found = [
        metrics.compare(GLUE_TASKS["sst2"], *models(np.random.default_rng(i), seeds, 0.6, 0.0), resamples=100)
        for i in range(40)
    ]
    assert {of.p_value for of in found} == {None}
    assert np.mean([not of.low <= 0 <= of.high for of in found]) > 0.1, "so the interval is named: examples alone"


def test_paired_comparison() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 500)
    good = [{"": (labels, np.where(rng.random(500) < 0.85, labels, 1 - labels))} for _ in range(3)]
    bad = [{"": (labels, np.where(rng.random(500) < 0.6, labels, 1 - labels))} for _ in range(3)]
    found = metrics.compare(GLUE_TASKS["sst2"], good, bad)
    expected = np.mean([np.mean(run[""][0] == run[""][1]) for run in good])
    expected -= np.mean([np.mean(run[""][0] == run[""][1]) for run in bad])
    assert found.difference == pytest.approx(expected)
    assert found.low < expected < found.high and found.low > 0 and found.p_value <= 0.01
    turned = metrics.compare(GLUE_TASKS["sst2"], bad, good)
    assert turned.difference == pytest.approx(-expected) and turned.high < 0
    same = metrics.compare(GLUE_TASKS["sst2"], good[:1] * 3, good[:1] * 3)
    assert (same.difference, same.low, same.high, same.p_value) == (0, 0, 0, 1)


def test_comparing_different_examples_is_refused() -> None:
    with pytest.raises(ParameterError, match="did not answer the same validation examples"):
        metrics.compare(
            GLUE_TASKS["sst2"],
            [{"": (np.array([0, 1]), np.array([0, 1]))}],
            [{"": (np.array([1, 1]), np.array([0, 1]))}],
        )


def test_chance_is_the_best_constant_answer() -> None:
    labels = np.array([0, 1, 1, 1])
    answers = {"": (labels, labels)}
    assert metrics.chance_level(GLUE_TASKS["sst2"], answers) == 0.75
    assert metrics.chance_level(GLUE_TASKS["mrpc"], answers) == pytest.approx((6 / 7 + 0.75) / 2)
    assert metrics.chance_level(GLUE_TASKS["cola"], answers) == 0
    assert metrics.chance_level(GLUE_TASKS["stsb"], {"": (labels.astype(float), labels.astype(float))}) == 0
    no, yes = metrics.constant_answers(GLUE_TASKS["mrpc"], answers)
    assert no == {"f1": 0, "accuracy": 0.25} and yes == pytest.approx({"f1": 6 / 7, "accuracy": 0.75})
    assert metrics.constant_answers(GLUE_TASKS["stsb"], answers) == [{"pearson": 0, "spearman": 0}]
