"""The report in Chromium: sorting, switching, phones, dark, print; nothing on the console, no request to a host.

Skipped where there is no Chromium or no Playwright, which drives the machine's Chromium and downloads none.
"""

from __future__ import annotations

import itertools
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.reporting.claims import finding_table
from threeml_core.reporting.documents import Study
from threeml_core.reporting.report import build_report
from threeml_core.reporting.table_3 import difference_table, table_3

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDE = ":has(thead th:nth-child(7))"
PAPER = {688: f":not({WIDE})", 1016: WIDE}  # pixels of A4, upright and lying, between its margins -> tables on it

WIDER = """width => [...document.querySelectorAll("main *")].filter(e => e.clientWidth && !e.closest("svg, math")
  && e.getBoundingClientRect().right > width + 1 && !e.parentElement.closest("[data-scrolls]")).map(e => e.outerHTML)"""
MARK_SCROLLED = """() => document.querySelectorAll("main *").forEach(e => {
  if (/auto|scroll/.test(getComputedStyle(e).overflowX)) e.dataset.scrolls = "";
})"""
# texts with too little contrast to what is behind them: WCAG's ratio of relative luminances, from computed colours
FAINT = """() => {
  const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const light = (c) => c.map((v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    const below = e.parentElement ? behind(e.parentElement) : [255, 255, 255];
    return over(parse(getComputedStyle(e).backgroundColor), below);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode()) {
    const e = texts.currentNode.parentElement, text = texts.currentNode.data.trim();
    if (!text || !e.getClientRects().length || e.closest("script, style, title")) continue;
    const look = getComputedStyle(e), colour = e.closest("svg") ? look.fill : look.color, ground = behind(e);
    if (colour === "none") continue;
    const [a, b] = [light(over(parse(colour), ground)), light(ground)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${text.slice(0, 40)}: ${colour} ${ratio.toFixed(2)}`);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages of `small`, from its committed notebooks, and page 11 with tables of the code as it is."""
    committed, folder = PROJECT_ROOT / "reports" / "small", tmp_path_factory.mktemp("report")
    study, new = Study("small"), nbformat.v4
    tables = [table_3(study.results, study.config), finding_table(study.claims)]
    tables.append(difference_table(study.results, study.config))
    outputs = [new.new_output("display_data", {"text/html": table._repr_html_()}) for table in tables]
    shutil.copytree(committed, folder / "notebooks")
    cells = [new.new_markdown_cell("# Tables\n\nOf this code."), new.new_code_cell("tables", outputs=outputs)]
    nbformat.write(new.new_notebook(cells=cells), folder / "notebooks" / "11_tables.ipynb")
    return build_report(folder / "notebooks", folder / "pages", study.config, committed).parent


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    api = pytest.importorskip("playwright.sync_api", reason="no Playwright here: pip install -e '.[test]'")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


class Window:
    """A page in a window of its own, what it left on the console and what it asked for from hosts."""

    def __init__(self, chromium: Any, width: int = 1280, **options: Any) -> None:
        self.said: list[str] = []
        self.page = chromium.new_page(viewport={"width": width, "height": 900}, **options)
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self._asked(request.url))

    def _asked(self, url: str) -> None:
        if not url.startswith(("file:", "data:")):
            self.said.append(url)

    def open(self, path: Path) -> Any:
        """The page with all that is folded unfolded."""
        self.page.goto(path.as_uri())
        self.page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
        return self.page


@pytest.fixture
def tables(chromium: Any, report: Path) -> Iterator[Any]:
    window = Window(chromium)
    yield window.open(report / "11_tables.html")
    assert window.said == []
    window.page.close()


def pages_of(report: Path) -> list[Path]:
    pages = sorted(report.glob("*.html"))
    assert len(pages) > 14
    return pages


def column(table: Any, name: str) -> list[str]:
    """The cells of a column in the order of the page, with text as a browser has it."""
    heads = table.locator("thead th").all_text_contents()
    return table.locator(f"tbody tr > :nth-child({heads.index(name) + 1})").all_text_contents()


def number(cell: str) -> float:
    return float(re.match(r"[+-]?[\d.]+", cell)[0])  # type: ignore[index]


@pytest.mark.parametrize("width", [390, 768, 1280])
def test_no_page_scrolls_sideways(chromium: Any, report: Path, width: int) -> None:
    """Nothing on the console either, no request, and no figure too small to see."""
    window = Window(chromium, width)
    for path in pages_of(report):
        page = window.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path.name
        page.evaluate(MARK_SCROLLED)
        assert page.evaluate(WIDER, width) == [], path.name
        widths = page.evaluate("[...document.querySelectorAll('svg')].map((e) => e.getBoundingClientRect().width)")
        assert all(each > 300 for each in widths)
    assert window.said == []
    window.page.close()


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_every_text_stands_out(chromium: Any, report: Path, scheme: str) -> None:
    window = Window(chromium, color_scheme=scheme)
    for path in pages_of(report):
        page = window.open(path)
        assert page.evaluate(FAINT) == [], path.name
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (number(ground.removeprefix("rgb(")) < 60) == (scheme == "dark")
    window.page.close()


def test_a_click_sorts(tables: Any) -> None:
    """Rising, falling, and back to the order of the page."""
    table = tables.locator("table").first
    average, before = table.locator("thead th", has_text="Average"), column(table, "Model")
    numbers = [number(cell) for cell in column(table, "Average")]
    for sort, expected in (("ascending", sorted(numbers)), ("descending", sorted(numbers)[::-1])):
        average.locator("button").click()
        assert average.get_attribute("aria-sort") == sort
        assert [number(cell) for cell in column(table, "Average")] == expected != numbers
    average.locator("button").click()
    assert average.get_attribute("aria-sort") is None and column(table, "Model") == before


def test_the_keyboard_sorts(tables: Any) -> None:
    """One column at a time; negative numbers before positive ones; what was not compared stays last."""
    table = tables.locator("table").nth(2)
    for name, order in itertools.product(("Average (points)", "Loss, all corrupted (nats)"), (1, -1)):
        table.locator("thead th", has_text=name).locator("button").focus()
        tables.keyboard.press("Enter" if order == 1 else "Space")
        found = [number(cell) for cell in column(table, name)]
        assert found == sorted(found, key=lambda value: order * value) and found[0] * found[-1] < 0
        assert table.locator("[aria-sort]").count() == 1
    findings = tables.locator("table").nth(1)
    for _ in range(2):
        findings.locator("thead th", has_text="Shows from").locator("button").click()
        assert column(findings, "Shows from")[-1] == "—"


def test_columns_are_switched(tables: Any) -> None:
    """Of a wide table, each but the first; the rest of the page stays as it is."""
    table, switches = tables.locator("table").first, tables.locator("details.columns").first
    heads = table.locator("thead th").all_text_contents()
    assert switches.locator("label").all_text_contents() == heads[1:]
    box = switches.get_by_label("QQP (F1/acc.)")
    for key, shown in (("Space", len(heads) - 1), ("Space", len(heads))):
        box.focus()
        tables.keyboard.press(key)
        for row in table.locator("tr").all():
            assert row.locator("> :visible").count() == shown
    assert tables.locator("table").nth(2).locator("thead th:visible").count() == 5
    assert tables.locator("details.columns").count() == 2, "a table of five columns needs no switches"


def test_the_first_column_stays_in_sight(tables: Any) -> None:
    tables.set_viewport_size({"width": 768, "height": 900})
    head = tables.locator("tbody th").first
    before = head.bounding_box()["x"]
    assert tables.locator(".output").first.evaluate("e => { e.scrollLeft = 100; return e.scrollLeft; }") == 100
    assert head.bounding_box()["x"] == pytest.approx(before, abs=1)


def test_rows_are_cards_on_a_phone(tables: Any) -> None:
    """Each value below or beside the name of its column, none out of sight; switches work there too."""
    tables.set_viewport_size({"width": 390, "height": 900})
    for table in tables.locator("table").all():
        heads = table.locator("thead th").all_text_contents()
        assert table.evaluate("e => e.scrollWidth <= e.parentElement.clientWidth")
        assert table.evaluate("e => e.tHead.offsetHeight") <= 1, "there for those who listen alone"
        for row in table.locator("tbody tr").all()[:3]:
            assert row.evaluate("e => getComputedStyle(e).display") == "block"
            labels = row.evaluate("e => [...e.cells].map(c => getComputedStyle(c, '::before').content)")
            assert labels == ["none", *(f'"{head}"' for head in heads[1:])]
            tops = row.evaluate("e => [...e.cells].filter(c => c.offsetHeight).map(c => c.offsetTop)")
            assert tops == sorted(set(tops)), "one below the other"
    tables.locator("details.columns").first.get_by_label("QQP (F1/acc.)").uncheck()
    assert tables.locator("td[data-label^=QQP]:visible").count() == 0


def test_without_a_script_tables_are_tables(chromium: Any, report: Path) -> None:
    for width in (390, 1280):
        page = chromium.new_page(viewport={"width": width, "height": 900}, java_script_enabled=False)
        page.goto((report / "11_tables.html").as_uri())
        assert page.locator("thead th:visible").count() > 20 and page.locator("main button").count() == 0
        assert page.locator("table").first.evaluate("e => getComputedStyle(e).display") == "table"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.close()


def test_print_cuts_nothing(chromium: Any, report: Path) -> None:
    """Tables of more than six columns lie, and each fits its paper."""
    window = Window(chromium)
    for path in pages_of(report):
        page = window.open(path)
        page.emulate_media(media="print")
        for width, shown in PAPER.items():
            page.set_viewport_size({"width": width, "height": 900})
            page.evaluate(f"document.querySelectorAll('table').forEach(e => e.hidden = !e.matches('{shown}'))")
            assert page.evaluate(WIDER, width) == [], (path.name, width)
    page = window.open(report / "11_tables.html")
    printed = page.pdf(prefer_css_page_size=True)
    sizes = [tuple(map(float, box)) for box in re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", printed)]
    assert {width > height for width, height in sizes} == {True, False}
    window.page.close()


def test_these_checks_would_notice(chromium: Any, report: Path) -> None:
    """A page that is too wide, pale, loads something and runs another's script, which the browser refuses."""
    text = (report / "index.html").read_text(encoding="utf-8")
    bad = '<p style="width: 3000px; color: #999">wide</p><img src="http://localhost:9/x.png"><script>alert(1)</script>'
    path = report.parent / "bad.html"
    path.write_text(text.replace("<footer>", f"{bad}<footer>"), encoding="utf-8")
    window = Window(chromium, color_scheme="light")
    page = window.open(path)
    assert page.evaluate("document.documentElement.scrollWidth") >= 3000
    assert any("wide" in html for html in page.evaluate(WIDER, 1280))
    assert [found for found in page.evaluate(FAINT) if found.startswith("wide: ")]
    for violated in ("img-src", "script-src"):
        assert any("Content Security Policy" in message and violated in message for message in window.said)
    window.page.close()
