"""Every row of tests/faults.py: bad input is refused and nothing is lost; every fault has its test; the document."""

from __future__ import annotations

import ast
import logging
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch

from tests.faults import BAD_INPUTS, DOCUMENT, FAULTS, BadInput, replace_table, run_of
from tests.glue_files import write_glue
from threeml_core.__main__ import STAGES, main
from threeml_core.config import make_config
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.training.loop import pretrain


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Filled by the first test: text, tasks, prepared text and a finished run."""
    return tmp_path_factory.mktemp("finished")


@pytest.fixture
def given(small: dict[str, object], corpus_file: Path, finished: Path, tmp_path: Path) -> dict[str, object]:
    """The parameters of the finished run, which lies with all it needs in `tmp_path`."""

    def parameters(folder: Path) -> dict[str, object]:
        return {**small, "max_steps": 2, "corpus": str(folder / "text.txt"), "runs_dir": str(folder / "runs")}

    if not any(finished.iterdir()):
        shutil.copy(corpus_file, finished / "text.txt")
        write_glue(finished / "glue_data", 8, 4)
        pretrain(make_config(parameters(finished)), lambda line: None)
    # the hashes of files are remembered by their paths
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("file_hashes.json"))
    record = run_of(tmp_path) / "record.json"
    record.write_text(record.read_text().replace(str(finished), str(tmp_path)))
    return parameters(tmp_path)


def more_parameters(command: str, folder: Path) -> dict[str, object]:
    """What a command needs beside the parameters of the run."""
    run = run_of(folder)
    tasks = {"glue": folder / "glue_data", "tasks": "cola", "max_length": 32}
    more: dict[str, dict[str, object]] = {
        "finetune": {"checkpoint": run / "encoder", **tasks},
        "study": {"num_workers": 1, **tasks},
        "information": {"runs": run.name, "num_clusters": 20},
        "push": {"pushed_run": run.name, "push_to_hub": "me/tiny"},
    }
    return more.get(command, {})


def contents(folder: Path) -> dict[str, bytes]:
    """Path -> bytes of all files below a folder, as far as they may be read."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() if os.access(path, os.R_OK) else b"" for path in files}


def unfinished(folder: Path) -> set[Path]:
    """What a writer has begun and not ended: temporary files and folders, prepared text without its meta.json."""
    prepared = (path for path in (folder / "runs" / "data").glob("[!.]*") if path.is_dir())
    return {*folder.rglob("*.part"), *(path for path in prepared if not (path / "meta.json").exists())}


def refuse(*_: object, **__: object) -> None:
    raise AssertionError("the input was accepted")


@pytest.mark.parametrize("row", BAD_INPUTS, ids=lambda row: row.id)
def test_bad_input(
    row: BadInput,
    given: dict[str, object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The real command: status 2, one line that says what is wrong, nothing trained, all files as they were."""
    parameters = {**given, **more_parameters(row.command, tmp_path)}
    prepared = row.given(tmp_path) if callable(row.given) else row.given
    if isinstance(prepared, dict):
        parameters |= prepared
    arguments = [part for name, value in parameters.items() for part in ("-p", name, str(value))]
    if isinstance(prepared, list):
        arguments += prepared
    before = contents(tmp_path)
    capfd.readouterr()
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as caught:
        # transformers logs to the stream there was at its import
        patch.setattr(logging.getLogger("transformers"), "handlers", [logging.StreamHandler(sys.stderr)])
        patch.setattr(sys, "argv", ["threeml", row.command, *arguments])
        patch.setattr(torch.Tensor, "backward", refuse)
        patch.setattr("threeml_core.reporting.report.build_report", refuse)  # it writes into the project
        patch.chdir(tmp_path)
        main()
    errors = capfd.readouterr().err
    assert caught.value.code == 2
    assert errors.startswith("error: ") and errors.endswith("\n") and errors.count("\n") == 1, errors
    assert row.says in errors
    after = contents(tmp_path)
    assert {name: after.get(name) for name in before} == before, "a file is lost or has changed"
    new = after.keys() - before.keys()
    assert all(name.endswith(".lock") or name.startswith("runs/data/") for name in new), "a refused run leaves files"
    assert not unfinished(tmp_path)


def test_the_table_is_complete() -> None:
    """60 rows at least, each once; every test that is named is there."""
    assert len(BAD_INPUTS) >= 45 and len(BAD_INPUTS) + len(FAULTS) >= 60
    descriptions = [row.done for row in BAD_INPUTS] + [fault.done for fault in FAULTS]
    assert sorted(descriptions) == sorted(set(descriptions))
    assert len({row.id for row in BAD_INPUTS}) == len(BAD_INPUTS)
    assert {row.command for row in BAD_INPUTS} == set(STAGES) - {"plan"}
    functions = {}
    for file in {fault.test.partition("::")[0] for fault in FAULTS}:
        tree = ast.parse((PROJECT_ROOT / file).read_text(encoding="utf-8"))
        functions[file] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    for fault in FAULTS:
        file, _, name = fault.test.partition("::")
        assert name.partition("[")[0] in functions[file], fault.test


def test_the_document_shows_the_table() -> None:
    """`python -m tests.faults` renews it."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text == replace_table(text)
