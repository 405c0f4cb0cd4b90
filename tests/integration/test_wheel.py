"""The wheel, built from the sdist, works in a folder far from the checkout; so does an editable install."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

import nbformat
import pytest
import yaml

import threeml_core
from threeml_core.__main__ import EXTRAS
from threeml_core.foundation.files import PROJECT_ROOT

HERE = [path for path in sys.path if Path(path).name == "site-packages"]
"""Where the libraries of this environment lie."""

ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
ENVIRONMENT["JUPYTER_PATH"] = os.pathsep.join(str(Path(path).parents[2] / "share" / "jupyter") for path in HERE)


def done(command: Sequence[str | Path], folder: Path, status: int = 0) -> str:
    """What a command says in this folder."""
    ended = subprocess.run([str(c) for c in command], cwd=folder, env=ENVIRONMENT, capture_output=True, text=True)
    assert ended.returncode == status, ended.stdout[-2000:] + ended.stderr[-4000:]
    return ended.stdout + ended.stderr * bool(status)


def git(folder: Path, *arguments: str) -> str:
    about = ("-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false")
    return done(["git", *about, *arguments], folder).strip()


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean clone of the files as they are now, but for the reports."""
    folder = tmp_path_factory.mktemp("checkout")
    files = git(PROJECT_ROOT, "ls-files", "-co", "--exclude-standard", "--deduplicate", "-z", ":!reports").split("\0")
    for name in files:
        if name and (PROJECT_ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((PROJECT_ROOT / name).read_bytes())
    for command in (("init", "-q"), ("add", "-A"), ("commit", "-q", "-m", "as it is now")):
        git(folder, *command)
    return folder


def backend(call: str, source: Path, output: Path) -> Path:
    """What setuptools builds, as pip and build call it."""
    program = f"import sys, setuptools.build_meta as backend; backend.{call}(sys.argv[1])"
    done([sys.executable, "-c", program, output], source)
    (built,) = output.iterdir()
    return built


@pytest.fixture(scope="module")
def sdist(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return backend("build_sdist", checkout, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return backend("build_wheel", source, tmp_path_factory.mktemp("wheel"))


def install(wheel: Path, folder: Path) -> Path:
    """The `bin` of a new environment with this wheel and the libraries of this one, but not its editable checkout."""
    venv.create(folder)
    python = folder / "bin" / "python"
    done([sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel], folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text("\n".join(HERE) + "\n")
    return python.parent


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install(wheel, tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("far")


def parameters(small: dict[str, object]) -> list[str]:
    return [part for name, value in small.items() if name != "runs_dir" for part in ("-p", name, str(value))]


def test_what_is_in_them(sdist: Path, wheel: Path, checkout: Path) -> None:
    """All modules, notebooks, presets, the template, the licence; no test, run or report."""
    below = {"threeml_core": "threeml_core", "threeml_core/notebooks": "notebooks", "threeml_core/params": "params"}
    tracked = git(checkout, "ls-files", *below.values()).split()
    names = set(zipfile.ZipFile(wheel).namelist())
    own = {name for name in names if ".dist-info/" not in name}
    carried = {f"threeml_core/{name}".replace("threeml_core/threeml_core", "threeml_core") for name in tracked}
    assert own == carried | {"threeml_core/commit.txt"}
    assert {"template/index.html.j2", "template/style.css"} <= {n.removeprefix("threeml_core/reporting/") for n in own}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    with tarfile.open(sdist) as archive:
        source = {name.partition("/")[2] for name in archive.getnames()}
    assert {*tracked, "LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "setup.py", "pyproject.toml"} <= source
    assert not [name for name in source if name.startswith(("runs", "reports", "build", "data"))]


def test_it_is_the_wheel_that_runs(installed: Path, far: Path, checkout: Path) -> None:
    """Paths begin at the current folder; the commit is that of the checkout, not of the folder's own repository."""
    program = "import threeml_core.foundation.files as f; print(f.__file__, f.PROJECT_ROOT, f.CARRIED, sep='\\n')"
    file, root, carried = done([installed / "python", "-c", program], far).split()
    assert Path(file).is_relative_to(installed.parent) and Path(root) == far
    assert Path(carried) == Path(file).parents[1]
    said = done([installed / "threeml", "--version"], checkout.parent)
    assert said == f"threeml-study {threeml_core.__version__} (commit {git(checkout, 'rev-parse', 'HEAD')[:10]})\n"
    assert "notebooks copy FOLDER" in done([installed / "threeml", "--help"], far)


def test_pretrain_writes_below_the_current_folder(installed: Path, far: Path, small: dict[str, object]) -> None:
    said = done([installed / "threeml", "pretrain", *parameters({**small, "max_steps": 2})], far)
    record = Path(re.findall(r"^record: (.*)$", said, re.MULTILINE)[0])
    assert record.is_relative_to(far / "runs" / "pretrain") and record.is_file()
    assert "'tinny': did you mean 'tiny'" in done([installed / "threeml", "plan", "-p", "preset", "tinny"], far, 2)


def test_a_copied_notebook_runs(installed: Path, far: Path) -> None:
    """By papermill, with the installed package."""
    assert "notebooks are in mine" in done([installed / "threeml", "notebooks", "copy", "mine"], far)
    path = far / "mine" / "00_cost_model.ipynb"
    notebook = nbformat.read(path, 4)
    notebook.cells.append(nbformat.v4.new_code_cell("import threeml_core\nprint(threeml_core.__file__)"))
    nbformat.write(notebook, path)
    done([installed / "python", "-m", "papermill", "--no-progress-bar", path, "out.ipynb"], far)
    (output,) = nbformat.read(far / "out.ipynb", 4).cells[-1].outputs
    assert Path(output.text.strip()).is_relative_to(installed.parent)


def test_a_report_from_a_folder_with_a_short_name(installed: Path, far: Path) -> None:
    """Written into the current folder, whose path is taken out of the pages, and nothing else is."""
    folder = far / "a b"
    folder.mkdir()
    said = done([installed / "threeml", "report", "-p", "pages", "00"], folder)
    index = folder / "reports" / "local" / "tiny" / "index.html"
    assert f"The report is {index}" in said
    pages = {path.name: path.read_text() for path in index.parent.glob("*.html")}
    assert set(pages) == {"index.html", "00_basic_idea.html", "00_cost_model.html"}
    assert not any(str(far) in page for page in pages.values())
    assert all(page.rstrip().endswith("</html>") for page in pages.values())


@pytest.mark.parametrize(
    ("stage", "module"), [("report", "papermill"), ("finetune", "sklearn"), ("plan", "matplotlib")]
)
def test_a_library_that_is_missing(stage: str, module: str, installed: Path, far: Path, small: dict) -> None:
    """One line, with the command that installs the extra."""
    program = "import sys; sys.modules[sys.argv.pop(1)] = None; from threeml_core.__main__ import main; main()"
    arguments = ["-p", "checkpoint", "x"] if stage == "finetune" else []
    said = done([installed / "python", "-c", program, module, stage, *arguments], far, 2)
    assert said.count("\n") == 1 and said.startswith(f"error: threeml {stage} needs {module}, which is not installed")
    assert f"`pip install 'threeml-study[{EXTRAS[stage]}]'`" in said


def test_an_editable_install_is_the_checkout(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "wheel").mkdir()
    binaries = install(backend("build_editable", checkout, tmp_path / "wheel"), tmp_path / "environment")
    program = "import threeml_core.foundation.files as f; print(f.PROJECT_ROOT, f.CARRIED, sep='\\n')"
    assert done([binaries / "python", "-c", program], tmp_path).split() == [str(checkout)] * 2
    assert git(checkout, "rev-parse", "HEAD")[:10] in done([binaries / "threeml", "--version"], tmp_path)


def test_one_version() -> None:
    """Package, citation and changelog."""
    citation = yaml.safe_load((PROJECT_ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (PROJECT_ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert str(citation["version"]) == threeml_core.__version__
    assert re.findall(r"^## \[(.+?)\]", changelog, re.MULTILINE)[0] in ("Unreleased", threeml_core.__version__)
