"""The HTML report: no request to any host, links that resolve, figures with descriptions, tables that are there."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest

from threeml_core.errors import StudyError
from threeml_core.files import PROJECT_ROOT
from threeml_core.reporting import build_report

REPORT = PROJECT_ROOT / "reports" / "tiny"
PAGES = sorted(REPORT.glob("*.html"))


class Parsed(HTMLParser):
    """Links, ids, figures and their labels of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: list[str] = []
        self.images: list[dict] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        values = dict(attrs)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in ("script", "link", "img", "iframe", "source"):
            self.loaded.append(values.get("src") or values.get("href") or "")
        if "id" in values:
            self.ids.append(values["id"])
        if tag in ("img", "svg"):
            self.images.append(values)


def test_the_report_is_there() -> None:
    assert {page.name for page in PAGES} == {
        "index.html",
        "00_cost_model.html",
        "01_prepare_data.html",
        "02_pretrain.html",
        "03_finetune.html",
        "07_mutual_information.html",
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    parsed = Parsed(text)
    assert [source for source in parsed.loaded if not source.startswith("data:")] == []
    assert not re.search(r"url\(\s*['\"]?https?:|@import|<script", text)
    for link in parsed.links:
        path, _, anchor = link.partition("#")
        if path.startswith(("http:", "https:")):
            continue
        target = page.parent / path if path else page
        assert target.is_file(), link
        if anchor:
            assert anchor in Parsed(target.read_text(encoding="utf-8")).ids, link
    assert len(parsed.ids) == len(set(parsed.ids)), "ids are unique in a page"
    for image in parsed.images:
        assert len(image.get("aria-label") or image.get("alt") or "") > 20
    for name in ("Preset", "Commit", "Versions", "Hardware", "Date", "Seeds"):
        assert f"<dt>{name}</dt>" in text
    assert str(PROJECT_ROOT) not in text and "Traceback" not in text
    assert "$$" not in text and not re.search(r"\\(phi|frac|cdot)", re.sub(r"<annotation.*?</annotation>", "", text))


def test_tables_and_figures_of_this_part() -> None:
    cost = (REPORT / "00_cost_model.html").read_text(encoding="utf-8")
    for expected in (
        "Printed against computed",
        "1.3398",
        "1.5465",
        "reproduced",
        "Counted by torch",
        "Plan of preset tiny",
        "<math",
    ):
        assert expected in cost
    run = (REPORT / "02_pretrain.html").read_text(encoding="utf-8")
    for expected in (
        "Validation perplexity",
        "The model has left the unigram plateau",
        "3ML_self",
        "3ML_cross",
        "vanilla",
        "Tokens/s",
    ):
        assert expected in run


def records_of(stage: str) -> list[dict]:
    records = map(json.loads, (REPORT / "results.jsonl").read_text().splitlines())
    return [record for record in records if record["stage"] == stage]


def test_records_behind_the_report() -> None:
    records = records_of("pretrain")
    assert {record["parameters"]["architecture"] for record in records} == {"vanilla", "self", "cross"}
    assert len({record["metrics"]["eval_corruption"] for record in records}) == 1
    page = (REPORT / "02_pretrain.html").read_text(encoding="utf-8")
    for record in records:
        assert record["run_id"] in page
        assert f"{record['metrics']['eval_perplexity_masked']:.1f}" in page
        share = record["metrics"]["eval_perplexity_masked"] / record["metrics"]["unigram_perplexity_masked"]
        assert share < 0.9, "the tiny preset has to leave the unigram plateau by at least 10%"


def test_finetuning_behind_the_report() -> None:
    """Every run and every bag of words of the page has its record, and the page says what it is not."""
    page = (REPORT / "03_finetune.html").read_text(encoding="utf-8")
    runs, baselines = records_of("finetune"), records_of("baseline")
    assert {record["data"]["task"] for record in runs} == {"word_order", "next_sentence", "passage_relation"}
    assert len(runs) == 3 * 3 and len(baselines) == 3
    for record in (*runs, *baselines):
        assert record["run_id"] in page and record["failure"] is None
    for expected in (
        "they are not GLUE",
        "95% interval",
        "Bag of words",
        "Constant answer",
        "Failed and collapsed runs",
    ):
        assert expected in page


def test_information_behind_the_report() -> None:
    """Every value of the figure stands in the table and in a record; the floor is below, the ceiling above it."""
    page = (REPORT / "07_mutual_information.html").read_text(encoding="utf-8")
    records = records_of("mutual_information")
    assert [record["parameters"]["architecture"] for record in records] == ["vanilla", "self", "cross"]
    assert len({record["data"]["sample"] for record in records}) == 1
    for record in records:
        assert record["data"]["run"] in page
        for layer in record["metrics"]["layers"]:
            corrected = sum(layer["corrected"]) / len(layer["corrected"])
            assert f">{corrected:.3f}<" in page
            assert corrected < min(layer["plug_in"]) <= layer["entropy"]
            assert max(layer["floor"]) < min(layer["plug_in"]) or layer["layer"] == 0
    for expected in ("statements, and what these models say", "Plug-in (bits)", "ceiling", "floor", "final LayerNorm"):
        assert expected in page


def notebook(path: Path, *cells) -> None:
    nbformat.write(nbformat.v4.new_notebook(cells=list(cells)), path)


def test_warnings_stay_and_failures_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "executed"
    source.mkdir()
    cell = nbformat.v4.new_code_cell("x", execution_count=1)
    cell.outputs = [nbformat.v4.new_output("stream", name="stderr", text="UserWarning: look here\n")]
    notebook(source / "00_a.ipynb", nbformat.v4.new_markdown_cell("# Title $n^2$\n\nFirst words, `code`."), cell)
    index = build_report(source, tmp_path / "report", "tiny", tmp_path / "runs")
    assert "First words, code." in index.read_text()
    assert "UserWarning: look here" in (tmp_path / "report" / "00_a.html").read_text()
    before = index.read_text()
    cell.outputs = [nbformat.v4.new_output("error", ename="ValueError", evalue="no", traceback=[])]
    notebook(source / "01_b.ipynb", cell)
    with pytest.raises(StudyError, match="01_b.ipynb ended in an error .ValueError: no."):
        build_report(source, tmp_path / "report", "tiny", tmp_path / "runs")
    assert index.read_text() == before, "a refused report leaves the previous one"
    with pytest.raises(StudyError, match="no executed notebook"):
        build_report(tmp_path / "report2", tmp_path / "report", "tiny", tmp_path / "runs")
