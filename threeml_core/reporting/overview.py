"""The page of all committed reports: `python -m threeml_core.reporting.overview` writes `reports/index.html`."""

from __future__ import annotations

import html
import re

import nbformat

from threeml_core.foundation.errors import StudyError, command_line
from threeml_core.foundation.files import PROJECT_ROOT, atomic_file
from threeml_core.reporting.page import new_page
from threeml_core.reporting.report import Renderer

REPORTS = PROJECT_ROOT / "reports"

_ANSWER = re.compile(r'<section class="text answer">\s*<h1>(.*?)</h1>\s*<p>(.*?)</p>', re.DOTALL)


def overview() -> str:
    """HTML that lists the reports with their titles and the first sentence of what each found.

    Raises:
        StudyError: a report's first page has no such sentence.
    """
    about = "What each found, in the first sentence of its first page; C1 to C9 are the paper's claims."
    lines = ["# Reports of the 3ML study", about]
    for path in sorted(REPORTS.glob("*/index.html")):
        found = _ANSWER.search(path.read_text(encoding="utf-8"))
        if not found:
            raise StudyError(f"{path} does not begin with what was found: make this report again")
        title, sentence = map(html.unescape, found.groups())
        lines += [f"## {path.parent.name}", f"[{title}]({path.parent.name}/index.html)", sentence]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("\n\n".join(lines))])
    page = new_page("index", "", notebook)
    render = Renderer(REPORTS, title="3ML: all reports", pages=[page], notice="", provenance=[])
    return render(page)


@command_line
def main() -> None:
    """Write the page anew."""
    with atomic_file(REPORTS / "index.html") as temporary:
        temporary.write_text(overview(), encoding="utf-8")
    print(f"{REPORTS / 'index.html'}: written")


if __name__ == "__main__":
    main()
