"""Claims by probes: judged by all deciding tasks, with both errors, and in doubt where nothing was learned."""

from __future__ import annotations

import numpy as np
import pytest

from tests.study_records import record
from threeml_core.config import make_config
from threeml_core.statistics.verdicts import CONTRADICTED, NOT_RUN, SUPPORTED, UNDECIDED
from threeml_core.study.probes import BASELINE, DECIDING, RANDOM, Probes, probe_claims

CONFIG = make_config({})
SIZES = [10] * 400


def probes(accuracies: dict[str, float], seeds: int = 3, spread: float = 0.004) -> Probes:
    """Models with these accuracies on every task; each seed's is a little off, sentences are drawn."""
    rng = np.random.default_rng(0)
    offs = np.linspace(-spread, spread, seeds)
    models: dict = {}
    for model, accuracy in accuracies.items():
        models[model] = {}
        for seed in range(seeds):
            tasks = {}
            for task in DECIDING:
                right = rng.binomial(10, accuracy + offs[seed] * (-1) ** len(models), len(SIZES))
                tasks[task] = {"accuracy": float(right.sum() / sum(SIZES)), "right": right.tolist()}
            models[model][seed] = record("probe", f"{model}-{seed}", CONFIG, metrics={"tasks": tasks})
    words = {"tasks": {task: {"sizes": SIZES} for task in DECIDING}}
    return Probes(record("probe", "words", CONFIG, metrics=words), models, {})


def verdicts(found: Probes) -> dict[str, str]:
    return {claim.name: claim.verdict for claim in probe_claims(found)}


def test_clear_differences_are_decided() -> None:
    known = {"vanilla-15%": 0.6, BASELINE: 0.7, "3ML_self-40%": 0.55, "3ML_self-50%": 0.55, "3ML_cross-40%": 0.8}
    found = probes({**known, RANDOM: 0.4})
    expected = {"C1 by probes": SUPPORTED, "C2 by probes": CONTRADICTED, "C3 by probes": CONTRADICTED}
    assert verdicts(found) == expected
    for claim in probe_claims(found):
        for finding in claim.findings:
            first, rest = finding.what.split(" - ")
            second, task = rest.split(": ")
            between, interval = found.difference(first, task, second), finding.interval
            assert between is not None and interval is not None and between.low is not None and interval.low is not None
            assert (interval.mean, interval.low) == pytest.approx((100 * between.mean, 100 * between.low))


def test_what_is_alike_random_weights_or_missing_is_not_decided() -> None:
    alike = dict.fromkeys(("vanilla-15%", BASELINE, "3ML_self-40%", "3ML_self-50%", "3ML_cross-40%"), 0.6)
    assert set(verdicts(probes({**alike, RANDOM: 0.4})).values()) == {UNDECIDED}
    nothing = probe_claims(probes({**alike, "vanilla-15%": 0.4, RANDOM: 0.7}))
    assert nothing[0].verdict == UNDECIDED and "neither model knows more than random weights" in nothing[0].reasons
    assert verdicts(probes({BASELINE: 0.6, RANDOM: 0.4}))["C1 by probes"] == NOT_RUN
    assert set(verdicts(probes({**alike, "vanilla-15%": 0.3, RANDOM: 0.2}, seeds=1)).values()) == {UNDECIDED}
