"""The replication's pages: made again from the committed records alone, they are the committed pages."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import nbformat
import pytest

from threeml_core.config import identity_parameters, make_config, parse_arguments
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.reporting.documents import outdated
from threeml_core.reporting.execute import execute_notebooks
from threeml_core.reporting.report import build_report
from threeml_core.reporting.style import FIGURE
from threeml_core.runs.archive import CURVES, from_records, read_archive
from threeml_core.study.ledger import study_runs

REPORT = PROJECT_ROOT / "reports" / "small"


@pytest.fixture(scope="module")
def again(quick: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make report PRESET=small` makes, in another folder."""
    config = from_records(make_config({"preset": "small"}), REPORT)
    folder, failed = execute_notebooks(config)
    assert failed == []
    output = tmp_path_factory.mktemp("report") / "small"
    shutil.copytree(REPORT, output)
    build_report(folder, output, config, place=REPORT)
    return output


_FIGURE = re.compile(r"<svg.*?</svg>", re.DOTALL)
_PNG = re.compile(r'(?<="image/png": ")[^"]*')  # drawn from the same, in a notebook
_NAME = re.compile(r"\b[mp][0-9a-f]{10}\b")  # matplotlib's, a hash of coordinates
_COORDINATE = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_PIXELS = 0.01


def test_the_same_pages(again: Path) -> None:
    """All text is that of the records, byte for byte; what a figure draws is, to a hundredth of a pixel.

    Coordinates are computed, and another processor's vector units may give another last digit.
    """
    assert {path.name for path in again.iterdir()} == {path.name for path in REPORT.iterdir()}
    for path in REPORT.iterdir():
        new, old = (_PNG.sub("", (folder / path.name).read_text(encoding="utf-8")) for folder in (again, REPORT))
        renew = f"{path.name}: run `make report PRESET=small`"
        assert _FIGURE.sub("", new) == _FIGURE.sub("", old), renew
        figures = [[_NAME.sub("", figure) for figure in _FIGURE.findall(text)] for text in (new, old)]
        assert len(figures[0]) == len(figures[1]), renew
        for drawn, committed in zip(*figures, strict=True):
            assert _COORDINATE.sub("", drawn) == _COORDINATE.sub("", committed), renew
            places = [list(map(float, _COORDINATE.findall(figure))) for figure in (drawn, committed)]
            assert places[0] == pytest.approx(places[1], abs=_PIXELS), renew


def test_figures_show_where_no_svg_does(again: Path) -> None:
    """A notebook that is not trusted, GitHub and nbviewer show the PNG; the page has the SVG alone, and stays small."""
    drawn = 0
    for path in again.glob("*.ipynb"):
        cells = nbformat.read(path, 4).cells
        outputs = [o for cell in cells if cell.cell_type == "code" for o in cell.outputs if "data" in o]
        figures = [output for output in outputs if FIGURE in output.data]
        assert all("image/png" in of.data and "text/html" not in of.data for of in figures)
        assert not any("<svg" in output.data.get("text/html", "") for output in outputs), path.name
        page = path.with_suffix(".html").read_text(encoding="utf-8")
        assert page.count('<figure class="study">') == len(figures) and "image/png" not in page
        drawn += len(figures)
    assert drawn >= 9
    assert max(path.stat().st_size for path in again.glob("*.html")) < 400_000


def test_every_page_says_what_fell() -> None:
    """What an audit found of these numbers stands above them, wherever a reader comes in."""
    pages = sorted(REPORT.glob("*.html"))
    assert len(pages) == 15 and not (REPORT / "notice.html").exists()
    for page in pages:
        notice = page.read_text(encoding="utf-8").split('<aside class="notice">')[1].split("</aside>")[0]
        for said in ("80-20-0 instead of 80-10-10", "bag of words (45.9)", "beyond 32", "consistent with a swap"):
            assert said in " ".join(notice.split()), (page.name, said)
        assert 'href="findings.html"' in notice


def test_tables_in_documents_are_those_of_the_records() -> None:
    assert outdated() == [], "run `python -m threeml_core.reporting.documents`"


def test_every_command_on_a_page_is_the_run_beside_it() -> None:
    """Read by the command line's own parser, each asks for a run of the study, most of them for one that is there."""
    trained = [record.identity for record in read_archive(REPORT) if record.stage == "pretrain"]
    planned = [
        identity_parameters(run.config.replace(seed=seed))
        for run in study_runs(make_config({"preset": "small"}))
        for seed in run.seeds
    ]
    commands = set()
    for path in REPORT.glob("*.ipynb"):
        commands |= set(
            re.findall(r"papermill notebooks/0[23]_\w+\.ipynb out\.ipynb -p preset small[^\\<\n\"`]*", path.read_text())
        )
    there = set()
    for command in commands:
        config = parse_arguments("", shlex.split(command)[3:])
        wanted = identity_parameters(
            config if config.pretrain_seed is None else config.replace(seed=config.pretrain_seed)
        )
        assert wanted in planned, command
        known = {name: value for name, value in wanted.items() if value is not None}
        if any(known.items() <= identity.items() for identity in trained):
            there.add(command)
    assert len(there) >= len(trained), "every run that is there has its command"


def test_no_text_of_others_in_it() -> None:
    """Records and pages hold counts, scores and names, no sentence of the corpus or of a task."""
    for line in (REPORT / CURVES).read_text(encoding="utf-8").splitlines():
        for values in json.loads(line)["lines"]:
            assert all(isinstance(value, int | float) for value in values.values())
    assert "this page is made of records, which hold no text" in (REPORT / "01_prepare_data.html").read_text()


def test_pages_lead_from_one_to_the_next(again: Path) -> None:
    """The findings first, then by numbers as the notebooks', and every page is reached from the first."""
    contents = re.findall(r'<a href="([\w-]+\.html)"><span class="page-number">(\d\d)</span>', _page(again, "index"))
    assert [number for _, number in contents] == [href[:2] for href, _ in contents] and len(contents) > 9
    way, href = [], "findings.html"
    while href:
        way.append(href)
        found = re.findall(r'<a href="([\w-]+\.html)" rel="next">', _page(again, href.removesuffix(".html")))
        href = found[0] if found else ""
    assert way == ["findings.html", *(href for href, _ in contents), "appendix.html", "design.html"]


def _page(folder: Path, name: str) -> str:
    return (folder / f"{name}.html").read_text(encoding="utf-8")
