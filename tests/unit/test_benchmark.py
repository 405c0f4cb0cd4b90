"""The benchmark: what is compared and counted, the statistics, a small run with its tables. No time is asserted."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from tests.unit.test_models import batch_of, make
from threeml_core import reporting
from threeml_core.__main__ import main as command
from threeml_core.benchmark import run, speeds
from threeml_core.benchmark.arms import arms_of, make_runner, with_vocabulary
from threeml_core.benchmark.breakdown import KINDS, kind_of
from threeml_core.benchmark.load import Load, OthersMeter, Patience, wait_until_idle
from threeml_core.benchmark.preparation import compare_preparation
from threeml_core.benchmark.run import run_benchmark
from threeml_core.benchmark.scaling import points_of
from threeml_core.benchmark.speeds import benchmark_records, same_benchmark
from threeml_core.config import make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.data.sequences import widen
from threeml_core.flops import forward_flops
from threeml_core.foundation.errors import ParameterError
from threeml_core.foundation.log import no_line
from threeml_core.foundation.processes import available_cores
from threeml_core.masking import CorruptedBatch
from threeml_core.runs.record import RunRecord, write_record
from threeml_core.training.batches import Batches
from threeml_core.training.trainer import count_of

CPU = torch.device("cpu")
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
    """A benchmark of a second: speed and breakdown of three arms, all of a tiny geometry's scaling."""
    (found,) = run_benchmark(make_config(settings(corpus_file, runs_dir)), no_line, patience=ANYHOW)
    return found


def with_turns(record: RunRecord, again: float = 1.0, **metrics: object) -> RunRecord:
    """What it would be on an idle machine that is as fast in every round, and `again` times slower in a second turn."""
    turns = {name: {**of, "seconds": [0.1] * 6} for name, of in record.metrics["turns"].items()}
    turns["vanilla-15 again"] = {**turns["vanilla-15"], "seconds": [0.1 * again] * 6}
    idle = {"load_before": 0.1, "busy_before": 0.0, "busy_during": 0.0}
    return dataclasses.replace(record, metrics={**record.metrics, "turns": turns, **idle, **metrics})


def as_session(record: RunRecord, number: int, faster: float, **metrics: object) -> RunRecord:
    """Another session, with 3ML_self-50% so many times as fast as vanilla-15%."""
    found = with_turns(record, **metrics)
    turns = {**found.metrics["turns"], "self-50": {**found.metrics["turns"]["self-50"], "seconds": [0.1 / faster] * 6}}
    identity = {**record.identity, "session": number}
    return dataclasses.replace(
        found, identity=identity, run_id=f"session-{number}", metrics={**found.metrics, "turns": turns}
    )


def settings(corpus_file: Path, runs_dir: Path) -> dict[str, object]:
    return {
        "corpus": str(corpus_file),
        "runs_dir": str(runs_dir),
        "hidden_size": 16,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "decoder_hidden_size": 16,
        "batch_size": 4,
        "benchmark_arms": "hf,self",
        "benchmark_rates": "0.5",
        "benchmark_rounds": 6,
        "benchmark_parts": "speed,breakdown,scaling",
    }


def test_median_and_interval() -> None:
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(200):
        found = speeds.interval(rng.normal(1.5, 0.1, 25), 1000)
        assert found.low <= found.value <= found.high
        inside += found.low <= 1.5 <= found.high
    assert 180 <= inside <= 200  # 95% of 200, give or take
    assert speeds.interval(np.array([2.0, 2.0])) == speeds.Interval(2.0, 2.0, 2.0)


def test_ratios_are_taken_within_rounds() -> None:
    """A machine that slows down by half in the middle changes no ratio."""
    drift = np.array([1, 1, 2, 2, 2])
    assert speeds.ratio(3 * drift, 2.0 * drift) == speeds.Interval(1.5, 1.5, 1.5)


@pytest.mark.parametrize(
    ("low", "median", "high", "noisy"),
    [(0.951, 1.0, 1.049, False), (0.899, 0.972, 1.03, True), (0.97, 1.0, 1.051, True), (0.8, 0.99, 1.2, True)],
)
def test_too_noisy(low: float, median: float, high: float, noisy: bool) -> None:
    """The whole interval of the baseline against itself has to lie within the limit, not its median alone."""
    assert speeds.too_noisy(speeds.Interval(median, low, high)) is noisy


def test_over_sessions_stands_students_t() -> None:
    """Mean 2, standard error 1/sqrt(3), t(0.975, 2) = 4.302653."""
    found = speeds.over_sessions([1.0, 2.0, 3.0])
    assert found.value == 2 and found.high - 2 == pytest.approx(4.302653 / 3**0.5, rel=1e-6) == 2 - found.low


def test_arms() -> None:
    names = [arm.name for arm in arms_of(make_config({}))]
    assert names == [
        "hf",
        "hf_bare",
        "vanilla-15",
        "vanilla-40",
        "vanilla-50",
        "self-40",
        "self-50",
        "cross-40",
        "cross-50",
    ]
    some = arms_of(make_config({"benchmark_arms": "self", "benchmark_rates": "0.15,0.5"}))
    assert [arm.name for arm in some] == ["vanilla-15", "self-15", "self-50"]
    for wrong in ({"benchmark_arms": "bert"}, {"benchmark_parts": "speed,speed"}, {"benchmark_rates": "x"}):
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            make_config(wrong)


@pytest.mark.parametrize("kind", ["hf", "hf_bare", "vanilla-15", "self-50", "cross-40"])
def test_flops_of_an_arm_are_what_its_step_executes(kind: str, corpus_file: Path, runs_dir: Path) -> None:
    """Forward and backward, by torch's counter; with dropout, as it is timed.

    The backward pass is twice the forward, but that nothing is propagated to the token ids; and our loss on a CPU
    makes its gradients in the forward pass. A CPU leaves out the logits of slots that hold no token.
    """
    given = {**settings(corpus_file, runs_dir), "benchmark_arms": "all", "benchmark_rates": "0.4,0.5"}
    given |= {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1}
    config = make_config(given)
    data = with_vocabulary(prepare_data(config), config)
    arm = next(arm for arm in arms_of(config) if arm.name == kind)
    runner = make_runner(arm, data, CPU)
    batch = runner.batch()
    with FlopCounterMode(display=False) as counter:
        runner.step(batch)
    unused = int((batch.kinds == 0).sum()) if isinstance(batch, CorruptedBatch) else 0
    left_out = 6 * unused * config.hidden_size * data.vocab_size
    assert counter.get_total_flops() == pytest.approx(arm.step_flops(data.vocab_size) - left_out, rel=1e-9)


def test_a_vocabulary_larger_than_the_tokenizers(corpus_file: Path, runs_dir: Path) -> None:
    config = make_config({**settings(corpus_file, runs_dir), "vocab_size": 300})
    data = prepare_data(config)
    assert with_vocabulary(data, config.replace(vocab_size=1000)).vocab_size == 1000
    assert with_vocabulary(data, config.replace(vocab_size=290)).vocab_size == data.vocab_size


def test_both_ways_see_the_same_share_of_corrupted_tokens(corpus_file: Path, runs_dir: Path) -> None:
    config = make_config({**settings(corpus_file, runs_dir), "batch_size": 32})
    data = with_vocabulary(prepare_data(config), config)
    arms = {arm.name: arm for arm in arms_of(config)}
    theirs = make_runner(arms["hf"], data, CPU).batch()
    ours = make_runner(arms["self-50"], data, CPU).batch()
    assert theirs[0]["input_ids"].shape == ours.input_ids.shape
    assert theirs[0]["attention_mask"].all()
    share = (theirs[0]["labels"] != -100).float().mean().item()
    assert share == pytest.approx((ours.labels != -100).float().mean().item(), abs=0.06)


def test_operators_are_sorted_into_kinds() -> None:
    assert kind_of("aten::mm", [[64, 32], [32, 128]], [], 300) == "matrix products"
    assert kind_of("aten::mm", [[64, 32], [32, 300]], [], 300) == "head"
    assert kind_of("aten::addmm", [[64, 32], [32, 320]], [], 300) == "head"  # padded to 64
    assert kind_of("aten::baddbmm", [[8, 9, 4], [8, 4, 9]], ["_Attention"], 300) == "attention"
    assert kind_of("aten::random_", [[64]], ["_Attention"], 300) == "dropout"
    assert kind_of("aten::mul", [[64, 32]], ["_DropoutAddBackward"], 300) == "dropout"
    assert kind_of("aten::_fused_adamw_", [], ["Optimizer.step#AdamW.step"], 300) == "optimizer"
    assert kind_of("aten::gather", [[8, 32]], ["threeml: data"], 300) == "data"
    assert kind_of("aten::native_layer_norm", [[64, 32]], [], 300) == "GELU and norms"
    assert kind_of("aten::copy_", [[64, 32]], [], 300) == "the rest"


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
    arms = {arm.name: arm for arm in speeds.speeds([quiet])}
    assert arms["vanilla-15"].over_vanilla == speeds.Interval(1.0, 1.0, 1.0)
    one = arms["self-50"]
    assert one.conversion.value == pytest.approx(
        one.over_vanilla.value * record.flops["self-50"] / record.flops["vanilla-15"]
    )
    assert one.mfu is None and 0 <= one.data_wait < 1
    text = "\n".join(speeds.lines_of([quiet]))
    assert "3ML_self-50%" in text and "Hugging Face" in text
    html = reporting.speed_comparison([quiet])._repr_html_()
    assert "3ML_self-50%" in html and speeds.text_of(one.conversion) in html
    for part in ("plot_breakdown", "breakdown_table", "plot_scaling", "scaling_table"):
        assert getattr(reporting, part)(quiet)._repr_html_()
    for part in ("resource_table", "plot_conversion", "session_table"):
        assert getattr(reporting, part)([quiet])._repr_html_()
    assert "not measured" in repr(reporting.preparation_table(quiet))


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
    assert speeds.speeds([bad]) == [] and speeds.conversion_by_session([bad], "self-50") == ()
    lines = speeds.lines_of([bad])
    assert len(lines) == 2 and f"no speed is given, {why}" in lines[1]
    page = repr(reporting.speed_comparison([bad]))
    assert why in page and "no speed is given" in page and "ms an update" not in page
    assert "no speed is given" in repr(reporting.resource_table([bad]))
    assert "no speed is given" in reporting.plot_conversion([bad]).alt
    assert reporting.session_table([bad]).rows[0][-1] == why.partition(":")[0]  # the whole of it stands beneath
    assert why in reporting.plot_scaling(bad).alt and "not to be trusted" in reporting.plot_scaling(bad).alt
    assert "not to be trusted" not in reporting.plot_scaling(with_turns(record)).alt


def test_what_ended_before_is_not_held_against_a_session(record: RunRecord) -> None:
    """The load average lags; where it is known what others do now, that counts. For a verdict both have to be low."""
    loaded = with_turns(record, load_before=99.0)
    assert speeds.why_no_speed(loaded) == "" and speeds.speeds([loaded])
    assert speeds.why_no_verdict(loaded).startswith("busy: a load of 99.00")
    assert speeds.conversion_by_session([loaded], "self-50") == ()


def test_sessions_side_by_side(record: RunRecord) -> None:
    """A row each, and the mean over them with Student's t; one that gives no speed says why, and does not count."""
    sessions = [as_session(record, number, 1 + number / 10) for number in (1, 2, 3)]
    sessions.append(as_session(record, 4, 9.0, again=1.2))
    by_flops = record.flops["vanilla-15"] / record.flops["self-50"]
    table = reporting.session_table(sessions)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    assert [row["Session"] for row in rows] == ["1", "2", "3", "4", "mean (95%)"]
    assert [row["Run"] for row in rows[:4]] == [r.run_id for r in sessions], "a report keeps the runs it names"
    column = "Conversion, 3ML_self-50%"
    assert [row[column] for row in rows] == [
        *(f"{faster / by_flops:.3f}" for faster in (1.1, 1.2, 1.3)),
        "—",
        speeds.text_of(speeds.over_sessions([faster / by_flops for faster in (1.1, 1.2, 1.3)]), 3),
    ]
    assert "too noisy" in rows[3]["No speed, because"]
    assert rows[0]["Vanilla-15% against itself"] == "1.000 (1.000 to 1.000)"
    arm = next(arm for arm in speeds.speeds(sessions) if arm.name == "self-50")
    half = 4.302653 * 0.1 / 3**0.5
    assert (arm.over_vanilla.value, arm.over_vanilla.high) == pytest.approx((1.2, 1.2 + half))
    page = repr(reporting.speed_comparison(sessions))
    assert "4 sessions of 6 rounds, 1 of them left out" in page and "Student's t" in page
    assert speeds.sessions_said(sessions).startswith("3 of 5 sessions; session 4 is none (too noisy")


def test_measured_once_unless_it_gave_no_speed(record: RunRecord, corpus_file: Path, runs_dir: Path) -> None:
    config = make_config(settings(corpus_file, runs_dir))
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


def test_each_session_is_a_process_and_finished_ones_stay(corpus_file: Path, tmp_path: Path) -> None:
    """The second run of two sessions finds the first one there and measures the other alone, in a new process."""
    given = {**settings(corpus_file, tmp_path), "benchmark_arms": "self", "benchmark_parts": "speed"}
    (first,) = run_benchmark(make_config(given), no_line, patience=ANYHOW)
    path = first.folder(tmp_path) / "record.json"
    path.write_text(json.dumps(dataclasses.asdict(with_turns(first, mark=1))))
    lines: list[str] = []
    config = make_config({**given, "benchmark_sessions": 2, "benchmark_parts": "speed"})
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
    given = {**settings(corpus_file, tmp_path), "benchmark_parts": "speed", "benchmark_arms": "self"}
    monkeypatch.setattr("threeml_core.benchmark.run.Patience", lambda: Patience(wait=0, pause=0))
    parameters = [part for name, value in given.items() for part in ("-p", name, str(value))]
    monkeypatch.setattr(sys, "argv", ["threeml", "benchmark", *parameters])
    for load in (Load(99.0, 0.0), Load(0.0, 99.0), Load(99.0, None)):
        monkeypatch.setattr("threeml_core.benchmark.load.look", lambda load=load: load)
        with pytest.raises(SystemExit) as ended:
            command()
        assert ended.value.code == 75
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line]
        assert line.startswith("error: this machine is busy: ") and "99.00" in line and "expected at most" in line
        assert "nothing was recorded: let it idle and run the same command again" in line
        assert not list(tmp_path.glob("benchmark/*"))
    monkeypatch.setattr("threeml_core.benchmark.load.look", lambda: Load(0.0, 99.0))
    (record,) = run_benchmark(make_config(given), no_line)
    assert "busy: other processes kept 99.00" in speeds.why_no_speed(record)


def test_a_session_waits_until_the_machine_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this project did just before stands in the load average for a minute: a page does not wait for that."""
    looks = iter([Load(99.0, 99.0), Load(99.0, 0.0), Load(0.0, 0.0)] * 2)
    monkeypatch.setattr("threeml_core.benchmark.load.look", lambda: next(looks))
    monkeypatch.setattr("threeml_core.benchmark.load.time.sleep", lambda seconds: None)
    lines: list[str] = []
    assert wait_until_idle(Patience(), True, lines.append) == Load(0.0, 0.0)
    assert wait_until_idle(Patience(), False, lines.append) == Load(99.0, 0.0)
    assert len(lines) == 2 and "its load average is 99.00" in lines[0] and "load average" not in lines[1]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/stat")
def test_others_are_seen_and_this_process_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process at work all the time counts for about a core; own work for none."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        if OthersMeter().cores() is None:
            pytest.skip("this system does not tell")
        beside = OthersMeter()
        ended = time.monotonic() + 1
        while time.monotonic() < ended:
            pass
        assert beside.cores() > 0.4 / available_cores()
    finally:
        busy.kill()
        busy.wait()
    monkeypatch.setattr("threeml_core.benchmark.load._busy_seconds", time.process_time)  # as if nothing else ran
    alone, ended = OthersMeter(), time.monotonic() + 0.3
    while time.monotonic() < ended:
        pass
    assert alone.cores() < 0.05


def test_preparing_data_in_both_ways(corpus_file: Path, tmp_path: Path) -> None:
    """The same text: as many tokens, up to the blocks' own ends and what fills no block."""
    config = make_config({"corpus": str(corpus_file), "runs_dir": str(tmp_path), "benchmark_megabytes": 1})
    found = compare_preparation(config, prepare_data(config), lambda line: None)
    assert isinstance(found, dict)
    assert found["ours"].tokens == pytest.approx(found["run_mlm"].tokens, rel=0.1)
    assert all(way.cpu_seconds > 0 and way.peak_bytes >= 0 for way in found.values())


def test_a_prepared_corpus_has_no_text_to_prepare(corpus_file: Path, tmp_path: Path) -> None:
    config = make_config({"corpus": str(corpus_file), "runs_dir": str(tmp_path)})
    data = prepare_data(config)
    given = config.replace(corpus=str(data.folder))
    assert "prepared elsewhere" in str(compare_preparation(given, data, lambda line: None))


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
    measure = run._measure

    def chosen(*arguments: Any) -> RunRecord:
        found = with_turns(measure(*arguments), again)
        write_record(found, tmp_path)
        return found

    monkeypatch.setattr(run, "_measure", chosen)
    monkeypatch.setattr(
        sys,
        "argv",
        ["threeml", "benchmark", *(part for name, value in given.items() for part in ("-p", name, str(value)))],
    )
    if again > 1:
        with pytest.raises(SystemExit) as ended:
            command()
        said = capsys.readouterr()
        assert ended.value.code == 75 and "error: session 1 is too noisy: vanilla-15% against itself is" in said.err
        assert "ms/step" not in said.out
    else:
        command()
        said = capsys.readouterr()
        assert "3ML_self-50%" in said.out
    assert "session 1, vanilla-15% against itself" in said.out and "record.json" in said.out


def test_blocks_travel_as_they_are_stored(corpus_file: Path, runs_dir: Path) -> None:
    """A quarter of int64's bytes go to a GPU, and become the same ids there."""
    config = make_config({**settings(corpus_file, runs_dir), "architecture": "self", "mask_rate": 0.5})
    data = prepare_data(config)
    stored = data.train.stored(np.arange(4))
    assert stored.dtype == torch.int16 and torch.equal(widen(stored), data.train[np.arange(4)])
    large = torch.tensor([[65535, 40000, 5]], dtype=torch.int32).to(torch.int16)
    assert widen(large).tolist() == [[65535, 40000, 5]]
    batches = Batches(config, data, CPU)
    assert count_of(batches[0]) == int((batches[0].labels != -100).sum()) == 4 * 16 + 1


def test_batches_read_ahead_are_the_same(corpus_file: Path, runs_dir: Path) -> None:
    """As on a GPU, where a thread reads: any order of steps, none skipped, none left running at the end."""
    config = make_config({**settings(corpus_file, runs_dir), "max_steps": 6})
    data = prepare_data(config)
    plain, ahead = Batches(config, data, CPU), Batches(config, data, torch.device("meta"))
    ahead.device = CPU
    for step in (0, 1, 2, 4, 5, 3):
        assert torch.equal(plain[step].input_ids, ahead[step].input_ids)
    assert not [step for step in ahead._reading if step >= 6]


class Copies(TorchDispatchMode):
    """Counts the operators that only move data."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # noqa: ANN001
        name = function.overloadpacket.__name__
        if name in ("clone", "copy_", "cat", "_to_copy", "index_select", "index_copy", "gather"):
            self.counts[name] += 1
        return function(*args, **(kwargs or {}))


def test_copies_of_a_step() -> None:
    """Per encoder block: q, k, v into heads, the context back; joined weights and biases; three dropout masks."""
    _, model = make("self", hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)
    model.train()
    with Copies() as copies:
        model(corrupted=batch_of(), return_logits=False)
    encoder_blocks, decoder_blocks = 2, 2
    blocks = encoder_blocks + decoder_blocks
    assert copies.counts["clone"] <= 4 * blocks
    assert copies.counts["_to_copy"] <= 3 * blocks + 1 + 5 * blocks  # masks; thresholds and their types
    assert copies.counts["cat"] <= 2 * encoder_blocks + 2  # and the order of what is predicted
    assert copies.counts["index_copy"] == 1 and copies.counts["index_select"] == 2
