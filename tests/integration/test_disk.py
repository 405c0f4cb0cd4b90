"""A disk that is really full, and one that is really read-only: file systems of their own, mounted for the test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from threeml_core.config import make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.foundation.errors import StudyError
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.foundation.log import no_line
from threeml_core.training.checkpoint import SavedStates
from threeml_core.training.loop import pretrain
from threeml_core.training.model_card import count_parameters
from threeml_core.training.trainer import Trainer

Mount = Callable[[str], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mount a tmpfs with these options, or mount it again with others."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def with_options(options: str) -> Path:
        again = ["-o", f"remount,{options}"] if os.path.ismount(folder) else ["-t", "tmpfs", "-o", options]
        if shutil.which("mount") is None:
            pytest.skip("needs mount")
        done = subprocess.run(["mount", *again, "tmpfs", str(folder)], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
        return folder

    yield with_options
    if os.path.ismount(folder):
        subprocess.run(["umount", str(folder)], check=True)


def small_run(small: dict, runs_dir: Path) -> dict:
    return {**small, "runs_dir": str(runs_dir), "max_steps": 12, "save_steps": 2, "save_total_limit": 2}


def test_a_full_disk_while_training(small: dict, mount: Mount, tmp_path: Path) -> None:
    """States fill it; the last one that was saved is whole, and with more room the run ends as an undisturbed one."""
    disk = mount("size=8m")
    settings = small_run(small, disk)
    data = prepare_data(make_config(settings))
    model = Trainer(make_config(settings), data, torch.device("cpu")).model
    state = 3 * 4 * count_parameters(model)  # weights and two moments
    size = sum(path.stat().st_blocks * 512 for path in disk.rglob("*"))
    mount(f"size={(size + 5 * state // 2) // 4096 * 4096}")  # two states, not a third
    with pytest.raises(StudyError, match="the disk is full.*could not write .*; what was there before is untouched"):
        pretrain(make_config(settings), no_line)
    (folder,) = (disk / "pretrain").iterdir()
    states = SavedStates(folder / "training_state", 2)
    assert states.newest(no_line) is not None and not (folder / "record.json").exists()
    assert not list(disk.rglob("*.part"))
    mount("size=8m")
    lines: list[str] = []
    record = pretrain(make_config(settings), lines.append)
    assert any("resumes after step" in line for line in lines)
    other = pretrain(make_config({**settings, "runs_dir": str(tmp_path / "other")}), no_line)
    assert record.files["model/model.safetensors"] == other.files["model/model.safetensors"]
    assert record.metrics == other.metrics


def test_a_full_disk_while_data_are_prepared(small: dict, mount: Mount) -> None:
    """By the command: one line, status 2, nothing left."""
    disk = mount("size=16k")
    parameters = [part for name, value in small_run(small, disk).items() for part in ("-p", name, str(value))]
    command = [sys.executable, "-m", "threeml_core", "pretrain", *parameters]
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("error: the disk is full") and done.stderr.count("\n") == 1
    assert not [path for path in disk.rglob("*") if path.is_dir() and path.parent.name == "data"]


def test_a_read_only_disk(small: dict, mount: Mount) -> None:
    """A finished run is read; another one is refused in one line, and nothing is touched."""
    disk = mount("size=16m")
    settings = small_run(small, disk)
    record = pretrain(make_config(settings), no_line)
    before = {path: path.read_bytes() for path in disk.rglob("*") if path.is_file()}
    mount("ro")
    with pytest.raises(StudyError, match="cannot be written|Read-only file system") as caught:
        pretrain(make_config({**settings, "seed": 1}), no_line)
    assert "\n" not in str(caught.value) and "runs_dir" in str(caught.value)
    assert {path: path.read_bytes() for path in disk.rglob("*") if path.is_file()} == before
    assert json.loads((record.folder(disk) / "record.json").read_text())["run_id"] == record.run_id
