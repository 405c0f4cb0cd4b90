"""No call in the package or in a script runs, or may run, what it reads."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from threeml_core.foundation.files import PROJECT_ROOT

SOURCES = [*sorted((PROJECT_ROOT / "threeml_core").rglob("*.py")), *sorted((PROJECT_ROOT / "scripts").glob("*.py"))]


PICKLING = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}


RUNNING = {"eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec"}


SHELLS = re.compile(r"os\.(system|popen|exec\w+|spawn\w+)|subprocess\.(getoutput|getstatusoutput)|pty\.spawn")


TORCH = {"torch.load", "torch.save", "torch.hub.load", "torch.jit.load", "torch.package.PackageImporter"}


def is_constant(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def unsafe(source: str) -> list[str]:
    """Every call and import that runs, or may run, what it reads."""
    found = []
    names: dict[str, str] = {}  # as the module calls it -> as it is called
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    found += [f"import of {name}" for name in names.values() if name.split(".")[0] in PICKLING]
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        head, _, rest = ast.unparse(node.func).partition(".")
        name = f"{names.get(head, head)}{'.' if rest else ''}{rest}"
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if (
            name in RUNNING
            or name in TORCH
            or SHELLS.fullmatch(name)
            or re.fullmatch(r"yaml\.(?!safe_)\w*load\w*", name)
        ):
            found.append(name)
        if name == "pandas.read_pickle" or "allow_pickle" in given and not is_constant(given["allow_pickle"], False):
            found.append(f"{name} of pickles")
        if "shell" in given and not is_constant(given["shell"], False):
            found.append(f"{name} by a shell")
        trust = given.get("trust_remote_code")
        model = re.search(r"\bAuto\w+\.from_pretrained$", name)
        if not is_constant(trust, False) and (trust or model):
            found.append(f"{name} without trust_remote_code=False")
        if model and "AutoModel" in name and not is_constant(given.get("use_safetensors"), True):
            found.append(f"{name} without use_safetensors=True")
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PROJECT_ROOT)))
def test_no_unsafe_call(path: Path) -> None:
    assert unsafe(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch.load(path, weights_only=True)",
        "from torch import load as get\nget(path)",
        "import torch as t\nt.save(model, path)",
        "import pickle",
        "from pickle import loads",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "numpy.load(path, allow_pickle=flag)",
        "import yaml\nyaml.load(text, yaml.Loader)",
        "from yaml import unsafe_load\nunsafe_load(text)",
        "import subprocess\nsubprocess.run(command, shell=True)",
        "import os\nos.system('ls')",
        "from os import popen\npopen('ls')",
        "eval(text)",
        "exec(text)",
        "AutoTokenizer.from_pretrained(name)",
        "AutoConfig.from_pretrained(name, trust_remote_code=True)",
        "transformers.AutoModel.from_pretrained(name, trust_remote_code=False)",
        "load(name, trust_remote_code=given)",
    ],
)
def test_an_unsafe_call_is_seen(source: str) -> None:
    assert len(unsafe(source)) == 1


def test_a_safe_call_is_none() -> None:
    source = """
import numpy as np, subprocess, yaml
np.load(path)
np.load(path, allow_pickle=False)
yaml.safe_load(text)
subprocess.run(["git", name], shell=False)
model.eval()
self.load(path)
AutoModel.from_pretrained(name, use_safetensors=True, trust_remote_code=False)
text = "torch.load(path), eval(text)"
"""
    assert unsafe(source) == []
