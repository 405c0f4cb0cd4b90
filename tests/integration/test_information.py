"""A study of mutual information: three models, kills, bad input, the command."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tests.preloaded import Preloaded
from threeml_core.config import StudyConfig, make_config
from threeml_core.foundation.errors import CheckpointError, DamagedFileError, ParameterError
from threeml_core.foundation.log import no_line
from threeml_core.information import measure as stage
from threeml_core.information.run import mutual_information
from threeml_core.parameters.architectures import PAPER_ARCHITECTURES
from threeml_core.runs.record import read_record
from threeml_core.training.loop import pretrain


class Killed(BaseException):
    """Stands for a signal."""


@pytest.fixture
def study(small: dict, tmp_path: Path) -> StudyConfig:
    return make_config({**small, "runs_dir": str(tmp_path), "num_clusters": 20, "num_kmeans_seeds": 2, "max_steps": 4})


def test_a_study_of_the_three_models(study: StudyConfig, tmp_path: Path) -> None:
    records = mutual_information(study, no_line)
    assert [record.parameters["architecture"] for record in records] == list(PAPER_ARCHITECTURES)
    assert len({record.data["sample"] for record in records}) == 1
    for record in records:
        layers = record.metrics["layers"]
        assert [layer["layer"] for layer in layers] == [0, 1, 2]
        assert {layer["width"] for layer in layers} == {32 if record.parameters["architecture"] == "vanilla" else 16}
        for layer in layers:
            assert len(layer["plug_in"]) == len(layer["corrected"]) == len(layer["floor"]) == 2
            assert max(layer["plug_in"]) <= layer["entropy"]
            assert layer["states"] == record.data["states"]
        assert record.timing["peak_memory_bytes"] > 0
    assert list((tmp_path / "states").glob("*/")) == [] or not any((tmp_path / "states").glob("*/*.npy"))
    lines: list[str] = []
    again = mutual_information(study, lines.append)
    assert [r.run_id for r in again] == [r.run_id for r in records]
    assert [r.environment for r in again] == [r.environment for r in records], "read, not measured again"
    assert "3 of 3 runs are finished; their records are read" in lines


def test_memory_and_disk_give_the_same(study: StudyConfig, tmp_path: Path) -> None:
    run = pretrain(study, no_line).run_id
    (kept,) = mutual_information(study.replace(runs=run, keep_states=True), no_line)
    assert len(list((tmp_path / "states").glob("*/layer-*.npy"))) == 3
    folder = kept.folder(tmp_path)
    (folder / "record.json").unlink()
    (other,) = mutual_information(study.replace(runs=run, states_store="memory"), no_line)
    assert other.run_id == kept.run_id and other.metrics == kept.metrics


def test_the_named_runs_and_layers(study: StudyConfig, tmp_path: Path) -> None:
    vanilla = pretrain(study.replace(architecture="vanilla"), no_line)
    cross = pretrain(study.replace(architecture="cross"), no_line)
    names = f"{vanilla.run_id}, {cross.folder(tmp_path)}"
    elsewhere = study.replace(runs=names, state_layers="2,0", sequence_length=16, hidden_size=64, mask_rate=0.2)
    records = mutual_information(elsewhere, no_line)
    assert [record.data["run"] for record in records] == [vanilla.run_id, cross.run_id]
    for record in records:  # text and corruption are those of the runs, not of the parameters given here
        assert [layer["layer"] for layer in record.metrics["layers"]] == [0, 2]
        assert record.parameters["mask_rate"] == 0.4 and record.parameters["sequence_length"] == 32


def test_a_killed_study_keeps_its_layers(study: StudyConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pretrain(study, no_line).run_id
    original, seen = stage.layer_mutual_information, []

    def stops(*arguments):
        layer = arguments[-1]
        if layer == 1 and 1 not in seen:
            seen.append(1)
            raise Killed
        seen.append(layer)
        return original(*arguments)

    monkeypatch.setattr(stage, "layer_mutual_information", stops)
    with pytest.raises(Killed):
        mutual_information(study.replace(runs=run), no_line)
    (record,) = mutual_information(study.replace(runs=run), no_line)
    assert seen == [0, 1, 1, 2] and [layer["layer"] for layer in record.metrics["layers"]] == [0, 1, 2]
    assert not (record.folder(tmp_path) / "layers.json").exists()


def test_bad_input_is_one_line_before_anything_is_measured(study: StudyConfig, tmp_path: Path) -> None:
    record = pretrain(study, no_line)
    folder = record.folder(tmp_path)
    for settings, kind, message in (
        ({"runs": "self-40-0000000000"}, CheckpointError, f"is no finished run.*there are: {record.run_id}"),
        ({"runs": str(folder / "encoder")}, CheckpointError, f"is no finished run.*that is {folder}"),
        ({"runs": " , "}, CheckpointError, "runs is empty"),
        ({"runs": record.run_id, "state_layers": "0,3"}, ParameterError, "pass layers 0 to 2, there is no layer 3"),
        ({"runs": record.run_id, "num_clusters": 10**6}, ParameterError, "num_clusters=1,000,000, but there are only"),
    ):
        with pytest.raises(kind, match=message):
            mutual_information(study.replace(**settings), no_line)
    assert not (tmp_path / "mutual_information").exists() and not (tmp_path / "states").exists()
    for settings, message in (
        ({"state_layers": "1,1"}, "expected 'all' or layer numbers"),
        ({"state_layers": "last"}, "expected 'all' or layer numbers"),
        ({"num_clusters": 1}, "num_clusters=1: expected at least 2"),
        ({"states_per_layer": 0}, "states_per_layer=0: expected at least 1"),
    ):
        with pytest.raises(ParameterError, match=message):
            study.replace(**settings)


def test_a_run_without_its_decoder_or_with_another_text(study: StudyConfig, tmp_path: Path, corpus_file: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text(corpus_file.read_text())
    study = study.replace(corpus=str(text))
    record = pretrain(study, no_line)
    study = study.replace(runs=record.run_id)
    folder = record.folder(tmp_path)
    (folder / "model").rename(folder / "kept")
    with pytest.raises(DamagedFileError, match="model/.* is missing"):
        mutual_information(study, no_line)
    (folder / "encoder").rename(folder / "model")
    with pytest.raises(CheckpointError, match="without a 3ML decoder"):
        stage.load_model(folder)
    (folder / "model").rename(folder / "encoder")
    (folder / "kept").rename(folder / "model")
    assert read_record(folder, check_hashes=True) == record
    text.write_text(corpus_file.read_text() + "\n\nOne more document.\n")
    with pytest.raises(CheckpointError, match="the text has changed since"):
        mutual_information(study, no_line)


def test_the_command(study: StudyConfig, tmp_path: Path, preloaded: Preloaded) -> None:
    record = pretrain(study, no_line)
    given = {"runs_dir": tmp_path, "runs": record.run_id, "num_clusters": 20, "num_kmeans_seeds": 1}
    done = preloaded.run("information", given)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.splitlines()[-1].removeprefix("record: "))
    assert dataclasses.asdict(read_record(path.parent))["data"]["run"] == record.run_id
    wrong = preloaded.run("information", {**given, "num_clusters": 9999999})
    assert wrong.returncode == 2 and wrong.stderr.startswith("error: num_clusters=9,999,999, but there are only")
    assert len(wrong.stderr.splitlines()) == 1
