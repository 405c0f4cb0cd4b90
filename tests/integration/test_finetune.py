"""Fine-tuning: the loop, the protocol, where tasks start, failed runs, commands, kills."""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from tests.glue_files import HEADERS, write_glue
from tests.preloaded import Preloaded
from threeml_core.config import StudyConfig, make_config
from threeml_core.foundation.errors import ParameterError, StudyError
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.foundation.log import no_line
from threeml_core.glue.finetune import Setting, finetune_glue, load_tasks, make_setting, plan_jobs, predict_split
from threeml_core.glue.metrics import compare, task_metrics
from threeml_core.glue.predictions import load_predictions, read_parquet
from threeml_core.glue.protocol import GlueStudy, runs_of, task_result
from threeml_core.glue.run import export_predictions
from threeml_core.glue.tasks import GLUE_TASKS
from threeml_core.runs.record import load_records, read_metrics, read_record
from threeml_core.training.encoders import load_classifier, open_encoder


@pytest.fixture
def given(glue: Path, tmp_path: Path) -> dict[str, object]:
    """Seconds for all eight tasks."""
    return {
        "glue": str(glue),
        "runs_dir": str(tmp_path / "runs"),
        "max_length": 32,
        "num_seeds": 2,
        "num_workers": 1,
        "finetune_learning_rates": "3e-3",
        "finetune_batch_sizes": "16",
        "finetune_epochs": "2",
        "finetune_large_learning_rates": "1e-3,3e-3",
        "finetune_large_batch_sizes": "16",
        "finetune_large_epochs": "2",
    }


def finetuned(config: StudyConfig, checkpoint: Path | str, log: Callable[[str], None] = no_line) -> GlueStudy:
    """The whole study, as the command does it."""
    data = load_tasks(config, log)
    return finetune_glue(config, open_encoder(checkpoint), data, log)


def setting_of(config: StudyConfig, checkpoint: Path | str) -> Setting:
    return make_setting(config, open_encoder(checkpoint), load_tasks(config, no_line))


# -- the loop and the protocol ----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def study(encoders: dict[str, Path], glue: Path, tmp_path_factory: pytest.TempPathFactory):
    """All eight tasks on files whose labels can be read off a word, by two workers: (config, study)."""
    config = make_config(
        {
            "glue": str(glue),
            "runs_dir": str(tmp_path_factory.mktemp("runs")),
            "max_length": 32,
            "num_seeds": 3,
            "num_workers": 2,
            "finetune_learning_rates": "3e-3",
            "finetune_batch_sizes": "8",
            "finetune_epochs": "6",
            "finetune_large_learning_rates": "1e-6,3e-3",
            "finetune_large_batch_sizes": "8",
            "finetune_large_epochs": "10",
        }
    )
    return config, finetuned(config, encoders["pre"])


def test_it_learns_what_a_word_tells(study) -> None:
    config, result = study
    assert [r.task.name for r in result.results] == list(GLUE_TASKS) and not result.starts
    for task in result.results:
        assert task.score > 0.9, task.task.name
        assert task.low > task.chance and not task.failed
        assert len(task.best) == 3 and len(task.records) == (6 if task.task.large else 3)
    assert result.average == pytest.approx(np.mean([task.score for task in result.results]))
    assert len(result.runs) == 3 * 5 + 6 * 3


def test_best_of_the_grid_for_each_seed(study) -> None:
    """The large tasks' grid holds a learning rate that cannot learn; the other one is taken in each seed."""
    _, result = study
    for name in ("mnli", "qnli", "qqp"):
        task = result.result(name)
        assert {record.identity["learning_rate"] for record in task.best} == {3e-3}
        assert [record.identity["seed"] for record in task.best] == [0, 1, 2]
        for key in task.task.metric_keys:
            assert task.metrics[key] == np.median([record.metrics[key] for record in task.best])


def test_records_hold_what_a_reader_needs(study) -> None:
    config, result = study
    record = result.result("rte").best[0]
    assert record.identity["task"] == "rte" and record.identity["learning_rate"] == 3e-3
    assert record.data["splits"]["train"]["examples"] == 64 and record.data["is_subset"]
    assert record.timing["sequences_per_second"] > 0 and 0 <= record.timing["padding_share"] < 0.5
    lines = read_metrics(record.folder(config.runs_dir) / "metrics.jsonl")
    assert [line["epoch"] for line in lines] == list(range(1, 7)) and lines[-1]["score"] == record.metrics["score"]
    answers = load_predictions(GLUE_TASKS["rte"], record.folder(config.runs_dir))
    values, _ = task_metrics(GLUE_TASKS["rte"], answers.splits)
    assert values["accuracy"] == record.metrics["accuracy"], "the record's number follows from the kept answers"


def test_rte_starts_from_the_best_mnli_model_of_its_seed(
    study, encoders: dict[str, Path], tmp_path: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    config, result = study
    folder = Path(config.runs_dir) / "finetune"
    best = {record.identity["seed"]: record.run_id for record in result.result("mnli").best}
    kept = {path.parent.name for path in folder.glob("*/encoder")}
    assert kept == set(best.values()), "the encoders of the other MNLI runs are removed"
    for name in ("rte", "stsb", "mrpc"):
        for record in result.result(name).records:
            assert best[record.identity["seed"]] in record.identity["starts"] and len(record.identity["starts"]) == 2
    assert all(record.identity["starts"] == [] for record in result.result("cola").records)
    # those weights it is: given as a checkpoint of its own, the kept encoder leads to the same run
    start = tmp_path / "mnli"
    shutil.copytree(folder / best[0] / "encoder", start)
    tokenizer.save_pretrained(start)
    alone = config.replace(tasks="rte", num_seeds=1, from_mnli=False, num_workers=1, runs_dir=str(tmp_path))
    assert finetuned(alone, start).runs[0].metrics == result.result("rte").records[0].metrics
    assert finetuned(alone, encoders["pre"]).runs[0].metrics != result.result("rte").records[0].metrics


def test_a_second_call_repeats_nothing(study, encoders: dict[str, Path]) -> None:
    config, result = study
    started = time.perf_counter()
    lines: list[str] = []
    again = finetuned(config, encoders["pre"], lines.append)
    assert again.runs == result.runs
    assert "41 of 41 runs are finished" in "\n".join(lines) and time.perf_counter() - started < 60


def test_the_same_run_elsewhere_gives_the_same_numbers(study, encoders: dict[str, Path], tmp_path: Path) -> None:
    config, result = study
    other = finetuned(config.replace(runs_dir=str(tmp_path), tasks="cola", num_seeds=1, num_workers=1), encoders["pre"])
    assert other.runs[0].run_id == result.result("cola").records[0].run_id
    assert other.runs[0].metrics == result.result("cola").records[0].metrics


def test_predictions_can_be_recomputed_and_compared(study, tmp_path: Path) -> None:
    config, result = study
    files = export_predictions(result, config)
    assert set(files) == set(GLUE_TASKS)
    table = pyarrow.parquet.read_table(files["mnli"])
    assert table.column_names == [
        *("run", "seed", "split", "example", "label", "prediction"),
        *("logit_0", "logit_1", "logit_2"),
    ]
    assert table.num_rows == 3 * 2 * 24 and set(table["split"].to_pylist()) == {"matched", "mismatched"}
    runs = read_parquet(GLUE_TASKS["mnli"], files["mnli"])
    for run, record in zip(runs, result.result("mnli").best, strict=True):
        assert task_metrics(GLUE_TASKS["mnli"], run)[0]["matched_accuracy"] == record.metrics["matched_accuracy"]
    assert compare(GLUE_TASKS["mnli"], runs, runs).difference == 0


def test_a_lost_encoder_is_made_again(given: dict, encoders: dict[str, Path]) -> None:
    config = make_config({**given, "tasks": "mnli", "num_seeds": 1})
    finetuned(config, encoders["pre"])
    folder = Path(config.runs_dir) / "finetune"
    assert not list(folder.glob("*/encoder")), "nothing starts from it in this study"
    before = {record.run_id: record for record in load_records(config.runs_dir, "finetune")}
    written = {path: path.stat().st_mtime_ns for path in folder.glob("*/[!.]*.*")}
    lines: list[str] = []
    result = finetuned(config.replace(tasks="mnli,rte"), encoders["pre"], lines.append)
    assert "did not keep its encoder: it is fine-tuned again" in "\n".join(lines)
    best = result.result("mnli").best[0]
    assert before[best.run_id] == best and (folder / best.run_id / "encoder").is_dir()
    assert all(path.stat().st_mtime_ns == time_ns for path, time_ns in written.items()), "its own files stay untouched"
    shutil.rmtree(folder / best.run_id / "encoder")
    (folder / best.run_id / ".encoder.x.part").mkdir()  # as a kill in the middle of keeping it leaves
    again = finetuned(config.replace(tasks="mnli,rte", finetune_epochs="1"), encoders["pre"])
    assert again.result("rte").score is not None and not list(folder.rglob("*.part"))


def test_diverged_runs_are_recorded_and_counted(given: dict, encoders: dict[str, Path]) -> None:
    config = make_config({**given, "tasks": "sst2", "finetune_learning_rates": "1e30,3e-3", "max_grad_norm": 0.0})
    lines: list[str] = []
    result = finetuned(config, encoders["pre"], lines.append).result("sst2")
    assert len(result.records) == 4 and len(result.failed) == 2 and len(result.best) == 2
    assert {record.identity["learning_rate"] for record in result.best} == {3e-3}
    assert all("it diverged: " in record.failure and record.metrics == {} for record in result.failed)
    assert "failed: it diverged" in "\n".join(lines)
    again: list[str] = []
    finetuned(config, encoders["pre"], again.append)
    assert "5 of 5 runs are finished" in "\n".join(again), "a recorded failure is not tried again"


def test_if_every_run_failed_there_is_no_score(given: dict, encoders: dict[str, Path]) -> None:
    """MNLI diverges everywhere, so RTE has nothing to start from; the other task is not touched."""
    config = make_config({**given, "tasks": "cola,rte", "finetune_large_learning_rates": "1e30", "num_seeds": 1})
    result = finetuned(config, encoders["pre"])
    assert result.result("rte").score is None and result.average is None
    assert "all runs it could start from failed (mnli-s0-" in result.result("rte").failed[0].failure
    assert result.result("cola").score is not None and result.starts[0].score is None


def test_constant_answers_are_counted_as_collapsed(given: dict, encoders: dict[str, Path], tmp_path: Path) -> None:
    """One class in training: the model learns to give it everywhere, and MCC is undefined."""
    folder = write_glue(tmp_path / "one_class")
    path = folder / "CoLA" / "train.tsv"
    path.write_text("".join(f"{line}\n" for line in path.read_text().splitlines() if "\t1\t" in line))
    config = make_config({**given, "glue": str(folder), "tasks": "cola", "num_seeds": 1, "finetune_epochs": "8"})
    lines: list[str] = []
    study = finetuned(config, encoders["pre"], lines.append)
    result = study.result("cola")
    assert result.collapsed == list(result.records) and result.undefined == ["mcc"]
    assert result.score == 0 and (result.low, result.high) == (0, 0) and study.average == 0
    assert "mcc is undefined and counts as 0" in "\n".join(lines)


def test_select_best_keeps_the_best_epoch(given: dict, encoders: dict[str, Path]) -> None:
    given = {**given, "tasks": "sst2", "num_seeds": 1, "finetune_epochs": "6", "finetune_learning_rates": "2e-2"}
    best = finetuned(make_config({**given, "finetune_select": "best"}), encoders["pre"])
    last = finetuned(make_config(given), encoders["pre"])
    lines = read_metrics(best.runs[0].folder(given["runs_dir"]) / "metrics.jsonl")
    assert best.runs[0].metrics["score"] == max(line["score"] for line in lines)
    assert last.runs[0].metrics["score"] == lines[-1]["score"]
    assert best.runs[0].run_id != last.runs[0].run_id


def test_fixed_padding_gives_the_same_answers(given: dict, encoders: dict[str, Path]) -> None:
    """The run_glue recipe differs in padding only: the same steps, the same scores, another run id."""
    given = {**given, "tasks": "rte", "from_mnli": False, "num_seeds": 1}
    plain = finetuned(make_config(given), encoders["pre"]).runs[0]
    padded = finetuned(make_config({**given, "pad_to_max_length": True}), encoders["pre"]).runs[0]
    assert padded.run_id != plain.run_id and padded.timing["padding_share"] > plain.timing["padding_share"]
    assert padded.metrics["train_loss"] == pytest.approx(plain.metrics["train_loss"], rel=1e-4)
    assert padded.metrics["score"] == plain.metrics["score"]


def test_random_keeps_the_geometry_and_draws_the_weights(given: dict, encoders: dict[str, Path]) -> None:
    encoder = open_encoder(f"random:{encoders['post']}")
    assert encoder.is_random and encoder.positions == 64
    assert encoder.fingerprint != open_encoder(str(encoders["post"])).fingerprint
    config = make_config({**given, "tasks": "sst2", "num_seeds": 1})
    assert finetuned(config, f"random:{encoders['post']}").name == "random (post)"

    def weights(is_random: bool, seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return load_classifier(encoders["post"], 2, is_random).base_model.embeddings.word_embeddings.weight

    assert torch.equal(weights(False, 0), weights(False, 1)) and torch.equal(weights(True, 0), weights(True, 0))
    assert not torch.equal(weights(True, 0), weights(False, 0))
    assert not torch.equal(weights(True, 0), weights(True, 1))
    assert weights(True, 0).dtype == torch.float32
    with pytest.raises(ParameterError, match="is random already: leave random_baseline out"):
        make_config({"checkpoint": "random:x", "random_baseline": True})


@pytest.mark.parametrize("family", ["post", "bert", "modern"])
def test_other_encoders(family: str, given: dict, encoders: dict[str, Path]) -> None:
    config = make_config({**given, "tasks": "sst2,rte", "from_mnli": False, "num_seeds": 1})
    study = finetuned(config, encoders[family])
    assert study.average is not None and study.name == family and study.architecture is None


def test_answers_are_in_the_order_of_the_examples(given: dict, encoders: dict[str, Path]) -> None:
    """Bucketing sorts; the logits come back where they belong: equal to the plain Hugging Face way, row by row."""
    setting = setting_of(make_config({**given, "tasks": "mrpc", "from_mnli": False}), encoders["post"])
    torch.manual_seed(0)
    model = load_classifier(encoders["post"], 2).eval()
    found = predict_split(setting, model, setting.encoded["mrpc"].splits["validation"], 2)
    texts = setting.data["mrpc"].validation[""].texts
    for row, (first, second) in zip(found, texts, strict=True):
        inputs = setting.encoder.tokenizer(first, second, truncation=True, max_length=32, return_tensors="pt")
        with torch.inference_mode():
            logits = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[0]
        np.testing.assert_allclose(row, logits.numpy(), atol=1e-5)


def test_nothing_starts_on_bad_input(given: dict, encoders: dict[str, Path], glue: Path, tmp_path: Path) -> None:
    """The last task of the list is malformed: not one run of the others has begun."""
    bad = tmp_path / "bad"
    shutil.copytree(glue, bad)
    (bad / "RTE" / "dev.tsv").write_text(HEADERS["RTE"] + "\n0\ta\tb\tmaybe\n")
    with pytest.raises(StudyError, match="RTE/dev.tsv, line 2: unknown label 'maybe'"):
        finetuned(make_config({**given, "glue": str(bad)}), encoders["pre"])
    assert not (Path(str(given["runs_dir"])) / "finetune").exists()


# -- commands and kills -----------------------------------------------------------------------------------------


def test_the_command(given: dict, encoders: dict[str, Path], preloaded: Preloaded) -> None:
    given = {**given, "tasks": "cola,mrpc", "from_mnli": False, "num_seeds": 1, "checkpoint": str(encoders["pre"])}
    done = preloaded.run("finetune", given)
    assert done.returncode == 0, done.stderr
    for expected in (
        "CoLA (subset): mcc ",
        "MRPC (subset): f1 ",
        "predictions: ",
        "note: CoLA: a subset, not",
    ):
        assert expected in done.stdout
    failed = preloaded.run("finetune", {**given, "tasks": "colla"})
    assert failed.returncode == 2 and failed.stderr == (
        "error: unknown task 'colla': did you mean 'cola'? "
        "glue='" + str(given["glue"]) + "' has: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte; or all\n"
    )


def test_a_killed_study_goes_on(given: dict, encoders: dict[str, Path]) -> None:
    """kill -9 between runs or inside one: finished runs stay, the one that was cut is done again, nothing is half."""
    given = {**given, "tasks": "cola,mrpc", "checkpoint": str(encoders["pre"]), "finetune_epochs": "6"}
    arguments = [part for name, value in given.items() for part in ("-p", name, str(value))]
    command = [sys.executable, "-m", "threeml_core", "finetune", *arguments]
    process = subprocess.Popen(command, cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("4/"):
            break
    process.kill()
    process.communicate()
    runs_dir = str(given["runs_dir"])
    before = {record.run_id: record.environment["finished"] for record in load_records(runs_dir, "finetune")}
    assert before
    study = finetuned(make_config(given), encoders["pre"])
    assert len(study.runs) == 2 + 2 + 4
    after = {record.run_id: record for record in load_records(runs_dir, "finetune")}
    assert all(after[run].environment["finished"] == finished for run, finished in before.items())
    assert not list(Path(runs_dir).rglob("*.part"))
    for record in after.values():
        read_record(record.folder(runs_dir), check_hashes=True)


def test_results_follow_from_the_records_alone(study) -> None:
    """What the report shows is computed from run folders: no model, no data."""
    config, result = study
    task = GLUE_TASKS["qqp"]
    records = [r for r in load_records(config.runs_dir, "finetune") if r.identity["task"] == "qqp"]
    (baseline,) = [r for r in load_records(config.runs_dir, "baseline") if r.data["task"] == "qqp"]
    again = task_result(task, sorted(records, key=lambda r: r.identity["seed"]), baseline, config.runs_dir)
    assert (again.score, again.low, again.high) == (
        result.result("qqp").score,
        result.result("qqp").low,
        result.result("qqp").high,
    )


def test_jobs_carry_the_edge(given: dict, encoders: dict[str, Path]) -> None:
    setting = setting_of(make_config(given), encoders["pre"])
    jobs = plan_jobs(setting)
    mnli = {job.run_id for job in jobs if job.run_id.startswith("mnli-")}
    for job in jobs:
        starts = job.run_id.split("-")[0] in ("rte", "stsb", "mrpc")
        assert (set(job.needs) <= mnli and len(job.needs) == 2) == starts, job.run_id
    rte = next(job for job in jobs if job.run_id.startswith("rte-"))
    again = pickle.loads(pickle.dumps(rte))
    assert again.run_id == rte.run_id and again.work.args[0].config == setting.config
    assert json.dumps(setting.identity(runs_of(GLUE_TASKS["rte"], setting.config)[0], ["x"]))
