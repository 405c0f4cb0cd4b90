"""The transcribed figures against the paper's LaTeX source, where that is at hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conftest import SHARED
from threeml_core.glue.tasks import GLUE_TASKS
from threeml_core.paper import ReportedValue, reported_values

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
    for value in reported_values():
        if value.artefact == "Table 3" and value.metric in glue_metrics():
            found[value.recipe, value.model].append(value.reported)
    assert found == expected


def ablation_rows(source: Path, label: str) -> list[list[str]]:
    """Numbers of each row of a sub-table of Table 2, in order."""
    before = source.read_text(encoding="utf-8").partition(rf"\label{{{label}}}")[0]
    body = before[before.rindex(r"\begin{tabular}") :]
    body = body[body.index(r"\hline") : body.index(r"\bottomrule")]
    return [re.findall(r"\d+(?:\.\d+)?", line) for line in body.splitlines() if "&" in line]


@pytest.mark.parametrize(
    ("artefact", "label", "key", "settings"),
    [
        ("Table 2a", "tab: decoder depth", "decoder_num_hidden_layers", 1),
        ("Table 2b", "tab: decoder width", "decoder_hidden_size", 1),
        ("Table 2c", "tab: mask rule", "mask_split", 3),
    ],
)
def test_every_number_of_table_2(artefact: str, label: str, key: str, settings: int) -> None:
    """A row of the LaTeX is the varied setting, then the figures of 3ML_self, then those of 3ML_cross."""
    if not SOURCE.is_file():
        pytest.skip("the paper's source is not here")
    expected = {"-".join(row[:settings]): row[settings:] for row in ablation_rows(SOURCE, label)}
    assert len(expected) == 4
    found: dict[str, list[str]] = {}
    for architecture in ("self", "cross"):
        for value in reported_values():
            if value.artefact == artefact and value.setting.startswith(architecture):
                _, rate, *varied = value.setting.split()
                assert rate == "0.4" and varied[0].startswith(f"{key}=") and value.model == f"3ML_{architecture}-40%"
                found.setdefault(varied[0].removeprefix(f"{key}="), []).append(value.reported)
    assert found == expected
    metrics = [value.metric for value in reported_values() if value.artefact == artefact]
    accuracies = ["mnli_accuracy", "qnli_accuracy", "qqp_accuracy"]
    columns = [*accuracies, "ablation_average", "perplexity"] if artefact == "Table 2c" else accuracies
    assert metrics == columns * (len(metrics) // len(columns))


def test_every_number_of_table_1() -> None:
    if not SOURCE.is_file():
        pytest.skip("the paper's source is not here")
    (line,) = re.findall(r"\\textbf\{PPL\} & (\d.*)\\\\", SOURCE.read_text(encoding="utf-8"))
    assert [v.reported for v in reported_values() if v.artefact == "Table 1"] == re.findall(r"[\d.]+", line)


def test_what_the_text_says_of_the_figures() -> None:
    """Each statement stands in the source, in words that hold its number."""
    if not SOURCE.is_file():
        pytest.skip("the paper's source is not here")
    text = SOURCE.read_text(encoding="utf-8").replace("\\", "").replace("$", "")
    found = {(v.artefact, v.setting, v.metric): v.reported for v in reported_values()}
    for key, words in {
        ("Figure 3", "vanilla", "mnli_best_mask_rate"): "{}% for MNLI",
        ("Figure 3", "vanilla", "qnli_best_mask_rate"): "{}% for QNLI",
        ("Figure 3", "vanilla", "qqp_best_mask_rate"): "{}% for QQP",
        ("Figure 3", "vanilla", "best_mask_rate"): "a masking rate of {}% works the best",
        ("Figure 5", "self", "best_mask_rate"): "A masking rate of {}% works best for 3MLtextsubscript{{self}}",
        ("Figure 5", "cross", "best_mask_rate"): "It performs best with a masking rate of {}%",
        ("Section 5.3", "self 0.5", "speedup_said"): "near {} times speedup",
        ("Section 5.3", "cross 0.4", "speedup_said"): "are {} times larger",
    }.items():
        assert words.format(found[key]) in text, key


def test_the_averages_of_table_2c_follow_from_their_cells() -> None:
    """All but the one that carries a note."""
    rows: dict[str, dict[str, ReportedValue]] = {}
    for value in reported_values():
        if value.artefact == "Table 2c":
            rows.setdefault(value.setting, {})[value.metric] = value
    assert len(rows) == 8
    for values in rows.values():
        reported = values["ablation_average"]
        exact = sum(values[f"{task}_accuracy"].value for task in ("mnli", "qnli", "qqp")) / 3
        assert (abs(exact - reported.value) <= 0.05 + 1e-9) == (not reported.note), reported
