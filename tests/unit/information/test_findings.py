"""The paper's statements on mutual information, as verdicts on records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from threeml_core.config import make_config
from threeml_core.information.bias import bias_study
from threeml_core.information.findings import first_block, first_layers
from threeml_core.reporting.figure_4 import figure_4, figure_4_values, statement_table
from threeml_core.reporting.information import bias_table, plot_bias
from threeml_core.runs.record import RunRecord

# -- the paper's statements -----------------------------------------------------------------------------------


def record(architecture: str, values: list[float], error: float = 0.01, **changes) -> RunRecord:
    """A run of stage `mutual_information` whose layers have these corrected values, each known to one `error`."""
    layer = {"width": 8, "states": 1000, "entropy": 4.0, "floor": [0.1, 0.1], "clusters_used": [10, 10]}
    layer |= {"pairs_per_cell": [changes.pop("pairs_per_cell", 5.0)] * 2, "standard_error": [error] * 2}
    layer |= {"extrapolation": [0.0, 0.0]}
    layers = [
        {**layer, "layer": number, "plug_in": [value + 0.1] * 2, "corrected": [value] * changes.get("seeds", 2)}
        for number, value in enumerate(values)
    ]
    name = changes.pop("name", f"{architecture}-40-0123456789")
    parameters: dict = {"architecture": architecture, "mask_rate": 0.4, "num_hidden_layers": len(values) - 1}
    parameters["seed"] = changes.pop("seed", 0)
    data = {"run": name, "sample": "a", "on_unigram_plateau": False, **changes}
    empty: dict = {"identity": {}, "sources": {}, "flops": {}, "timing": {}, "environment": {}, "files": {}}
    return RunRecord("mutual_information", name, parameters=parameters, metrics={"layers": layers}, data=data, **empty)


def column(name: str, *records: RunRecord) -> list[str]:
    table = statement_table(records)
    return [row[table.columns.index(name)] for row in table.rows]


def seeds_of(architecture: str, values: list[float], spread: float = 0.0, error: float = 0.001, **changes):
    """Three pre-training seeds, whose last value is `spread` apart from the one before."""
    return [
        record(
            architecture,
            [*values[:-1], values[-1] + spread * s],
            error,
            seed=s,
            name=f"{architecture}-40-0{s}",
            **changes,
        )
        for s in range(3)
    ]


VANILLA = [0.0, 0.9, 0.95, 0.95, 1.0]


@pytest.mark.parametrize(
    ("values", "error", "verdict", "reason"),
    [
        (VANILLA, 0.01, "supported", ""),
        ([0.0, 0.3, 0.5, 0.9, 1.0], 0.01, "contradicted", ""),
        ([0.0, 0.52, 0.6, 0.9, 1.0], 0.02, "undecided", ""),  # 52% ± 4.4%
        ([0.0, 0.52, 0.6, 0.9, 1.0], 0.001, "supported", ""),
        ([0.5, 0.52, 0.51, 0.5, 0.51], 0.01, "undecided", "the last layer holds no more than the embedding"),
        ([0.0, 1.0], 0.01, "not run", "no vanilla run with the embedding, the first quarter and the last layer"),
    ],
)
def test_the_statement_on_vanilla(values: list[float], error: float, verdict: str, reason: str) -> None:
    records = seeds_of("vanilla", values, error=error)
    assert (column("Verdict", *records)[0], column("Why not", *records)[0]) == (verdict, reason)


@pytest.mark.parametrize(
    ("value", "spread", "error", "verdict"),
    [
        (1.3, 0.0, 0.01, "supported"),
        (0.95, 0.0, 0.01, "supported"),
        (0.85, 0.0, 0.01, "contradicted"),
        (0.92, 0.0, 0.01, "undecided"),  # 92% ± 2.7% by the error of measurement alone
        (0.92, 0.0, 0.001, "supported"),
        (0.92, 0.02, 0.001, "undecided"),  # by the spread over seeds alone
    ],
)
def test_the_statement_on_3ml_is_the_claims_finding(value: float, spread: float, error: float, verdict: str) -> None:
    """One rule: what page 07 shows is what C8 is judged by."""
    records = [*seeds_of("vanilla", VANILLA, error=error), *seeds_of("self", [0.0, value], spread, error)]
    assert column("Verdict", *records) == ["supported", verdict] == ["supported", first_block("self", records).verdict]


def test_one_pre_training_seed_decides_nothing() -> None:
    """However small the error of measurement: another seed may give another value."""
    records = [record("vanilla", VANILLA, 1e-6), record("self", [0.0, 0.5], 1e-6)]
    assert column("Verdict", *records) == ["undecided"] * 2
    assert column("Why not", *records) == ["one pre-training seed: no interval"] * 2


def test_the_error_of_a_share_is_that_of_repeated_measurements() -> None:
    """By the delta method: as large as the spread of shares of noisy layers, also of a small share of a noisy whole."""
    rng = np.random.default_rng(0)
    noisy = rng.normal([0.1, 0.7, 1.1], 0.02, (20_000, 3))
    spread = np.std((noisy[:, 1] - noisy[:, 0]) / (noisy[:, 2] - noisy[:, 0]))
    assert first_layers([record("vanilla", [0.1, 0.7, 0.8, 0.9, 1.1], 0.02)]).error == pytest.approx(spread, rel=0.03)
    for block in (0.3, 0.9, 1.4):
        shares = rng.normal(block, 0.02, 20_000) / rng.normal(1.1, 0.02, 20_000)
        records = [record("vanilla", [0.0, 0.5, 1.0, 1.0, 1.1], 0.02), record("self", [0.0, block], 0.02)]
        assert first_block("self", records).error == pytest.approx(np.std(shares), rel=0.03)


def test_what_gives_no_verdict() -> None:
    vanilla = seeds_of("vanilla", VANILLA)
    good = seeds_of("self", [0.0, 1.0])
    assert column("Verdict", *good) == ["not run"] * 2
    assert column("Verdict", *vanilla) == ["supported", "not run"]
    for changes, verdict, reason in (
        ({"sample": "b"}, "not run", "no 3ML run beside a vanilla one with the same [MASK]s"),
        ({"on_unigram_plateau": True}, "undecided", "on the unigram plateau"),
        ({"pairs_per_cell": 4.9}, "undecided", "too few states"),
        ({"seeds": 1}, "undecided", "one k-means seed: no error"),
    ):
        judged = [*vanilla, *seeds_of("self", [0.0, 1.0], **changes)]
        assert (column("Verdict", *judged)[1], column("Why not", *judged)[1]) == (verdict, reason)
        if "sample" not in changes:
            assert column("Why not", *seeds_of("vanilla", VANILLA, **changes))[0] == reason
    nothing = [*seeds_of("vanilla", [0.0, 0.0, 0.0, 0.0, 0.01], error=0.02), *good]
    assert column("Why not", *nothing)[1] == "vanilla's last layer says nothing about the tokens"
    assert column("Verdict", *vanilla, *seeds_of("self", [0.0]))[1] == "not run"


def test_the_latest_run_of_a_seed_counts() -> None:
    good, better = (record("vanilla", [0.0, v / 2, v], name=f"vanilla-40-{n}") for n, v in (("aa", 1.0), ("bb", 2.0)))
    one = record("self", [0.0, 1.0])
    assert first_block("self", [better, good, one]).values == (1.0,)
    assert first_block("self", [good, better, one]).values == (0.5,)


def test_runs_of_several_seeds_are_paired_by_seed() -> None:
    """Seed 1 gives twice as much with both models: the shares are alike."""
    records = [
        record(a, [0.0, 0.9 * (s + 1), s + 1.0], seed=s, name=f"{a}-40-0{s}")
        for s in (0, 1)
        for a in ("self", "vanilla")
    ]
    assert first_block("self", records).values == pytest.approx((0.9, 0.9))
    assert column("Each seed", *records) == ["90%, 90%"] * 2


def test_values_from_too_few_states_are_marked() -> None:
    table = figure_4_values([record("self", [0.0, 0.5], pairs_per_cell=1.5)])
    assert [row[table.columns.index("Corrected (nats)")] for row in table.rows][1] == "0.500 (too few states)"
    figure = figure_4([record("self", [0.0, 0.5], pairs_per_cell=1.5), record("vanilla", [0.0, 0.5, 0.6])])
    assert "Ringed values have too few states" in figure.alt
    assert "Ringed" not in figure_4([record("self", [0.0, 0.5])]).alt


def test_records_without_a_bias_study_say_so(tmp_path: Path) -> None:
    """A report made from records runs nothing."""
    config = make_config({"preset": "tiny", "runs_dir": str(tmp_path), "plan_only": True})
    record = bias_study(config)
    assert record is None and not list(tmp_path.rglob("*.json"))
    for shown in (bias_table(record), plot_bias(record)):
        assert shown.rows == [["not run: this report's records hold no run of stage bias"]]
