"""Pre-training as a user meets it: runs, resumes, refusals, records, the exported encoder."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer, pipeline

import threeml_core.pretrain
from threeml_core import flops
from threeml_core.checkpoint import TrainingState, load_training_state, save_training_state
from threeml_core.config import ARCHITECTURES, make_config
from threeml_core.data import prepare_data
from threeml_core.errors import DamagedFileError, ParameterError, StudyError, TrainingError
from threeml_core.evaluation import (
    fixed_corruption,
    masking_of,
    mlm_perplexity,
    unigram_log_probabilities,
    validation_blocks,
)
from threeml_core.files import PROJECT_ROOT
from threeml_core.pretrain import Trainer, pretrain
from threeml_core.results import load_records, read_metrics, read_record

CPU = torch.device("cpu")


def quiet(line: str) -> None:
    del line


@pytest.fixture
def own_runs(small: dict, runs_dir: Path, tmp_path: Path) -> dict:
    """The small parameters with a run folder of its own (the prepared data is linked in)."""
    prepare_data(make_config(small))
    os.symlink(runs_dir / "data", tmp_path / "data")
    return {**small, "runs_dir": str(tmp_path)}


def state_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


# -- a whole run ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_run_leaves_everything(architecture: str, own_runs: dict) -> None:
    config = make_config({**own_runs, "architecture": architecture, "mask_rate": 0.5})
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
    assert any("validation perplexity" in line for line in lines)

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    model = AutoModelForMaskedLM.from_pretrained(folder / "model")
    assert type(model).__name__ == type(AutoModelForMaskedLM.from_config(model.config)).__name__
    fill = pipeline("fill-mask", model=str(folder / "model"), top_k=3)
    guesses = fill(f"The cat sees the {tokenizer.mask_token} in the garden.")
    assert len(guesses) == 3 and all(0 <= guess["score"] <= 1 for guess in guesses)

    classifier, info = AutoModelForSequenceClassification.from_pretrained(
        folder / "encoder", num_labels=2, output_loading_info=True
    )
    assert all(key.startswith("classifier.") for key in info["missing_keys"]) and not info["unexpected_keys"]
    assert classifier(
        **AutoTokenizer.from_pretrained(folder / "encoder")("A test.", return_tensors="pt")
    ).logits.shape == (1, 2)
    assert (folder / "encoder" / "README.md").read_text().count(record.run_id) == 1


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
    record = pretrain(make_config({**own_runs, **settings}), quiet)
    assert record.metrics["eval_perplexity_masked"] < 0.5 * record.metrics["unigram_perplexity_masked"]
    assert record.metrics["on_unigram_plateau"] is False


def test_a_finished_run_is_not_repeated(own_runs: dict) -> None:
    config = make_config(own_runs)
    first = pretrain(config, quiet)
    stamp = (first.folder(config.runs_dir) / "record.json").stat().st_mtime_ns
    lines: list[str] = []
    again = pretrain(config.replace(logging_steps=7), lines.append)
    assert again == first and any("is finished" in line for line in lines)
    assert (first.folder(config.runs_dir) / "record.json").stat().st_mtime_ns == stamp
    assert pretrain(config.replace(seed=1), quiet).run_id != first.run_id
    assert [r.parameters["seed"] for r in load_records(config.runs_dir, "pretrain")] == [0, 1]


@pytest.mark.parametrize(
    "settings",
    [
        {"mask_counts": "probabilistic", "mask_rate": 0.3},
        {"mask_special_tokens": True},
        {"max_grad_norm": 1.0},
        {"bf16": True},
        {"layer_norm": "post", "initialization": "bert"},
        pytest.param({"torch_compile": True}, marks=pytest.mark.slow),
    ],
)
def test_other_ways_to_train(settings: dict, own_runs: dict) -> None:
    record = pretrain(make_config({**own_runs, **settings}), quiet)
    assert record.metrics["train_loss"] < 5.2, "the loss starts at ln 300 = 5.7"


def test_tensorboard(own_runs: dict) -> None:
    pytest.importorskip("tensorboard")
    record = pretrain(make_config({**own_runs, "tensorboard": True}), quiet)
    assert list((record.folder(own_runs["runs_dir"]) / "tensorboard").glob("events*"))


# -- the same update, however it is cut -----------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_accumulation_equals_one_big_batch(architecture: str, small: dict) -> None:
    whole = make_config({**small, "architecture": architecture})
    data = prepare_data(whole)
    a, b = Trainer(whole, data, CPU), Trainer(whole.replace(micro_batch_size=2), data, CPU)
    for _ in range(3):
        assert a.update().item() == pytest.approx(b.update().item(), rel=1e-5)
    for (name, p), q in zip(a.model.named_parameters(), b.model.parameters(), strict=True):
        assert torch.allclose(p, q, atol=2e-5), name


def test_same_seed_same_run(small: dict) -> None:
    config = make_config({**small, "hidden_dropout_prob": 0.1})
    data = prepare_data(config)
    losses = []
    for _ in range(2):
        trainer = Trainer(config, data, CPU)
        losses.append([trainer.update().item() for _ in range(4)])
    assert losses[0] == losses[1]


# -- resume ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_resume_is_bit_for_bit(architecture: str, small: dict, tmp_path: Path) -> None:
    """With dropout on: weights after save, load and k more steps equal those of the uninterrupted run."""
    config = make_config({**small, "architecture": architecture, "hidden_dropout_prob": 0.1})
    data = prepare_data(config)
    straight = Trainer(config, data, CPU)
    for _ in range(4):
        straight.update()
    save_training_state(tmp_path / "state.pt", straight.model, straight.optimizer, straight.state)
    expected_losses = [straight.update().item() for _ in range(4)]
    torch.manual_seed(999)
    resumed = Trainer(config, data, CPU)
    resumed.state = load_training_state(tmp_path / "state.pt", resumed.model, resumed.optimizer)
    assert resumed.state.step == 4
    assert [resumed.update().item() for _ in range(4)] == expected_losses
    assert same(state_of(resumed.model), state_of(straight.model))


def test_a_killed_run_goes_on_and_ends_the_same(own_runs: dict, tmp_path: Path) -> None:
    """kill -9 in the middle; the second start resumes, and metrics and weights equal an undisturbed run's."""
    settings = {
        **own_runs,
        "max_steps": 400,
        "save_steps": 20,
        "logging_steps": 20,
        "eval_steps": 100,
        "hidden_dropout_prob": 0.1,
    }
    command = [sys.executable, "-m", "threeml_core.pretrain"]
    command += [part for name, value in settings.items() for part in ("-p", name, str(value))]
    process = subprocess.Popen(command, cwd=PROJECT_ROOT, stdout=subprocess.PIPE, text=True)
    state = None
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not (state := next(tmp_path.glob("pretrain/*/training_state.pt"), None)):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert state is not None and not (state.parent / "record.json").exists()
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=300, check=True)
    assert "resumes after step" in done.stdout
    resumed = read_record(state.parent)

    undisturbed = pretrain(make_config({**settings, "runs_dir": str(tmp_path / "other")}), quiet)
    assert resumed.run_id == undisturbed.run_id
    losses = []
    for record, runs in ((resumed, own_runs["runs_dir"]), (undisturbed, tmp_path / "other")):
        lines = read_metrics(record.folder(runs) / "metrics.jsonl")
        losses.append([{k: v for k, v in line.items() if k != "tokens_per_second"} for line in lines])
    assert losses[0] == losses[1]
    weights = [
        AutoModelForMaskedLM.from_pretrained(r.folder(d) / "model").state_dict()
        for r, d in ((resumed, own_runs["runs_dir"]), (undisturbed, tmp_path / "other"))
    ]
    assert same(*weights)


# -- faults ---------------------------------------------------------------------------------------------------


def test_loss_not_finite(own_runs: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is named, the last good state is kept, and the run goes on from it once the cause is gone."""
    config = make_config({**own_runs, "save_steps": 4})
    honest, calls = threeml_core.pretrain.loss_of, []

    def poisoned(model, batch, count):
        calls.append(1)
        loss = honest(model, batch, count)
        return loss * float("nan") if len(calls) == 7 else loss

    monkeypatch.setattr(threeml_core.pretrain, "loss_of", poisoned)
    message = r"loss is not finite \(nan\) at step 7; the last good state is kept in .*max_grad_norm=1.0"
    with pytest.raises(TrainingError, match=message) as caught:
        pretrain(config, quiet)
    assert "\n" not in str(caught.value)
    (folder,) = (Path(own_runs["runs_dir"]) / "pretrain").iterdir()
    assert not (folder / "record.json").exists()
    state = torch.load(folder / "training_state.pt", weights_only=True)
    assert state["state"]["step"] == 4 and all(torch.isfinite(value).all() for value in state["model"].values())
    assert pretrain(config, quiet).run_id == folder.name


def test_exploded_parameters_are_not_saved(own_runs: dict) -> None:
    config = make_config({**own_runs, "learning_rate": 1e38, "save_steps": 1, "warmup_ratio": 0.0})
    for settings in ({}, {"max_steps": 1}):
        with pytest.raises(TrainingError, match="not finite.*no state was saved before.*max_grad_norm=1.0"):
            pretrain(config.replace(**settings), quiet)
    assert not list(Path(own_runs["runs_dir"]).glob("pretrain/*/record.json"))
    assert not list(Path(own_runs["runs_dir"]).glob("pretrain/*/training_state.pt"))


def test_truncated_checkpoint(own_runs: dict) -> None:
    config = make_config(own_runs)
    record = pretrain(config, quiet)
    folder = record.folder(config.runs_dir)
    trainer = Trainer(config, prepare_data(config), CPU)
    save_training_state(folder / "training_state.pt", trainer.model, trainer.optimizer, TrainingState(step=6))
    (folder / "record.json").unlink()
    content = (folder / "training_state.pt").read_bytes()
    (folder / "training_state.pt").write_bytes(content[: len(content) // 2])
    with pytest.raises(DamagedFileError, match="damaged checkpoint: .*training_state.pt cannot be loaded"):
        pretrain(config, quiet)


def test_records_of_an_older_schema_are_passed_over(config, tmp_path: Path) -> None:  # noqa: ANN001
    """After an update of the package old runs do no harm: their ids are others now."""
    path = tmp_path / "pretrain" / "self-40-old" / "record.json"
    path.parent.mkdir(parents=True)
    path.write_text('{"schema": 1, "what": "an older version wrote"}')
    assert load_records(tmp_path, "pretrain") == []
    path.write_text('{"schema": 1000}')
    with pytest.raises(DamagedFileError, match="schema 1000"):
        load_records(tmp_path, "pretrain")
    path.write_text("{")
    with pytest.raises(DamagedFileError, match="cannot be read"):
        load_records(tmp_path, "pretrain")


@pytest.mark.parametrize("damage", ["record", "model", "flipped", "encoder", "renamed"])
def test_damaged_run(damage: str, own_runs: dict) -> None:
    config = make_config(own_runs)
    folder = pretrain(config, quiet).folder(config.runs_dir)
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
        pretrain(config, quiet)


def test_two_processes_do_not_write_the_same_run(own_runs: dict) -> None:
    from threeml_core.files import exclusive

    config = make_config(own_runs)
    folder = pretrain(config, quiet).folder(config.runs_dir)
    with exclusive(folder / ".lock", "x"), pytest.raises(StudyError, match="is being written by another process"):
        pretrain(config, quiet)


def test_disk_full_while_saving_keeps_the_previous_state(own_runs: dict, tmp_path: Path) -> None:
    import resource

    config = make_config(own_runs)
    trainer = Trainer(config, prepare_data(config), CPU)
    path = tmp_path / "state.pt"
    save_training_state(path, trainer.model, trainer.optimizer, TrainingState(step=1))
    before = path.read_bytes()
    trainer.update()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))
    try:
        with pytest.raises(StudyError, match="the disk is full"):
            save_training_state(path, trainer.model, trainer.optimizer, trainer.state)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir() if "part" in p.name] == []


def test_runs_dir_that_cannot_be_written(small: dict, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(StudyError, match="cannot make the folder .*set runs_dir"):
        pretrain(make_config({**small, "runs_dir": str(tmp_path / "file")}), quiet)


def test_unknown_device(own_runs: dict) -> None:
    with pytest.raises(ParameterError, match="device='cuda:7': not available"):
        pretrain(make_config({**own_runs, "device": "cuda:7"}), quiet)


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
        pretrain(config, quiet)
    assert not (tmp_path / "pretrain").exists(), "a refused run leaves no folder"


def test_command_line_refuses_in_one_line(own_runs: dict) -> None:
    for arguments, message in (
        (["-p", "mask_ratee", "0.5"], "error: unknown parameter 'mask_ratee': did you mean 'mask_rate'?"),
        (["-p", "corpus", "/no/such.txt"], "error: corpus /no/such.txt: no such file or folder"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "threeml_core.pretrain", *arguments, "-p", "runs_dir", own_runs["runs_dir"]],
            cwd=PROJECT_ROOT,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 2 and done.stderr.startswith(message) and done.stderr.count("\n") == 1


# -- evaluation -----------------------------------------------------------------------------------------------


def test_perplexity_of_a_uniform_model(small: dict) -> None:
    """All logits equal: perplexity is the vocabulary size, for every kind; batch size does not matter."""
    config = make_config(small)
    data = prepare_data(config)
    model = Trainer(config, data, CPU).model
    with torch.no_grad():
        model.get_input_embeddings().weight.zero_()
        model.head_bias.zero_()
    corruption = fixed_corruption(validation_blocks(config, data), masking_of(config, data, evaluation=True))
    unigram = unigram_log_probabilities(data.train_counts(), data.special_ids)
    for batch_size in (3, 100):
        metrics = mlm_perplexity(model, corruption, unigram, batch_size)
        for key, value in metrics.items():
            if key.startswith("eval_perplexity"):
                assert value == pytest.approx(data.vocab_size, rel=1e-4), key


def test_unigram_perplexity_by_hand(small: dict) -> None:
    config = make_config(small)
    data = prepare_data(config)
    counts = data.train_counts().astype(float) + 1
    counts[list(data.special_ids)] = 0
    corruption = fixed_corruption(validation_blocks(config, data), masking_of(config, data, evaluation=True))
    masked = corruption.labels.gather(1, corruption.mask_idx).numpy()
    expected = np.exp(-np.log(counts[masked] / counts.sum()).mean())
    model = Trainer(config, data, CPU).model
    metrics = mlm_perplexity(model, corruption, unigram_log_probabilities(data.train_counts(), data.special_ids))
    assert metrics["unigram_perplexity_masked"] == pytest.approx(expected, rel=1e-9)


def test_all_models_meet_the_same_corruption(own_runs: dict) -> None:
    prints = {
        pretrain(make_config({**own_runs, "architecture": a, "mask_rate": r}), quiet).metrics["eval_corruption"]
        for a, r in (("vanilla", 0.15), ("self", 0.4), ("cross", 0.5))
    }
    assert len(prints) == 1


class Tracker:
    """Stands for codecarbon's: half a kilowatt-hour between start and stop."""

    def __init__(self, **settings: object) -> None:
        assert settings["save_to_file"] is False
        self.final_emissions_data = SimpleNamespace(energy_consumed=0.0)

    def start(self) -> None:
        self.final_emissions_data.energy_consumed -= 1.0

    def stop(self) -> None:
        self.final_emissions_data.energy_consumed += 1.5


def test_energy_is_recorded_where_codecarbon_is(small: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config({**small, "max_steps": 2, "runs_dir": str(tmp_path / "without")})
    monkeypatch.setitem(sys.modules, "codecarbon", None)
    assert "energy_kwh" not in pretrain(config).timing
    monkeypatch.setitem(sys.modules, "codecarbon", SimpleNamespace(OfflineEmissionsTracker=Tracker))
    assert pretrain(config.replace(runs_dir=str(tmp_path / "with"))).timing["energy_kwh"] == 0.5


def test_codecarbon_itself(small: dict, tmp_path: Path) -> None:
    pytest.importorskip("codecarbon", reason="codecarbon is not installed")
    config = make_config({**small, "runs_dir": str(tmp_path)})
    assert pretrain(config).timing["energy_kwh"] > 0
