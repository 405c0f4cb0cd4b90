"""The project's own files: installation files in step, import contracts, what must import without what."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from threeml_core.files import PROJECT_ROOT

PYPROJECT = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]


def pinned() -> dict[str, str]:
    lines = (PROJECT_ROOT / "constraints.txt").read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {name.lower().replace("_", "-"): version for name, version in pairs}


@pytest.mark.parametrize("group", ["", *EXTRAS])
def test_every_dependency_is_pinned_inside_its_range(group: str) -> None:
    versions = pinned()
    for line in EXTRAS[group] if group else PYPROJECT["project"]["dependencies"]:
        requirement = Requirement(line)
        assert versions[requirement.name.lower()] in requirement.specifier, line


def test_environment_yml_is_in_step() -> None:
    dependencies = yaml.safe_load((PROJECT_ROOT / "environment.yml").read_text())["dependencies"]
    python = next(line for line in dependencies if isinstance(line, str) and line.startswith("python=")).split("=")[1]
    assert Requirement(f"python{PYPROJECT['project']['requires-python']}").specifier.contains(f"{python}.0")
    (pip,) = (line["pip"] for line in dependencies if isinstance(line, dict))
    extras = re.search(r"\[(.*)\]", pip[-1]).group(1).split(",")  # type: ignore[union-attr]
    assert set(extras) == set(EXTRAS) and pip[0] == "-c constraints.txt"
    assert ",".join(extras) in (PROJECT_ROOT / "Makefile").read_text(), "make and conda install the same"


def test_imports_go_one_way() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        ("threeml_core.pretrain", "gensim datasets pyarrow papermill matplotlib pandas nbconvert pydantic ray"),
        ("threeml_core.benchmark", "gensim datasets pyarrow papermill matplotlib pandas nbconvert pydantic ray"),
        ("threeml_core.reporting", "torch transformers datasets gensim"),
        ("threeml_core.config", "torch numpy pandas"),
    ],
)
def test_what_an_import_needs(module: str, forbidden: str) -> None:
    """A host with torch and transformers alone can pre-train; a report builds without torch."""
    program = f"""
from importlib.machinery import PathFinder
find = PathFinder.find_spec
absent = {forbidden.split()!r}
PathFinder.find_spec = staticmethod(
    lambda name, *rest: None if name.split(".")[0] in absent else find(name, *rest)
)
import {module}
print("imported")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=PROJECT_ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "imported", done.stderr[-2000:]


def test_no_file_names_a_registry_or_a_machine() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=PROJECT_ROOT, capture_output=True, text=True).stdout.split()
    wanted = re.compile("pypi" + r"\.org|conda\.anaconda" + r"|registry\.npm|" + str(PROJECT_ROOT))
    for name in files:
        path = PROJECT_ROOT / name
        if path.is_file() and path.suffix not in (".png",):
            assert not wanted.search(path.read_text(encoding="utf-8")), name
