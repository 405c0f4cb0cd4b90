"""The speedrun, run: it tunes, climbs, measures the clock, and does nothing twice."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from threeml_core.benchmark import clock
from threeml_core.config import make_config
from threeml_core.foundation.errors import ParameterError
from threeml_core.reporting import speedrun as shown
from threeml_core.runs.record import load_records
from threeml_core.study import rungs
from threeml_core.study.rungs import Rung
from threeml_core.study.speedrun import run_speedrun

LADDER = (
    Rung(
        "run_mlm", {"architecture": "vanilla", "mask_rate": 0.15, "layer_norm": "post", "initialization": "bert"}, False
    ),
    Rung("our step", {}),
    Rung("mask 40%, scaled", {"mask_rate": 0.4, "layer_norm": "pre", "initialization": "scaled"}),
)


@pytest.fixture
def given(own_runs: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    monkeypatch.setattr(rungs, "MODELS", (("vanilla", 0.4),))
    monkeypatch.setattr(clock, "PAGE_WAIT", 0.0)  # beside other tests no machine is idle
    budget = {"sweep_steps": 3, "sweep_learning_rates": "1e-3,4e-3", "sweep_muon_learning_rates": "0.01,0.02"}
    climb = {"speedrun_steps": "4,30", "speedrun_target": 150, "num_benchmark_rounds": 6}
    climb |= {"num_pretrain_seeds": 2, "num_workers": 1}
    return {**own_runs, **budget, **climb}


def test_it_climbs_once(given: dict[str, object]) -> None:
    config = make_config(given)
    swept, found = run_speedrun(config, rungs=LADDER)
    steps = [result.run.config.max_steps for result in swept]
    # the first recipe, both encoders with both optimizers, two rates each; and those again that missed the target
    assert steps.count(3) == 2 * (1 + 4) and set(steps) == {3, 30} and steps.count(30) % 2 == 0
    assert found[0].ends == found[1].ends and list(found[0].ends) == [1, 2]
    for of in found:
        for ends in of.ends.values():
            assert list(ends) == [4, 30][: len(ends)] and (len(ends) == 2 or ends[4] <= 150)
    assert found[2].seconds and all(math.isfinite(steps) for steps in found[2].steps.values())
    written = {record.run_id: record.environment["finished"] for record in load_records(config.runs_dir, "pretrain")}
    again, same = run_speedrun(config.replace(plan_only=True), rungs=LADDER)
    assert [of.times for of in same] == [of.times for of in found] and len(again) == len(swept)
    assert {r.run_id: r.environment["finished"] for r in load_records(config.runs_dir, "pretrain")} == written
    table = shown.ladder_table(found)
    assert [row[0] for row in table.rows] == ["run_mlm", "our step", "mask 40%, scaled"]
    assert "masked perplexity of 150" in table.caption and shown.plot_ladder(found).svg.startswith("<svg")


def test_without_a_target_it_says_what_is_missing(own_runs: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="speedrun_target is missing: give the masked perplexity"):
        run_speedrun(make_config({**own_runs, "speedrun_target": None, "preset": "benchmark"}))
    assert not (tmp_path / "pretrain").exists()
