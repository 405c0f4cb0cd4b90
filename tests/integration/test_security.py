"""Nothing that a user downloads or gives runs code, reaches a shell, or leaves its folder."""

from __future__ import annotations

import ast
import gzip
import io
import json
import pickle
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import papermill.parameterize
import pytest
import yaml

from tests.audit import audited
from tests.refusals import Payload, change, one_line
from threeml_core.config import load_preset, make_config, parse_arguments
from threeml_core.data.corpus import load_corpus
from threeml_core.data.prepare import load_prepared, prepare_data
from threeml_core.foundation.errors import CorpusError, DamagedFileError, ParameterError, StudyError
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.glue.predictions import load_predictions
from threeml_core.glue.readers import load_task
from threeml_core.glue.tasks import GLUE_TASKS, select_tasks
from threeml_core.information import measure as mutual_information
from threeml_core.reporting import execute
from threeml_core.runs.record import describe_environment
from threeml_core.training.encoders import open_encoder

# -- other files of others ------------------------------------------------------------------------------------------


def test_yaml_makes_no_objects(marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "given.yaml"
    file.write_text(f"corpus: !!python/object/apply:os.system ['touch {marker}']\n")
    with pytest.raises(
        ParameterError, match="cannot read parameters from .*could not determine a constructor"
    ) as caught:
        parse_arguments("", ["-f", str(file)])
    one_line(caught)
    (tmp_path / "params").mkdir()
    shutil.copy(file, tmp_path / "params" / "given.yaml")
    monkeypatch.setattr("threeml_core.config.CARRIED", tmp_path)
    with pytest.raises(ParameterError, match="cannot read parameters from"):
        load_preset("given")
    with pytest.raises(yaml.YAMLError):
        yaml.safe_load(file.read_text())


def test_arrays_hold_no_objects(config: Any, tmp_path: Path, marker: Path) -> None:
    """The arrays of prepared data and of predictions are numbers; object arrays would be pickles."""
    data = prepare_data(config.replace(runs_dir=str(tmp_path)))
    evil = np.array([Payload(marker)], dtype=object)
    np.save(data.folder / "train_counts.npy", evil, allow_pickle=True)
    with pytest.raises(DamagedFileError, match="train_counts.npy cannot be read") as caught:
        load_prepared(data.folder).train_counts()
    one_line(caught)
    change(data.folder / "meta.json", dtype="O")
    with pytest.raises(DamagedFileError, match="holds 'O', expected uint16 or uint32") as caught:
        load_prepared(data.folder)
    one_line(caught)
    np.savez(tmp_path / "predictions.npz", labels=evil, logits=evil)
    with pytest.raises(DamagedFileError, match="predictions.npz cannot be read") as caught:
        load_predictions(GLUE_TASKS["cola"], tmp_path)
    one_line(caught)


@pytest.mark.parametrize("hub", ["folder", "pandas", "pandas:x", "../../nowhere"])
def test_datasets_run_no_code(hub: str, marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a script beside the data, nor a pickle, be it in the working folder, which `hub:pandas` would read."""
    pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "folder.py").write_text(f"from pathlib import Path\nPath({str(marker)!r}).touch()\n")
    for where in (folder, tmp_path):
        (where / "train.pkl").write_bytes(pickle.dumps(Payload(marker)))
    (folder / "README.md").write_text(f"---\nconfigs: !!python/object/apply:os.system ['touch {marker}']\n---\n")
    with pytest.raises(CorpusError) as caught:
        next(load_corpus(f"hub:{folder if hub == 'folder' else hub}"))
    assert ("is no dataset but a reader" if "pandas" in hub else "the hub did not give it") in one_line(caught)


def test_no_archive_is_unpacked(tmp_path: Path) -> None:
    """Corpora are single compressed files; the name inside a gzip is not used."""
    inner = tmp_path / "inner"
    inner.mkdir()
    for name in ("a.tar.gz", "a.tgz", "a.zip"):
        with tarfile.open(inner / name, "w:gz") if name != "a.zip" else zipfile.ZipFile(inner / name, "w") as archive:
            if isinstance(archive, tarfile.TarFile):
                archive.addfile(tarfile.TarInfo("../escaped.txt"), io.BytesIO())
            else:
                archive.writestr("../escaped.txt", "")
        with pytest.raises(CorpusError, match="unknown format") as caught:
            next(load_corpus(str(inner / name)))
        one_line(caught)
    with (inner / "b.txt.gz").open("wb") as handle, gzip.GzipFile("../../escaped.txt", "wb", fileobj=handle) as packed:
        packed.write(b"text\n")
    assert ["".join(document) for document in load_corpus(str(inner / "b.txt.gz"))] == ["text\n"]
    assert not list(tmp_path.rglob("escaped*")) and not list(tmp_path.parent.glob("escaped*"))


# -- the shell ------------------------------------------------------------------------------------------------------


def shell_payload(marker: Path) -> str:
    """For every way in which a shell could run it."""
    return f"$(touch {marker.name})`touch {marker.name}`; touch {marker.name} & touch {marker.name} | '\"\n#"


def started(events: list[tuple[str, tuple[Any, ...]]]) -> list[list[str]]:
    """Commands of the processes that were started; none by a shell."""
    assert all(event == "subprocess.Popen" for event, _ in events)
    commands = [[str(part) for part in arguments] for _, (_, arguments, *_) in events]
    assert not any(Path(command[0]).name in ("sh", "bash", "dash", "zsh") for command in commands)
    return commands


PROCESSES = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "pty.spawn")


def test_no_parameter_reaches_a_shell(marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    payload = shell_payload(marker)
    config = make_config({"runs_dir": str(tmp_path / payload.strip())})
    with audited(*PROCESSES) as events:
        for refused in (
            lambda: prepare_data(config.replace(corpus=payload)),
            lambda: prepare_data(config.replace(corpus=f"hub:{payload}")),
            lambda: prepare_data(config.replace(corpus=str(PROJECT_ROOT / "README.md"), tokenizer=payload)),
            lambda: open_encoder(payload),
            lambda: load_task(GLUE_TASKS["cola"], config.replace(glue=payload)),
            lambda: mutual_information.chosen_runs(config.replace(runs=payload)),
            lambda: select_tasks(config.replace(tasks=payload)),
            lambda: execute.pages_of(config.replace(pages=payload)),
            lambda: make_config({"preset": payload}),
        ):
            with pytest.raises(StudyError):
                refused()
        describe_environment()
    commands = started(events)
    assert commands and all(command[0] == "git" for command in commands) and payload not in str(commands)


def test_files_with_such_names_are_files(marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = shell_payload(marker).replace("/", "").replace("\n", " ")
    corpus = tmp_path / f"{name}.txt"
    corpus.write_text("\n\n".join(f"Document {i} says {i * 7}. It ends." for i in range(300)))
    given = {"corpus": str(corpus), "runs_dir": str(tmp_path / name), "vocab_size": 300, "sequence_length": 16}
    with audited(*PROCESSES) as events:
        data = prepare_data(make_config(given))
    assert data.folder.parent == tmp_path / name / "data" and started(events) == []


def test_the_study_is_started_without_a_shell(marker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report starts it as a process of its own, with the values as they are."""
    python = tmp_path / "python"
    seen = tmp_path / "seen"
    python.write_text(
        f"#!{sys.executable}\nimport json, pathlib, sys\npathlib.Path({str(seen)!r}).write_text(json.dumps(sys.argv))\n"
        "sys.exit(1)\n"
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    payload = shell_payload(marker)
    with audited(*PROCESSES) as events, pytest.raises(StudyError, match="the study's runs did not all end"):
        execute._run_study({"preset": "tiny", "corpus": payload})
    (command,) = started(events)
    assert json.loads(seen.read_text())[-1] == command[-1] == payload
    assert not (PROJECT_ROOT / marker.name).exists()


def test_values_given_to_a_notebook_are_values() -> None:
    """papermill writes them into a cell: as literals."""
    value = '"\'; import os; os.system("touch x") #\n\\" + exit() + f"{exit()}'
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell('corpus = "bundled"', metadata={"tags": ["parameters"]})],
        metadata={"kernelspec": {"name": "python3", "display_name": "", "language": "python"}, "papermill": {}},
    )
    cells = papermill.parameterize.parameterize_notebook(notebook, {"corpus": value, "pages": [value]}).cells
    written = ast.parse(cells[1].source).body
    assert {ast.unparse(node.targets[0]): ast.literal_eval(node.value) for node in written} == {  # type: ignore[attr-defined]
        "corpus": value,
        "pages": [value],
    }


@pytest.mark.parametrize("name", ["../outside", "../params/tiny", "/etc/passwd", "tiny.yaml", "tiny/../tiny", "", "."])
def test_names_of_a_list_are_looked_up(name: str) -> None:
    """A preset, a page and a task name no path."""
    for refused in (
        lambda: make_config({"preset": name}),
        lambda: execute.pages_of(make_config({"pages": name or "../outside"})),
        lambda: select_tasks(make_config({"tasks": name, "glue": "hub"})),
        lambda: select_tasks(make_config({"tasks": name, "glue": "bundled"})),
    ):
        with pytest.raises(ParameterError) as caught:
            refused()
        one_line(caught)
