"""Run records: of an older schema, damaged, or with names that leave their folder."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import pytest

from tests.refusals import change, one_line
from tests.study_records import record as make_record
from threeml_core.config import make_config
from threeml_core.foundation.errors import CheckpointError, DamagedFileError
from threeml_core.information import measure as mutual_information
from threeml_core.runs.record import load_records, read_record, write_record


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


@pytest.fixture
def finished(tmp_path: Path) -> Path:
    """The folder of a finished run."""
    config = make_config({})
    record = make_record("pretrain", "self-40-0123456789", config)
    folder = record.folder(tmp_path)
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("{}\n")
    write_record(dataclasses.replace(record, files={"metrics.jsonl": [3, "0"]}), tmp_path)
    (tmp_path / "outside").write_text("{}\n")
    assert read_record(folder).run_id == folder.name
    return folder


@pytest.mark.parametrize("name", ["../../outside", "model/../../../outside", "/etc/passwd", ".."])
def test_files_of_a_record_lie_in_its_folder(finished: Path, name: str) -> None:
    change(finished / "record.json", files={name: [3, "0"]})
    for check_hashes in (False, True):
        with pytest.raises(DamagedFileError, match="which is not in its folder; remove the folder") as caught:
            read_record(finished, check_hashes)
        one_line(caught)
    with pytest.raises(DamagedFileError, match="not in its folder"):
        load_records(finished.parents[1], "pretrain")


@pytest.mark.parametrize(
    "values",
    [
        {"run_id": "../../outside"},
        {"run_id": "/etc"},
        {"run_id": None},
        {"stage": "../.."},
        {"stage": "/etc"},
        {"stage": ["pretrain"]},
        {"files": {"metrics.jsonl": 3}},
        {"files": {"metrics.jsonl": ["many", "0"]}},
        {"files": {"a\0b": [3, "0"]}},
        {"files": ["metrics.jsonl"]},
        {"parameters": []},
        {"metrics": "many"},
        {"environment": {}},
        {"environment": {"finished": 1}},
        {"schema": "new"},
        {"schema": None},
        {"more": 1},
    ],
)
def test_a_record_of_another_form_is_damaged(finished: Path, values: dict[str, object]) -> None:
    change(finished / "record.json", **values)
    for read in (lambda: read_record(finished), lambda: load_records(finished.parents[1], "pretrain")):
        with pytest.raises(DamagedFileError, match="damaged run: .*remove the folder .* and run again") as caught:
            read()
        one_line(caught)


@pytest.mark.parametrize("text", ["", "[]", "null", "[" * 100_000, "{", "\ud800".encode("utf-8", "surrogatepass")])
def test_a_record_that_is_none_is_damaged(finished: Path, text: str | bytes) -> None:
    (finished / "record.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    for read in (lambda: read_record(finished), lambda: load_records(finished.parents[1], "pretrain")):
        with pytest.raises(DamagedFileError, match="record.json cannot be read") as caught:
            read()
        one_line(caught)


def test_a_record_belongs_where_it_lies(finished: Path) -> None:
    """A run of one stage among those of another would be looked for elsewhere."""
    elsewhere = finished.parents[1] / "finetune" / finished.name
    shutil.copytree(finished, elsewhere)
    with pytest.raises(DamagedFileError, match="is of stage pretrain") as caught:
        load_records(finished.parents[1], "finetune")
    one_line(caught)


@pytest.mark.parametrize("name", ["../outside", "../..", "/etc", "/etc/passwd", "..", ".", "a/../../outside"])
def test_runs_to_look_at_are_run_folders(finished: Path, name: str) -> None:
    config = make_config({"runs_dir": str(finished.parents[1]), "runs": name})
    with pytest.raises(CheckpointError, match="is no finished run") as caught:
        mutual_information.chosen_runs(config)
    one_line(caught)


def test_a_run_to_look_at_is_what_its_record_says(finished: Path) -> None:
    """What is measured of it lies in a folder called after it."""
    change(finished / "record.json", run_id="../../outside")
    config = make_config({"runs_dir": str(finished.parents[1]), "runs": str(finished)})
    with pytest.raises(DamagedFileError, match="belongs to run ../../outside"):
        mutual_information.chosen_runs(config)
