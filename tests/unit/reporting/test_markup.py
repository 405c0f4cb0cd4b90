"""Whatever stands in records, parameters and files is text on a page, and no page holds code."""

from __future__ import annotations

import dataclasses
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.refusals import one_line
from tests.study_records import pretrained
from tests.study_records import record as make_record
from threeml_core.config import make_config
from threeml_core.foundation.errors import CorpusError
from threeml_core.glue.protocol import GlueStudy, TaskResult
from threeml_core.glue.readers import load_task
from threeml_core.glue.tasks import GLUE_TASKS
from threeml_core.information.estimate import LayerInformation
from threeml_core.reporting.commands import study_runs_table
from threeml_core.reporting.corpus import corpus_table
from threeml_core.reporting.cost import cost_plan, schedule_table, study_plan
from threeml_core.reporting.figure_4 import figure_4, figure_4_values
from threeml_core.reporting.finetuning import (
    ablation_table,
    comparison_of_models,
    example_table,
    failed_table,
    glue_table,
    plot_learning_curves,
    plot_spread,
    protocol_table,
    runs_table,
)
from threeml_core.reporting.information import information_cost_table, sample_table
from threeml_core.reporting.parameters import parameter_table
from threeml_core.reporting.performance import (
    breakdown_table,
    plot_breakdown,
    plot_realised,
    preparation_table,
    resource_table,
    session_table,
    speed_comparison,
)
from threeml_core.reporting.planner import gpu_table
from threeml_core.reporting.pretraining import comparison_table
from threeml_core.reporting.report import SCRIPT, build_report
from threeml_core.reporting.table import Table
from threeml_core.reporting.table_3 import budget_table
from threeml_core.runs.record import RunRecord, write_record
from threeml_core.study.ledger import study_runs
from threeml_core.study.results import Result
from threeml_core.study.run import corruption_rows

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)></td></pre><b>\" onclick='alert(1)' &lt;"
MARKUP += " $x^{$ \\d \\1 $a$ `c`"
"""HTML, an attribute's end, an entity, a broken and a whole formula, escapes of a regular expression, Markdown."""


LABEL = "<img src=x onerror=alert(1)> $x^{$ \\1 $"
"""Short enough for a legend."""


RUN = "self-<img src=x onerror=alert(1)>-0123456789"
"""A name that a folder can have."""


class Seen(HTMLParser):
    """What a browser makes of a page: its text, and whatever is or runs code, or loads something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = ""
        self.labels: list[str] = []
        self.active: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in (
            "script",
            "img",
            "iframe",
            "object",
            "embed",
            "b",
            "base",
            "form",
            "foreignobject",
            "animate",
            "set",
        ):
            self.active.append(tag)
        for name, value in attrs:
            loads = tag != "a" and not name.startswith("xmlns") and re.match(r"(https?:)?//", value or "")
            if name.startswith("on") or loads or re.match(r"\s*(javascript|vbscript|data:(?!,))", value or "", re.I):
                self.active.append(f"{tag} {name}={value}")
            if name == "aria-label":
                self.labels.append(value or "")

    def handle_data(self, data: str) -> None:
        self.text += data


def shows(page: str, *texts: str) -> Seen:
    seen = Seen(page.replace(f"<script>{SCRIPT}</script>", "", 1))
    assert seen.active == []
    for text in texts:
        assert text in seen.text
    return seen


@pytest.fixture(scope="module")
def outcomes() -> list[Result]:
    """Table 3's models: one failed, on a machine and a text with such names."""
    found = []
    for number, run in enumerate(study_runs(make_config({}), ["Table 3"])):
        record = pretrained(run, 0, eval_corruption="one")
        hardware = {"cpu": MARKUP, "cores": MARKUP, "threads": MARKUP, "system": MARKUP}
        environment = {**record.environment, "commit": MARKUP, "versions": {MARKUP: MARKUP}, "hardware": hardware}
        record = dataclasses.replace(record, environment=environment)
        if number == 2:
            record = dataclasses.replace(record, run_id=RUN, parameters={**record.parameters, "mask_split": MARKUP})
        if number == 3:
            record = dataclasses.replace(record, failure=MARKUP)
        found.append(Result(run, {0: record}, {}, {}))
    return found


def benchmark_record() -> RunRecord:
    arms = ("vanilla-15", "vanilla-15 again", "self-50")
    turns = {name: {key: [1.0, 1.1] for key in ("seconds", "cpu_seconds", "data_seconds")} for name in arms}
    metrics = {
        "turns": turns,
        "arms": {name: {"label": f"{name} {LABEL}"} for name in ("vanilla-15", "self-50")},
        "first_step_seconds": dict.fromkeys(arms, 1.0),
        "flops_ceiling": 1e9,
        "breakdown": {
            name: dict.fromkeys(
                ("matrix products", "attention", "head", "dropout", "GELU and norms", "optimizer", "data", "the rest"),
                1.0,
            )
            for name in ("vanilla-15", "self-50")
        },
        "preparation": MARKUP,
    }
    hardware = {"cpu": MARKUP, "threads": MARKUP}
    environment = {"hardware": hardware, "finished": "2026-01-01T00:00:00+00:00"}
    flops = dict.fromkeys(arms, 1e9)
    return make_record(
        "benchmark", "tiny-0123456789", make_config({}), metrics=metrics, flops=flops, environment=environment
    )


def information_record() -> RunRecord:
    layer = LayerInformation(1, 8, 9_999, 1.0, *([(0.5,)] * 5), pairs_per_cell=(9.0,), clusters_used=(9,))
    data = {"run": f"self-{LABEL}", "on_unigram_plateau": False, "sample": MARKUP}
    data |= dict.fromkeys(("blocks", "text_blocks", "frequent_tokens", "states"), 9)
    data |= {"perplexity_masked": 9.0, "unigram_perplexity_masked": 9.0}
    timing = dict.fromkeys(("states_seconds", "clustering_seconds", "peak_memory_bytes"), 1.0)
    metrics = {"layers": [dataclasses.asdict(layer)]}
    return make_record("mutual_information", RUN, make_config({}), metrics=metrics, data=data, timing=timing)


def finetuning() -> GlueStudy:
    task = GLUE_TASKS["cola"]
    point = {"task": MARKUP, "seed": 0, "learning_rate": 1e-5, "batch_size": 16, "epochs": 3}
    splits = {MARKUP: {"source": MARKUP, "examples": 9, "is_subset": True, "skipped_rows": 0}}
    common = {
        "identity": point,
        "metrics": {"score": 0.5, "mcc": 0.5, "undefined": [], "is_constant": True},
        "data": {"is_subset": True, "splits": splits, "share_at_max_length": 0.0},
        "timing": {"sequences_per_second": 1.0},
    }
    fine = make_record("finetune", RUN, make_config({}), **common)
    failed = dataclasses.replace(fine, run_id=f"2{RUN}", failure=MARKUP)
    result = TaskResult(task, (fine, failed), (fine,), {"mcc": 0.5}, 0.5, 0.4, 0.6, 0.0, {"": 9}, fine)
    return GlueStudy(MARKUP, None, MARKUP, (result,))


def tables(outcomes: list[Result]) -> list[Table]:
    """All that hold text of records, parameters and files."""
    (first, *others) = [outcome.pretraining[0] for outcome in outcomes]
    study, information, bench = finetuning(), information_record(), benchmark_record()
    nothing = dataclasses.replace(study, results=(dataclasses.replace(study.results[0], best=()),))
    config = make_config({"corpus": MARKUP, "tokenizer": MARKUP, "checkpoint": MARKUP, "gpu_name": MARKUP})
    side = dict.fromkeys(("documents", "words", "tokens", "blocks"), 9)
    meta = {"corpus": MARKUP, "vocab_size": 9, "sequence_length": 9, "train": side, "validation": side}
    return [
        Table([{MARKUP: MARKUP}], MARKUP),
        Table([{MARKUP: MARKUP}], MARKUP, folded=True),
        corpus_table(meta),
        parameter_table(config),
        parameter_table(config, "finetune"),
        cost_plan(config),
        gpu_table(config),
        schedule_table(),
        study_plan(config, ["Table 1"]),
        comparison_table(first, [first, *others]),
        study_runs_table(outcomes, config),
        budget_table(outcomes),
        glue_table([study]),
        protocol_table(study),
        example_table(study),
        ablation_table(study),
        failed_table([study]),
        runs_table(study),
        comparison_of_models(study, [nothing], "runs"),
        sample_table([information]),
        figure_4_values([information, information]),
        information_cost_table([information]),
        speed_comparison([bench]),
        resource_table([bench]),
        session_table([bench]),
        breakdown_table(bench),
        preparation_table(bench),
    ]


def figures() -> list[Any]:
    """All with labels or descriptions from records."""
    study, bench = finetuning(), benchmark_record()
    one, other = information_record(), dataclasses.replace(information_record(), run_id="other")
    return [
        plot_spread(study),
        plot_learning_curves(dataclasses.replace(study, results=()), "runs"),
        figure_4([one, other]),
        plot_realised([bench]),
        plot_breakdown(bench),
    ]


def test_tables_show_markup_as_text(outcomes: list[Result]) -> None:
    holding = 0
    for table in tables(outcomes):
        seen = shows(table._repr_html_(), *{cell for row in table.rows for cell in row}, table.caption)
        holding += MARKUP in seen.text or RUN in seen.text
    assert holding >= 18


def test_figures_show_markup_as_text() -> None:
    """In descriptions, in legends and beside ticks; a dollar is a dollar there."""
    spread, nothing, information, realised, breakdown = figures()
    for figure in (spread, nothing, information, realised, breakdown):
        seen = shows(figure._repr_html_(), figure.alt)
        assert seen.labels == [figure.alt]
    for start, figure in (("", information), ("self-50 ", realised), ("vanilla-15 ", breakdown)):
        assert f"{start}{LABEL}" in Seen(figure.svg).text


def test_text_of_a_corpus_is_text(tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text("\n\n".join(f"{MARKUP} {i}" for i in range(300)))
    given = {"corpus": str(corpus), "runs_dir": str(tmp_path), "vocab_size": 400, "sequence_length": 32}
    config = make_config({**given, "max_position_embeddings": None})
    rows = corruption_rows(config)
    seen = shows(Table(rows, "corpus")._repr_html_(), *(row["Token"] for row in rows))
    assert "script" in seen.text


def test_labels_of_a_task_are_text(tmp_path: Path) -> None:
    """A bad one ends in an error of one line, which notebooks and reports show as text."""
    (tmp_path / "CoLA").mkdir()
    for name in ("train", "dev"):
        (tmp_path / "CoLA" / f"{name}.tsv").write_text(f"a\t{MARKUP}\t\tA sentence.\n")
    with pytest.raises(CorpusError, match="unknown label") as caught:
        load_task(GLUE_TASKS["cola"], make_config({"glue": str(tmp_path)}))
    assert repr(MARKUP) in one_line(caught)


def test_the_report_shows_markup_as_text(outcomes: list[Result], tmp_path: Path) -> None:
    """From executed notebooks and run folders to the finished pages."""
    config = make_config({"runs_dir": str(tmp_path / "runs")})
    for outcome in outcomes:
        for record in outcome.pretraining.values():
            write_record(record, config.runs_dir)
    shown = [*tables(outcomes), *figures()]
    new = nbformat.v4.new_output
    outputs = [new("display_data", {"text/html": each._repr_html_(), "text/plain": repr(each)}) for each in shown]
    outputs += [new("stream", name=name, text=f"{MARKUP}\n") for name in ("stdout", "stderr")]
    outputs += [new("stream", name='x" onclick="alert(1)', text=MARKUP)]
    outputs += [new("execute_result", {"text/plain": MARKUP}), new("display_data", {"text/markdown": MARKUP})]
    cells = [
        nbformat.v4.new_markdown_cell(f"# Title {MARKUP}\n\nFirst {MARKUP}\n\n## Part {MARKUP}"),
        nbformat.v4.new_code_cell(f"corpus = {MARKUP!r}", outputs=outputs),
    ]
    (tmp_path / "notebooks").mkdir()
    notebook = nbformat.v4.new_notebook(cells=cells)
    for name in ("06_comparison", "x&y"):
        nbformat.write(notebook, tmp_path / "notebooks" / f"{name}.ipynb")
    index = build_report(tmp_path / "notebooks", tmp_path / "report", config)
    assert RUN in (index.parent / "results.jsonl").read_text()
    page = shows((index.parent / "06_comparison.html").read_text(), *(each.caption for each in tables(outcomes)))
    assert page.text.count("<script>alert(1)</script>") > 50
    assert [label for label in page.labels if label not in ("Pages", "Previous and next page")] == [
        figure.alt for figure in figures()
    ]
    assert "<h1>3ML: preset tiny" in index.read_text()
    first = shows(index.read_text(), f"Title {MARKUP}", "First <script>alert(1)</script>")
    for seen in (page, first):
        for value in (MARKUP[:10], f"{MARKUP} {MARKUP}", f"{MARKUP}, {MARKUP} cores"):
            assert value in seen.text, "at the foot"
    shows((index.parent / "x&y.html").read_text(), f"Title {MARKUP}")
    assert 'href="x&amp;y.html"' in index.read_text()


@pytest.mark.parametrize(
    "text",
    [
        MARKUP,
        "[link](javascript:alert(1)) [other](data:text/html;base64,xx) <a href='javascript:alert(1)'>x</a>",
        "![image](http://example.org/x.png) ![image](x.png)",
        "```mermaid\n</pre><script>alert(1)</script>\n```",
        "```<script>\n<script>alert(1)</script>\n```",
        "# <img src=x onerror=alert(1)>\n\n<div onclick='alert(1)'>\n\n<script>\nalert(1)\n</script>",
        r"$\text{<script>alert(1)</script>}$ $$\mathrm{<img src=x onerror=alert(1)>}$$",
        r"$\href{javascript:alert(1)}{x}$ $\style{background: url(javascript:alert(1))}{x}$ $\class{a}{x}$",
        r"$<img src=x onerror=alert(1)>$ $&lt;b&gt;$ $\frac{$ $x^{$ $\nosuch{$",
        r"\begin{equation}<script>alert(1)</script>\end{equation}",
        "| a |\n|---|\n| <script>alert(1)</script> |",
        "<!-- --><script>alert(1)</script> <![CDATA[<b>]]> <?php <b> ?>",
        "[x]: javascript:alert(1)\n\n[x] <javascript:alert(1)>",
    ],
)
def test_markdown_holds_no_html(text: str, tmp_path: Path) -> None:
    cell = nbformat.v4.new_code_cell("", outputs=[nbformat.v4.new_output("display_data", {"text/markdown": text})])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "00_a.ipynb")
    config = make_config({"runs_dir": str(tmp_path / "runs")})
    build_report(tmp_path, tmp_path / "report", config)
    shows((tmp_path / "report" / "00_a.html").read_text())


def test_formulas_are_as_before() -> None:
    """Symbols are characters; what stands in a formula as text is text."""
    from threeml_core.reporting.page import _mathml

    assert "∑" in _mathml(r"\sum_i x_i < 3 \le 4", "inline") and "≤" in _mathml(r"3 \le 4", "inline")
    assert "<mo>&lt;</mo>" in _mathml("x < 3", "inline")
    assert _mathml("x", "block").startswith("<math") and 'display="block"' in _mathml("x", "block")
    assert _mathml("<b>_a_b", "inline") == "$&lt;b&gt;_a_b$", "no formula: as it was written"


def test_the_path_of_the_project_is_taken_out_and_nothing_else() -> None:
    from threeml_core.reporting.page import tidy

    text = 'see "/a/runs" and /a, not https://host.org/a/b, <b>/ab</b> or <a>/b/a</a>'
    assert tidy(text, Path("/a")) == text.replace('"/a/runs" and /a,', '"./runs" and .,') + "\n"
    assert tidy("/ a/b  ", Path("/")) == "/ a/b\n"
    assert tidy("/a &amp; b/c", Path("/a & b")) == "./c\n"
