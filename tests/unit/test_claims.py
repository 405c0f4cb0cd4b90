"""Verdicts: the interval, the rule, what it says of studies whose truth is known, and of the paper's own figures."""

from __future__ import annotations

import dataclasses
import math
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tests.study_records import finetuned, pretrained, record
from threeml_core.claims import (
    Claim,
    Finding,
    claims,
    detectable_difference,
    difference_interval,
    mean_interval,
)
from threeml_core.config import StudyConfig, make_config
from threeml_core.paper import printed_values
from threeml_core.results import RunRecord
from threeml_core.study import Outcome, StudyRun, find_outcomes, study_runs

SEEDS = 3
CONFIG = make_config({"preset": "efficient-large", "seeds": 1, "trials": 1, "pretrain_seeds": SEEDS})


def test_the_interval_is_student_t() -> None:
    """Mean 2, standard error 1/sqrt(3), t(0.975, 2) = 4.302653."""
    found = mean_interval([1.0, 2.0, 3.0])
    assert found.mean == 2 and found.seeds == 3
    assert found.high - 2 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert 2 - found.low == pytest.approx(found.high - 2)
    one = mean_interval([5.0])
    assert (one.mean, one.low, one.high, one.seeds) == (5.0, None, None, 1)


def test_the_interval_covers() -> None:
    """Of 2,000 samples of three normal values, 95% of the intervals hold the truth."""
    rng = random.Random(0)
    intervals = [mean_interval([rng.gauss(1, 2) for _ in range(3)]) for _ in range(2000)]
    assert sum(i.low < 1 < i.high for i in intervals) / 2000 == pytest.approx(0.95, abs=0.015)


@pytest.mark.parametrize(
    ("values", "low", "high", "verdict"),
    [
        ((1.0, 1.1, 0.9), 0, math.inf, "supported"),
        ((-1.0, -1.1, -0.9), 0, math.inf, "contradicted"),
        ((1.0, -1.1, 0.9), 0, math.inf, "undecided"),
        ((-0.1, -0.2, 0.0), -0.5, math.inf, "supported"),
        ((0.1, -0.1, 0.0), -0.5, 0.5, "supported"),
        ((0.9, 1.0, 1.1), -0.5, 0.5, "contradicted"),
        ((0.4, 0.5, 0.6), -0.5, 0.5, "undecided"),
        ((1.0,), 0, math.inf, "undecided"),
        ((), 0, math.inf, "not run"),
    ],
)
def test_the_rule(values: tuple, low: float, high: float, verdict: str) -> None:
    finding = Finding("a against b", "points", low, high, values)
    assert finding.verdict == verdict
    if values:
        assert dataclasses.replace(finding, doubt="on the unigram plateau").verdict == "undecided"
        assert (finding.reasons == ("one pre-training seed: no interval",)) == (len(values) == 1)


def study(
    config: StudyConfig,
    scores: Callable[[StudyRun, int], Any],
    metrics: Callable[[StudyRun, int], dict] = lambda r, s: {},
) -> list[Outcome]:
    """All runs of a study with chosen results, through the records."""
    trained, tuned = [], []
    for run in study_runs(config):
        for seed in run.seeds:
            trained.append(pretrained(run, seed, **metrics(run, seed)))
            tuned += finetuned(run, trained[-1], config, scores(run, seed))
    return find_outcomes(config, None, trained, tuned)


TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")


def everywhere(value: float) -> dict[str, float]:
    return dict.fromkeys(TASKS, value)


def paper_scores(run: StudyRun, seed: int) -> dict[str, Any]:
    """What the paper prints for a run: its ablation cells, its row of Table 3; 80 where it prints nothing."""
    c = run.config
    place = f"{c.architecture} {c.mask_rate:g}"
    found: dict[str, Any] = everywhere(0.8)
    for value in printed_values():
        if value.recipe != "efficient-large" or not value.setting.startswith(place):
            continue
        change = value.setting.split()[2:]
        if value.artefact in run.artefacts and all(str(getattr(c, k)) == v for k, v in (x.split("=") for x in change)):
            task, _, metric = value.metric.partition("_")
            if task in TASKS:
                both = (
                    ("matched_accuracy", "mismatched_accuracy")
                    if metric == "accuracy" and task == "mnli"
                    else (metric,)
                )
                old = found[task] if isinstance(found[task], dict) else {}
                found[task] = {**old, **dict.fromkeys(both, value.value / 100)}
    for task, keys in {"qqp": ("f1", "accuracy"), "mrpc": ("f1", "accuracy"), "stsb": ("pearson", "spearman")}.items():
        if isinstance(found[task], dict):
            found[task] = {**dict.fromkeys(keys, 0.8), **found[task]}
    if isinstance(found["cola"], float):
        found["cola"] = {"mcc": 0.8}
    return found


def test_the_papers_own_figures_support_its_claims() -> None:
    """Three seeds that all give what is printed: no spread, so each claim stands or falls by the printed figures."""
    perplexities = {"vanilla": 7.8, "self": 9.5, "cross": 9.3}
    outcomes = study(CONFIG, paper_scores, lambda r, s: {"eval_loss": math.log(perplexities[r.config.architecture])})
    found = {claim.name: claim for claim in claims(CONFIG, outcomes, ())}
    assert list(found) == [f"C{i}" for i in range(1, 10)]
    for name in ("C1", "C2", "C3", "C4", "C6", "C7"):
        assert found[name].verdict == "supported", [(f.what, f.values) for f in found[name].findings]
    assert found["C1"].findings[0].values == pytest.approx([0.7] * SEEDS, abs=0.06), "85.0 against 84.3"
    shallow = {f.what: f.values[0] for f in found["C4"].findings}
    assert shallow["3ML_self, 2 blocks against 8: average"] == pytest.approx(88.93 - 88.17, abs=0.01)
    assert found["C8"].verdict == "not run"


def test_one_seed_gives_no_verdict() -> None:
    config = CONFIG.replace(pretrain_seeds=1)
    for claim in claims(config, study(config, paper_scores), ()):
        assert claim.verdict == ("not run" if claim.name == "C8" else "undecided")
        assert claim.name == "C8" or claim.reasons == "one pre-training seed: no interval"


def noisy(effect: float, spread: float) -> Callable[[StudyRun, int], dict]:
    """Vanilla at 15% below all others by `effect` points, with a spread over seeds."""

    def scores(run: StudyRun, seed: int) -> dict:
        low = (run.config.architecture, run.config.mask_rate) == ("vanilla", 0.15)
        return everywhere(0.8 - low * effect / 100 + low * spread / 100 * (seed - 1))

    return scores


@pytest.mark.parametrize(
    ("effect", "spread", "verdict"),
    [(1.0, 0.1, "supported"), (-1.0, 0.1, "contradicted"), (1.0, 1.0, "undecided"), (0.0, 0.1, "undecided")],
)
def test_verdicts_follow_effect_and_spread(effect: float, spread: float, verdict: str) -> None:
    first = claims(CONFIG, study(CONFIG, noisy(effect, spread)), ())[0]
    assert first.name == "C1" and first.verdict == verdict
    assert first.findings[0].interval.mean == pytest.approx(effect)


def test_models_that_learned_nothing_decide_nothing() -> None:
    flat = claims(CONFIG, study(CONFIG, noisy(1, 0.1), lambda r, s: {"on_unigram_plateau": True}), ())
    assert {claim.verdict for claim in flat if claim.name not in ("C8", "C9")} == {"undecided"}
    assert flat[0].reasons == "on the unigram plateau"
    guessing = claims(CONFIG, study(CONFIG, lambda r, s: everywhere(0.305)), ())
    assert guessing[1].verdict == "undecided" and guessing[1].reasons == "no better than constant answers"


def test_the_clock() -> None:
    """C9: 3ML_self at 50% is to reach 90% of its 1.25 in FLOPs."""
    for speed, verdict in ((1200.0, "supported"), (1000.0, "contradicted")):
        speeds = {0.5: speed}
        outcomes = study(
            CONFIG,
            lambda r, s: everywhere(0.8),
            lambda r, s: {"tokens_per_second": speeds.get(r.config.mask_rate, 1000.0) + s},  # noqa: B023
        )
        last = claims(CONFIG, outcomes, ())[-1]
        assert last.verdict == verdict and "68% in efficient-large, 78% in longer-base" in last.text


def layer(number: int, value: float) -> dict:
    numbers = {"layer": number, "width": 64, "states": 1000, "entropy": 4.0, "clusters_used": 10}
    seeds: dict[str, Any] = dict.fromkeys(("plug_in", "corrected"), (value, value))
    seeds |= dict.fromkeys(("extrapolation", "floor", "standard_error"), (0.0, 0.0)) | {"pairs_per_cell": (9.0, 9.0)}
    return numbers | seeds


def test_mutual_information_is_paired_by_seed() -> None:
    outcomes = study(CONFIG, lambda r, s: everywhere(0.8))
    runs = [(o, s, r) for o in outcomes if "Figure 4" in o.run.artefacts for s, r in o.ended.items()]
    values = {"vanilla": 1.0, "self": 0.95, "cross": 0.5}
    records = []
    for outcome, seed, run in runs:
        c = outcome.run.config
        number = c.num_hidden_layers if c.architecture == "vanilla" else 1
        measured = {"layers": [layer(number, values[c.architecture] + seed / 1000)]}
        data = {"run": run.run_id, "on_unigram_plateau": False, "sample": "s"}
        config = c.replace(seed=seed)
        records.append(record("mutual_information", f"i-{run.run_id}", config, metrics=measured, data=data))
    claim = next(c for c in claims(CONFIG, outcomes, records) if c.name == "C8")
    assert [finding.verdict for finding in claim.findings] == ["supported", "contradicted"]
    assert claim.findings[0].values[0] == pytest.approx(0.95)
    assert claim.verdict == "contradicted"
    others = [dataclasses.replace(r, data={**r.data, "sample": r.run_id}) for r in records]
    assert next(c for c in claims(CONFIG, outcomes, others) if c.name == "C8").verdict == "not run", "other [MASK]s"
    strangers = [dataclasses.replace(r, data={**r.data, "run": "another"}) for r in records]
    assert next(c for c in claims(CONFIG, outcomes, strangers) if c.name == "C8").verdict == "not run"


def test_the_clock_of_a_benchmark_comes_first() -> None:
    """Its rounds are what is judged, of the newest one of these models, unless the machine was noisy."""

    def benchmark(seconds: list[float], too_noisy: bool = False, **changes: Any) -> RunRecord:
        turns = {"vanilla-15": [2.0, 2.2, 2.1], "vanilla-15 again": [2.0, 2.0, 2.1], "self-50": seconds}
        return record(
            "benchmark",
            "large",
            CONFIG.replace(**changes),
            metrics={"turns": {name: {"seconds": of} for name, of in turns.items()}, "too_noisy": too_noisy},
            flops={"vanilla-15": 150.0, "self-50": 100.0},
        )

    outcomes = study(CONFIG, lambda r, s: everywhere(0.8))
    fast, slow = [1.4, 1.4, 1.4], [2.0, 2.0, 2.1]
    for found, values, verdict in (
        ([benchmark(slow), benchmark(fast)], (2 / 2.1, 1.0, 1.0), "supported"),
        ([benchmark(slow)], (2 / 3, 0.7, 2 / 3), "contradicted"),
    ):
        clock = claims(CONFIG, outcomes, (), found)[-1].findings[-1]
        assert clock.values == pytest.approx(values) and clock.verdict == verdict and "benchmark" in clock.what
    alone = CONFIG.replace(pretrain_seeds=1)
    clock = claims(alone, study(alone, lambda r, s: everywhere(0.8)), (), [benchmark(slow)])[-1]
    assert clock.verdict == "undecided" and "one pre-training seed: no verdict" in clock.reasons
    of_runs = claims(CONFIG, outcomes, ())[-1].findings[-1]
    for other in (benchmark(slow, too_noisy=True), benchmark(slow, hidden_size=512)):
        assert claims(CONFIG, outcomes, (), [other])[-1].findings[-1] == of_runs


def test_speeds_of_other_machines_are_not_compared() -> None:
    """One thread beside another run, and two threads alone, are different machines."""
    outcomes = study(CONFIG, lambda r, s: everywhere(0.8))
    moved = []
    for outcome in outcomes:
        if outcome.run.config.mask_rate == 0.5:
            hardware = {"cpu": "test", "cores": 1, "threads": 2, "system": "Linux"}
            records = {
                s: dataclasses.replace(r, environment={**r.environment, "hardware": hardware})
                for s, r in outcome.pretraining.items()
            }
            outcome = dataclasses.replace(outcome, pretraining=records)
        moved.append(outcome)
    last = claims(CONFIG, moved, ())[-1]
    assert [finding.verdict for finding in last.findings] == ["supported", "not run"]


ANSWERS_TO_QQP = [{"f1": 0.0, "accuracy": 0.63}, {"f1": 0.54, "accuracy": 0.37}]


def study_of_qqp(f1: float, accuracy: float) -> dict[str, Claim]:
    """Claims of models that answer QQP like this, and 0.33 as constant answers do elsewhere."""

    def scores(run: StudyRun, seed: int) -> dict:
        return {**everywhere(0.33), "qqp": {"f1": f1, "accuracy": accuracy + seed / 1000}}

    trained, tuned = [], []
    for run in study_runs(CONFIG):
        for seed in run.seeds:
            trained.append(pretrained(run, seed))
            for r in finetuned(run, trained[-1], CONFIG, scores(run, seed), chance=0.33):
                known = ANSWERS_TO_QQP if r.identity["task"] == "qqp" else r.metrics["constant_answers"]
                tuned.append(dataclasses.replace(r, metrics={**r.metrics, "constant_answers": known}))
    return {c.name: c for c in claims(CONFIG, find_outcomes(CONFIG, None, trained, tuned), ())}


def test_constant_models_are_not_above_chance_by_another_metric() -> None:
    """QQP's best constant accuracy is above the mean of its F1 and accuracy; in accuracy it is what counts."""
    found = study_of_qqp(0.0, 0.63)
    assert {found[name].reasons for name in ("C4", "C5", "C6")} == {"no better than constant answers"}


def test_records_that_do_not_say_what_constant_answers_give() -> None:
    def without(r: RunRecord) -> RunRecord:
        return dataclasses.replace(r, metrics={k: v for k, v in r.metrics.items() if k != "constant_answers"})

    runs = [(run, pretrained(run, seed)) for run in study_runs(CONFIG) for seed in run.seeds]
    tuned = [without(r) for run, of in runs for r in finetuned(run, of, CONFIG, everywhere(0.8))]
    found = claims(CONFIG, find_outcomes(CONFIG, None, [of for _, of in runs], tuned), ())
    assert found[0].verdict == "undecided" and found[0].reasons == "what constant answers give is not recorded"


def test_no_single_answer_has_the_best_of_two_metrics() -> None:
    """F1 of "duplicate" with the accuracy of "not duplicate" is not chance: a model that reaches both has learned."""
    found = study_of_qqp(0.54, 0.63)
    assert not any("constant answers" in found[name].reasons for name in ("C1", "C2", "C3"))


def test_many_comparisons_do_not_contradict_by_chance() -> None:
    """Six comparisons at the edge of their range: one in twenty claims is contradicted, not one in seven."""
    rng = random.Random(1)
    contradicted = 0
    for _ in range(2000):
        findings = tuple(
            Finding("w", "points", -0.5, 0.5, tuple(rng.gauss(0.5, 1) for _ in range(3))) for _ in range(6)
        )
        contradicted += Claim("C", "", "", findings).verdict == "contradicted"
    assert contradicted / 2000 < 0.05


def test_lists_of_one_value_compare_nothing() -> None:
    config = CONFIG.replace(study_widths="512", study_depths="2", study_splits="80-20-0")
    found = {claim.name: claim for claim in claims(config, study(config, noisy(1, 0.1)), ())}
    assert [found[name].verdict for name in ("C4", "C5", "C6")] == ["not run"] * 3


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
    assert Finding("x", "", 0, math.inf, (1.0,)).detectable is None
    assert Finding("x", "", 0, math.inf, (1.0, 2.0, 3.0)).detectable == pytest.approx(3.264, rel=2e-3)


def test_the_interval_of_a_difference() -> None:
    """Welch's, as scipy has it; none where a side has one value; no warning where a side is constant."""
    first, second = [3.0, 4.0, 8.0], [1.0, 1.5]
    known = stats.ttest_ind(first, second, equal_var=False).confidence_interval(0.95)
    found = difference_interval(first, second)
    assert (found.mean, found.low, found.high) == pytest.approx((3.75, known.low, known.high))
    with warnings.catch_warnings(action="error"):
        constant = [50.91743119266054, 50.91743119266055, 50.91743119266054]
        assert difference_interval([60.0, 61.0, 62.0], constant).low == pytest.approx(
            10.0826 - 4.302653 / 3**0.5, rel=1e-4
        )
    assert difference_interval([1.0], second).low is None and difference_interval([], second).seeds == 0
    assert difference_interval([2.0, 2.0], [1.0, 1.0]).low == 1.0
