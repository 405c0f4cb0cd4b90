"""Executed notebooks in a real JupyterLab, which trusts none of them: figures are pictures, tables are tables.

Skipped where there is no Chromium, Playwright or JupyterLab. Nothing leaves this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.reporting.style import FIGURE

sync_api = pytest.importorskip("playwright.sync_api", reason="no Playwright (the extra `test`)")
pytest.importorskip("jupyterlab", reason="no JupyterLab (the extra `notebooks`)")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")

REPORT = PROJECT_ROOT / "reports" / "tiny"
TOKEN = "of-this-test"
SETTINGS = {
    "@jupyterlab/notebook-extension/tracker": {"windowingMode": "none"},  # every cell is drawn, also out of sight
    "@jupyterlab/apputils-extension/notification": {"fetchNews": "false"},
}

SHOWN = """() => {
  const outputs = [...document.querySelectorAll(".jp-Notebook .jp-OutputArea-output")];
  const pictures = outputs.flatMap((output) => [...output.querySelectorAll("img")]);
  return {
    pictures: pictures.length,
    drawn: pictures.filter((picture) => picture.complete && picture.naturalWidth > 100).length,
    beside: outputs.filter((output) => output.querySelector("img")).map((output) => output.innerText.trim()).join(""),
    tables: outputs.flatMap((output) => [...output.querySelectorAll("table")]).filter((table) => table.rows.length > 1)
      .length,
    text: outputs.map((output) => output.innerText).join("\\n"),
    trust: [...document.querySelectorAll("[title]")].map((e) => e.title).filter((title) => /trusted/i.test(title)),
  };
}"""


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder that JupyterLab serves, and its address up to a notebook's name; nothing of this user's own is read."""
    home, served = tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("served")
    for name, values in SETTINGS.items():
        path = home / "settings" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own: dict[str, Any] = {"HOME": home, "JUPYTER_CONFIG_DIR": home / "config", "JUPYTER_DATA_DIR": home / "data"}
    own |= {"JUPYTER_RUNTIME_DIR": home / "runtime", "JUPYTERLAB_SETTINGS_DIR": home / "settings"}
    own |= {"JUPYTERLAB_WORKSPACES_DIR": home / "workspaces"}
    options = [f"--ServerApp.port={port}", "--ServerApp.port_retries=0", "--ServerApp.ip=127.0.0.1", "--no-browser"]
    options += [f"--ServerApp.root_dir={served}", f"--IdentityProvider.token={TOKEN}", "--ServerApp.allow_root=True"]
    command, environment = (
        [sys.executable, "-m", "jupyterlab", *options],
        {**os.environ, **{k: str(v) for k, v in own.items()}},
    )
    with (home / "log").open("w") as log:
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            if server.poll() is not None:
                pytest.fail((home / "log").read_text()[-2000:])
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                urllib.request.urlopen(f"{address}/api?token={TOKEN}").close()
                break
            time.sleep(0.1)
        yield served, f"{address}/lab/tree/"
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:  # it has closed its kernels; now and then a thread of AnyIO outlives all else
            server.kill()
            server.wait(30)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        with contextlib.closing(playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])) as started:
            yield started


def shown(notebook: Any, laboratory: tuple[Path, str], browser: Any) -> dict[str, Any]:
    """What JupyterLab draws of a notebook's outputs."""
    served, address = laboratory
    nbformat.write(notebook, served / "page.ipynb")
    cells = len(notebook.cells)
    with contextlib.closing(browser.new_page()) as page:
        page.goto(f"{address}page.ipynb?token={TOKEN}&reset")
        page.wait_for_function(f"document.querySelectorAll('.jp-Notebook .jp-Cell').length == {cells}", timeout=120_000)
        page.wait_for_function("[...document.images].every((picture) => picture.complete)")
        page.wait_for_timeout(500)
        return page.evaluate(SHOWN)


def outputs_of(notebook: Any) -> list[Any]:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


@pytest.mark.parametrize("name", ["02_pretrain", "04_prerequisites"])
def test_figures_and_tables(name: str, laboratory: tuple[Path, str], browser: Any) -> None:
    notebook = nbformat.read(REPORT / f"{name}.ipynb", 4)
    data = [output.data for output in outputs_of(notebook) if "data" in output]
    figures = sum("image/png" in of for of in data)
    tables = sum(of["text/html"].count("<table") for of in data if "text/html" in of)
    assert figures and tables
    found = shown(notebook, laboratory, browser)
    assert found["trust"] and all("not trusted" in said.lower() for said in found["trust"])
    assert found["pictures"] == found["drawn"] == figures
    assert found["tables"] == tables
    assert found["beside"] == "", "a picture stands alone in its output"
    assert "<svg" not in found["text"] and "Figure: " not in found["text"]


def test_loose_text_would_be_noticed(laboratory: tuple[Path, str], browser: Any) -> None:
    """Where a figure is HTML alone, JupyterLab strips the drawing and leaves its words: what is checked above."""
    notebook = nbformat.read(REPORT / "04_prerequisites.ipynb", 4)
    drawn = next(of for of in outputs_of(notebook) if FIGURE in of.get("data", {}))
    svg = nbformat.v4.new_output("display_data", {"text/html": drawn.data[FIGURE]})
    found = shown(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1", outputs=[svg])]), laboratory, browser)
    assert found["drawn"] == 0 and "mask rate" in found["text"]
