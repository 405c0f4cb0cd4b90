"""What every page owes its readers, by what Lighthouse asks: a title, a language, headings in order, named figures."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from bs4 import BeautifulSoup

from threeml_core.config import make_config
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.reporting.report import SCRIPT, build_report
from threeml_core.runs.archive import CURVES, from_records

REPORTS = sorted(path.parent for path in (PROJECT_ROOT / "reports").glob("*/index.html"))


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, BeautifulSoup]]:
    """Report -> name -> page, of the committed reports built again from their executed notebooks and records."""
    found = {}
    for report in REPORTS:
        out = tmp_path_factory.mktemp(report.name)
        config = make_config({"preset": report.name, "runs_dir": str(out / "runs")})
        if (report / CURVES).exists():  # else it is of sessions of the benchmark alone
            config = from_records(config.replace(report_from="records"), report)
        folder = build_report(report, out / "pages", config, report).parent
        files = sorted(folder.glob("*.html"))
        found[report.name] = {
            f"{report.name}/{path.name}": BeautifulSoup(path.read_bytes(), "html.parser") for path in files
        }
    return found


@pytest.fixture(params=REPORTS, ids=lambda report: report.name)
def pages(request: pytest.FixtureRequest, reports: dict[str, dict[str, BeautifulSoup]]) -> dict[str, BeautifulSoup]:
    return reports[request.param.name]


def test_titles_tell_pages_and_reports_apart(reports: dict[str, dict[str, BeautifulSoup]]) -> None:
    titles = [page.title.get_text() for pages in reports.values() for page in pages.values()]
    assert len(titles) > 30 and len(set(titles)) == len(titles)
    assert all(re.search(r"3ML: preset [\w-]+", title) and len(title) < 150 for title in titles)


def test_language_and_viewport(pages: dict[str, BeautifulSoup]) -> None:
    for page in pages.values():
        assert page.html["lang"] == "en"
        assert page.find("meta", attrs={"name": "viewport"})["content"] == "width=device-width, initial-scale=1"


def test_headings_go_down_step_by_step(pages: dict[str, BeautifulSoup]) -> None:
    """One of the first level, and it comes first."""
    for name, page in pages.items():
        levels = [int(heading.name[1]) for heading in page.find_all(re.compile(r"^h[1-6]$"))]
        assert levels.count(1) == 1 and levels[0] == 1, name
        jumps = [(a, b) for a, b in zip(levels, levels[1:], strict=False) if b > a + 1]
        assert jumps == [], name


def test_figures_have_names(pages: dict[str, BeautifulSoup]) -> None:
    for name, page in pages.items():
        for svg in page.find_all("svg"):
            assert svg["role"] == "img" and len(svg["aria-label"]) > 20, name
        assert all(image.get("alt") for image in page.find_all("img")), name


def test_no_id_comes_twice(pages: dict[str, BeautifulSoup]) -> None:
    for name, page in pages.items():
        twice = [of for of, count in Counter(element["id"] for element in page.find_all(id=True)).items() if count > 1]
        assert twice == [], name


def test_controls_and_landmarks_have_names(pages: dict[str, BeautifulSoup]) -> None:
    for name, page in pages.items():
        assert all(link.get_text(strip=True) for link in page.find_all("a")), name
        labels = [nav["aria-label"] for nav in page.find_all("nav")]
        assert len(labels) == len(set(labels)) and len(page.find_all("main")) == 1, name
        assert page.find("a", class_="skip")["href"] == f"#{page.main['id']}", name


def test_a_page_is_one_file(pages: dict[str, BeautifulSoup]) -> None:
    """One script, the report's own, small, and a rule by which the browser lets nothing else run or load."""
    assert len(SCRIPT) < 10_000
    for name, page in pages.items():
        assert [script.string for script in page.find_all("script")] == [SCRIPT], name
        policy = page.find("meta", attrs={"http-equiv": "Content-Security-Policy"})["content"]
        assert policy.startswith("default-src 'none'; img-src data:;") and "http" not in policy
        assert not page.find_all(src=re.compile("^(?!data:)")) and len(str(page)) < 400_000, name


def test_tables_say_what_their_heads_are_of(pages: dict[str, BeautifulSoup]) -> None:
    """Rows too in documents; in executed notebooks rows are as `Table` was when they ran (see test_table)."""
    for page in pages.values():
        assert all(head["scope"] in ("col", "row") for head in page.find_all("th"))
        for row in page.select("section.text table tbody tr"):
            assert row.find()["scope"] == "row"
