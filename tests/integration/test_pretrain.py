"""Pre-training as a user meets it: whole runs, faults in them, refusals, records, the exported encoder."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline

import threeml_core.training.loop
from tests.preloaded import Preloaded
from threeml_core import flops
from threeml_core.config import StudyConfig, at_constant_rate, make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.foundation.errors import DamagedFileError, DivergedError, ParameterError, StudyError, TrainingError
from threeml_core.foundation.log import no_line
from threeml_core.models.portable import portable_source
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.reporting.notes import corruption_note
from threeml_core.reporting.pretraining import comparable
from threeml_core.runs.ledger import of_pretraining
from threeml_core.runs.record import load_records, read_metrics, read_record
from threeml_core.training.checkpoint import SavedStates
from threeml_core.training.loop import planned_run, pretrain
from threeml_core.training.trainer import Trainer

CPU = torch.device("cpu")


# -- a whole run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "encoder"), [*((name, "roberta") for name in ARCHITECTURES), ("self", "modernbert")]
)
def test_a_run_leaves_everything(architecture: str, encoder: str, own_runs: dict) -> None:
    config = make_config({**own_runs, "architecture": architecture, "encoder": encoder, "mask_rate": 0.5})
    lines: list[str] = []
    record = pretrain(config, lines.append)
    folder = record.folder(config.runs_dir)
    names = {path.name for path in folder.iterdir()} - {".lock"}
    assert names == {"record.json", "metrics.jsonl", "model", "encoder"}
    assert read_record(folder, check_hashes=True) == record
    assert record.parameters["mask_rate"] == 0.5 and record.sources["mask_rate"] == "given"
    for kind in ("masked", "replaced", "unchanged"):
        assert record.metrics[f"eval_perplexity_{kind}"] > 1 and record.metrics[f"unigram_perplexity_{kind}"] > 1
    assert record.flops["forward_per_block"] == flops.forward_flops(config, "exact", record.data["vocab_size"])
    assert record.timing["tokens_per_second"] > 0
    assert record.environment["versions"]["python"] == platform.python_version()
    assert [line["step"] for line in read_metrics(folder / "metrics.jsonl") if "train_loss" in line] == [5, 10, 15, 20]
    assert any("validation perplexity over all corrupted" in line and "at masked positions" in line for line in lines)

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = AutoModelForMaskedLM.from_pretrained(folder / "model")
    assert type(model).__name__ == type(AutoModelForMaskedLM.from_config(model.config)).__name__
    assert (folder / "model" / "modeling_threeml.py").read_text() == portable_source(type(model))
    assert "auto_map" in json.loads((folder / "model" / "config.json").read_text()), "test_portable.py loads it by that"
    assert "auto_map" not in (folder / "encoder" / "config.json").read_text() and not [*folder.glob("encoder/*.py")]
    fill = pipeline("fill-mask", model=str(folder / "model"), top_k=3)
    guesses = fill(f"The cat sees the {tokenizer.mask_token} in the garden.")
    assert len(guesses) == 3 and all(0 <= guess["score"] <= 1 for guess in guesses)

    classifier, info = AutoModelForSequenceClassification.from_pretrained(
        folder / "encoder", num_labels=2, output_loading_info=True
    )
    assert all(key.startswith(("classifier.", "head.")) for key in info["missing_keys"])
    assert not info["unexpected_keys"]
    assert classifier(
        **AutoTokenizer.from_pretrained(folder / "encoder")("A test.", return_tensors="pt")
    ).logits.shape == (1, 2)
    card = (folder / "encoder" / "README.md").read_text()
    assert card.count(record.run_id) == 1
    of_kind = {
        "roberta": ("`RobertaPreLayerNormModel`", "`roberta-prelayernorm`", "no pooler was trained"),
        "modernbert": ("`ModernBertModel`", "`modernbert`", "there is no pooler"),
    }
    for stated in (
        *of_kind[encoder],
        f"{record.metrics['eval_perplexity']:.2f} over all corrupted tokens",
        f"at [MASK]s\n  {record.metrics['eval_perplexity_masked']:.2f}",
    ):
        assert stated in card, stated


@pytest.mark.parametrize(("room", "encoder"), [(0, "roberta"), (10, "roberta"), (10, "modernbert")])
def test_the_exported_tokenizer_cuts_where_the_positions_end(room: int, encoder: str, own_runs: dict) -> None:
    """Not at the length of pre-training, and not behind the table's end, where the encoder would fail."""
    length = own_runs["sequence_length"] + room
    given = {**own_runs, "max_steps": 2, "max_position_embeddings": length + 2, "encoder": encoder}
    config = make_config(given)
    folder = pretrain(config, no_line).folder(config.runs_dir)
    for name in ("encoder", "model"):
        tokenizer = AutoTokenizer.from_pretrained(folder / name)
        assert tokenizer.model_max_length == length
        inputs = tokenizer("the cat " * 100, truncation=True, return_tensors="pt")
        assert inputs["input_ids"].shape == (1, length)
        loader = AutoModel if name == "encoder" else AutoModelForMaskedLM
        assert loader.from_pretrained(folder / name)(**inputs)[0].shape[:2] == (1, length)
    card = (folder / "encoder" / "README.md").read_text()
    assert f"sequences of {length - room} tokens; there is room for {length}" in card
    assert ("were never pre-trained" in card) == bool(room)


def test_cross_is_pre_ln_where_the_preset_is_not(own_runs: dict) -> None:
    """The preset's post-LN is replaced, given post-LN is obeyed; both are said."""
    lines: list[str] = []
    given = {name: value for name, value in own_runs.items() if name != "layer_norm"}
    large = {"preset": "longer-base", "intermediate_size": 64, "decoder_hidden_size": 16, "max_steps": 2}
    large |= {"decoder_num_attention_heads": 1, "tokenizer": "train", "architecture": "cross", "micro_batch_size": 4}
    record = pretrain(make_config({**given, **large}), lines.append)
    assert (record.parameters["layer_norm"], record.sources["layer_norm"]) == ("pre", "derived")
    (line,) = (line for line in lines if "layer_norm" in line)
    assert line == "layer_norm=pre instead of post, which preset longer-base has: post-LN does not work for 3ML_cross"
    lines.clear()
    asked = make_config({**given, "architecture": "cross", "layer_norm": "post", "max_steps": 2})
    assert pretrain(asked, lines.append).parameters["layer_norm"] == "post"
    assert any(line.startswith("warning: layer_norm=post, as given") for line in lines)
    lines.clear()
    pretrain(make_config({**given, **large, "encoder": "modernbert", "architecture": "vanilla"}), lines.append)
    assert any(line.endswith("which preset longer-base has: post-LN does not work for ModernBERT") for line in lines)


def test_it_learns(own_runs: dict) -> None:
    """On the grammar the vanilla model leaves the plateau in seconds: the whole path carries information.

    The 3ML models take longer; that they leave it too is tested on the records of the committed report.
    """
    settings = {
        "architecture": "vanilla",
        "max_steps": 300,
        "batch_size": 32,
        "hidden_size": 64,
        "num_attention_heads": 4,
    }
    settings |= {"learning_rate": 4e-3, "eval_steps": 300, "save_steps": 300}
    record = pretrain(make_config({**own_runs, **settings}), no_line)
    assert record.metrics["eval_perplexity_masked"] < 0.5 * record.metrics["unigram_perplexity_masked"]
    assert record.metrics["on_unigram_plateau"] is False


def test_a_finished_run_is_not_repeated(own_runs: dict) -> None:
    config = make_config(own_runs)
    first = pretrain(config, no_line)
    stamp = (first.folder(config.runs_dir) / "record.json").stat().st_mtime_ns
    lines: list[str] = []
    again = pretrain(config.replace(logging_steps=7), lines.append)
    assert again == first and any("is finished" in line for line in lines)
    assert (first.folder(config.runs_dir) / "record.json").stat().st_mtime_ns == stamp
    assert pretrain(config.replace(seed=1), no_line).run_id != first.run_id
    assert [r.parameters["seed"] for r in load_records(config.runs_dir, "pretrain")] == [0, 1]


@pytest.mark.parametrize(
    "settings",
    [
        {"mask_counts": "probabilistic", "mask_rate": 0.3},
        {"mask_counts": "probabilistic", "mask_rate_schedule": "cosine"},
        {"mask_special_tokens": True},
        {"mask_counts": "probabilistic", "mask_adaptation": "soft", "mask_adaptation_steps": 5, "bf16": True},
        {"architecture": "token_dropping", "mask_counts": "probabilistic", "mask_rate": 0.2, "bf16": True},
        {"architecture": "context_first", "layer_norm": "post", "initialization": "bert", "bf16": True},
        {"max_grad_norm": 1.0},
        {"bf16": True},
        {"layer_norm": "post", "initialization": "bert"},
        {"encoder": "modernbert", "mask_counts": "probabilistic", "local_attention": 8},
        {"encoder": "modernbert", "bf16": True, "local_attention": 8, "architecture": "cross"},
        pytest.param({"torch_compile": True}, marks=pytest.mark.slow),
    ],
)
def test_other_ways_to_train(settings: dict, own_runs: dict) -> None:
    record = pretrain(make_config({**own_runs, **settings}), no_line)
    assert record.metrics["train_loss"] < 5.2, "the loss starts at ln 300 = 5.7"


def test_what_is_executed_is_said_and_is_one_run(own_runs: dict) -> None:
    """15% of 32 tokens are 4 [MASK]s and one token more: 15.6%; so are 16%, whose run is there then."""
    lines: list[str] = []
    vanilla = {**own_runs, "architecture": "vanilla", "eval_mask_rate": 0.15}
    record = pretrain(make_config({**vanilla, "mask_rate": 0.15}), lines.append)
    said = "mask rate 0.15 as 0.1562 (4 [MASK]s, 0.5 replaced, 0.5 unchanged) per 32 tokens"
    assert lines.count(said) == 1 and lines.count(f"validation {said}") == 1
    assert record.run_id.startswith("vanilla-16-")
    assert record.identity["corruption"] == {"masked": "4", "replaced": "1/2", "unchanged": "1/2"}
    sizes = [record.metrics[f"eval_tokens_{kind}"] for kind in ("masked", "replaced", "unchanged")]
    assert sizes == [64, 8, 8]
    assert record.metrics["eval_perplexity_unchanged"] > 1 and record.metrics["eval_perplexity_replaced"] > 1
    assert pretrain(make_config({**vanilla, "mask_rate": 0.16}), no_line) == record
    note = corruption_note([record])
    assert note.count("0.15 as 0.1562 (4 [MASK]s, 0.5 replaced, 0.5 unchanged)") == 2 and "per sequence of 32" in note


def test_a_schedule_is_said_recorded_and_found_again(own_runs: dict) -> None:
    """Its cost is that of all steps; its validation, and so who it is compared with, is that of every run."""
    lines: list[str] = []
    given = {**own_runs, "architecture": "self", "mask_rate": 0.5}
    config = make_config({**given, "mask_rate_schedule": "linear", "mask_rate_levels": 3})
    record = pretrain(config, lines.append)
    said = "0.5 to 0.15 (linear) as 0.5078 to 0.1562 in 3 levels, 0.3223 in the mean over the steps"
    assert lines.count(f"mask rate {said} per 32 tokens") == 1 and said in corruption_note([record])
    assert said in (record.folder(config.runs_dir) / "encoder" / "README.md").read_text()
    assert record.run_id.startswith("self-32-") and record.metrics["mean_mask_rate"] == pytest.approx(0.32226, abs=1e-5)
    rates = [(5, 0.5), (10, 0.325), (5, 0.15)]
    costs = [flops.forward_flops(at_constant_rate(config, r), "exact", record.data["vocab_size"]) for _, r in rates]
    spent = sum(3 * config.batch_size * steps * cost for (steps, _), cost in zip(rates, costs, strict=True))
    assert record.flops["training"] == pytest.approx(spent, rel=1e-12)
    constant = pretrain(make_config(given), no_line)
    assert "mean_mask_rate" not in constant.metrics
    assert constant.metrics["eval_corruption"] == record.metrics["eval_corruption"]
    assert len(comparable(record, [record, constant])) == 2
    for each, own in ((config, record), (at_constant_rate(config), constant)):
        assert of_pretraining([record, constant], each) == [own]
    assert of_pretraining([constant], make_config({**given, "mask_rate_end": 0.3})) == [constant]
    assert not of_pretraining([record, constant], config.replace(mask_rate_levels=4))


def test_adaptive_masking_is_recorded_and_costs_nothing(own_runs: dict) -> None:
    """Its weights stand in the record; FLOPs, validation and what is exported are those of the run without it."""
    plain = make_config({**own_runs, "architecture": "self", "max_steps": 40})
    config = plain.replace(mask_adaptation="hard", mask_adaptation_steps=10)
    record, other = pretrain(config, no_line), pretrain(plain, no_line)
    weights = record.metrics["mask_weights"]
    assert "mask_weights" not in other.metrics and len(weights["heaviest"]) == len(weights["lightest"]) == 10
    assert weights["heaviest"][0][1] > 1.5 * weights["lightest"][0][1] > 0
    for name in ("flops", "data"):
        assert getattr(record, name) == getattr(other, name)
    assert record.metrics["eval_corruption"] == other.metrics["eval_corruption"]
    assert record.files.keys() == other.files.keys()
    folders = [each.folder(config.runs_dir) for each in (record, other)]
    assert "wrongly more often" in (folders[0] / "encoder" / "README.md").read_text()
    tensors = [load_file(folder / "model" / "model.safetensors").keys() for folder in folders]
    assert tensors[0] == tensors[1]
    lines: list[str] = []
    late = pretrain(config.replace(mask_adaptation_steps=40, max_steps=40), lines.append)
    assert [line for line in lines if "mask_adaptation=hard changes nothing in 40 steps" in line]
    assert of_pretraining([record, other, late], config) == [record] and of_pretraining([record, other], plain) == [
        other
    ]


def test_a_validation_text_too_short_for_a_kind_says_so(own_runs: dict) -> None:
    settings = {"eval_mask_rate": 0.15, "eval_mask_split": "80-19-1", "max_eval_sequences": 1, "max_steps": 5}
    lines: list[str] = []
    record = pretrain(make_config({**own_runs, **settings}), lines.append)
    missing = [kind for kind in ("replaced", "unchanged") if not record.metrics[f"eval_tokens_{kind}"]]
    assert missing and all(f"eval_perplexity_{kind}" not in record.metrics for kind in missing)
    assert [line for line in lines if f"the validation corruption has no {missing[0]} token: 1 sequences are" in line]


# -- faults ---------------------------------------------------------------------------------------------------


def test_loss_not_finite(own_runs: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is named, the last good state is kept, and the run goes on from it once the cause is gone."""
    config = make_config({**own_runs, "save_steps": 4})
    honest, calls = threeml_core.training.trainer.loss_of, []

    def poisoned(model, batch, count):
        calls.append(1)
        loss = honest(model, batch, count)
        return loss * float("nan") if len(calls) == 7 else loss

    monkeypatch.setattr("threeml_core.training.trainer.loss_of", poisoned)
    message = r"loss is not finite \(nan\) at step 7; the last good state is kept in .*max_grad_norm=1.0"
    with pytest.raises(TrainingError, match=message) as caught:
        pretrain(config, no_line)
    assert "\n" not in str(caught.value)
    (folder,) = (Path(own_runs["runs_dir"]) / "pretrain").iterdir()
    assert not (folder / "record.json").exists()
    (state,) = (folder / "training_state").iterdir()
    assert int(state.name.split("-")[0]) == 4 and all(v.isfinite().all() for v in load_file(state).values())
    assert pretrain(config, no_line).run_id == folder.name


def test_exploded_parameters_are_not_saved(own_runs: dict) -> None:
    config = make_config({**own_runs, "learning_rate": 1e38, "save_steps": 1, "warmup_ratio": 0.0})
    for settings in ({}, {"max_steps": 1}):
        with pytest.raises(TrainingError, match="not finite.*no state was saved before.*max_grad_norm=1.0"):
            pretrain(config.replace(**settings), no_line)
    assert not list(Path(own_runs["runs_dir"]).glob("pretrain/*/record.json"))
    assert not list(Path(own_runs["runs_dir"]).glob("pretrain/*/training_state/*"))


@pytest.mark.parametrize(("learning_rate", "max_steps"), [(10.0, 60), (100.0, 12), (10.0, 12)])
def test_a_run_that_blew_up_is_no_success(
    learning_rate: float, max_steps: int, own_runs: dict, preloaded: Preloaded
) -> None:
    """Finite all the way, but worse than a uniform guess; or so bad that no perplexity can be written."""
    given = {**own_runs, "learning_rate": learning_rate, "max_steps": max_steps, "eval_steps": 1000}
    config = make_config({**given, "initialization": "bert"})
    with pytest.raises(DivergedError, match=r"diverged: after step \d+ .* nats, a uniform guess .* max_grad_norm=1"):
        pretrain(config, no_line)
    runs = Path(own_runs["runs_dir"])
    (folder,) = (runs / "pretrain").iterdir()
    assert not (folder / "encoder").exists() and not (folder / "model").exists()
    record = read_record(folder)
    assert record.failure and "diverged" in record.failure and record.run_id == folder.name
    for path in (*runs.rglob("*.json"), *runs.rglob("*.jsonl")):
        assert "Infinity" not in path.read_text() and "NaN" not in path.read_text(), path
    with pytest.raises(TrainingError, match="failed before: the run diverged.*to try again, remove"):
        pretrain(config, no_line)
    given |= {"runs_dir": str(runs / "again"), "initialization": "bert"}
    done = preloaded.run("pretrain", given)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and done.stderr.startswith("error: the run diverged")


def interrupted(settings: dict, *steps: int) -> tuple[StudyConfig, list[Path]]:
    """A run that was killed: what it is, and its saved states, oldest first."""
    config = make_config(settings)
    data = prepare_data(config)
    trainer = Trainer(config, data, CPU)
    folder = planned_run(config, data, CPU)[0]
    states = SavedStates(folder / "training_state", keep=len(steps))
    while trainer.state.step < max(steps):
        trainer.state.loss_sum += trainer.update().item()
        trainer.state.loss_count += 1
        if trainer.state.step in steps:
            states.save(trainer.model, trainer.optimizer, trainer.state)
    return config, states.files()[::-1]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty"])
def test_a_damaged_state_falls_back_to_the_one_before(damage: str, own_runs: dict, tmp_path: Path) -> None:
    """The warning names it, it stays for a look, and the run ends as an undisturbed one."""
    config, (_, newest) = interrupted({**own_runs, "max_steps": 8}, 3, 5)
    content = bytearray(newest.read_bytes())
    if damage == "flipped":
        content[-1] ^= 1
    newest.write_bytes({"truncated": content[: len(content) // 2], "flipped": content, "empty": b""}[damage])
    lines: list[str] = []
    record = pretrain(config, lines.append)
    assert any(line.startswith(f"warning: damaged state {newest}: ") for line in lines)
    assert f"run {record.run_id} resumes after step 3" in lines
    other = pretrain(config.replace(runs_dir=str(tmp_path / "other")), no_line)
    assert record.metrics == other.metrics
    assert record.files["model/model.safetensors"] == other.files["model/model.safetensors"]


def test_all_states_damaged(own_runs: dict) -> None:
    config, states = interrupted({**own_runs, "max_steps": 8}, 3, 5)
    for state in states:
        state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(DamagedFileError, match="damaged checkpoint: none of the 2 states in .*; remove"):
        pretrain(config, no_line)
    assert len(list(states[0].parent.glob("*.damaged"))) == 2


def test_a_state_of_another_model(own_runs: dict) -> None:
    config, (state,) = interrupted({**own_runs, "max_steps": 8}, 3)
    _, (other,) = interrupted({**own_runs, "max_steps": 8, "num_hidden_layers": 1}, 3)
    other.replace(state.with_name(other.name))
    state.unlink()
    with pytest.raises(DamagedFileError, match="damaged checkpoint: .*it is of another model"):
        pretrain(config, no_line)


def test_the_last_states_are_kept(own_runs: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the last saves, however the clock runs; nothing about them rests on a file's time."""
    config = make_config({**own_runs, "max_steps": 10, "save_steps": 2, "save_total_limit": 3})
    seen: list[list[int]] = []
    honest = SavedStates.save

    def watched(self: SavedStates, *arguments: Any) -> None:
        honest(self, *arguments)
        seen.append([int(path.name.split("-")[0]) for path in self.files()])
        for path in self.files():
            os.utime(path, (2e9 - 1e6 * len(seen), 2e9 - 1e6 * len(seen)))

    monkeypatch.setattr(SavedStates, "save", watched)
    pretrain(config, no_line)
    assert seen == [[2], [4, 2], [6, 4, 2], [8, 6, 4]]


def test_the_clock_jumps(own_runs: dict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The system's clock goes back a day with every look at it; durations come from one that does not jump."""
    clock = iter(range(10**9, 0, -86400))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    record = pretrain(make_config(own_runs), no_line)
    assert 0 < record.timing["train_seconds"] < 600 and record.timing["tokens_per_second"] > 0
    again = pretrain(make_config({**own_runs, "runs_dir": str(tmp_path / "other")}), no_line)
    assert again.metrics == record.metrics


@pytest.mark.parametrize("damage", ["record", "model", "flipped", "encoder", "renamed"])
def test_damaged_run(damage: str, own_runs: dict) -> None:
    config = make_config(own_runs)
    folder = pretrain(config, no_line).folder(config.runs_dir)
    if damage == "record":
        text = (folder / "record.json").read_text()
        (folder / "record.json").write_text(text[: len(text) // 2])
    elif damage == "model":
        with (folder / "model" / "model.safetensors").open("r+b") as handle:
            handle.truncate(100)
    elif damage == "flipped":  # the same size, one byte another
        content = bytearray((folder / "model" / "model.safetensors").read_bytes())
        content[-1] ^= 1
        (folder / "model" / "model.safetensors").write_bytes(content)
    elif damage == "encoder":
        shutil.rmtree(folder / "encoder")
    else:
        values = json.loads((folder / "record.json").read_text())
        (folder / "record.json").write_text(json.dumps({**values, "run_id": "other"}))
    with pytest.raises(DamagedFileError, match="damaged run: .*remove the folder"):
        pretrain(config, no_line)


def test_two_processes_do_not_write_the_same_run(own_runs: dict, tmp_path: Path) -> None:
    from threeml_core.foundation.files import exclusive

    config = make_config(own_runs)
    folder = planned_run(config, prepare_data(config), CPU)[0]
    with exclusive(folder / ".lock", "x"), pytest.raises(StudyError, match="is being written by another process"):
        pretrain(config, no_line)
    assert not (folder / "record.json").exists()
    record = pretrain(config, no_line)
    with exclusive(folder / ".lock", "x"):
        assert pretrain(config, no_line) == record, "a finished run may be read by any number of processes at once"


@pytest.mark.parametrize("begun_anew", [True, False])
def test_a_folder_removed_under_a_run(begun_anew: bool, own_runs: dict) -> None:
    """Its lock goes with it, so another process may begin it anew: the first leaves no record of the other's files."""
    folders: list[Path] = []

    def log(line: str) -> None:
        if line.startswith("step 5/20"):
            (folder,) = Path(own_runs["runs_dir"]).glob("pretrain/*")
            shutil.rmtree(folder)
            folders.append(folder)
            if begun_anew:
                folder.mkdir()
                (folder / "metrics.jsonl").write_text('{"step": 5, "train_loss": 1.0}\n')

    with pytest.raises(TrainingError, match="was removed or begun anew .* stops at step 10;") as caught:
        pretrain(make_config(own_runs), log)
    (folder,) = folders
    assert "\n" not in str(caught.value) and not (folder / "record.json").exists()
    assert (folder / "metrics.jsonl").exists() == begun_anew
    assert pretrain(make_config(own_runs), no_line).metrics["train_loss"] > 0


def test_runs_dir_that_cannot_be_written(small: dict, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StudyError, match="cannot make the folder .*runs_dir"):
        pretrain(make_config({**small, "runs_dir": str(tmp_path / "file")}), no_line)


def test_unknown_device(own_runs: dict) -> None:
    with pytest.raises(ParameterError, match="device='cuda:7': not available"):
        pretrain(make_config({**own_runs, "device": "cuda:7"}), no_line)


def test_more_special_tokens_than_the_rate_allows(small: dict, tmp_path: Path) -> None:
    path = tmp_path / "words.txt"
    path.write_text("\n".join("abcdefghijklmnopqrstuvwxyz"[i % 26] for i in range(3000)))
    config = make_config(
        {
            **small,
            "corpus": str(path),
            "document_separator": "line",
            "mask_rate": 0.8,
            "runs_dir": str(tmp_path),
            "validation_fraction": 0.3,
        }
    )
    with pytest.raises(ParameterError, match="mask_rate=0.8 corrupts .* special tokens that stay"):
        pretrain(config, no_line)
    assert not (tmp_path / "pretrain").exists(), "a refused run leaves no folder"


def test_command_line_refuses_in_one_line(own_runs: dict, preloaded: Preloaded) -> None:
    for given, message in (
        ({"mask_ratee": 0.5}, "error: unknown parameter 'mask_ratee': did you mean 'mask_rate'?"),
        ({"corpus": "/no/such.txt"}, "error: corpus /no/such.txt: no such file or folder"),
    ):
        done = preloaded.run("pretrain", {**given, "runs_dir": own_runs["runs_dir"]})
        assert done.returncode == 2 and done.stderr.startswith(message) and done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [(), ("plan", "--help"), ("plan",)])
def test_a_reader_who_has_seen_enough(arguments: tuple[str, ...]) -> None:
    """`threeml plan | head` ends without a traceback."""
    command = [sys.executable, "-m", "threeml_core", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""


def test_all_models_meet_the_same_corruption(own_runs: dict) -> None:
    prints = {
        pretrain(make_config({**own_runs, "architecture": a, "mask_rate": r}), no_line).metrics["eval_corruption"]
        for a, r in (("vanilla", 0.15), ("self", 0.4), ("cross", 0.5))
    }
    assert len(prints) == 1


def test_a_run_says_what_it_makes_of_the_text(own_runs: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many epochs, before it starts; and at its end whether it stands on the unigram plateau."""
    config = make_config(own_runs)
    lines: list[str] = []
    record = pretrain(config, lines.append)
    epochs = 20 * 8 / len(prepare_data(config).train)
    said = lines.index(f"20 steps of 8 sequences are {epochs:.3g} epochs")
    assert said < lines.index(f"run {record.run_id} starts") and any(
        line.startswith("corpus: 1 file read") for line in lines
    )
    (warning,) = (line for line in lines if line.startswith("warning: the run ends on the unigram plateau"))
    assert f"is {record.metrics['eval_perplexity_masked']:.1f}, the unigram's" in warning and "more steps" in warning
    monkeypatch.setattr("threeml_core.training.evaluation.PLATEAU_MARGIN", 100.0)
    pretrain(config.replace(seed=1), lines.append)
    assert sum(line.startswith("warning: the run ends on the unigram plateau") for line in lines) == 1


def test_what_a_run_leaves_holds_no_pickle(config: Any, tmp_path: Path) -> None:
    from threeml_core.training.loop import pretrain

    record = pretrain(config.replace(runs_dir=str(tmp_path), max_steps=2, save_steps=1), lambda line: None)
    files = [path for path in record.folder(tmp_path).rglob("*") if path.is_file()]
    weights = [path for path in files if path.suffix == ".safetensors"]
    assert {path.parent.name for path in weights} >= {"model", "encoder"} and all(map(load_file, weights))
    code = [path.relative_to(record.folder(tmp_path)) for path in files if path.suffix == ".py"]
    assert code == [Path("model/modeling_threeml.py")]
    others = {path.suffix for path in files} - {".py"}
    assert others <= {".safetensors", ".json", ".jsonl", ".md", ".txt", ".lock", ""}
