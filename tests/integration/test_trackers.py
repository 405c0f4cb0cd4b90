"""Trackers, each by its own library, offline: what comes out of their own stores."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from threeml_core.config import StudyConfig, make_config
from threeml_core.foundation.errors import NotFiniteError, ParameterError, Preempted
from threeml_core.foundation.log import Log, no_line
from threeml_core.runs.record import read_metrics
from threeml_core.training import trackers
from threeml_core.training.loop import pretrain
from threeml_core.training.trainer import Trainer

Curves = dict[str, list[tuple[int, float]]]
Read = Callable[[Path, str], tuple[Curves, dict[str, str]]]
"""From run folders and a run id to its curves and its parameters, as text."""


def tensorboard(runs: Path, run: str) -> tuple[Curves, dict[str, str]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(runs / "pretrain" / run / "tensorboard")).Reload()
    curves = {tag: [(e.step, e.value) for e in board.Scalars(tag)] for tag in board.Tags()["scalars"]}
    (text,) = board.Tensors("parameters/text_summary")
    lines = text.tensor_proto.string_val[0].decode().splitlines()
    return curves, dict(line.strip().split(": ", 1) for line in lines)


def trackio(runs: Path, run: str) -> tuple[Curves, dict[str, str]]:
    from trackio.sqlite_storage import SQLiteStorage

    assert SQLiteStorage.get_runs("threeml") == [run]
    curves: Curves = defaultdict(list)
    for line in SQLiteStorage.get_logs("threeml", run):
        for key, value in line.items():
            if key not in ("step", "timestamp"):
                curves[key].append((line["step"], value))
    return curves, {name: str(v) for name, v in SQLiteStorage.get_run_config("threeml", run).items()}


def wandb(runs: Path, run: str) -> tuple[Curves, dict[str, str]]:
    from wandb.proto import wandb_internal_pb2

    curves, config, ids = defaultdict(list), {}, set()
    for path in sorted((runs / "pretrain" / run / "wandb").glob("offline-run-*/*.wandb")):
        for content in wandb_records(path.read_bytes()):
            record = wandb_internal_pb2.Record.FromString(content)
            if record.HasField("run"):
                ids.add(record.run.run_id)
                config |= {item.key: str(json.loads(item.value_json)) for item in record.run.config.update}
            for item in record.history.item:
                key = item.key or "/".join(item.nested_key)
                if not key.startswith("_"):
                    curves[key].append((record.history.step.num, json.loads(item.value_json)))
    assert len(ids) == 1, "all files of a run have its id, by which `wandb sync` joins them"
    return curves, config


def wandb_records(content: bytes) -> Iterator[bytes]:
    """The records of a file of W&B: seven bytes, then LevelDB's log format."""
    place, record = 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # no header begins in the last bytes of a block
            place += 32768 - place % 32768
        size, kind = struct.unpack_from("<HB", content, place + 4)
        record += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole one, the last part of one
            yield record
            record = b""


def mlflow(runs: Path, run: str) -> tuple[Curves, dict[str, str]]:
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{runs / 'mlflow.db'}")
    (found,) = client.search_runs([client.get_experiment_by_name("threeml").experiment_id])
    assert found.info.status == "FINISHED" and found.info.run_name == run
    histories = {name: client.get_metric_history(found.info.run_id, name) for name in found.data.metrics}
    return {name: [(m.step, m.value) for m in history] for name, history in histories.items()}, found.data.params


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No key, no message to anybody."""
    for name in [name for name in os.environ if name.startswith(("WANDB_", "MLFLOW_", "TRACKIO_"))]:
        monkeypatch.delenv(name)
    for name, value in {
        "NETRC": tmp_path / "no-netrc",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_SILENT": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "TRACKIO_DIR": tmp_path / "trackio",
    }.items():
        monkeypatch.setenv(name, str(value))


def interrupted(config: StudyConfig, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends behind step 9, after it was saved at step 6."""

    def update(trainer: Trainer) -> Tensor:
        return honest(trainer) if trainer.state.step < 9 else torch.tensor(float("nan"))

    honest = Trainer.update
    with monkeypatch.context() as patch, pytest.raises(NotFiniteError):
        patch.setattr(Trainer, "update", update)
        pretrain(config, log)


@pytest.mark.filterwarnings("ignore")  # of the trackers' libraries
@pytest.mark.parametrize("read", [tensorboard, trackio, wandb, mlflow])
def test_a_tracker_has_what_the_run_says(own_runs: dict, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step once, though steps 7 to 9 were done twice; parameters and results; one run of the tracker."""
    name = read.__name__
    for library in ("sqlalchemy", "mlflow") if name == "mlflow" else (name,):
        pytest.importorskip(library, reason=f"{library} is not installed, see docs/trackers.md")
    config = make_config({**own_runs, "logging_steps": 2, "report_to": name})
    lines: list[str] = []
    interrupted(config, lines.append, monkeypatch)
    record = pretrain(config, lines.append)
    assert not [line for line in lines if line.startswith("warning: ") and "failed" in line]
    curves, parameters = read(Path(config.runs_dir), record.run_id)
    expected: Curves = defaultdict(list)
    for line in read_metrics(record.folder(config.runs_dir) / "metrics.jsonl"):
        for key, value in line.items():
            if key != "step":
                expected[key].append((line["step"], pytest.approx(value, rel=1e-6)))
    expected.pop("tokens_per_second")  # of a step done twice the first clock was sent
    assert [step for step, _ in curves["tokens_per_second"]] == [step for step, _ in expected["train_loss"]]
    assert {key: curves[key] for key in expected} == expected
    assert curves["final/flops/training"] == [(20, pytest.approx(record.flops["training"], rel=1e-6))]
    assert curves["final/metrics/eval_loss"] == [(20, pytest.approx(record.metrics["eval_loss"], rel=1e-6))]
    assert (parameters["mask_rate"], parameters["architecture"]) == ("0.4", "self")


@pytest.mark.parametrize("where", ["open", "write", "end"])
def test_a_tracker_that_fails_is_named_once_and_costs_nothing(
    own_runs: dict, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is opened, at a step, or at the end; the run ends, and the other tracker has all."""

    def fail(*_: object) -> None:
        raise OSError("the server is\naway")

    def broken(*_: object) -> trackers.Tracker:
        if where == "open":
            fail()
        return trackers.Tracker("1", fail if where == "write" else lambda step, values: None, fail)

    written: list[int] = []
    other = trackers.Tracker("2", lambda step, values: written.append(step), lambda finished: None)
    monkeypatch.setitem(trackers._KINDS, "wandb", broken)
    monkeypatch.setitem(trackers._KINDS, "mlflow", lambda *_: other)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    lines: list[str] = []
    record = pretrain(make_config({**own_runs, "report_to": "wandb,mlflow"}), lines.append)
    warnings = [line for line in lines if line.startswith("warning: wandb failed (OSError: the server is away)")]
    assert len(warnings) == 1 and record.metrics
    assert written == [5, 10, 10, 15, 20, 20, 20], "a line each: training, validation at 10 and 20, results"


def test_sigterm_while_a_tracker_opens_is_no_fault_of_it(own_runs: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object) -> trackers.Tracker:
        raise Preempted("stopped by SIGTERM")

    monkeypatch.setitem(trackers._KINDS, "tensorboard", stopped)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    with pytest.raises(Preempted):
        pretrain(make_config({**own_runs, "report_to": "tensorboard"}), no_line)


def test_a_tracker_that_is_not_installed(own_runs: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any text is prepared."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for name in ("tensorboard", "trackio", "wandb", "mlflow"):
        with pytest.raises(ParameterError, match=f"report_to={name} needs `pip install {name}"):
            pretrain(make_config({**own_runs, "report_to": name}), no_line)
    assert not (Path(own_runs["runs_dir"]) / "pretrain").exists()
