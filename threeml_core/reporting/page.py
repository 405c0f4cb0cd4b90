"""One page of the report: Markdown with its formulas to HTML, and a notebook or document with what its index says."""

from __future__ import annotations

import dataclasses
import html
import itertools
import re
import xml.etree.ElementTree
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import latex2mathml.converter
import nbformat
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from threeml_core.foundation.errors import StudyError
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.reporting.style import FIGURE, Figure

KEY_FIGURE = "<!-- key figure -->\n"
"""Stands in a document where its page shows the figure of the report's first page."""

USAGE = "Run this page yourself"
"""Heading of what leads from a notebook to its parameters, and of these."""

FOLDED = ("The plan", "All parameters", USAGE)
"""Sections that a page has at its end, folded: what a reader of its findings does not look for."""


class _Renderer(IPythonRenderer):
    """HTML is shown as text, nothing is loaded; formulas become MathML, which every browser draws without a script."""

    def __init__(self) -> None:
        super().__init__(escape=True, allow_harmful_protocols=False, exclude_anchor_links=True)

    def inline_math(self, body: str) -> str:
        return _mathml(body, "inline")

    def block_math(self, body: str) -> str:
        return _mathml(body.strip(), "block")

    def image(self, text: str, url: str, title: str | None = None) -> str:
        return text

    def block_mermaidjs(self, code: str) -> str:
        return self.block_code(code)


def _mathml(formula: str, display: str) -> str:
    """LaTeX as MathML; what is no formula stays as it was written.

    latex2mathml's own text form turns `<` in a formula into markup again, so its elements are written here.
    """
    try:
        math = latex2mathml.converter.convert_to_element(formula, display=display)
    except Exception:  # its errors have no common base
        return html.escape(f"${formula}$")
    for element in math.iter():
        element.text = html.unescape(element.text or "")  # symbols are kept as `&#x2211;`
        kept = {name: html.unescape(value) for name, value in element.items() if name != "href"}
        element.attrib.clear()
        element.attrib.update(kept)
    return xml.etree.ElementTree.tostring(math, encoding="unicode")


def slug(text: str) -> str:
    """An id for a heading."""
    return re.sub(r"[^a-z0-9]+", "-", re.sub(r"<[^>]*>", "", text).lower()).strip("-")


def to_html(source: str) -> str:
    """Markdown to HTML with MathML, ids on headings, and links to notebooks and documents made links to pages."""
    text = MarkdownWithMath(renderer=_Renderer()).render(source)
    heading = r"(?s)<h([1-4])[^>]*>(.*?)</h\1>"
    text = re.sub(heading, lambda m: f'<h{m[1]} id="{slug(m[2])}">{m[2]}</h{m[1]}>', text)
    text = re.sub(r"(?s)<table>.*?</table>", lambda m: f'<div class="output">{_scoped(m[0])}</div>', text)
    text = re.sub(r'href="([\w.-]+)\.ipynb(#[^"]*)?"', r'href="\1.html\2"', text)
    document = r'href="((?:[\w-]+/)?)([\w-]+)\.md(#[^"]*)?"'  # of this report, or of one below
    return re.sub(document, lambda m: f'href="{m[1]}{m[2].lower()}.html{m[3] or ""}"', text)


def _scoped(table: str) -> str:
    """A table of Markdown as those of `Table`: its cells say whether they head a column or a row."""
    table = re.sub(r"<th\b", '<th scope="col"', table.replace("<table>", '<table class="study">'))
    table = re.sub(r"(?s)(<tr>\s*)<td(.*?)</td>", r'\1<th scope="row"\2</th>', table)
    return table.replace('<td style="text-align:right"', '<td class="number" style="text-align:right"')


def without_dead_links(text: str, pages: Collection[str]) -> str:
    """Links to pages that a report does not have become their words."""
    link = r'(?s)<a href="([\w-]+\.html)(?:#[^"]*)?"[^>]*>(.*?)</a>'
    return re.sub(link, lambda m: m[0] if m[1] in pages else m[2], text)


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of the report."""

    href: str
    source: str  # name of the file that it was made of
    title: str
    headings: list[tuple[str, str]]  # (id, text) of the second level
    summary: str  # first paragraph, plain text
    notebook: Any

    @property
    def number(self) -> str:
        """Of a notebook, with which its name begins; "" of a document."""
        return self.source[:2] if self.source[:2].isdigit() else ""


def read_page(path: Path, figure: Figure | None = None) -> Page:
    """An executed notebook, or a document without its comments, as a page.

    Args:
        path: of a notebook or a document (`.md`).
        figure: of the report's first page, which a document may ask for.

    Raises:
        StudyError: the notebook ended in an error.
    """
    if path.suffix == ".md":
        return new_page(path.stem.lower(), path.name, _document(path.read_text(encoding="utf-8"), figure))
    notebook = nbformat.read(path, 4)
    if failed := [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs if o.output_type == "error"]:
        raise StudyError(f"{path} ended in an error ({failed[0].ename}: {failed[0].evalue}); run it again first")
    notebook.cells = _folded_last(notebook.cells)
    return new_page(path.stem, path.name, notebook)


def _document(text: str, figure: Figure | None) -> Any:
    cells = []
    for number, part in enumerate(text.split(KEY_FIGURE)):
        if number and figure:
            drawn = nbformat.v4.new_output("display_data", {FIGURE: figure._repr_html_()})
            cells.append(nbformat.v4.new_code_cell(outputs=[drawn]))
        part = re.sub(r"^<!--.*?-->\n", "", part, flags=re.DOTALL | re.MULTILINE)
        cells.append(nbformat.v4.new_markdown_cell(part))
    return nbformat.v4.new_notebook(cells=cells)


def _folded_last(cells: Sequence[Any]) -> list[Any]:
    """The cells with the sections of `FOLDED` at the end; the first of each names it in its metadata, `fold`."""
    shown: list[Any] = []
    folded: dict[str, list[Any]] = {heading: [] for heading in FOLDED}
    section = shown
    for number, cell in enumerate(cells):
        following = cells[number + 1 : number + 2]
        if _has_parameters(cell) or (number and any(map(_has_parameters, following))):
            section = folded[USAGE]  # and what makes a configuration of them
        elif cell.cell_type == "markdown":
            first, _, rest = cell.source.partition("\n")
            section = folded.get(first.removeprefix("## "), shown)
            cell.source = cell.source if section is shown else rest
        section.append(cell)
    for heading, section in folded.items():
        for cell in section[:1]:
            cell.metadata["fold"] = {"id": slug(heading), "heading": heading}
    return [*shown, *itertools.chain(*folded.values())]


def _has_parameters(cell: Any) -> bool:
    return not {"parameters", "injected-parameters"}.isdisjoint(cell.metadata.get("tags", ()))


def new_page(stem: str, source: str, notebook: Any) -> Page:
    """A page of a notebook's cells, named `stem`, of the file `source`."""
    markdown = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    headings = re.findall(r"^(#{1,2}) (.+)$", markdown, re.MULTILINE)
    headings += [("##", cell.metadata["fold"]["heading"]) for cell in notebook.cells if "fold" in cell.metadata]
    title = next((text for level, text in headings if level == "#"), stem)
    paragraphs = filter(None, map(str.strip, markdown.split("\n\n")))
    first = next((text for text in paragraphs if not text.startswith(("#", "$", "|", "*"))), "")
    summary = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", first)
    seconds = [(slug(text), re.sub(r"[`*]", "", text)) for level, text in headings if level == "##"]
    return Page(f"{stem}.html", source, title, seconds, " ".join(summary.split()), notebook)


def without_times(path: Path) -> str:
    """An executed notebook without the clock: when cells ran, how long, and in which Python, is no result."""
    notebook = nbformat.read(path, 4)
    notebook.metadata = {"kernelspec": notebook.metadata.get("kernelspec", {}), "language_info": {"name": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {k: v for k, v in cell.metadata.items() if k not in ("papermill", "execution")}
    return tidy(nbformat.writes(notebook))


def tidy(text: str, root: Path = PROJECT_ROOT) -> str:
    """No trailing blanks, so that a report can be committed; `root` as ".", as no path of a machine belongs there."""
    if root.name:  # not where all paths begin
        paths = "|".join(re.escape(path) for path in (html.escape(str(root)), str(root)))
        text = re.sub(rf"(?<![\w.<-])(?:{paths})(?![\w-])", ".", text)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
