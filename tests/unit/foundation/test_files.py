"""Files and folders that appear in one step, whoever else writes, dies or left something behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from threeml_core.foundation import files
from threeml_core.foundation.errors import StudyError
from threeml_core.foundation.files import atomic_file, atomic_folder, explain_path, find_path, project_path, write_json


def at_once(program: str, *arguments: tuple[object, ...]) -> None:
    """Run the program once for each of the arguments, all at the same time; each has to end well."""
    commands = [[sys.executable, "-c", program, *map(str, each)] for each in arguments]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for command in commands]
    errors = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), errors


def ended_process() -> int:
    """The number of a process that is gone."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_two_processes_write_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    program = """
import sys
from pathlib import Path
from threeml_core.foundation.files import write_json
for i in range(300):
    write_json(Path(sys.argv[1]), [sys.argv[2]] * 1000)
"""
    at_once(program, (path, "x"), (path, "y"))
    assert json.loads(path.read_text()) in (["x"] * 1000, ["y"] * 1000)
    assert list(tmp_path.iterdir()) == [path]


def test_two_processes_note_hashes(tmp_path: Path) -> None:
    """Each has 40 corpora; both read and write the same file_hashes.json."""
    program = """
import sys
from pathlib import Path
from threeml_core.config import StudyConfig
from threeml_core.data.corpus import corpus_fingerprint
folder, name = Path(sys.argv[1]), sys.argv[2]
for i in range(40):
    corpus = folder / f"{name}{i}.txt"
    corpus.write_text(f"{name} {i}")
    corpus_fingerprint(StudyConfig(), str(corpus), folder / "cache")
"""
    at_once(program, (tmp_path, "x"), (tmp_path, "y"))
    known = json.loads((tmp_path / "cache" / "file_hashes.json").read_text())
    assert len(known) == 80


def test_leftovers_of_the_dead_are_removed(tmp_path: Path) -> None:
    dead, living = (tmp_path / f".a.{pid}.part" for pid in (ended_process(), os.getppid()))
    dead.write_text("half")
    living.write_text("half")
    with atomic_file(tmp_path / "a") as temporary:
        temporary.write_text("whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([living.name, "a"])
    folders = [tmp_path / f".b.{name}.part" for name in (f"{ended_process()}.x", f"{os.getppid()}.x", "x")]
    for folder in folders:
        folder.mkdir()
    with atomic_folder(tmp_path / "b"):
        pass
    assert [folder.exists() for folder in folders] == [False, True, False]


def test_a_kill_between_the_two_steps_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model"
    with atomic_folder(path) as temporary:
        (temporary / "weights").write_text("old")
    program = f"""
import os
from pathlib import Path
from threeml_core.foundation import files
def replace(source, target):
    if Path(target).name == "model":
        os._exit(9)
    os.rename(source, target)
with files.atomic_folder(Path({str(path)!r})) as temporary:
    (temporary / "weights").write_text("new")
    files.os.replace = replace
"""
    assert subprocess.run([sys.executable, "-c", program]).returncode == 9
    assert not path.exists() and len(list(tmp_path.iterdir())) == 2
    with pytest.raises(ZeroDivisionError), atomic_folder(path):
        assert (path / "weights").read_text() == "old"
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == [path] and (path / "weights").read_text() == "old"
    with atomic_folder(path) as temporary:
        (temporary / "weights").write_text("new")
    assert list(tmp_path.iterdir()) == [path] and (path / "weights").read_text() == "new"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("a" * 400, "File name too long"),
        ("~nosuchuser/x", "no home folder of that user"),
        ("a\0b", "has no zero byte in it"),
    ],
)
def test_paths_that_cannot_be(given: str, message: str) -> None:
    for find in (find_path, project_path):
        with pytest.raises(StudyError, match=message) as caught:
            find(given)
        assert "\n" not in str(caught.value)


def test_a_full_disk_is_not_a_wrong_path() -> None:
    for error in (OSError(number, "full") for number in files._NO_SPACE):
        with pytest.raises(OSError, match="full"), explain_path("a"):
            raise error


def test_json_holds_no_number_that_other_readers_refuse(tmp_path: Path) -> None:
    for wrong in (float("inf"), float("-inf"), float("nan")):
        with pytest.raises(StudyError, match="not finite"):
            write_json(tmp_path / "record.json", {"value": wrong})
    assert not list(tmp_path.iterdir())
