"""What all committed reports found: `python -m threeml_core.reporting.overview` writes `reports/index.html`."""

from __future__ import annotations

import html
import re
from pathlib import Path

import nbformat

from threeml_core.foundation.errors import StudyError, command_line
from threeml_core.foundation.files import PROJECT_ROOT, atomic_file
from threeml_core.reporting.documents import replicated
from threeml_core.reporting.forest import forest_plot
from threeml_core.reporting.page import new_page, read_page
from threeml_core.reporting.report import FINDINGS, NOTICE, Renderer

REPORTS = PROJECT_ROOT / "reports"

_ANSWER = re.compile(r'<section class="text answer">\s*<h1>(.*?)</h1>\s*<p>(.*?)</p>', re.DOTALL)


def overview() -> str:
    """HTML of the findings, with both encoders in one figure, then the reports, each with what it found first.

    Raises:
        StudyError: a report's first page has no such sentence.
    """
    about = "The first sentence of each one's first page, and what its notice begins with."
    lines = ["## All reports", about]
    for path in sorted(REPORTS.glob("*/index.html")):
        found = _ANSWER.search(path.read_text(encoding="utf-8"))
        if not found:
            raise StudyError(f"{path} does not begin with what was found: make this report again")
        title, sentence = map(html.unescape, found.groups())
        name = path.parent.name
        lines += [f"### {name}", f"[{title}]({name}/index.html)", sentence + _notice(path.parent)]
    notebook = read_page(REPORTS / FINDINGS, forest_plot(replicated())).notebook
    notebook.cells.append(nbformat.v4.new_markdown_cell("\n\n".join(lines)))
    page = new_page("index", "", notebook)
    render = Renderer(REPORTS, title="3ML study", pages=[page], notice="", provenance=[])
    return render(page)


def _notice(report: Path) -> str:
    """The bold beginning of what stands above a report's pages, without links."""
    text = (report / NOTICE).read_text(encoding="utf-8") if (report / NOTICE).exists() else ""
    bold = re.match(r"\*\*(.+?)\*\*", text, re.DOTALL)
    return " " + re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", bold[0]) if bold else ""


@command_line
def main() -> None:
    """Write the page anew."""
    with atomic_file(REPORTS / "index.html") as temporary:
        temporary.write_text(overview(), encoding="utf-8")
    print(f"{REPORTS / 'index.html'}: written")


if __name__ == "__main__":
    main()
