"""The study, run on a small corpus: only what is missing, whatever happens in between."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from threeml_core.benchmark.run import run_benchmark
from threeml_core.config import make_config
from threeml_core.foundation.errors import ParameterError, TrainingError
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.glue.run import finetune_study
from threeml_core.glue.tasks import ABLATION_TASKS
from threeml_core.information.run import mutual_information
from threeml_core.study.experiment import Experiment
from threeml_core.study.ledger import find
from threeml_core.study.run import finished_results, prepare, run_study
from threeml_core.training.run import pretrain


def finished(runs_dir: Path) -> dict[str, int]:
    """Record -> when it was written."""
    return {f"{p.parent.parent.name}/{p.parent.name}": p.stat().st_mtime_ns for p in runs_dir.glob("*/*/record.json")}


def test_only_what_is_missing(study: dict, tmp_path: Path) -> None:
    """Table by table: runs that two of them share are done once; a second time nothing is done."""
    config, runs_dir = make_config(study), tmp_path / "runs"
    first = run_study(config, ["Table 2c"])
    assert [o.run.config.mask_split for o in first] == ["80-10-10", "80-10-10", "80-0-20", "80-0-20"]
    for result in first:
        assert result.is_finished
        assert {name: len(found) for name, found in result.ablation[0].records.items()} == dict.fromkeys(
            ABLATION_TASKS, 1
        )
    before = finished(runs_dir)
    assert len([name for name in before if name.startswith("pretrain/")]) == 4
    lines: list[str] = []
    more = run_study(config, ["Figure 5", "Table 2c"], lines.append)
    after = finished(runs_dir)
    assert {name: after[name] for name in before} == before, "nothing was repeated"
    assert len([name for name in after if name.startswith("pretrain/")]) == 4 + 4, (
        "vanilla twice, self and cross at 15%"
    )
    assert "16 of 20 runs are finished; their records are read" in lines, "fine-tunings of the first four too"
    assert all(o.is_finished for o in more)
    assert finished_results(config, ["Figure 5", "Table 2c"]) == more
    there = run_study(config.replace(plan_only=True), ["Figure 5", "Table 2c"])
    assert [(o.pretraining, o.ablation) for o in there] == [(o.pretraining, o.ablation) for o in more]
    assert [len(o.pretraining) for o in finished_results(config, ["Figure 3"])] == [1, 1], "shared with Figure 5"
    again = run_study(config, ["Figure 5", "Table 2c"])
    assert finished(runs_dir) == after
    assert [o.pretraining for o in again] == [o.pretraining for o in more]


def test_seeds_and_steps(study: dict, tmp_path: Path) -> None:
    """Two pre-training seeds, two workers; Table 3's models have their own number of updates and fine-tuning seeds."""
    config = make_config({**study, "num_pretrain_seeds": 2, "num_workers": 2})
    results = run_study(config, ["Table 3"])
    assert len(results) == 5 and all(o.is_finished and list(o.pretraining) == [0, 1] for o in results)
    for result in results:
        assert {r.parameters["max_steps"] for r in result.pretraining.values()} == {4}
        for found in result.comparison.values():
            assert {name: len(records) for name, records in found.records.items()} == {"mnli": 2, "rte": 2}
        losses = result.metric("eval_loss")
        assert losses[0] != losses[1]
    here = pretrain(config.replace(num_workers=1, architecture="self", runs_dir=str(tmp_path / "here")))
    there = next(o for o in results if o.run.model == "3ML_self-40%").pretraining[0]
    assert here.run_id == there.run_id and here.metrics["eval_loss"] == pytest.approx(
        there.metrics["eval_loss"], rel=1e-4
    )


def test_plan_only_does_nothing(study: dict, tmp_path: Path) -> None:
    config = make_config({**study, "plan_only": True})
    assert not any(o.pretraining for o in run_study(config))
    assert not (tmp_path / "runs").exists()
    for work in (pretrain, mutual_information, finetune_study, prepare, run_benchmark):
        with pytest.raises(ParameterError, match="plan_only=True: nothing is run, and .* has no record of"):
            work(config)
    run_study(make_config(study), ["Table 1"])
    there = [o for o in run_study(config) if o.pretraining]
    assert [o.run.model for o in there] == ["vanilla-40%", "3ML_self-40%", "3ML_cross-40%"], "what is there is read"


def test_a_run_that_diverges_does_not_end_the_study(study: dict, tmp_path: Path) -> None:
    config = make_config({**study, "learning_rate": 1e30, "warmup_ratio": 0.0, "max_steps": 12, "ablation_steps": 12})
    lines: list[str] = []
    results = run_study(config, ["Figure 3"], lines.append)
    assert all("not finite" in o.pretraining[0].failure for o in results) and not any(o.ended for o in results)
    assert sum("failed: the loss is not finite" in line or "failed: a parameter" in line for line in lines) == 2
    before = finished(tmp_path / "runs")
    assert len(before) == 2, "what fails would fail again: it is recorded"
    assert [o.pretraining for o in run_study(config, ["Figure 3"])] == [o.pretraining for o in results]
    assert finished(tmp_path / "runs") == before
    assert [o.pretraining for o in run_study(config.replace(plan_only=True), ["Figure 3"])] == [
        o.pretraining for o in results
    ]
    failed = results[0].run.config
    with pytest.raises(TrainingError, match="failed before: the loss is not finite.*to try again, remove"):
        pretrain(failed)


def test_bad_input_before_any_run(study: dict, tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="unknown task 'mnil'"):
        run_study(make_config({**study, "tasks": "mnil"}), ["Table 3"])
    assert not (tmp_path / "runs" / "pretrain").exists()


def test_an_experiment_of_ones_own(small: dict, tmp_path: Path) -> None:
    """What was run is found in the ledger; and by the run itself, by whatever path its text is named."""
    config = make_config({**small, "runs_dir": str(tmp_path / "runs"), "max_steps": 2, "eval_steps": 2})
    alone = Experiment("Dropout", "without tasks", models=("self",), vary={"hidden_dropout_prob": (0.0, 0.5)})
    first = run_study(config, [alone])
    assert [result.run.config.hidden_dropout_prob for result in first if result.is_finished] == [0.0, 0.5]
    assert find(config, [alone]) == first
    (tmp_path / "elsewhere").symlink_to(Path(config.corpus).parent)
    again = config.replace(corpus=str(tmp_path / "elsewhere" / Path(config.corpus).name))
    assert [r.pretraining for r in run_study(again, [alone])] == [r.pretraining for r in first]
    assert not any(result.pretraining for result in find(again, [alone])), "parameters alone do not know that"


def test_killed_and_started_again(study: dict, tmp_path: Path) -> None:
    """Killed while runs are finished and others are not: the finished ones stay as they are, the rest follows."""
    study = {**study, "max_steps": 30, "study_splits": "80-10-10", "study_mask_rates": "0.4"}
    arguments = [part for name, value in study.items() for part in ("-p", name, str(value))]
    command = [sys.executable, "-m", "threeml_core", "study", *arguments]
    process = subprocess.Popen(command, cwd=PROJECT_ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.time() + 120
    while len(finished(tmp_path / "runs")) < 3 and time.time() < deadline and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    time.sleep(2)  # its workers leave
    before = finished(tmp_path / "runs")
    assert 3 <= len(before) < 20
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    after = finished(tmp_path / "runs")
    assert {name: after[name] for name in before} == before
    pretrained = [name for name in after if name.startswith("pretrain/")]
    last = f"{len(pretrained)} of {len(pretrained)} runs of the study are finished, fine-tuning included"
    assert done.stdout.splitlines()[-1] == last


def test_a_fault_of_the_machine_is_no_result(study: dict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Out of memory or a lost process ends the study and leaves no record: the same command tries again."""

    def out_of_memory(config: object, log: object) -> None:
        raise TrainingError("out of GPU memory with micro_batch_size=8")

    monkeypatch.setattr("threeml_core.study.jobs.pretrain", out_of_memory)
    with pytest.raises(TrainingError, match="out of GPU memory"):
        run_study(make_config({**study, "num_workers": 1}), ["Figure 3"])
    assert not finished(tmp_path / "runs")
