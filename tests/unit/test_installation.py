"""Container, devcontainer, workflows and templates: each file can be read, and names what there is."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from threeml_core.foundation.files import PROJECT_ROOT

GITHUB = PROJECT_ROOT / ".github"
EXTRAS = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
DOCKERFILE = (PROJECT_ROOT / "Dockerfile").read_text(encoding="utf-8")
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))


def instructions(name: str) -> list[str]:
    """The arguments of the Dockerfile's instructions of this name."""
    return re.findall(rf"^{name} (.*)$", DOCKERFILE.replace("\\\n", " "), re.MULTILINE)


def is_target(name: str) -> bool:
    """Does `make` have a rule for it?"""
    recipe = (PROJECT_ROOT / "Makefile").read_text(encoding="utf-8").replace("$(INSTALLED)", ".venv/.installed")
    return re.search(rf"^{re.escape(name)}:", recipe, re.MULTILINE) is not None


def test_the_image_installs_what_there_is() -> None:
    """Existing extras, by the constraints, torch before the rest; as a user who is not root."""
    arguments = dict(argument.partition("=")[::2] for argument in instructions("ARG"))
    assert set(arguments["EXTRAS"].split(",")) <= set(EXTRAS)
    wheel, torch, package = (run for run in instructions("RUN") if run.startswith("pip "))
    assert wheel == "pip wheel --no-cache-dir --no-deps --wheel-dir /wheel ."
    for install in (torch, package):
        assert install.startswith("pip install --no-cache-dir -c /opt/threeml/constraints.txt ")
    assert torch.endswith(" torch") and "TORCH_INDEX" in torch and package.endswith('/*.whl)[$EXTRAS]"')
    assert (PROJECT_ROOT / "constraints.txt").is_file() and "constraints.txt /opt/threeml/" in instructions("COPY")
    used = set(re.findall(r"\$\{?(\w+)", "\n".join(instructions("RUN") + instructions("FROM"))))
    assert used <= set(arguments), "what a command reads is an argument"
    order = [line.split()[0] for line in DOCKERFILE.splitlines() if line[:1].isupper()]
    assert order.index("USER") > max(i for i, name in enumerate(order) if name == "RUN")
    assert instructions("USER") == ["study"] and instructions("ENTRYPOINT") == ['["threeml"]']


def test_the_image_sees_what_the_wheel_is_made_of() -> None:
    lines = (PROJECT_ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = {line[1:] for line in lines if line.startswith("!")}
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT_ROOT, capture_output=True, text=True, check=True).stdout
    assert "*" in lines and kept <= {name.partition("/")[0] for name in listed.splitlines()}
    assert {"constraints.txt", "notebooks", "params", "pyproject.toml", "setup.py", "threeml_core"} <= kept


def test_the_devcontainer_is_what_make_makes() -> None:
    about = json.loads((PROJECT_ROOT / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    tool, target = about["postCreateCommand"].split()
    assert tool == "make" and is_target(target)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_names_what_there_is(path: Path) -> None:
    """Files and make targets; it may read the repository and no more, unless a job says so."""
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["jobs"] and workflow["permissions"] in ({}, {"contents": "read"})
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    assert all("@" in step["uses"] for step in steps if "uses" in step)
    commands = "\n".join(step["run"] for step in steps if "run" in step)
    assert all(is_target(name) for name in re.findall(r"\bmake ([\w-]+)", commands))
    for name in re.findall(r"(?m)^(\.\S+)", commands):
        assert (PROJECT_ROOT / name).stat().st_mode & 0o111, f"{name} can be run"


def test_ci_does_what_a_clean_clone_does_and_a_release_is_checked() -> None:
    ci, release = ((GITHUB / "workflows" / name).read_text(encoding="utf-8") for name in ("ci.yml", "release.yml"))
    assert "run: .ci/run\n" in ci
    assert set(yaml.safe_load(ci)["jobs"]["everything"]["strategy"]["matrix"]["python"]) == {"3.11", "3.12"}
    jobs = yaml.safe_load(release)["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"} and "password" not in release
    commands = "\n".join(step.get("run", "") for step in jobs["build"]["steps"])
    for command in ("python -m build", "twine check --strict", "threeml_core.__version__", "notebooks copy"):
        assert command in commands


def test_templates_can_be_read() -> None:
    """By GitHub's schema of issue forms, as far as a form without it is refused there."""
    forms = {path.stem: yaml.safe_load(path.read_text()) for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml")}
    assert forms.pop("config") == {"blank_issues_enabled": True}
    assert set(forms) == {"bug", "question", "replication"}
    for form in forms.values():
        assert form["name"] and form["description"]
        assert {part["type"] for part in form["body"]} <= {"textarea", "input"}
        assert all(part["attributes"]["label"] for part in form["body"])
        assert len({part["id"] for part in form["body"]}) == len(form["body"])
    assert "make test" in (GITHUB / "pull_request_template.md").read_text(encoding="utf-8")
