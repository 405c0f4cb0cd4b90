"""The paper's tables beside ours: cells, intervals, the paper's rows, and what was not run."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re

import matplotlib.pyplot as plt
import pytest

from tests.study_records import finetuned, pretrained
from threeml_core.config import StudyConfig, make_config
from threeml_core.paper import reported_values
from threeml_core.reporting.cells import measured, measured_perplexity
from threeml_core.reporting.claims import claim_table, finding_table, key_figure
from threeml_core.reporting.commands import study_runs_table
from threeml_core.reporting.drawing import label_rates
from threeml_core.reporting.figure_3 import figure_3, figure_3_values
from threeml_core.reporting.figure_5 import figure_5, figure_5_values
from threeml_core.reporting.notes import study_notes
from threeml_core.reporting.scaling import plot_scaling, scaling_table
from threeml_core.reporting.style import drawing
from threeml_core.reporting.table import Table
from threeml_core.reporting.table_1 import table_1
from threeml_core.reporting.table_2 import swap_table, table_2, table_2_reported
from threeml_core.reporting.table_3 import (
    budget_table,
    difference_table,
    learned_table,
    table_3,
    table_3_reported,
    untrained_table,
)
from threeml_core.runs.record import RunRecord
from threeml_core.study.claims import claims
from threeml_core.study.ledger import find, study_runs
from threeml_core.study.results import Result

LARGE = make_config({"preset": "efficient-large", "num_seeds": 1, "num_trials": 1, "num_pretrain_seeds": 3})
TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")


def test_a_kind_that_the_validation_lacks_is_no_number(outcomes: list[Result]) -> None:
    """As with 100-0-0 or a very short validation text; the pages that show kinds are still made."""

    def without(outcome: Result) -> Result:
        records = {
            seed: dataclasses.replace(r, metrics={k: v for k, v in r.metrics.items() if not k.endswith("_unchanged")})
            for seed, r in outcome.pretraining.items()
        }
        return dataclasses.replace(outcome, pretraining=records)

    short = [without(outcome) for outcome in outcomes]
    table = table_1(short, LARGE)
    assert "Unchanged" not in table.columns, "no column in which nothing stands"
    assert "not run" not in cells(table, "Replaced")
    assert short[0].own_perplexity == {}
    assert swap_table(short).rows


def outcomes_of(config: StudyConfig, kinds: dict | None = None, exhibits: list[str] | None = None) -> list[Result]:
    """Every run's scores are 80 plus ten times its mask rate, plus a tenth for each seed."""
    trained, tuned = [], []
    for run in study_runs(config, exhibits):
        for seed in run.seeds:
            perplexity = (kinds or {}).get((run.config.architecture, run.config.mask_split), {})
            trained.append(pretrained(run, seed, 1000 + 100 * run.config.mask_rate, **perplexity))
            score = 0.8 + 0.1 * run.config.mask_rate + 0.001 * seed
            tuned += finetuned(run, trained[-1], config, dict.fromkeys(TASKS, score))
    return find(config, exhibits, [*trained, *tuned])


@pytest.fixture(scope="module")
def outcomes() -> list[Result]:
    return outcomes_of(LARGE)


def cells(table: Table, column: str, **where: str) -> list[str]:
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return [row[column] for row in rows if all(row[k.replace("_", " ")] == v for k, v in where.items())]


def reported_beside(table: Table, column: str) -> list[str]:
    """The paper's values in a column, where it has one."""
    return [text.removesuffix(")").partition(" (paper ")[2] for text in cells(table, column) if "paper" in text]


def test_intervals_in_cells() -> None:
    """Means over seeds ± half of Student's interval: 1, 2, 3 give 2 ± 2.48; one value stands alone."""
    assert measured([1, 2, 3], 2) == "2.00 ± 2.48"
    assert measured([0.5], 1, scale=100, sign=True) == "+50.0"
    assert measured([]) == "not run"


def test_intervals_of_perplexities() -> None:
    """On logs: 10 and 40 give 20, and 20 / f to 20 f with log f = 12.7062 · log 2; never below zero."""
    assert measured_perplexity([10.0, 40.0]).startswith("20.0 (0.0 to 13365")
    assert measured_perplexity([10.0, 40.0, 20.0]) == "20.0 (3.6 to 111.9)"
    assert measured_perplexity([12.34]) == "12.3" and measured_perplexity([]) == "not run"
    cell = Table([{"Perplexity": "20.0 (3.6 to 111.9)"}], "")._repr_html_()
    assert 'class="number"' in cell, "set flush right as other numbers"


def test_seeds_in_words(outcomes: list[Result]) -> None:
    """As many as the page's own runs have: the ablations may have fewer than the main comparison."""
    assert study_notes(outcomes).startswith("3 pre-training seeds: means")
    fewer = LARGE.replace(num_ablation_pretrain_seeds=2)
    statements = [study_notes(outcomes_of(fewer, exhibits=[name])) for name in ("Table 2a", "Table 3")]
    assert [statement[:20] for statement in statements] == ["2 pre-training seeds", "3 pre-training seeds"]
    assert study_notes(outcomes_of(fewer)).startswith("2 or 3 pre-training seeds: means")
    one = outcomes_of(LARGE.replace(num_pretrain_seeds=1))
    assert "no interval is possible" in study_notes(one)


def test_figure_3(outcomes: list[Result]) -> None:
    table = figure_3_values(outcomes, LARGE)
    assert cells(table, "Mask rate") == ["15%", "20%", "30%", "40%", "50%", "60%"]
    assert cells(table, "Average", Mask_rate="30%") == ["83.1 ± 0.2"]
    alt = figure_3(outcomes, LARGE).alt
    assert "40%: 84.1 ± 0.2" in alt and "QQP 20%, MNLI 30%, QNLI 20%, Average 40%" in alt


def test_table_1(outcomes: list[Result]) -> None:
    table = table_1(outcomes, LARGE)
    assert cells(table, "Model") == ["vanilla-40%", "3ML_self-40%", "3ML_cross-40%"]
    assert reported_beside(table, "All corrupted") == ["7.8", "9.5", "9.3"]


@pytest.mark.parametrize(
    ("artefact", "column", "values"),
    [
        ("Table 2a", "Decoder layers", ["1", "2", "4", "8"]),
        ("Table 2b", "Decoder width", ["256", "512", "768", "1024"]),
        ("Table 2c", "Split", ["80-10-10", "100-0-0", "80-20-0", "80-0-20"]),
    ],
)
def test_table_2(outcomes: list[Result], artefact: str, column: str, values: list[str]) -> None:
    """Every value of both models, beside it the paper's."""
    table = table_2(artefact, outcomes, LARGE)
    assert cells(table, column) == values * 2
    assert table.columns[:3] == ["Model", column, "Average"]
    assert {text.partition(" (paper")[0] for text in cells(table, "Average")} == {"84.1 ± 0.2"}
    reported = [v for v in reported_values() if v.artefact == artefact and v.metric.endswith("_accuracy")]
    for task, title in (("mnli", "MNLI"), ("qnli", "QNLI"), ("qqp", "QQP")):
        ours = {v.setting: v.reported for v in reported if v.metric == f"{task}_accuracy"}
        assert sorted(reported_beside(table, f"{title} (acc.)")) == sorted(ours.values())
    assert cells(table, "Against the default").count("default") == 2
    assert len(table_2_reported(artefact).rows) == 8


def test_table_3(outcomes: list[Result]) -> None:
    table = table_3(outcomes, LARGE)
    models = ["vanilla-15%", "vanilla-40%", "3ML_self-40%", "3ML_self-50%", "3ML_cross-40%"]
    theirs = [" (paper 24hBERT-15%)", " (paper 24hBERT-40%)", "", "", ""]
    assert cells(table, "Model") == [ours + paper for ours, paper in zip(models, theirs, strict=True)]
    assert reported_beside(table, "Average") == ["84.3", "85.0", "85.0", "85.0", "84.8"]
    assert table.columns[:2] == ["Model", "Average"]
    assert reported_beside(table, "MNLI-m/mm (acc.)")[0] == "84.0/83.6"
    assert cells(table, "Average", Model="3ML_self-50%") == ["85.1 ± 0.2 (paper 85.0)"]
    assert cells(table, "Speed-up, FLOPs", Model="3ML_self-50%") == ["1.25 (paper 1.47)"]
    differences = difference_table(outcomes, LARGE)
    found = cells(differences, "Average (points)", Model="3ML_self-50%", Against="vanilla-15%")
    assert found == ["+3.5 ± 0.0"], "paired by seed: the spread over seeds is common to both"


def test_table_3_of_the_longer_recipe() -> None:
    """Equal updates and equal FLOPs, each beside the paper's row of the same kind."""
    base = make_config({"preset": "longer-base", "num_seeds": 1, "num_trials": 1})
    table = table_3(outcomes_of(base), base)
    pairs = dict(text.removesuffix(")").split(" (paper ") for text in cells(table, "Model") if "paper" in text)
    assert pairs["3ML_self-40%"] == "3ML_self-40%-125K"
    assert pairs["3ML_self-50%, equal FLOPs"] == "3ML_self-50%-160K"
    assert pairs["vanilla-15%"] == "RoBERTa"
    assert pairs["3ML_cross-40%, equal FLOPs"] == "3ML_cross-40%-157K"
    assert [len(table_3_reported(recipe).rows) for recipe in ("efficient-large", "longer-base")] == [5, 8]


@pytest.mark.parametrize(
    ("replaced", "unchanged", "verdict"),
    [
        (40.0, 1.1, "contradicted"),
        (1.1, 40.0, "supported"),
    ],
)
def test_the_swap(replaced: float, unchanged: float, verdict: str) -> None:
    """With the paper's 15.1 at [MASK]s, 80-20-0 and 80-0-20 give exp of 0.8 log 15.1 + 0.2 log of the kind's."""
    kinds = {
        ("cross", split): {
            "eval_perplexity_masked": 15.1,
            "eval_perplexity_replaced": replaced,
            "eval_perplexity_unchanged": unchanged,
        }
        for split in ("80-20-0", "80-0-20")
    }
    table = swap_table(outcomes_of(LARGE, kinds))
    assert cells(table, "Verdict", Model="3ML_cross") == [verdict]
    own = "{0:.1f} ({0:.1f} to {0:.1f}) (paper 7.7)".format(15.1**0.8 * replaced**0.2)
    assert cells(table, "80-20-0", Model="3ML_cross") == [own]
    assert reported_beside(table, "80-20-0") == ["14.0", "7.7"]
    one = LARGE.replace(num_pretrain_seeds=1)
    assert cells(swap_table(outcomes_of(one, kinds)), "Verdict") == ["undecided"] * 2
    kinds["cross", "80-0-20"]["eval_perplexity_masked"] = 14.1
    at_masks = swap_table(outcomes_of(LARGE, kinds), masked=True)
    assert cells(at_masks, "80-20-0", Model="3ML_cross") == ["15.1 (15.1 to 15.1)"]
    assert cells(at_masks, "Difference (nats)", Model="3ML_cross") == ["+0.069 ± 0.000"]
    assert cells(at_masks, "Verdict", Model="3ML_cross") == ["contradicted"]


def test_figure_5(outcomes: list[Result]) -> None:
    table = figure_5_values(outcomes, LARGE)
    assert len(table.rows) == 18
    assert cells(table, "Speed-up in FLOPs, 15%", Model="3ML_self-50%") == ["1.25"]
    assert cells(table, "Speed-up in FLOPs, the same rate", Model="3ML_self-50%") == ["1.50"]
    assert (
        cells(table, "Paper", Model="3ML_self-50%") == cells(table, "Paper", Model="3ML_cross-40%") == ["its best rate"]
    )
    figure = figure_5(outcomes)
    assert "1.37 and 1.5" in figure.alt and "3ML_self-50% 85.1 ± 0.2 at 1.25" in figure.alt


def test_labels_of_rates_lie_beside_each_other(outcomes: list[Result]) -> None:
    """Of points that are nearly one, as the vanilla models over the same rate."""
    with drawing(2, 3.8) as (figure, axes):
        axes[0].set(xlim=(0.8, 1.6), ylim=(45, 55))
        points = [
            (outcomes[i], x, 50 + y, (-14, 0)) for i, (x, y) in enumerate([(1, 0), (1, 0.1), (1, 0.3), (1.01, 0)])
        ]
        label_rates(axes[0], points)
        figure.draw_without_rendering()
        boxes = [text.get_window_extent() for text in axes[0].texts]
    plt.close(figure)
    assert len(boxes) == 4
    assert not any(one.shrunk(0.9, 0.9).overlaps(other) for one, other in itertools.combinations(boxes, 2))


def test_clocks_of_runs_are_not_compared(outcomes: list[Result]) -> None:
    """Runs on different days compare the days: whatever their speeds, no table and no figure says anything of them."""

    def shown(of: list[Result]) -> list[str]:
        tables = [table_3(of, LARGE), figure_5_values(of, LARGE)]
        tables.append(difference_table(of, LARGE))
        return [*(table._repr_html_() for table in tables), figure_5(of).alt]

    def on_another_day(outcome: Result) -> Result:
        factor = 2 if outcome.run.config.architecture == "vanilla" else 1
        found = {
            seed: dataclasses.replace(r, timing={**r.timing, "tokens_per_second": factor * 700.0})
            for seed, r in outcome.pretraining.items()
        }
        return dataclasses.replace(outcome, pretraining=found)

    before = shown(outcomes)
    assert shown([on_another_day(outcome) for outcome in outcomes]) == before
    assert not any("clock" in text for text in before)


def test_what_was_not_run_says_so() -> None:
    """No number anywhere: not zero, not blank."""
    nothing = find(LARGE, None, [])
    tables = [
        figure_3_values(nothing, LARGE),
        *(table_2(name, nothing, LARGE) for name in ("Table 2a", "Table 2b", "Table 2c")),
        figure_5_values(nothing, LARGE),
        difference_table(nothing, LARGE),
    ]
    for table in tables:
        for column in set(table.columns) & {
            "Average",
            "Perplexity, masked",
            "Parameters",
            "Average (points)",
            "Tokens/s",
        }:
            ours = {text.partition(" (paper ")[0] for text in cells(table, column)}
            assert ours == {"not run"}, (table.caption, column)
    for figure in (figure_3(nothing, LARGE), figure_5(nothing)):
        assert "not run" in figure.svg and "not run" in figure.alt
    assert "not run" in key_figure(nothing, LARGE).svg
    assert "Nothing of this page has been run yet." in study_notes(nothing)
    assert {claim.verdict for claim in claims(LARGE, nothing, ())} == {"not run"}
    table = claim_table(claims(LARGE, nothing, ()))
    assert cells(table, "Here") == ["not run"] * 9 and "Why not" not in table.columns


def test_one_model_is_missing() -> None:
    """A comparison without its other half is not run; the claim is undecided, not contradicted."""
    some = [outcome for outcome in outcomes_of(LARGE) if outcome.run.model != "3ML_cross-40%"]
    found = {claim.name: claim for claim in claims(LARGE, some, ())}
    assert found["C3"].verdict == "not run" and found["C1"].verdict == "supported"
    assert found["C4"].verdict == "undecided" and "not all is run" in found["C4"].reasons


def test_budget(outcomes: list[Result]) -> None:
    table = budget_table(outcomes)
    assert cells(table, "Tokens")[0] == "12,058.6 M" and cells(table, "Hours")[0] == "0.003 ± 0.000"
    assert "Energy (kWh)" not in table.columns and cells(table, "Energy by")[0] == "not measured: no codecarbon"


@pytest.mark.parametrize(
    ("timing", "gpu", "energy", "by"),
    [
        ({"energy_kwh": 0.25}, {}, "0.2500 ± 0.0000", "codecarbon"),
        ({}, {"gpu": "H100"}, f"{10 / 3600 * 0.7:.3f} ± 0.000", "hours × 700 W"),
    ],
)
def test_energy(outcomes: list[Result], timing: dict, gpu: dict, energy: str, by: str) -> None:
    def changed(record: RunRecord) -> RunRecord:
        environment = {**record.environment, "hardware": {**record.environment["hardware"], **gpu}}
        return dataclasses.replace(record, timing={**record.timing, **timing}, environment=environment)

    found = [
        dataclasses.replace(o, pretraining={seed: changed(r) for seed, r in o.pretraining.items()}) for o in outcomes
    ]
    table = budget_table(found)
    assert (cells(table, "Energy (kWh)")[0], cells(table, "Energy by")[0]) == (energy, by)


def test_every_run_is_named(outcomes: list[Result]) -> None:
    text = repr(study_runs_table(outcomes, LARGE))
    for outcome in outcomes:
        for seed, record in outcome.pretraining.items():
            assert record.run_id in text
            for study in (outcome.comparison, outcome.ablation):
                for found in study[seed].records.values() if seed in study else ():
                    assert all(r.run_id in text for r in found)
    assert math.isclose(len(re.findall(r"\bdone\b", text)), 36 * 3)


# -- scaling, and whether pre-training helps ------------------------------------------------------------------------


def test_the_ladder() -> None:
    """Each model against vanilla-40% of its own size, the smallest encoder first."""
    config = LARGE.replace(study_sizes="2x128,4x256", num_pretrain_seeds=2)
    trained, tuned = [], []
    for run in study_runs(config, ["Scaling"]):
        c = run.config
        for seed in run.seeds:
            loss = 4 - c.hidden_size / 1000 + (0.2 if c.architecture == "self" else 0) + 0.01 * seed
            trained.append(pretrained(run, seed, eval_loss=loss, eval_perplexity_masked=math.exp(loss)))
            score = 0.5 + (c.hidden_size / 10_000) * (2 if c.architecture == "self" else 1)
            tuned += finetuned(run, trained[-1], config, dict.fromkeys(TASKS, score))
    found = find(config, ["Scaling"], [*trained, *tuned])
    table = scaling_table(found, config)
    sizes = ["2 × 128", "4 × 256", "24 × 1024"]
    assert list(dict.fromkeys(cells(table, "Encoder"))) == sizes and len(table.rows) == 15
    assert (
        cells(table, "Loss over all corrupted, against vanilla-40% (nats)", Model="3ML_self-40%")
        == ["+0.200 ± 0.000"] * 3
    )
    assert cells(table, "Loss over all corrupted, against vanilla-40% (nats)", Model="vanilla-40%") == ["—"] * 3
    gains = cells(table, "Average against vanilla-40% (points)", Model="3ML_self-50%")
    assert gains == ["+1.3 ± 0.0", "+2.6 ± 0.0", "+10.2 ± 0.0"]
    commands = dict(table.commands)
    label = "3ML_self-50%, hidden_size 128: scores, seed 0 (the mean is also over 1 in its place)"
    assert "-p num_hidden_layers 2 -p hidden_size 128" in commands[label]
    alt = plot_scaling(found).alt
    assert "2 × 128, 4 × 256, 24 × 1024" in alt and f"3ML_self-40%: {math.exp(4.077):.1f}" in alt
    assert scaling_table([], LARGE).rows == [["one size: set study_sizes"]]
    assert "not run" in plot_scaling([]).alt


@pytest.mark.parametrize(
    ("untrained", "verdict"),
    [
        ([0.60, 0.61, 0.62], "vanilla-15%, vanilla-40%, 3ML_self-40%, 3ML_self-50%, 3ML_cross-40%"),
        ([0.9], "undecided"),
        ([0.7, 0.8, 0.95], "undecided"),
        ([], "not run"),
    ],
)
def test_does_pretraining_help(outcomes: list[Result], untrained: list[float], verdict: str) -> None:
    trained = next(iter(next(o for o in outcomes if o.comparison).comparison.values())).records["sst2"][0]
    tuning = [
        dataclasses.replace(
            trained,
            run_id=f"sst2-s{seed}-0000000000",
            identity={**trained.identity, "seed": seed},
            data={**trained.data, "checkpoint": "random:x", "task": "sst2", "encoder_parameters": 5},
            metrics={**trained.metrics, "score": score},
        )
        for seed, score in enumerate(untrained)
    ]
    sized = [
        dataclasses.replace(
            o,
            comparison={
                seed: dataclasses.replace(
                    d,
                    records={
                        name: tuple(dataclasses.replace(r, data={**r.data, "encoder_parameters": 5}) for r in of)
                        for name, of in d.records.items()
                    },
                )
                for seed, d in o.comparison.items()
            },
        )
        for o in outcomes
    ]
    table = learned_table(sized, LARGE, tuning)
    assert cells(table, "Pre-training helps", Task="SST-2") == [verdict]
    assert cells(table, "3ML_self-50%", Task="SST-2") == ["85.1 ± 0.2"]
    assert cells(table, "Constant answer", Task="SST-2") == ["30.0"]
    assert cells(table, "Pre-training helps", Task="RTE") == ["not run"]
    names = {record.run_id for record in tuning}
    assert {row[0] for row in untrained_table(sized, tuning).rows} == (names or {"not run"})


def test_every_loss_and_perplexity_names_its_kind(outcomes: list[Result]) -> None:
    """At [MASK]s alone and over all corrupted they are other numbers; a column or comparison says which it has."""
    sizes = outcomes_of(LARGE.replace(study_sizes="2x128"), exhibits=["Scaling"])
    tables = [
        figure_3_values(outcomes, LARGE),
        *(table_2(f"Table 2{part}", outcomes, LARGE) for part in "abc"),
        *(table_2_reported(f"Table 2{part}") for part in "abc"),
        scaling_table(sizes, LARGE),
        difference_table(outcomes, LARGE),
        table_1(outcomes, LARGE),
        finding_table(claims(LARGE, outcomes, ())),
    ]
    named = [name for table in tables for name in (*table.columns, *sum(table.rows, []))]
    of_losses = [name for name in named if re.search(r"^(perplexity|loss)|: loss", name, re.IGNORECASE)]
    assert len(of_losses) > 10
    for name in of_losses:
        assert re.search("masked|all corrupted|own split", name), name


def test_the_claims_with_their_correction(outcomes: list[Result]) -> None:
    """C1 is 2.5 points by all seeds alike, and certain at any level; what hangs on noise is not."""
    found = claims(LARGE, outcomes, ())
    table = claim_table(found)
    assert cells(table, "Corrected", Claim="C1") == cells(table, "Verdict", Claim="C1") == ["supported"]
    assert "of 8 independent ones at least one is, with a probability of up to 18%" in table.caption
    pooled = cells(finding_table(found), "Pooled (exploratory)", Claim="C1")
    assert len(pooled) == 1 and re.fullmatch(r"± 0\.\d \(\d+ degrees of freedom\)", pooled[0])
    judged = finding_table(claims(LARGE.replace(pooled_variances=True), outcomes, ()))
    assert "Pooled" in judged.columns and cells(judged, "Measured", Claim="C1")[0] == f"+2.5 {pooled[0][:5]} points"
    assert cells(judged, "By own seeds", Claim="C1") == ["± 0.0"], "the differences of its seeds are all 2.5"
    assert "By own seeds" not in finding_table(found).columns and "Bartlett" not in finding_table(found).caption
    assert re.search(r"Bartlett's test of that: p = [\d.e-]+ \(points\)", judged.caption)
