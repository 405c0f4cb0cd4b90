"""Fine-tuning: the plan, the batches, the loop, the protocol, where tasks start, bad checkpoints, kills."""

from __future__ import annotations

import copy
import dataclasses
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
from safetensors.torch import load_file, save_file
from tokenizers import processors
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    BertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    RobertaPreLayerNormConfig,
    RobertaPreLayerNormModel,
)

from tests.glue_files import HEADERS, write_glue
from threeml_core.config import StudyConfig, make_config
from threeml_core.data.tokenizer import train_tokenizer
from threeml_core.foundation.errors import CheckpointError, ParameterError, StudyError
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.glue import protocol
from threeml_core.glue.encode import EncodedSplit, encode_task, evaluation_batches, training_batches
from threeml_core.glue.encoders import load_classifier, max_positions, open_encoder
from threeml_core.glue.finetune import (
    Setting,
    export_predictions,
    finetune_glue,
    load_tasks,
    make_setting,
    plan_jobs,
    predict_split,
)
from threeml_core.glue.metrics import compare, task_metrics
from threeml_core.glue.predictions import load_predictions, read_parquet
from threeml_core.glue.protocol import GlueStudy, planned_runs, runs_of, task_result
from threeml_core.glue.readers import load_task
from threeml_core.glue.tasks import GLUE_TASKS
from threeml_core.runs.record import load_records, read_metrics, read_record

GEOMETRY = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.1,
    "bos_token_id": 0,
    "pad_token_id": 1,
    "eos_token_id": 2,
}


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    text = "The cat dog bird sees the house again and again. said no went away " * 20
    return train_tokenizer([text], 300, 64)


@pytest.fixture(scope="session")
def encoders(tmp_path_factory: pytest.TempPathFactory, tokenizer: PreTrainedTokenizerFast) -> dict[str, Path]:
    """Untrained encoders of three families, as folders."""
    size = {**GEOMETRY, "vocab_size": len(tokenizer)}
    torch.manual_seed(0)
    models = {
        "post": RobertaModel(RobertaConfig(**size, max_position_embeddings=66, type_vocab_size=1)),
        "pre": RobertaPreLayerNormModel(
            RobertaPreLayerNormConfig(**size, max_position_embeddings=66, type_vocab_size=1)
        ),
        "bert": BertModel(BertConfig(**size, max_position_embeddings=64)),
    }
    folders = {}
    for name, model in models.items():
        folders[name] = tmp_path_factory.mktemp("encoders") / name
        model.save_pretrained(folders[name])
        tokenizer.save_pretrained(folders[name])
    return folders


@pytest.fixture(scope="session")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_glue(tmp_path_factory.mktemp("glue") / "glue_data")


@pytest.fixture
def given(glue: Path, tmp_path: Path) -> dict[str, object]:
    """Seconds for all eight tasks."""
    return {
        "glue": str(glue),
        "runs_dir": str(tmp_path / "runs"),
        "max_length": 32,
        "seeds": 2,
        "workers": 1,
        "finetune_learning_rates": "3e-3",
        "finetune_batch_sizes": "16",
        "finetune_epochs": "2",
        "finetune_large_learning_rates": "1e-3,3e-3",
        "finetune_large_batch_sizes": "16",
        "finetune_large_epochs": "2",
    }


def quiet(line: str) -> None:
    """No log."""


def finetuned(config: StudyConfig, checkpoint: Path | str, log: Callable[[str], None] = quiet) -> GlueStudy:
    """The whole study, as the command does it."""
    data = load_tasks(config, log)
    return finetune_glue(config, open_encoder(checkpoint), data, log)


def setting_of(config: StudyConfig, checkpoint: Path | str) -> Setting:
    return make_setting(config, open_encoder(checkpoint), load_tasks(config, quiet))


# -- the plan ---------------------------------------------------------------------------------------------------


def test_the_papers_protocol_is_660_runs() -> None:
    """(4 x 3 + 24 x 5) x 5, without loading anything."""
    for preset in ("efficient-large", "longer-base"):
        config = make_config({"preset": preset})
        runs = planned_runs(config)
        assert len(runs) == len(set(runs)) == (4 * 3 + 24 * 5) * 5 == 660
        assert sum(run.task == "mnli" for run in runs) == 4 * 5 and sum(run.task == "cola" for run in runs) == 24 * 5
        assert {run.seed for run in runs} == {0, 1, 2, 3, 4}


def test_starts_are_planned_even_if_not_asked_for() -> None:
    config = make_config({"preset": "efficient-large", "tasks": "rte"})
    assert [task.name for task in protocol.planned_tasks(config)] == ["mnli", "rte"]
    alone = config.replace(from_mnli=False)
    assert [task.name for task in protocol.planned_tasks(alone)] == ["rte"]


def test_trials_draw_points_of_the_grid() -> None:
    config = make_config({"preset": "efficient-large", "trials": 5})
    runs = runs_of(GLUE_TASKS["cola"], config)
    assert len(runs) == 25 and runs == runs_of(GLUE_TASKS["cola"], config)
    whole = {dataclasses.replace(run, seed=0) for run in runs_of(GLUE_TASKS["cola"], config.replace(trials=None))}
    points = [{dataclasses.replace(run, seed=0) for run in runs if run.seed == seed} for seed in range(5)]
    assert all(len(drawn) == 5 and drawn <= whole for drawn in points) and points[0] != points[1]
    assert len(runs_of(GLUE_TASKS["qnli"], config)) == 4 * 5, "no more than the grid holds"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"finetune_epochs": "3,x"}, "finetune_epochs='3,x': expected whole numbers such as '16,32'"),
        ({"finetune_epochs": "3,3"}, "each above 0 and given once"),
        ({"finetune_learning_rates": "0"}, "expected learning rates such as"),
        ({"finetune_batch_sizes": ""}, "expected whole numbers"),
        ({"trials": 0}, "trials=0: expected at least 1, or None for all"),
        ({"seeds": 0}, "seeds=0: expected at least 1"),
        ({"max_length": 4}, "max_length=4: expected at least 8 tokens"),
        ({"finetune_select": "first"}, "expected one of last, best"),
    ],
)
def test_bad_parameters(given: dict, message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        make_config(given)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_grid_may_come_as_a_number_or_a_list() -> None:
    """papermill's `-p finetune_epochs 3` is a number; YAML may hold a list."""
    assert make_config({"finetune_epochs": 3}).finetune_epochs == "3"
    assert make_config({"finetune_learning_rates": [1e-5, "3e-5"]}).finetune_learning_rates == "1e-05,3e-5"


# -- tokens and batches -----------------------------------------------------------------------------------------


def encoded_split(folder: Path, glue: Path, task: str, tokenizer: PreTrainedTokenizerFast) -> EncodedSplit:
    data = load_task(GLUE_TASKS[task], make_config({"glue": str(glue)}))
    return encode_task(data, tokenizer, 32, folder).splits["train"]


def test_encoding_equals_the_tokenizer(tmp_path: Path, glue: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    for task in ("sst2", "rte"):
        data = load_task(GLUE_TASKS[task], make_config({"glue": str(glue)}))
        split = encoded_split(tmp_path, glue, task, tokenizer)
        batch = split.batch(np.arange(5), tokenizer.pad_token_id)
        columns = [list(column) for column in zip(*data.train.texts[:5], strict=True)]
        expected = tokenizer(*columns, truncation=True, max_length=32, padding=True, return_tensors="np")
        assert np.array_equal(batch["input_ids"], expected["input_ids"])
        mask = batch.get("attention_mask", np.ones_like(batch["input_ids"]))
        assert np.array_equal(mask, expected["attention_mask"])


def test_a_task_is_tokenised_once(tmp_path: Path, glue: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    first = encoded_split(tmp_path, glue, "sst2", tokenizer)

    class Absent:  # noqa: D106, E306
        def __call__(self, *_: object, **__: object) -> None:
            raise AssertionError("tokenised again")

        def __getattr__(self, name: str) -> object:
            return getattr(tokenizer, name)

    second = encoded_split(tmp_path, glue, "sst2", Absent())  # type: ignore[arg-type]
    assert np.array_equal(first.ids, second.ids)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    (folder / "train" / "ids.npy").write_bytes(b"")
    with pytest.raises(StudyError, match="damaged data cache: .* remove it and run again"):
        encoded_split(tmp_path, glue, "sst2", tokenizer)


def test_batches_of_an_epoch(tmp_path: Path, glue: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """Every example once; another order each epoch and seed; little padding."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 60, 4000)
    split = EncodedSplit(
        np.zeros(lengths.sum(), np.int32), None, np.concatenate([[0], np.cumsum(lengths)]), np.zeros(4000)
    )
    epochs = [list(training_batches(split, 32, seed, epoch)) for seed, epoch in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert all(np.array_equal(np.sort(np.concatenate(batches)), np.arange(4000)) for batches in epochs)
    orders = [np.concatenate(batches) for batches in epochs]
    assert np.array_equal(orders[0], orders[3])
    assert not np.array_equal(orders[0], orders[1]) and not np.array_equal(orders[0], orders[2])
    assert all(len(batch) <= 32 for batch in epochs[0]) and len(epochs[0]) == 4000 // 32
    slots = sum(len(batch) * lengths[batch].max() for batch in epochs[0])
    assert slots / lengths.sum() < 1.05
    assert np.array_equal(np.sort(np.concatenate(list(evaluation_batches(split, 64)))), np.arange(4000))


@pytest.mark.parametrize("family", ["post", "pre", "bert"])
def test_padding_does_not_change_the_logits(
    family: str, encoders: dict[str, Path], tmp_path: Path, glue: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    """A sequence alone, without padding and mask, in a bucketed batch, and padded to max_length: the same logits."""
    split = encoded_split(tmp_path, glue, "rte", tokenizer)
    torch.manual_seed(0)
    model = load_classifier(encoders[family], 2).eval()

    def logits(index: list[int], pad_to: int | None = None) -> torch.Tensor:
        batch = split.batch(np.array(index), tokenizer.pad_token_id, pad_to)
        with torch.inference_mode():
            return model(**{name: torch.from_numpy(value) for name, value in batch.items()}).logits

    together = logits(list(range(16)))
    assert "attention_mask" not in split.batch(np.array([3]), tokenizer.pad_token_id)
    for i in range(16):
        torch.testing.assert_close(logits([i])[0], together[i], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(logits(list(range(16)), 40), together, atol=1e-6, rtol=1e-5)


def test_segment_ids_reach_a_model_that_has_them(
    tmp_path: Path, encoders: dict[str, Path], glue: Path, tokenizer: PreTrainedTokenizerFast
) -> None:
    """A BERT-like tokenizer marks the second text. BERT gets the marks; RoBERTa has one segment and gets none."""
    for family, segments in (("bert", True), ("post", False)):
        folder = tmp_path / family
        shutil.copytree(encoders[family], folder)
        marked = copy.deepcopy(tokenizer)
        marked.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<s>:0 $A:0 </s>:0", pair="<s>:0 $A:0 </s>:0 $B:1 </s>:1", special_tokens=[("<s>", 0), ("</s>", 2)]
        )
        marked.save_pretrained(folder)
        encoder = open_encoder(folder)
        assert encoder.segments == segments
        data = load_task(GLUE_TASKS["rte"], make_config({"glue": str(glue)}))
        split = encode_task(data, encoder.tokenizer, 32, tmp_path, encoder.segments).splits["train"]
        batch = split.batch(np.arange(2), 1)
        assert ("token_type_ids" in batch) == segments
        if segments:
            end = int(np.argmax(batch["input_ids"][0] == 2))
            assert not batch["token_type_ids"][0, : end + 1].any() and batch["token_type_ids"][0, end + 1] == 1
        load_classifier(folder, 2)(**{name: torch.from_numpy(value) for name, value in batch.items()})


# -- the loop and the protocol ----------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def study(encoders: dict[str, Path], glue: Path, tmp_path_factory: pytest.TempPathFactory):
    """All eight tasks on files whose labels can be read off a word: (config, study)."""
    config = make_config(
        {
            "glue": str(glue),
            "runs_dir": str(tmp_path_factory.mktemp("runs")),
            "max_length": 32,
            "seeds": 3,
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
    alone = config.replace(tasks="rte", seeds=1, from_mnli=False, runs_dir=str(tmp_path))
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
    other = finetuned(config.replace(runs_dir=str(tmp_path), tasks="cola", seeds=1), encoders["pre"])
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
    config = make_config({**given, "tasks": "mnli", "seeds": 1})
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
    config = make_config({**given, "tasks": "cola,rte", "finetune_large_learning_rates": "1e30", "seeds": 1})
    result = finetuned(config, encoders["pre"])
    assert result.result("rte").score is None and result.average is None
    assert "all runs it could start from failed (mnli-s0-" in result.result("rte").failed[0].failure
    assert result.result("cola").score is not None and result.starts[0].score is None


def test_constant_answers_are_counted_as_collapsed(given: dict, encoders: dict[str, Path], tmp_path: Path) -> None:
    """One class in training: the model learns to give it everywhere, and MCC is undefined."""
    folder = write_glue(tmp_path / "one_class")
    path = folder / "CoLA" / "train.tsv"
    path.write_text("".join(f"{line}\n" for line in path.read_text().splitlines() if "\t1\t" in line))
    config = make_config({**given, "glue": str(folder), "tasks": "cola", "seeds": 1, "finetune_epochs": "8"})
    lines: list[str] = []
    study = finetuned(config, encoders["pre"], lines.append)
    result = study.result("cola")
    assert result.collapsed == list(result.records) and result.undefined == ["mcc"]
    assert result.score == 0 and (result.low, result.high) == (0, 0) and study.average == 0
    assert "mcc is undefined and counts as 0" in "\n".join(lines)


def test_select_best_keeps_the_best_epoch(given: dict, encoders: dict[str, Path]) -> None:
    given = {**given, "tasks": "sst2", "seeds": 1, "finetune_epochs": "6", "finetune_learning_rates": "2e-2"}
    best = finetuned(make_config({**given, "finetune_select": "best"}), encoders["pre"])
    last = finetuned(make_config(given), encoders["pre"])
    lines = read_metrics(best.runs[0].folder(given["runs_dir"]) / "metrics.jsonl")
    assert best.runs[0].metrics["score"] == max(line["score"] for line in lines)
    assert last.runs[0].metrics["score"] == lines[-1]["score"]
    assert best.runs[0].run_id != last.runs[0].run_id


def test_fixed_padding_gives_the_same_answers(given: dict, encoders: dict[str, Path]) -> None:
    """The run_glue recipe differs in padding only: the same steps, the same scores, another run id."""
    given = {**given, "tasks": "rte", "from_mnli": False, "seeds": 1}
    plain = finetuned(make_config(given), encoders["pre"]).runs[0]
    padded = finetuned(make_config({**given, "pad_to_max_length": True}), encoders["pre"]).runs[0]
    assert padded.run_id != plain.run_id and padded.timing["padding_share"] > plain.timing["padding_share"]
    assert padded.metrics["train_loss"] == pytest.approx(plain.metrics["train_loss"], rel=1e-4)
    assert padded.metrics["score"] == plain.metrics["score"]


def test_random_keeps_the_geometry_and_draws_the_weights(given: dict, encoders: dict[str, Path]) -> None:
    encoder = open_encoder(f"random:{encoders['post']}")
    assert encoder.is_random and encoder.positions == 64
    assert encoder.fingerprint != open_encoder(str(encoders["post"])).fingerprint
    config = make_config({**given, "tasks": "sst2", "seeds": 1})
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


@pytest.mark.parametrize("family", ["post", "bert"])
def test_other_encoders(family: str, given: dict, encoders: dict[str, Path]) -> None:
    config = make_config({**given, "tasks": "sst2,rte", "from_mnli": False, "seeds": 1})
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


# -- bad checkpoints --------------------------------------------------------------------------------------------


def edit_json(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def refused(checkpoint: str | Path) -> str:
    with pytest.raises(StudyError) as caught:
        open_encoder(str(checkpoint))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_bad_checkpoints(encoders: dict[str, Path], tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    good = encoders["pre"]
    spoilt = tmp_path / "copy"
    shutil.copytree(good, spoilt)
    (spoilt / "model.safetensors").unlink()
    assert "cannot be loaded for classification" in refused(spoilt) and "safetensors" in refused(spoilt)
    shutil.copy(good / "model.safetensors", spoilt)
    shutil.copy(encoders["bert"] / "model.safetensors", spoilt)
    assert "its weights have other shapes than its config.json" in refused(spoilt)
    weights = load_file(good / "model.safetensors")
    save_file({k: v for k, v in weights.items() if "query" not in k}, spoilt / "model.safetensors", {"format": "pt"})
    assert "4 of the encoder's weights are missing, such as " in refused(spoilt)
    (spoilt / "model.safetensors").write_bytes((good / "model.safetensors").read_bytes()[:-100])
    assert "cannot be loaded for classification" in refused(spoilt)
    shutil.copy(good / "model.safetensors", spoilt)
    train_tokenizer(["The cat dog bird sees the house again and went away to the river " * 9], 340).save_pretrained(
        spoilt
    )
    assert "does not fit its weights" in refused(spoilt) and "put the right tokenizer files" in refused(spoilt)
    shutil.rmtree(spoilt)
    shutil.copytree(good, spoilt)
    edit_json(spoilt / "tokenizer_config.json", pad_token="<unk>")
    assert "padding 3) does not fit its weights (" in refused(spoilt)
    for file in spoilt.glob("tokenizer*"):
        file.unlink()
    assert f"checkpoint {spoilt}: no tokenizer in it" in refused(spoilt)
    assert "no config.json in it" in refused(tmp_path)
    assert "/absent: no such folder" in refused(tmp_path / "absent")
    assert "expected a folder, a hub name, or random:<either>" in refused("random:")
    assert "no such folder, and the hub did not give it" in refused("no-such/hub-name")
    assert "checkpoint runs/pretrain/typo/encoder: no such folder" in refused("runs/pretrain/typo/encoder")
    (tmp_path / "run" / "encoder").mkdir(parents=True)
    (tmp_path / "run" / "encoder" / "config.json").write_text("{}")
    assert f"is a run folder: its encoder is {tmp_path / 'run' / 'encoder'}" in refused(tmp_path / "run")


def test_the_whole_pretraining_model_is_refused(config: StudyConfig) -> None:
    """`model/` holds the decoder as well; what to fine-tune is `encoder/` beside it."""
    from threeml_core.training.loop import pretrain

    record = pretrain(config.replace(max_steps=1), quiet)
    folder = record.folder(config.runs_dir)
    assert "cannot be loaded for classification" in refused(folder / "model")
    assert f"its encoder is {folder / 'encoder'}" in refused(folder)
    encoder = open_encoder(str(folder / "encoder"))
    assert encoder.positions == config.max_position_embeddings - 2 == 32
    with pytest.raises(ParameterError, match="max_length=33: the encoder .* takes at most 32 tokens"):
        setting_of(config.replace(glue="bundled", max_length=33, checkpoint="x"), folder / "encoder")


def test_positions_of_the_families(encoders: dict[str, Path]) -> None:
    """RoBERTa's tables hold two rows that no token uses; at the limit a model still runs."""
    for family, expected in (("post", 64), ("pre", 64), ("bert", 64)):
        model = load_classifier(encoders[family], 2)
        assert max_positions(model) == expected
        model(input_ids=torch.full((1, expected), 7))
        with pytest.raises((IndexError, RuntimeError)):
            model(input_ids=torch.full((1, expected + 1), 7))


def test_nothing_starts_on_bad_input(given: dict, encoders: dict[str, Path], glue: Path, tmp_path: Path) -> None:
    """The last task of the list is malformed: not one run of the others has begun."""
    bad = tmp_path / "bad"
    shutil.copytree(glue, bad)
    (bad / "RTE" / "dev.tsv").write_text(HEADERS["RTE"] + "\n0\ta\tb\tmaybe\n")
    with pytest.raises(StudyError, match="RTE/dev.tsv, line 2: unknown label 'maybe'"):
        finetuned(make_config({**given, "glue": str(bad)}), encoders["pre"])
    assert not (Path(str(given["runs_dir"])) / "finetune").exists()


# -- commands and kills -----------------------------------------------------------------------------------------


def command(given: dict, *more: str) -> list[str]:
    arguments = [part for name, value in given.items() for part in ("-p", name, str(value))]
    return [sys.executable, "-m", "threeml_core", "finetune", *arguments, *more]


def test_the_command(given: dict, encoders: dict[str, Path]) -> None:
    given = {**given, "tasks": "cola,mrpc", "from_mnli": False, "seeds": 1, "checkpoint": str(encoders["pre"])}
    done = subprocess.run(command(given), cwd=PROJECT_ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for expected in (
        "CoLA (subset): mcc ",
        "MRPC (subset): f1 ",
        "predictions: ",
        "note: CoLA: a subset, not",
    ):
        assert expected in done.stdout
    failed = subprocess.run(command(given, "-p", "tasks", "colla"), cwd=PROJECT_ROOT, capture_output=True, text=True)
    assert failed.returncode == 2 and failed.stderr == (
        "error: unknown task 'colla': did you mean 'cola'? "
        "glue='" + str(given["glue"]) + "' has: cola, sst2, mrpc, stsb, qqp, mnli, qnli, rte; or all\n"
    )


def test_a_killed_study_goes_on(given: dict, encoders: dict[str, Path]) -> None:
    """kill -9 between runs or inside one: finished runs stay, the one that was cut is done again, nothing is half."""
    given = {**given, "tasks": "cola,mrpc", "checkpoint": str(encoders["pre"]), "finetune_epochs": "6"}
    process = subprocess.Popen(command(given), cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True)
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


def test_a_new_head_of_the_right_size(encoders: dict[str, Path]) -> None:
    for labels in (1, 2, 3):
        model = load_classifier(encoders["pre"], labels)
        assert model.config.num_labels == labels
        assert isinstance(model, type(AutoModelForSequenceClassification.from_pretrained(encoders["pre"])))
    with pytest.raises(CheckpointError):
        load_classifier("no-such/name", 2)
