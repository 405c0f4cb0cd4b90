"""One run in several processes; SIGTERM; out of GPU memory."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import threeml_core.training.loop
from tests.preloaded import Preloaded
from threeml_core.config import StudyConfig, make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.foundation.errors import ParameterError, TrainingError
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.foundation.processes import is_running
from threeml_core.runs.record import read_metrics, read_record
from threeml_core.training.distributed import Processes
from threeml_core.training.loop import pretrain
from threeml_core.training.trainer import Trainer

CPU = torch.device("cpu")


@pytest.fixture
def own_runs(own_runs: dict, preloaded: Preloaded, monkeypatch: pytest.MonkeyPatch) -> dict:
    """With dropout and accumulation; the processes that torchrun starts need not import torch."""
    monkeypatch.setenv("PYTHON_EXEC", str(preloaded.python()))
    return {**own_runs, "hidden_dropout_prob": 0.1, "micro_batch_size": 2, "logging_steps": 1}


def command(settings: dict, *launcher: str) -> list[str]:
    parameters = [part for name, value in settings.items() for part in ("-p", name, str(value))]
    return [sys.executable, *launcher, "-m", "threeml_core", "pretrain", *parameters]


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def losses(folder: Path) -> list[float]:
    return [line["train_loss"] for line in read_metrics(folder / "metrics.jsonl") if "train_loss" in line]


def wait_for(pattern: str, folder: Path, process: subprocess.Popen) -> Path:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if found := next(folder.glob(pattern), None):
            return found
        assert process.poll() is None, "it ended early"
        time.sleep(0.02)
    raise AssertionError(f"no {pattern}")


def stop(settings: dict, runs: Path, *launcher: str) -> tuple[int, str, str]:
    """Start a run, ask it to stop once it has saved a state; status and output."""
    process = subprocess.Popen(
        command(settings, *launcher), cwd=PROJECT_ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    wait_for("pretrain/*/training_state/*.safetensors", runs, process)
    process.send_signal(signal.SIGTERM)
    out, error = process.communicate(timeout=60)
    return process.returncode, out, error


@pytest.mark.parametrize(
    ("architecture", "bf16", "optimizer", "adaptation", "apart"),
    [
        ("self", False, "adamw", "none", 1e-5),
        ("self", True, "adamw", "none", 2e-2),
        ("self", False, "muon", "none", 2e-3),
        ("self", False, "adamw", "hard", 1e-5),
        ("token_dropping", False, "adamw", "none", 1e-5),
    ],
)
def test_two_processes_give_the_curve_of_one(
    architecture: str, bf16: bool, optimizer: str, adaptation: str, apart: float, own_runs: dict, tmp_path: Path
) -> None:
    """20 steps with accumulation, dropout and a falling mask rate, started as a notebook does: one record, one log.

    Muon rounds to bfloat16: a gradient that is summed in another order tells after a few steps.
    """
    settings = {**own_runs, "max_steps": 20, "eval_steps": 10, "bf16": bf16, "optimizer": optimizer}
    settings |= {"mask_rate": 0.5, "mask_rate_schedule": "linear"}
    settings |= {"architecture": architecture, "mask_adaptation": adaptation, "mask_adaptation_steps": 4}
    settings |= {"checkpoint_steps": "10"} | ({"report_to": "tensorboard"} if find_spec("tensorboard") else {})
    lines: list[str] = []
    two = pretrain(make_config({**settings, "num_processes": 2}), lines.append)
    one = pretrain(make_config({**settings, "runs_dir": str(tmp_path / "one")}), lambda line: None)
    assert two.run_id == one.run_id and two.environment["processes"] == 2 and one.environment["processes"] == 1
    assert {**two.sources, "num_processes": ""} == {**one.sources, "num_processes": "", "preset": "given"}
    curves = losses(two.folder(tmp_path)), losses(one.folder(tmp_path / "one"))
    assert len(curves[0]) == 20 and curves[0] == pytest.approx(curves[1], abs=apart)
    assert bf16 or curves[0][:2] == pytest.approx(curves[1][:2], abs=1e-5)
    assert two.metrics["eval_loss"] == pytest.approx(one.metrics["eval_loss"], abs=apart)
    assert len(list(two.folder(tmp_path).glob("tensorboard/events*"))) == ("report_to" in settings), "of one process"
    assert "checkpoints/step-10/model/model.safetensors" in two.files
    assert two.metrics.get("mask_weights") == one.metrics.get("mask_weights")
    assert [line for line in lines if line.startswith("step 20/20")] and lines.count(f"run {two.run_id} starts") == 1
    assert pretrain(make_config({**settings, "num_processes": 2}), lines.append).run_id == two.run_id, "it is read"


def test_begun_with_two_it_goes_on_with_one(own_runs: dict, tmp_path: Path) -> None:
    """Stopped by SIGTERM to torchrun; each block and dropout mask comes as it would have."""
    settings = {**own_runs, "max_steps": 150, "save_steps": 5, "eval_steps": 150}
    status, _, error = stop(settings, tmp_path, *TORCHRUN)
    assert status != 0 and "was asked to stop (SIGTERM): its state after step" in error
    lines: list[str] = []
    record = pretrain(make_config(settings), lines.append)
    resumed = int(next(line for line in lines if "resumes after step" in line).rsplit(" ", 1)[1])
    assert 5 <= resumed < 150 and record.environment["processes"] == 1
    one = pretrain(make_config({**settings, "runs_dir": str(tmp_path / "one")}), lambda line: None)
    curves = losses(record.folder(tmp_path)), losses(one.folder(tmp_path / "one"))
    steps = resumed + 20
    assert len(curves[0]) == 150 and curves[0][:steps] == pytest.approx(curves[1][:steps], abs=1e-4)


def test_two_processes_that_diverge_leave_the_record_and_the_line_of_one(own_runs: dict) -> None:
    settings = {**own_runs, "max_steps": 60, "learning_rate": 10.0, "initialization": "bert", "num_processes": 2}
    with pytest.raises(
        TrainingError, match=r"the run diverged: after step \d+ .*one of 2 processes started by torchrun"
    ):
        pretrain(make_config(settings), lambda line: None)
    (folder,) = (Path(own_runs["runs_dir"]) / "pretrain").iterdir()
    assert "the run diverged" in str(read_record(folder).failure)
    assert not (folder / "encoder").exists() and not (folder / "training_state").exists()


def test_sigterm_saves_and_exits_143(own_runs: dict, tmp_path: Path) -> None:
    """As schedulers preempt; the continued run ends bit for bit as an undisturbed one."""
    settings = {**own_runs, "max_steps": 150, "save_steps": 10, "eval_steps": 50, "micro_batch_size": 8}
    status, _, error = stop(settings, tmp_path)
    assert status == 143 and error.count("\n") == 1
    assert "was asked to stop (SIGTERM): its state after step" in error and error.startswith("error: run self-39-")
    lines: list[str] = []
    record = pretrain(make_config(settings), lines.append)
    said = error.split("state after step ")[1].split(" ")[0]
    assert f"run {record.run_id} resumes after step {said}" in lines
    one = pretrain(make_config({**settings, "runs_dir": str(tmp_path / "one")}), lambda line: None)
    assert losses(record.folder(tmp_path)) == losses(one.folder(tmp_path / "one")) and record.metrics == one.metrics
    assert record.files["model/model.safetensors"] == one.files["model/model.safetensors"]


def test_sigterm_while_data_are_prepared(small: dict, tmp_path: Path, preloaded: Preloaded) -> None:
    """Status 143, one line, and no half-written folder; the same command then does it all."""
    corpus = tmp_path / "large.txt"
    corpus.write_text(
        "\n\n".join(f"Sentence {i} of a text that takes a while, {i * i} in all." for i in range(100_000))
    )
    settings = {**small, "corpus": str(corpus), "runs_dir": str(tmp_path / "runs"), "max_steps": 1}
    arguments = command(settings)[1:]
    process = subprocess.Popen([preloaded.python(), *arguments], cwd=PROJECT_ROOT, stderr=subprocess.PIPE, text=True)
    wait_for("data/.*.part/train.bin", tmp_path / "runs", process)
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 143 and error == (
        "error: stopped by SIGTERM; the same command goes on with what is missing\n"
    )
    assert not [path for path in (tmp_path / "runs" / "data").iterdir() if path.is_dir()]


def test_an_error_in_one_process_ends_them_all(own_runs: dict, tmp_path: Path) -> None:
    """Its own line comes out, the other says that it lost it, nothing hangs, no record is left."""
    script = tmp_path / "broken.py"
    script.write_text(
        "import os, sys\n"
        "import threeml_core.training.trainer as p\n"
        "from threeml_core.__main__ import main\n"
        "from threeml_core.foundation.errors import TrainingError\n"
        "honest, calls = p.loss_of, []\n"
        "def broken(*arguments):\n"
        "    calls.append(1)\n"
        "    if len(calls) == 7 and os.environ['RANK'] == '1':\n"
        "        raise TrainingError('the second process cannot go on')\n"
        "    return honest(*arguments)\n"
        "p.loss_of = broken\n"
        "main()\n"
    )
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(own_runs))
    launch = [sys.executable, *TORCHRUN, str(script), "pretrain", "--config", str(file)]
    done = subprocess.run(launch, cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and "error: the second process cannot go on" in done.stderr.splitlines()
    own = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert all("cannot go on" in line or "lost another process" in line or "SIGTERM" in line for line in own)
    assert not list(tmp_path.glob("pretrain/*/record.json"))


def test_processes_end_with_the_one_that_started_them(own_runs: dict, tmp_path: Path) -> None:
    """kill -9 of a kernel that waits for torchrun: its processes save and go."""
    settings = {**own_runs, "max_steps": 100_000, "save_steps": 50, "num_processes": 2}
    process = subprocess.Popen(command(settings), cwd=PROJECT_ROOT, stdout=subprocess.DEVNULL, start_new_session=True)
    state = wait_for("pretrain/*/training_state/*.safetensors", tmp_path, process)
    process.kill()
    process.wait()
    lock = state.parent.parent / ".lock"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and _is_locked(lock):
        time.sleep(0.2)
    assert not _is_locked(lock) and not is_running(process.pid)
    assert not list(tmp_path.glob("pretrain/*/record.json"))


def _is_locked(lock: Path) -> bool:
    from threeml_core.foundation.errors import LockedError
    from threeml_core.foundation.files import exclusive

    try:
        with exclusive(lock, "it"):
            return False
    except LockedError:
        return True


def test_a_batch_that_cannot_be_shared(own_runs: dict) -> None:
    with pytest.raises(ParameterError, match="batch_size=8 cannot be shared by 3 processes: choose a multiple of 3"):
        pretrain(make_config({**own_runs, "num_processes": 3}), lambda line: None)
    with pytest.raises(ParameterError, match="micro_batch_size=4 does not divide the 6 sequences"):
        Processes(count=2).check(12, 4)
    Processes(count=4).check(8, 8)  # a micro-batch is at most a share


# -- out of GPU memory ------------------------------------------------------------------------------------------


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward pass of more than two blocks does not fit; there is no GPU here to fill."""
    honest = threeml_core.training.trainer.loss_of

    def full(model: Any, batch: Any, count: Any) -> torch.Tensor:
        if len(batch.input_ids) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has")
        return honest(model, batch, count)

    monkeypatch.setattr("threeml_core.training.trainer.loss_of", full)


def run(settings: dict, **changes: Any) -> StudyConfig:
    return make_config({**settings, "micro_batch_size": 8, "hidden_dropout_prob": 0.0, "max_steps": 3, **changes})


def test_out_of_memory_says_what_fits(own_runs: dict, small_memory: None) -> None:
    message = (
        r"out of GPU memory with micro_batch_size=8 \(CUDA out of memory\); 2 fits: set micro_batch_size=2, or "
        "auto_find_micro_batch_size=True"
    )
    with pytest.raises(TrainingError, match=message):
        pretrain(run(own_runs), lambda line: None)


def test_out_of_memory_accumulates_when_asked(own_runs: dict, small_memory: None) -> None:
    """The same curve as with a micro-batch of that size; the record says which it was."""
    data = prepare_data(run(own_runs))
    found = Trainer(run(own_runs, auto_find_micro_batch_size=True), data, CPU)
    given = Trainer(run(own_runs, micro_batch_size=2), data, CPU)
    assert [found.update().item() for _ in range(3)] == [given.update().item() for _ in range(3)]
    assert found.micro_batch_size == 2
    record = pretrain(run(own_runs, auto_find_micro_batch_size=True), lambda line: None)
    assert record.environment["micro_batch_size"] == 2
    assert read_record(record.folder(own_runs["runs_dir"])).parameters["micro_batch_size"] == 8


def test_nothing_fits(own_runs: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("threeml_core.training.trainer.loss_of", full)
    with pytest.raises(TrainingError, match="and one sequence does not fit either: take a smaller model"):
        pretrain(run(own_runs, auto_find_micro_batch_size=True), lambda line: None)
