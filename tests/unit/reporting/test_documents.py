"""Reports with documents, and tables in documents: written from records, and only what is marked."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from tests.study_records import pretrained
from threeml_core.config import make_config
from threeml_core.foundation.errors import StudyError
from threeml_core.reporting import documents
from threeml_core.reporting.documents import render
from threeml_core.reporting.report import build_report
from threeml_core.reporting.table import Table
from threeml_core.runs.archive import CURVES, RESULTS
from threeml_core.runs.record import write_record
from threeml_core.study.ledger import study_runs

TABLE = Table([{"Model": "a|b", "Score": "1.0 ± 0.2"}, {"Model": "c"}], "caption", commands=[("c", "run <c>")])


def test_a_table_in_markdown() -> None:
    assert TABLE.markdown() == "| Model | Score |\n| --- | --: |\n| a\\|b | 1.0 ± 0.2 |\n| c |  |"


def test_commands_below_a_table() -> None:
    assert "<summary>repeat a row</summary><pre># c\nrun &lt;c&gt;</pre>" in TABLE._repr_html_()
    assert "run" not in repr(TABLE), "no result: nbval does not compare it"


def test_only_what_is_marked_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "Study", lambda preset: preset)
    monkeypatch.setattr(documents, "TABLES", {"results": lambda study: Table([{"Of": study}], "")})
    text = "before\n<!-- table: small results -->\nold\n<!-- end of table -->\nafter | <!-- table: x -->\n"
    once = render(text, {})
    assert once == text.replace("old\n", "| Of |\n| --- |\n| small |\n")
    assert render(once, {}) == once
    with pytest.raises(StudyError, match="no table 'result' is known: expected one of results"):
        render(text.replace("small results", "small result"), {})


def test_documents_become_pages(tmp_path: Path) -> None:
    """They stay as they were written; what is no report and no document is not replaced."""
    config = make_config({"runs_dir": str(tmp_path / "runs")})
    record = pretrained(study_runs(config, ["Table 3"])[0], 0)
    write_record(record, config.runs_dir)
    (record.folder(config.runs_dir) / "metrics.jsonl").write_text('{"step": 1, "train_loss": 2.5}\n')
    cells = [nbformat.v4.new_markdown_cell(f"# A page\n\nOf {record.run_id}.")]
    (tmp_path / "notebooks").mkdir()
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "notebooks" / "01_page.ipynb")
    report = tmp_path / "report"
    report.mkdir()
    design = (
        "# The design\n\nSee [a page](01_page.ipynb), [this](DESIGN.md#x).\n\n<!-- table: small x -->\n| A |\n| --- |\n"
    )
    (report / "DESIGN.md").write_text(design)
    files = ("01_page.html", "01_page.ipynb", "DESIGN.md", "design.html", "index.html", RESULTS, CURVES)
    build_report(tmp_path / "notebooks", report, config)
    assert {path.name for path in report.iterdir()} == {*files}
    (report / "pilots.jsonl").write_text("{}\n")
    (report / RESULTS).write_text("")
    build_report(tmp_path / "notebooks", report, config)
    assert {path.name for path in report.iterdir()} == {*files, "pilots.jsonl"}, "records that no page shows are kept"
    assert (report / "DESIGN.md").read_text() == design and (report / "pilots.jsonl").read_text() == "{}\n"
    page = (report / "design.html").read_text()
    assert 'href="01_page.html"' in page and 'href="DESIGN.md"' in page and "The design" in page
    assert 'href="design.html#x"' in page and "table: small" not in page and '<th scope="col">A</th>' in page
    assert 'href="design.html"' in (report / "index.html").read_text()
    assert '"train_loss": 2.5' in (report / CURVES).read_text() and record.run_id in (report / RESULTS).read_text()
    (report / RESULTS).unlink()
    with pytest.raises(StudyError, match="is not empty and holds no report"):
        build_report(tmp_path / "notebooks", report, config)
