"""The transcribed figures against the paper's LaTeX source, where that is at hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import SHARED
from threeml_core.paper import printed_values
from threeml_core.tasks import GLUE_TASKS

SOURCE = SHARED / "paper" / "3ml.tex"


def glue_metrics() -> list[str]:
    full = [f"{task.name}_{key}" for task in GLUE_TASKS.values() for key in task.metric_keys]
    return [*full, *GLUE_TASKS, "glue_average"]


def table_3(source: Path) -> dict[tuple[str, str], list[str]]:
    """(recipe, model) -> the numbers of its GLUE columns, in order."""
    text = source.read_text(encoding="utf-8")
    start = text.index(r"\textit{Efficient pre-training recipe, large model}")
    body = text[start : text.index(r"\caption{\label{tab: full glue dev}")]
    rows = {}
    recipe = "efficient-large"
    for line in body.split("\n"):
        recipe = "longer-base" if "Longer" in line else recipe
        cells = line.split("&")
        if len(cells) == 12:
            model = re.sub(r"\$.*?\$|\\textsubscript|[{}\\]", "", cells[0].replace(r"\textsubscript{", "_")).strip()
            rows[recipe, model] = re.findall(r"\d+\.\d", " ".join(cells[3:]))
    return rows


def test_every_number_of_table_3() -> None:
    if not SOURCE.is_file():
        pytest.skip("the paper's source is not here")
    expected = table_3(SOURCE)
    assert len(expected) == 13 and sum(map(len, expected.values())) == 153
    found: dict[tuple[str, str], list[str]] = {key: [] for key in expected}
    for value in printed_values():
        if value.artefact == "Table 3" and value.metric in glue_metrics():
            found[value.recipe, value.model].append(value.printed)
    assert found == expected
