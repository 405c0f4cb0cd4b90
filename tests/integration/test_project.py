"""The project's own files: installation files in step, import contracts, what must import without what."""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from threeml_core import __main__ as command
from threeml_core.foundation.files import PACKAGE, PROJECT_ROOT

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
    trackers = {"mlflow", "wandb"}  # large, and each of use to few
    assert set(extras) == set(EXTRAS) - trackers and pip[0] == "-c constraints.txt"
    assert ",".join(extras) in (PROJECT_ROOT / "Makefile").read_text(), "make and conda install the same"


def test_imports_go_one_way() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).parent / "lint-imports"), "--no-cache"],
        cwd=PROJECT_ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-2000:]


def needed_by(names: Iterable[str]) -> set[str]:
    """These distributions and all that they require, as installed here; canonical names."""
    found, todo = set(), [Requirement(name) for name in names]
    while todo:
        wanted = todo.pop()
        for extra in {"", *wanted.extras} - {extra for name, extra in found if name == canonicalize_name(wanted.name)}:
            found.add((canonicalize_name(wanted.name), extra))
            requirements = map(Requirement, metadata.requires(wanted.name) or ())
            todo += [r for r in requirements if not r.marker or r.marker.evaluate({"extra": extra})]
    return {name for name, _ in found}


def base_dependencies() -> set[str]:
    return {Requirement(line).name for line in PYPROJECT["project"]["dependencies"]}


def outside(needed: set[str]) -> str:
    """Modules that are installed here and belong to no distribution that is needed."""
    owners = metadata.packages_distributions().items()
    own = {"threeml-study"}
    return " ".join(
        module for module, names in owners if not {canonicalize_name(name) for name in names} & (needed | own)
    )


def imports_without(modules: Sequence[str], absent: str) -> str:
    """What is said when modules are imported where others are not installed: nothing, if they can be."""
    program = f"""
from importlib.machinery import PathFinder
find = PathFinder.find_spec
absent = {absent.split()!r}
PathFinder.find_spec = staticmethod(
    lambda name, *rest: None if name.split(".")[0] in absent else find(name, *rest)
)
import {", ".join(modules)}
print("imported")
"""
    environment = {**os.environ, "PYTHONPATH": f"{PROJECT_ROOT}{os.pathsep}{PROJECT_ROOT / 'scripts'}"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=PROJECT_ROOT, env=environment, capture_output=True, text=True
    )
    return "" if done.stdout.strip() == "imported" else done.stderr[-2000:] or "it said nothing"


@pytest.mark.parametrize("bare", [False, True])
def test_a_base_install_can_pretrain(bare: bool) -> None:
    """Nothing outside the base dependencies is imported; on a bare GPU host gensim is not there either."""
    absent = outside(needed_by(base_dependencies() - ({"gensim"} if bare else set())))
    assert {"datasets", "pyarrow", "papermill", "matplotlib", "sklearn", "ray"} <= set(absent.split())
    assert not bare or {"gensim", "scipy"} <= set(absent.split())
    modules = [*with_inner_imports(["threeml_core.training.run", "threeml_core.benchmark.run"]), "gpu_check"]
    assert {"threeml_core.training.loop", "threeml_core.benchmark.measure"} <= {*modules}
    assert imports_without(modules, absent) == ""


def with_inner_imports(modules: Iterable[str]) -> list[str]:
    """These modules, and those of this package that their functions import when they are called."""
    found = set(modules)
    for name in list(found):
        for node in ast.walk(ast.parse(inspect.getsource(importlib.import_module(name)))):
            if isinstance(node, ast.FunctionDef):
                inner = (each.module for each in ast.walk(node) if isinstance(each, ast.ImportFrom))
                found |= {each for each in inner if each and each.startswith("threeml_core")}
    return sorted(found)


@pytest.mark.parametrize("stage", command.EXTRAS)
def test_a_stage_needs_its_extras_alone(stage: str) -> None:
    """What it imports can be imported with them, and the line about a missing library names them."""
    source = ast.parse(textwrap.dedent(inspect.getsource(command.STAGES[stage])))
    modules = with_inner_imports(str(node.module) for node in ast.walk(source) if isinstance(node, ast.ImportFrom))
    named = {Requirement(line).name for extra in command.EXTRAS[stage].split(",") for line in EXTRAS[extra]}
    assert imports_without(modules, outside(needed_by(base_dependencies() | named))) == ""


REPORTING = " ".join(
    f"threeml_core.reporting.{path.stem}" for path in sorted((PACKAGE / "reporting").glob("[a-z]*.py"))
)


@pytest.mark.parametrize(
    ("module", "forbidden"),
    [
        pytest.param(REPORTING, "torch transformers datasets gensim pandas seaborn sklearn", id="reporting"),
        ("threeml_core.config", "torch numpy pandas"),
        *(
            (f"threeml_core.{room}.run", "torch transformers")
            for room in ("training", "study", "glue", "information", "benchmark")
        ),
        *((f"threeml_core.{name}", "torch transformers") for name in ("study.probing", "information.bias")),
    ],
)
def test_what_an_import_needs(module: str, forbidden: str) -> None:
    """A report builds without torch, and so do its pages of records; parameters need nothing."""
    assert imports_without(module.split(), forbidden) == ""


def test_no_file_names_a_registry_or_a_machine() -> None:
    files = subprocess.run(["git", "ls-files"], cwd=PROJECT_ROOT, capture_output=True, text=True).stdout.split()
    wanted = re.compile("pypi" + r"\.org|conda\.anaconda" + r"|registry\.npm|" + str(PROJECT_ROOT))
    for name in files:
        path = PROJECT_ROOT / name
        if path.is_file() and path.suffix not in (".png",):
            assert not wanted.search(path.read_text(encoding="utf-8")), name


def test_jupyter_is_for_this_machine_alone() -> None:
    """`make lab` binds to the loopback address and leaves Jupyter's token as it is."""
    recipe = (PROJECT_ROOT / "Makefile").read_text(encoding="utf-8")
    commands = re.findall(r"^\t.*\bjupyter[ -]\w+.*$", recipe, re.MULTILINE)
    assert commands == ["\t$(BIN)/jupyter lab --ip=127.0.0.1 notebooks"]
    assert not re.search(
        r"token|password|allow.root|disable_check_xsrf|0\.0\.0\.0", recipe.replace("own token", ""), re.I
    )


def test_the_audit_is_no_part_of_lint() -> None:
    recipes = dict(re.findall(r"^([\w-]+):.*\n((?:\t.*\n)+)", (PROJECT_ROOT / "Makefile").read_text(), re.MULTILINE))
    assert "pip-audit --strict --requirement constraints.txt" in recipes["audit"]
    assert all("audit" not in recipe for name, recipe in recipes.items() if name != "audit")
    assert "make audit" in (PROJECT_ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
