"""`threeml notebooks copy`: whole copies, and nothing of a user's is lost."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import pytest

from threeml_core.__main__ import main
from threeml_core.reporting.notebooks import NOTEBOOKS, copy_notebooks

NAMES = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["threeml", "notebooks", *map(str, arguments)])
    main()


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line."""
    with pytest.raises(SystemExit) as caught:
        command(monkeypatch, *arguments)
    errors = capsys.readouterr().err
    assert caught.value.code == 2 and errors.startswith("error: ") and errors.count("\n") == 1
    return errors


def test_all_of_them_into_a_folder_that_may_hold_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.ipynb").write_text("mine")
    command(monkeypatch, "copy", tmp_path)
    assert f"papermill {tmp_path}/02_pretrain.ipynb out.ipynb" in capsys.readouterr().out
    assert sorted(os.listdir(tmp_path)) == sorted([*NAMES, "mine.ipynb"])
    assert all((tmp_path / name).read_bytes() == (NOTEBOOKS / name).read_bytes() for name in NAMES)


def test_no_notebook_is_overwritten_without_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edited = tmp_path / NAMES[3]
    edited.write_text("edited")
    assert f"1 notebooks of yours that would be overwritten, such as {NAMES[3]}" in refused(
        monkeypatch, capsys, "copy", tmp_path
    )
    assert os.listdir(tmp_path) == [NAMES[3]] and edited.read_text() == "edited"
    command(monkeypatch, "copy", tmp_path, "--overwrite")
    assert edited.read_bytes() == (NOTEBOOKS / NAMES[3]).read_bytes() and sorted(os.listdir(tmp_path)) == NAMES


def test_a_full_disk_leaves_whole_notebooks_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    sizes = {name: (NOTEBOOKS / name).stat().st_size for name in NAMES}
    resource.setrlimit(resource.RLIMIT_FSIZE, (max(list(sizes.values())[2:]) - 1, before[1]))
    try:
        errors = refused(monkeypatch, capsys, "copy", tmp_path / "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "the disk is full or a file size limit is reached" in errors
    there = os.listdir(tmp_path / "full")
    assert len(there) < len(NAMES) and all((tmp_path / "full" / name).stat().st_size == sizes[name] for name in there)
    copy_notebooks(tmp_path / "full")
    assert sorted(os.listdir(tmp_path / "full")) == NAMES


def test_a_folder_that_cannot_be_made_or_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for folder in ("file", "file/below"):
        assert "cannot be used" in refused(monkeypatch, capsys, "copy", tmp_path / folder)
    (tmp_path / "locked").mkdir()
    (tmp_path / "locked").chmod(0o500)
    if not os.access(tmp_path / "locked", os.W_OK):
        assert "cannot be written" in refused(monkeypatch, capsys, "copy", tmp_path / "locked")


@pytest.mark.parametrize("arguments", [("cop", "x"), ("copy",), ("copy", "x", "y"), ("copy", "x", "--force"), ("x",)])
def test_other_arguments(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "expected threeml notebooks copy FOLDER [--overwrite]" in refused(monkeypatch, capsys, *arguments)
