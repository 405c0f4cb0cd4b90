"""One page of the report: Markdown with its formulas to HTML, and a notebook or document with what its index says."""

from __future__ import annotations

import dataclasses
import html
import re
import xml.etree.ElementTree
from collections.abc import Collection
from pathlib import Path
from typing import Any

import latex2mathml.converter
import nbformat
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from threeml_core.foundation.errors import StudyError
from threeml_core.foundation.files import PROJECT_ROOT


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
    text = text.replace("<table>", '<table class="study">')
    text = re.sub(r'href="([\w.-]+)\.ipynb(#[^"]*)?"', r'href="\1.html\2"', text)
    return re.sub(r'href="([\w-]+)\.md(#[^"]*)?"', lambda m: f'href="{m[1].lower()}.html{m[2] or ""}"', text)


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


def read_page(path: Path) -> Page:
    """An executed notebook, or a document without its comments, as a page.

    Raises:
        StudyError: the notebook ended in an error.
    """
    if path.suffix == ".md":
        text = re.sub(r"^<!--.*?-->\n", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
        href, notebook = path.stem.lower(), nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
    else:
        href, notebook = path.stem, nbformat.read(path, 4)
    markdown = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    headings = re.findall(r"^(#{1,2}) (.+)$", markdown, re.MULTILINE)
    title = next((text for level, text in headings if level == "#"), path.stem)
    if failed := [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs if o.output_type == "error"]:
        raise StudyError(f"{path} ended in an error ({failed[0].ename}: {failed[0].evalue}); run it again first")
    paragraphs = filter(None, map(str.strip, markdown.split("\n\n")))
    first = next((text for text in paragraphs if not text.startswith(("#", "$", "|", "*"))), "")
    summary = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", first)
    seconds = [(slug(text), re.sub(r"[`*]", "", text)) for level, text in headings if level == "##"]
    return Page(f"{href}.html", path.name, title, seconds, " ".join(summary.split()), notebook)


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
