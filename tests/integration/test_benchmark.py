"""Small benchmarks: records, sessions in processes of their own, tables, the command. No time is asserted."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.benchmark.test_variants import settings
from threeml_core.__main__ import main
from threeml_core.benchmark import measure as measuring
from threeml_core.benchmark import speeds
from threeml_core.benchmark.breakdown import KINDS
from threeml_core.benchmark.load import Load, Patience
from threeml_core.benchmark.run import run_benchmark
from threeml_core.benchmark.scaling import points_of
from threeml_core.benchmark.speeds import benchmark_records, same_benchmark
from threeml_core.config import make_config
from threeml_core.flops import forward_flops
from threeml_core.foundation.log import no_line
from threeml_core.reporting import performance
from threeml_core.runs.record import RunRecord

ANYHOW = Patience(wait=0, pause=0, load=math.inf, busy=math.inf)
"""These tests run beside others."""


@pytest.fixture(scope="module", autouse=True)
def short_turns() -> Iterator[None]:
    """A step a turn: what the numbers are does not matter here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("threeml_core.benchmark.speed.TURN_SECONDS", 0.0)
        patch.setattr("threeml_core.benchmark.scaling.TURN_SECONDS", 0.0)
        patch.setattr("threeml_core.benchmark.scaling.TURNS", 1)
        yield


@pytest.fixture(scope="module")
def record(corpus_file: Path, runs_dir: Path) -> RunRecord:
    """A benchmark of a second: speed and breakdown of three variants, all of a tiny geometry's scaling."""
    (found,) = run_benchmark(make_config(settings(corpus_file, runs_dir)), no_line, patience=ANYHOW)
    return found


def idle_metrics(metrics: dict[str, Any], again: float = 1.0) -> dict[str, Any]:
    """On an idle machine that is as fast in every round, and `again` times slower in a second turn."""
    turns = {name: {**of, "seconds": [0.1] * 6} for name, of in metrics["turns"].items()}
    turns["vanilla-15 again"] = {**turns["vanilla-15"], "seconds": [0.1 * again] * 6}
    return {**metrics, "turns": turns, "load_before": 0.1, "busy_before": 0.0, "busy_during": 0.0}


def with_turns(record: RunRecord, again: float = 1.0, **metrics: object) -> RunRecord:
    """A record with `idle_metrics`."""
    return dataclasses.replace(record, metrics={**idle_metrics(record.metrics, again), **metrics})


def as_session(record: RunRecord, number: int, faster: float, **metrics: object) -> RunRecord:
    """Another session, with 3ML_self-50% so many times as fast as vanilla-15%."""
    found = with_turns(record, **metrics)
    turns = {**found.metrics["turns"], "self-50": {**found.metrics["turns"]["self-50"], "seconds": [0.1 / faster] * 6}}
    identity = {**record.identity, "session": number}
    return dataclasses.replace(
        found, identity=identity, run_id=f"session-{number}", metrics={**found.metrics, "turns": turns}
    )


def test_a_record_and_its_tables(record: RunRecord, corpus_file: Path, runs_dir: Path) -> None:
    metrics = record.metrics
    assert record.stage == "benchmark" and set(metrics["turns"]) == {"hf", "vanilla-15", "self-50", "vanilla-15 again"}
    assert all(len(turn["seconds"]) == 6 for turn in metrics["turns"].values())
    for parts in metrics["breakdown"].values():
        assert list(parts) == list(KINDS) and parts["matrix products"] > 0 and parts["head"] > 0 and parts["data"] > 0
    axes = Counter(point["axis"] for point in metrics["scaling"])
    assert axes["mask_rate"] == 15 and axes["decoder_num_hidden_layers"] == 6 and axes["sequence_length"] == 9
    for point, (_, _, config) in zip(
        metrics["scaling"], points_of(make_config(settings(corpus_file, runs_dir))), strict=True
    ):
        assert point["flops"] == 3 * 4 * forward_flops(config, "exact", record.data["vocab_size"])

    quiet = with_turns(record)
    variants = {variant.name: variant for variant in speeds.speeds([quiet])}
    assert variants["vanilla-15"].over_vanilla == speeds.Interval(1.0, 1.0, 1.0)
    one = variants["self-50"]
    assert one.realised.value == pytest.approx(
        one.over_vanilla.value * record.flops["self-50"] / record.flops["vanilla-15"]
    )
    assert one.mfu is None and 0 <= one.data_wait < 1
    text = "\n".join(speeds.lines_of([quiet]))
    assert "3ML_self-50%" in text and "Hugging Face" in text
    html = str(performance.speed_comparison([quiet]))
    assert "3ML_self-50%" in html and speeds.text_of(one.realised) in html
    for part in ("plot_breakdown", "breakdown_table", "plot_step_cost", "step_cost_table"):
        assert getattr(performance, part)(quiet)._repr_html_()
    for part in ("resource_table", "plot_realised", "session_table"):
        assert getattr(performance, part)([quiet])._repr_html_()
    assert "not measured" in repr(performance.preparation_table(quiet))


@pytest.mark.parametrize(
    ("again", "metrics", "why"),
    [
        (1.06, {}, "too noisy: vanilla-15% against itself is 0.943"),
        (1.0, {"busy_during": 99.0}, "busy: other processes kept 99.00"),
        (1.0, {"busy_before": None, "busy_during": None, "load_before": 99.0}, "busy: a load of 99.00"),
    ],
)
def test_a_noisy_or_busy_record_gives_no_speed(record: RunRecord, again: float, metrics: dict, why: str) -> None:
    bad = with_turns(record, again, **metrics)
    assert speeds.speeds([bad]) == [] and speeds.realised_by_session([bad], "self-50") == ()
    lines = speeds.lines_of([bad])
    assert len(lines) == 2 and f"no speed is given, {why}" in lines[1]
    page = repr(performance.speed_comparison([bad]))
    assert why in page and "no speed is given" in page and "ms an update" not in page
    assert "no speed is given" in repr(performance.resource_table([bad]))
    assert "no speed is given" in performance.plot_realised([bad]).alt
    assert performance.session_table([bad]).rows[0][-1] == why.partition(":")[0]  # the whole of it stands beneath
    assert why in performance.plot_step_cost(bad).alt and "not to be trusted" in performance.plot_step_cost(bad).alt
    assert "not to be trusted" not in performance.plot_step_cost(with_turns(record)).alt


def test_what_ended_before_is_not_held_against_a_session(record: RunRecord) -> None:
    """The load average lags; where it is known what others do now, that counts. For a verdict both have to be low."""
    loaded = with_turns(record, load_before=99.0)
    assert speeds.why_no_speed(loaded) == "" and speeds.speeds([loaded])
    assert speeds.why_no_verdict(loaded).startswith("busy: a load of 99.00")
    assert speeds.realised_by_session([loaded], "self-50") == ()


def test_sessions_side_by_side(record: RunRecord) -> None:
    """A row each, and the mean over them with Student's t; one that gives no speed says why, and does not count."""
    sessions = [as_session(record, number, 1 + number / 10) for number in (1, 2, 3)]
    sessions.append(as_session(record, 4, 9.0, again=1.2))
    by_flops = record.flops["vanilla-15"] / record.flops["self-50"]
    table = performance.session_table(sessions)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["Session"] for row in rows] == ["1", "2", "3", "4", "mean (95%)"]
    assert [row["Run"] for row in rows[:4]] == [r.run_id for r in sessions], "a report keeps the runs it names"
    column = "Realised, 3ML_self-50%"
    assert [row[column] for row in rows] == [
        *(f"{faster / by_flops:.3f}" for faster in (1.1, 1.2, 1.3)),
        "—",
        speeds.text_of(speeds.over_sessions([faster / by_flops for faster in (1.1, 1.2, 1.3)]), 3),
    ]
    assert "too noisy" in rows[3]["No speed, because"]
    assert rows[0]["Vanilla-15% against itself"] == "1.000 (1.000 to 1.000)"
    variant = next(variant for variant in speeds.speeds(sessions) if variant.name == "self-50")
    half = 4.302653 * 0.1 / 3**0.5
    assert (variant.over_vanilla.value, variant.over_vanilla.high) == pytest.approx((1.2, 1.2 + half))
    page = repr(performance.speed_comparison(sessions))
    assert "4 sessions of 6 rounds, 1 of them left out" in page and "Student's t" in page
    assert speeds.sessions_said(sessions).startswith("3 of 5 sessions; session 4 is none (too noisy")


def test_measured_once_unless_it_gave_no_speed(record: RunRecord, corpus_file: Path, runs_dir: Path) -> None:
    """A schedule of the mask rate is left out, so that it is the same benchmark."""
    config = make_config({**settings(corpus_file, runs_dir), "mask_rate_schedule": "linear"})
    path = record.folder(runs_dir) / "record.json"
    lines: list[str] = []
    for again in (1.0, 1.2):
        marked = with_turns(record, again, mark=1)
        path.write_text(json.dumps(dataclasses.asdict(marked)))
        (found,) = run_benchmark(
            config.replace(benchmark_parts="speed,breakdown,scaling"), lines.append, patience=ANYHOW
        )
        assert found.run_id == record.run_id and ("mark" in found.metrics) is (again == 1.0)
    assert any("is finished" in line for line in lines) and any("measured again: too noisy" in line for line in lines)
    assert lines[0] == "mask_rate_schedule=linear is left out: a benchmark measures constant mask rates"
    assert benchmark_records(config)[-1].run_id == record.run_id


def test_each_session_is_a_process_and_finished_ones_stay(corpus_file: Path, tmp_path: Path) -> None:
    """The second run of two sessions finds the first one there and measures the other alone, in a new process."""
    given = {**settings(corpus_file, tmp_path), "benchmark_variants": "self", "benchmark_parts": "speed"}
    (first,) = run_benchmark(make_config(given), no_line, patience=ANYHOW)
    path = first.folder(tmp_path) / "record.json"
    path.write_text(json.dumps(dataclasses.asdict(with_turns(first, mark=1))))
    lines: list[str] = []
    config = make_config({**given, "num_benchmark_sessions": 2, "benchmark_parts": "speed"})
    both = run_benchmark(config, lines.append, patience=ANYHOW)
    assert [r.identity["session"] for r in both] == [1, 2] and "mark" in both[0].metrics
    assert both[0].metrics["process"] == os.getpid() != both[1].metrics["process"]
    assert both[1].run_id != both[0].run_id and same_benchmark(*both)
    assert set(both[1].metrics["turns"]) == {"vanilla-15", "self-50", "vanilla-15 again"}
    assert "session 2 of 2, in a process of its own" in lines and any("6 rounds" in line for line in lines)
    plan = config.replace(plan_only=True)
    assert [r.run_id for r in run_benchmark(plan)] == [r.run_id for r in both]
    assert [r.run_id for r in benchmark_records(make_config({**given, "plan_only": True}))] == [r.run_id for r in both]


def test_a_busy_machine_is_refused(
    corpus_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command: one line, and nothing is recorded; a page is made, and says that the machine was busy."""
    given = {**settings(corpus_file, tmp_path), "benchmark_parts": "speed", "benchmark_variants": "self"}
    monkeypatch.setattr("threeml_core.benchmark.run.Patience", lambda: Patience(wait=0, pause=0))
    parameters = [part for name, value in given.items() for part in ("-p", name, str(value))]
    monkeypatch.setattr(sys, "argv", ["threeml", "benchmark", *parameters])
    for load in (Load(99.0, 0.0), Load(0.0, 99.0), Load(99.0, None)):
        monkeypatch.setattr("threeml_core.benchmark.load.look", lambda load=load: load)
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 75
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
        assert line.startswith("error: this machine is busy: ") and "99.00" in line and "expected at most" in line
        assert "nothing was recorded: let it idle and run the same command again" in line
        assert not list(tmp_path.glob("benchmark/*"))
    monkeypatch.setattr("threeml_core.benchmark.load.look", lambda: Load(0.0, 99.0))
    (record,) = run_benchmark(make_config(given), no_line)
    assert "busy: other processes kept 99.00" in speeds.why_no_speed(record)


@pytest.mark.parametrize("again", [1.0, 1.2])
def test_the_command(
    again: float,
    corpus_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Prints a table, or says that it was too noisy and fails; never a number that is not to be trusted."""
    given = {**settings(corpus_file, tmp_path), "benchmark_parts": "speed"}
    monkeypatch.setattr("threeml_core.benchmark.run.Patience", lambda: ANYHOW)
    measure = measuring._measure

    def chosen(*arguments: Any) -> dict[str, Any]:
        fields = measure(*arguments)
        return {**fields, "metrics": idle_metrics(fields["metrics"], again)}

    monkeypatch.setattr(measuring, "_measure", chosen)
    monkeypatch.setattr(
        sys,
        "argv",
        ["threeml", "benchmark", *(part for name, value in given.items() for part in ("-p", name, str(value)))],
    )
    if again > 1:
        with pytest.raises(SystemExit) as ended:
            main()
        said = capsys.readouterr()
        assert ended.value.code == 75 and "error: session 1 is too noisy: vanilla-15% against itself is" in said.err
        assert "ms/step" not in said.out
    else:
        main()
        said = capsys.readouterr()
        assert "3ML_self-50%" in said.out
    assert "session 1, vanilla-15% against itself" in said.out and "record.json" in said.out
