"""Pages as readers find them: links, titles, what is folded at the end, text that is true of its preset."""

from __future__ import annotations

import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import nbformat
import pytest

from threeml_core.config import make_config
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.glue.protocol import GlueStudy
from threeml_core.paper import RECIPES
from threeml_core.reporting.finetuning import learned_statement
from threeml_core.reporting.overview import overview
from threeml_core.reporting.page import KEY_FIGURE, read_page
from threeml_core.reporting.report import build_report
from threeml_core.reporting.style import Figure, drawing

REPORTS = PROJECT_ROOT / "reports"
PAGES = [REPORTS / "index.html", *sorted(REPORTS.glob("*/*.html"))]
NOTEBOOKS = sorted((PROJECT_ROOT / "notebooks").glob("*.ipynb"))
PRESETS = {path.stem for path in (PROJECT_ROOT / "params").glob("*.yaml")}
TINY = make_config({})
OF_TINY = (r"\btiny\b", rf"\b{TINY.max_train_examples} examples", rf"{TINY.max_steps:,} steps", "one seed each")
OF_A_MACHINE = r"(minutes?|hours?) on (two|\d+) cores"


class Read(HTMLParser):
    """Links, ids, title and text of a page; the text is without navigation, figures, code and commands."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.ids: set[str] = set()
        self.title = self.text = ""
        self.open: list[str] = []
        self.feed(text)
        self.text = re.sub(r"(papermill|threeml|make) [^\n]*", "", self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("nav", "pre", "style", "svg", "footer", "title"):
            self.open.append(tag)
        if tag == "a" and values.get("href"):
            self.links.append(values["href"] or "")
        self.ids |= {values["id"] or ""} if "id" in values else set()
        self.text += "" if tag in ("a", "b", "code", "em", "strong") else "\n"

    def handle_endtag(self, tag: str) -> None:
        if self.open and tag == self.open[-1]:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open == ["title"]:
            self.title += data
        elif not self.open:
            self.text += re.sub(r"\s+", " ", data)


@cache
def read(page: Path) -> Read:
    return Read(page.read_text(encoding="utf-8"))


def name_of(page: Path) -> str:
    return page.relative_to(REPORTS).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    """To a file of this project, and to an id in it; what stands elsewhere is by https."""
    links = [link for link in read(page).links if not link.startswith("https:")]
    assert any(link.startswith("https://arxiv.org") for link in read(page).links)
    assert len(links) > 3
    for link in links:
        path, _, fragment = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file() and target.is_relative_to(PROJECT_ROOT), link
        assert not fragment or target.suffix != ".html" or fragment in read(target).ids, link


def test_titles_are_distinct() -> None:
    titles = [read(page).title for page in PAGES]
    assert len(set(titles)) == len(titles) and all(titles)


def test_the_list_of_reports_is_that_of_the_reports() -> None:
    """Its figure to the last digit only on the machine that drew it; what the figure says is in its description."""
    found = (REPORTS / "index.html").read_text(encoding="utf-8")
    kept, new = (
        re.sub(r'(<svg aria-label="[^"]*").*?</svg>', r"\1", of, flags=re.DOTALL) for of in (found, overview())
    )
    assert kept == new, "run `python -m threeml_core.reporting.overview`"
    assert (
        found.count("<svg") == 1
        and ", ModernBERT first: C1 contradicted, RoBERTa supported (vanilla-40% against" in new
    )
    assert {path.parent.name for path in REPORTS.glob("*/index.html")} <= set(found.replace("<", ">").split(">"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_true_at_any_preset(path: Path) -> None:
    """Their prose and comments, but for the parameters and for commands, which name the preset that they are for."""
    for cell in nbformat.read(path, 4).cells:
        if "parameters" not in cell.metadata.get("tags", []):
            text = re.sub(r"(papermill|threeml|make) [^\n]*", "", cell.source)
            for pattern in (*OF_TINY, OF_A_MACHINE):
                assert not re.search(pattern, text), (pattern, cell.source)


@pytest.mark.parametrize("page", [p for p in PAGES if p.parent not in (REPORTS, REPORTS / "tiny")], ids=name_of)
def test_pages_speak_of_their_own_preset(page: Path) -> None:
    """The paper's recipes may be named anywhere; a document, which is of one report, may say what is elsewhere."""
    others = "|".join(PRESETS - {page.parent.name, *RECIPES})
    is_document = page.stem in ("findings", "appendix", "design")
    text = read(page).text
    assert len(text) > 500
    for pattern in (*OF_TINY, *([] if is_document else [rf"\bpresets? ({others})\b(?!-)"])):
        found = re.search(pattern, text)
        assert not found, text[max(0, found.start() - 200) : found.end() + 50]


def executed(path: Path, *cells: tuple[str, list[str]]) -> Path:
    """A notebook of (source, tags); what begins with a capital or `#` is Markdown."""
    new = nbformat.v4.new_notebook()
    for source, tags in cells:
        kind = nbformat.v4.new_code_cell if source[0].islower() else nbformat.v4.new_markdown_cell
        new.cells.append(kind(source, metadata={"tags": tags}))
    nbformat.write(new, path)
    return path


def test_plan_and_parameters_stand_folded_at_the_end(tmp_path: Path) -> None:
    path = executed(
        tmp_path / "04_page.ipynb",
        ("# A page\n\nWhat it is about.", []),
        ("The next cell shows the parameters.", []),
        ("preset = 'x'", ["parameters"]),
        ("preset = 'small'", ["injected-parameters"]),
        ("config = resolve_parameters(globals())", []),
        ("## The plan\n\nRuns.", []),
        ("plan(config)", []),
        ("## Found\n\nThis.", []),
        ("found(config)", []),
        ("## All parameters", []),
        ("table(config)", []),
    )
    page = read_page(path)
    assert [text for _, text in page.headings] == ["Found", "The plan", "All parameters", "Run this page yourself"]
    assert page.summary == "What it is about."
    assert [cell.source.split("\n")[0] for cell in page.notebook.cells] == [
        *("# A page", "## Found", "found(config)", "", "plan(config)", "", "table(config)"),
        *("The next cell shows the parameters.", "preset = 'x'", "preset = 'small'"),
        "config = resolve_parameters(globals())",
    ]
    build_report(tmp_path, tmp_path / "report", make_config({"runs_dir": str(tmp_path / "runs")}))
    text = (tmp_path / "report" / "04_page.html").read_text()
    shown, *folded = text.split('<details class="fold"')
    assert "This." in shown and "Runs." not in shown and "preset" not in shown.split("<main")[1]
    assert [re.findall(r'id="([\w-]+)"><summary><h2>', part) for part in folded] == [
        *(["the-plan"], ["all-parameters"], ["run-this-page-yourself"])
    ]
    assert text.count("<details") == text.count("</details>") and "injected" not in text


@pytest.mark.parametrize(("low", "said"), [(0.4, "on none of its tasks: it has not"), (0.6, "on 1 of 1 tasks: RTE.")])
def test_what_has_been_learned_is_said_from_the_scores(low: float, said: str) -> None:
    result = SimpleNamespace(low=low, high=0.7, chance=0.5, is_older=False, task=SimpleNamespace(title="RTE"))
    assert said in learned_statement(cast(GlueStudy, SimpleNamespace(name="3ML_self-40%", all_results=[result])))


def test_a_document_has_the_key_figure_where_it_asks_for_it(tmp_path: Path) -> None:
    with drawing() as (figure, _):
        drawn = Figure(figure, "What was found, in a figure.")
    (tmp_path / "FINDINGS.md").write_text(f"# Found\n\n{KEY_FIGURE}<!-- of nobody's interest -->\nAll.\n")
    before, shown, after = read_page(tmp_path / "FINDINGS.md", drawn).notebook.cells
    assert before.source == "# Found\n\n" and after.source == "All.\n"
    assert "<svg" in next(iter(shown.outputs[0].data.values()))
    assert [cell.cell_type for cell in read_page(tmp_path / "FINDINGS.md").notebook.cells] == ["markdown"] * 2


@pytest.mark.parametrize("report", [".", "small", "small-modern", "small-roberta"])
def test_the_findings_are_a_page_with_its_figure_first(report: str) -> None:
    text = (REPORTS / report / "FINDINGS.md").read_text(encoding="utf-8")
    first, _ = text.split(KEY_FIGURE)
    assert first.startswith("# ") and first.count("\n\n") == (2 if report == "." else 1)
    assert len(re.sub(r"(?m)^[|<].*", "", text).split()) < 500
