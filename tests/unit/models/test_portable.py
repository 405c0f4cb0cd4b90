"""The one file that carries a model's code: the package's own text, all that is needed, nothing else."""

from __future__ import annotations

import ast
import importlib.util
import json
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from threeml_core.foundation.errors import ParameterError
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.models.build import build_model, model_class
from threeml_core.models.portable import FILE, carry_source, portable_source
from threeml_core.parameters.architectures import ARCHITECTURES

PACKAGE = "\n".join(path.read_text(encoding="utf-8") for path in sorted((PROJECT_ROOT / "threeml_core").rglob("*.py")))

Write = Callable[..., ModuleType]


def definitions(text: str) -> dict[str, str]:
    """Name -> source of every class and function at the top."""
    found = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return {node.name: ast.get_source_segment(text, node) or "" for node in found}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_is_the_package_word_for_word(architecture: str) -> None:
    model = model_class(architecture)
    source = portable_source(model)
    found = definitions(source)
    assert {model.__name__, model.config_class.__name__, "MaskedLanguageModel", "DecoderLayer"} <= found.keys()
    assert [name for name, text in found.items() if f"{text}\n" not in PACKAGE] == []
    assert "AttentionInterface.register(BYTE_DROPOUT, attend)" in source
    assert not {"Architecture", "ModelParameters", "StudyConfig", "Masking", "corrupt"} & found.keys()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_needs_torch_and_transformers_alone(architecture: str) -> None:
    roots = set()
    for node in ast.walk(ast.parse(portable_source(model_class(architecture)))):
        if isinstance(node, ast.Import):
            roots |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level
            roots.add((node.module or "").partition(".")[0])
    assert roots - sys.stdlib_module_names == {"torch", "transformers"}


def test_the_folder_names_it(config: Any, tmp_path: Path) -> None:
    model = build_model(config, 300, mask_token_id=4)
    model.save_pretrained(tmp_path)
    before = json.loads((tmp_path / "config.json").read_text())
    carry_source(tmp_path, type(model))
    after = json.loads((tmp_path / "config.json").read_text())
    names = {"AutoConfig": "ThreeMLSelfConfig", "AutoModelForMaskedLM": "ThreeMLSelfForMaskedLM"}
    assert after == before | {"auto_map": {auto: f"modeling_threeml.{name}" for auto, name in names.items()}}
    assert (tmp_path / FILE).read_text() == portable_source(type(model))


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """A module of somebody's own, written and imported."""

    def write(name: str, text: str) -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(textwrap.dedent(text))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return write


WIDE = """
    from threeml_core.models.configuration import ThreeMLSelfConfig
    from threeml_core.models.threeml_self import ThreeMLSelfForMaskedLM
    from threeml_core.parameters.architectures import register

    class WideConfig(ThreeMLSelfConfig):
        model_type = "threeml_wide"

    # twice as wide
    FACTOR = 2
    "what it is multiplied by"

    class Wide(ThreeMLSelfForMaskedLM):
        config_class = WideConfig
        factor = FACTOR

    str(register)
    """


def test_a_model_of_ones_own(write: Write) -> None:
    """Its definitions with their comments, those of the package, and no call to it, such as `register(...)`."""
    source = portable_source(write("wide", WIDE).Wide)
    assert '# twice as wide\nFACTOR = 2\n"what it is multiplied by"' in source
    assert {"Wide", "WideConfig", "ThreeMLSelfForMaskedLM"} <= definitions(source).keys()
    assert "register)" not in source and source.index("class ThreeMLSelfForMaskedLM") < source.index("class Wide(")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("FACTOR", "CHUNK_BYTES"), "CHUNK_BYTES is the name of two things that Wide needs"),
        (
            ("ThreeMLSelfForMaskedLM\n", "ThreeMLSelfForMaskedLM as Base\n"),
            "is imported as Base: import it by",
        ),
    ],
)
def test_what_cannot_be_joined(write: Write, change: tuple[str, str], problem: str) -> None:
    text = WIDE.replace(*change)
    if "as Base" in text:
        text = text.replace("(ThreeMLSelfForMaskedLM)", "(Base)")
    with pytest.raises(ParameterError, match=problem):
        portable_source(write("wide", text).Wide)


def test_no_source(write: Write, tmp_path: Path) -> None:
    """As of a class that was typed in."""
    module = write("wide", WIDE)
    (tmp_path / "wide.py").unlink()
    del module.__loader__
    with pytest.raises(ParameterError, match="the source of wide cannot be read: define the model in a file"):
        portable_source(module.Wide)
