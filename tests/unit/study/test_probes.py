"""Claims by probes: judged by the mean of the deciding tasks, with both errors; in doubt where nothing was learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

from tests.study_records import pretrained, record
from threeml_core.config import StudyConfig, make_config
from threeml_core.reporting.answer import probe_sentences
from threeml_core.reporting.probing import difference_table, runs_table
from threeml_core.reporting.standing import ablation_table, size_table, standing_table
from threeml_core.runs.record import RunRecord, write_record
from threeml_core.statistics.verdicts import CONTRADICTED, NOT_RUN, SUPPORTED, UNDECIDED
from threeml_core.study.ledger import study_runs
from threeml_core.study.probes import (
    BASELINE,
    DECIDING,
    JUDGED,
    PROBED,
    RANDOM,
    Probes,
    named,
    probe_claims,
    probes_of,
    results_to_probe,
)
from threeml_core.study.results import Result

SIZES = [10] * 400


def probed(run: str, accuracy: float, rng: np.random.Generator, **more: object) -> RunRecord:
    """A record with about this accuracy on every task; sentences are drawn."""
    right = {task: rng.binomial(10, accuracy, len(SIZES)) for task in DECIDING}
    tasks = {t: {"accuracy": float(r.sum() / sum(SIZES)), "right": r.tolist(), "layers": []} for t, r in right.items()}
    data = {"run": run, "is_random": bool(more), "checkpoint": f"runs/pretrain/{run}/encoder"}
    about = {"metrics": {"tasks": tasks}, "data": data, "identity": more, "timing": {"seconds": 1.0}}
    return record("probe", f"probe-{run}", make_config({}), **about)


def study(
    folder: Path,
    accuracy: Callable[[str], float],
    seeds: int = 3,
    random: float = 0.3,
    fallen: tuple[str, str] | None = None,
    **changes: object,
) -> tuple[StudyConfig, list[Result], Probes]:
    """A study whose models have these accuracies, by name; seeds are half a point off.

    `fallen`: architecture and mask split of a model whose seed 0 ends on the unigram plateau and knows nothing.
    """
    config = make_config({"runs_dir": str(folder), "probe_ablations": True, "num_pretrain_seeds": seeds, **changes})
    config = config.replace(ablation_steps=None)
    for run in study_runs(config, PROBED):
        for seed in run.seeds:
            fell = (run.config.architecture, run.config.mask_split) == fallen and seed == 0
            write_record(pretrained(run, seed, on_unigram_plateau=fell), folder)
    results, rng = results_to_probe(config), np.random.default_rng(0)
    words = record("probe", "words", config, metrics={"tasks": {task: {"sizes": SIZES} for task in DECIDING}})
    records = [words]
    for number, result in enumerate(results):
        for seed, trained in result.ended.items():
            off = 0.005 * (seed - 1) * (-1) ** number
            off -= 0.2 if trained.metrics["on_unigram_plateau"] else 0.0
            records.append(probed(trained.run_id, accuracy(named(result, config)) + off, rng))
    (baseline,) = (result for result in results if named(result, config) == BASELINE)
    records += [probed(r.run_id, random, rng, weights_seed=seed) for seed, r in baseline.ended.items()]
    records.append(probed("of another study", 0.99, rng, weights_seed=0))
    return config, results, probes_of(config, results, records)


def accuracy_of(name: str) -> float:
    """Better and worse by what the claims are about."""
    base = {"vanilla-15%": 0.5, BASELINE: 0.6, "3ML_cross-40%": 0.45}.get(name.split(",")[0], 0.55)
    return base - 0.1 * ("100-0-0" in name) - 0.1 * ("decoder layers" in name)


def test_clear_differences_are_decided(tmp_path: Path) -> None:
    config, results, found = study(tmp_path, accuracy_of)
    assert list(found.models)[:2] == ["vanilla-15%", BASELINE] and RANDOM in found.models
    assert "3ML_self-40%, 100-0-0" in found.models and "3ML_self-40%, 2 decoder layers" in found.models
    claims = {claim.name: claim for claim in probe_claims(config, results, found)}
    assert list(claims) == [f"{name} by probes" for name in JUDGED]
    verdicts = [claim.verdict for claim in claims.values()]
    assert verdicts[:4] == [SUPPORTED, CONTRADICTED, SUPPORTED, SUPPORTED] and verdicts[5] == SUPPORTED
    (finding,) = claims["C1 by probes"].findings
    between = [found.difference(BASELINE, task, "vanilla-15%") for task in DECIDING]
    assert finding.interval is not None and np.mean([d.mean for d in between if d]) == pytest.approx(
        finding.interval.mean / 100
    )
    pos, dep, order = (d.item_error for d in between if d)
    assert finding.error == pytest.approx(100 * math.hypot(pos + dep, order) / 3)


def test_ablations_may_have_fewer_seeds(tmp_path: Path) -> None:
    """All but what Table 3 needs too; a difference is one of the seeds that both have."""
    config, results, found = study(tmp_path, accuracy_of, num_ablation_pretrain_seeds=2)
    seeds = {model: len(of) for model, of in found.models.items() if model != RANDOM}
    assert {model for model, count in seeds.items() if count == 2} == {model for model in seeds if "," in model}
    assert {model for model, count in seeds.items() if count == 3} == {model for model in seeds if "," not in model}
    (split,) = (claim for claim in probe_claims(config, results, found) if claim.name[:2] == "C6")
    assert all(len(finding.values) == 2 for finding in split.findings) and split.verdict == SUPPORTED
    shown = ablation_table(found, results, config)
    table = {row[0]: dict(zip(shown.columns, row, strict=True)) for row in shown.rows}
    assert {*table} == {model for model in seeds if "," in model} | {"3ML_self-40%", "3ML_cross-40%"}
    assert table["3ML_self-40%"]["Against the default, points"] == "—"
    assert all(row["FLOPs of vanilla-15%"].endswith("%") and row["Perplexity at [MASK]s"] for row in table.values())
    (of_split,) = (f for f in split.findings if f.what == "3ML_cross, 80-10-10 against 100-0-0")
    lost = table["3ML_cross-40%, 100-0-0"]["Against the default, points"]
    assert of_split.interval is not None and lost.startswith(f"{-of_split.interval.mean:.1f} ± ")


def test_a_model_on_the_unigram_plateau_decides_nothing(tmp_path: Path) -> None:
    """Neither of itself nor, by the spread that is pooled, of others."""
    asked = {"pooled_variances": True}
    (_, _, usual), (config, results, found) = (
        study(tmp_path / name, accuracy_of, fallen=of, **asked)
        for name, of in (("a", None), ("b", ("self", "100-0-0")))
    )
    (size,) = found.spreads
    before, after = usual.spreads[size], found.spreads[size]
    assert before is not None and after is not None
    assert after.freedom == before.freedom - 2 and after.deviation < 1.1 * before.deviation < 2
    (split,) = (claim for claim in probe_claims(config, results, found) if claim.name[:2] == "C6")
    doubts = {finding.what.partition(",")[0]: finding.doubt for finding in split.findings}
    assert doubts == {"3ML_self": "on the unigram plateau", "3ML_cross": ""}
    assert split.verdict == UNDECIDED and "plateau" in split.reasons


def test_what_equal_flops_buy_is_judged_and_told(tmp_path: Path) -> None:
    """E1: both 3ML_self models, with as many steps as vanilla-15%'s FLOPs allow, against it."""
    asked = {"equal_budget": True, "probe_ablations": False}
    for name, better, verdict in (("a", 0.05, SUPPORTED), ("b", -0.05, CONTRADICTED)):
        config, results, found = study(
            tmp_path / name, lambda model, more=better: 0.5 + more * ("steps" in model), **asked
        )
        claims = [claim for claim in probe_claims(config, results, found) if claim.verdict != NOT_RUN]
        assert [claim.name[:2] for claim in claims] == ["C1", "C2", "C3", "C7", "E1"]
        assert claims[-1].verdict == verdict and len(claims[-1].findings) == 2
        assert all(", 1," in finding.what and "against vanilla-15%" in finding.what for finding in claims[-1].findings)
        told, of_the_paper = probe_sentences(claims)
        assert ("has the better" in told) is (better > 0) and told.count("points") == 3 and "E1" not in of_the_paper
        table = standing_table(found, results, config)
        assert len(table.rows) == 8
        (row,) = (row for row in table.rows if row[0] == "vanilla-40%")
        assert row[-1] == "—" and "±" in row[-2]
        again = [row[-1] for row in runs_table(found, None, results, config).rows if row[0] == "vanilla-15%"]
        assert len(again) == 3 and all("02_pretrain.ipynb" in line and " && threeml probe " in line for line in again)


def test_other_sizes_stand_apart(tmp_path: Path) -> None:
    """With the ablations' seeds, compared within their size, and with a spread of their own."""
    asked = {"study_sizes": "2x32", "equal_size_flops": True, "probe_sizes": True, "probe_ablations": False}

    def accuracy(model: str) -> float:
        return 0.45 + 0.05 * model.startswith("vanilla-40%, 2 × 32") - 0.05 * model.startswith("vanilla-15%, 2 × 32")

    config, results, found = study(tmp_path, accuracy, **asked, num_ablation_pretrain_seeds=2)
    small = [model for model in found.models if " × " in model]
    assert len(small) == 5 and {tuple(found.models[model]) for model in small} == {(0, 1)}
    assert len(found.models["vanilla-40%"]) == 3 and {*found.spreads} == {(2, 32), found.size(BASELINE)}
    spread = found.spreads[2, 32]
    assert spread is not None and spread.freedom == 5
    table = size_table(found, results, config)
    assert [row[0] for row in table.rows] == ["2 × 32"] * 5 + ["4 × 64"] * 5
    row = dict(zip(table.columns, table.rows[1], strict=True))
    assert row["Model"] == "vanilla-40%" and row["Against vanilla-15%, points"].startswith("+")
    assert row["Against vanilla-40%, points"] == "—"
    assert not [row for row in difference_table(found).rows if " × " in row[0]]


def test_what_is_alike_random_or_not_run_is_not_decided(tmp_path: Path) -> None:
    assert {c.verdict for c in probe_claims(*study(tmp_path / "a", lambda name: 0.6))} <= {UNDECIDED, SUPPORTED}
    low = probe_claims(*study(tmp_path / "b", accuracy_of, random=0.9))
    assert {claim.verdict for claim in low} == {UNDECIDED}
    assert "neither model knows more than random weights" in low[0].reasons
    assert {c.verdict for c in probe_claims(*study(tmp_path / "c", accuracy_of, seeds=1))} == {UNDECIDED}
    config, results, found = study(tmp_path / "d", accuracy_of)
    none = probes_of(config, results, [found.words])
    *on_encoders, on_losses = probe_claims(config, results, none)
    assert {claim.verdict for claim in on_encoders} == {NOT_RUN} and on_losses.verdict == UNDECIDED


def test_pooled_variances_judge_probes_where_the_study_says_so(tmp_path: Path) -> None:
    """By the spread over seeds of all models, with the documents' error of measurement."""
    config, results, found = study(tmp_path, accuracy_of)
    for pooled in (False, True):
        claims = probe_claims(config.replace(pooled_variances=pooled), results, found)
        (finding,) = next(claim for claim in claims if claim.name == "C1 by probes").findings
        own, by_pool = (finding.interval, finding.by_pool)
        assert finding.pooled is pooled and own is not None and by_pool is not None and (own == by_pool) is pooled
        spread = found.spreads[found.size(BASELINE)]
        assert spread is not None and spread.freedom == 2 * len(found.runs)
        half = t.ppf(0.975, spread.freedom) * spread.deviation * math.sqrt(2 / 3)
        assert by_pool.high - by_pool.mean == pytest.approx(math.hypot(half, 1.959964 * finding.error))
