"""Kernels and a papermill that need not import torch."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.preloaded import Preloaded


@pytest.fixture(scope="session", autouse=True)
def quick(preloaded: Preloaded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`papermill` and Jupyter's `python3` are forked from a process that has imported what is not ours."""
    folder = tmp_path_factory.mktemp("jupyter")
    preloaded.script(folder / "bin" / "papermill", "papermill.__main__:papermill")
    kernel = preloaded.script(folder / "bin" / "kernel", "ipykernel.kernelapp:launch_new_instance")
    spec = {"argv": [str(kernel), "-f", "{connection_file}"], "display_name": "Python 3", "language": "python"}
    (folder / "kernels" / "python3").mkdir(parents=True)
    (folder / "kernels" / "python3" / "kernel.json").write_text(json.dumps(spec))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder))
        patch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
        yield


@pytest.fixture
def as_users_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """The papermill and the kernel of this environment, which import all they need."""
    monkeypatch.delenv("JUPYTER_PATH")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
