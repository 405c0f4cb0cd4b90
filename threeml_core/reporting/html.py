"""From executed notebooks to the HTML report: one page a notebook, an index, no request to any host."""

from __future__ import annotations

import dataclasses
import html
import re
import shutil
import xml.etree.ElementTree
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import latex2mathml.converter
import nbformat
from jinja2 import pass_context
from nbconvert import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments.formatters import HtmlFormatter

from threeml_core.config import StudyConfig
from threeml_core.foundation.errors import StudyError
from threeml_core.foundation.files import PROJECT_ROOT, atomic_folder
from threeml_core.reporting.comparison import claim_table, first_notes, plot_comparison
from threeml_core.reporting.figures import Figure
from threeml_core.reporting.tables import Table
from threeml_core.runs.archive import CURVES, RESULTS, shown_records, write_archive
from threeml_core.runs.record import STAGES, RunRecord, describe_environment, load_records
from threeml_core.study.claims import claims
from threeml_core.study.ledger import find

TITLE = "Mask more, mask later"

NOTICE = "NOTICE.md"
"""A document of a report's folder that stands above every page: what a reader has to know of numbers made earlier."""
_TEMPLATES = Path(__file__).parent


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


def _rendered(source: str) -> str:
    """Markdown to HTML with MathML, ids on headings, and links to notebooks and documents made links to pages."""
    text = MarkdownWithMath(renderer=_Renderer()).render(source)
    text = re.sub(
        r"<h([1-4])[^>]*>(.*?)</h\1>",
        lambda m: f'<h{m[1]} id="{slug(m[2])}">{m[2]}</h{m[1]}>',
        text,
        flags=re.DOTALL,
    )
    text = text.replace("<table>", '<table class="study">')
    text = re.sub(r'href="([\w.-]+)\.ipynb(#[^"]*)?"', r'href="\1.html\2"', text)
    return re.sub(r'href="([\w-]+)\.md(#[^"]*)?"', lambda m: f'href="{m[1].lower()}.html{m[2] or ""}"', text)


class _Exporter(HTMLExporter):
    """nbconvert with this package's template."""

    @pass_context
    def markdown2html(self, context: Any, source: str) -> str:
        """See `_rendered`."""
        return _rendered(source)


@dataclasses.dataclass(frozen=True)
class Page:
    """A page of the report."""

    href: str
    source: str
    """File that it was made of."""
    title: str
    headings: list[tuple[str, str]]
    """(id, text) of the second-level headings."""
    summary: str
    """First paragraph, plain text."""
    notebook: Any


def _document_page(path: Path) -> Page:
    """A document as a page of its own, without its comments."""
    text = re.sub(r"^<!--.*?-->\n", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text)])
    return _page(path, f"{path.stem.lower()}.html", path.name, notebook)


def _read_page(path: Path) -> Page:
    return _page(path, f"{path.stem}.html", path.with_suffix(".ipynb").name, nbformat.read(path, 4))


def _page(path: Path, href: str, source: str, notebook: Any) -> Page:
    markdown = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    headings = re.findall(r"^(#{1,2}) (.+)$", markdown, re.MULTILINE)
    title = next((text for level, text in headings if level == "#"), path.stem)
    if failed := [o for c in notebook.cells if c.cell_type == "code" for o in c.outputs if o.output_type == "error"]:
        raise StudyError(f"{path} ended in an error ({failed[0].ename}: {failed[0].evalue}); run it again first")
    paragraphs = [
        p.strip() for p in markdown.split("\n\n") if p.strip() and not p.lstrip().startswith(("#", "$", "|", "*"))
    ]
    summary = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", paragraphs[0]) if paragraphs else ""
    seconds = [(slug(text), re.sub(r"[`*]", "", text)) for level, text in headings if level == "##"]
    return Page(href, source, title, seconds, " ".join(summary.split()), notebook)


def _code_styles() -> str:
    light = HtmlFormatter(style="default").get_style_defs(".highlight")
    dark = HtmlFormatter(style="github-dark").get_style_defs(".highlight")
    return re.sub(r" */\*.*?\*/", "", f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n")


def _provenance(preset: str, records: list[Any]) -> list[tuple[str, str]]:
    environments = [record.environment for record in records] or [describe_environment()]
    environment = max(environments, key=lambda e: e["finished"])
    commit = (environment["commit"] or "unknown")[:10] + (
        " with local changes" if environment["commit_changed"] else ""
    )
    hardware, versions = environment["hardware"], environment["versions"]
    machine = f"{hardware.get('gpu', hardware['cpu'])}, {hardware['cores']} cores"
    return [
        ("Preset", preset),
        ("Seeds", ", ".join(sorted({str(r.parameters["seed"]) for r in records})) or "none"),
        ("Commit", commit),
        ("Versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("Hardware", machine),
        ("Date", environment["finished"][:10]),
    ]


def _summary(config: StudyConfig, records: Sequence[RunRecord]) -> str:
    """What the first page says before anything else: the claims with their verdicts, and the key figure."""
    stages = {stage: [record for record in records if record.stage == stage] for stage in STAGES}
    outcomes = find(config, None, [*stages["pretrain"], *stages["finetune"]])
    shown = [
        html.escape(first_notes(outcomes).replace("`", "")),
        "The rule of the verdicts, which no result can change: "
        '<a href="06_comparison.html#the-paper-s-claims">comparison</a>.',
    ]
    parts: list[Table | Figure] = [
        claim_table(claims(config, outcomes, stages["mutual_information"], stages["benchmark"])),
        plot_comparison(outcomes, config),
    ]
    text = f'<section class="text"><p>{" ".join(shown)}</p></section>'
    return text + "".join(f'<div class="output">{part._repr_html_()}</div>' for part in parts)


def build_report(notebooks: Path, output: Path, config: StudyConfig) -> Path:
    """Render executed notebooks, and the records of the runs they show, into `output`, replacing what was there.

    Args:
        notebooks: folder of executed notebooks; their names order the pages.
        output: folder of the report; `index.html`, one page a notebook, the records (`results.jsonl`), their curves
            (`curves.jsonl`) and the notebooks. Documents (`*.md`) that lie there stay, and become pages as well, but
            for `NOTICE.md`, which stands above each page.
        config: of the study; its preset is named at the pages' foot.

    Raises:
        StudyError: no executed notebook, or one that ended in an error.
    """
    documents = sorted(output.glob("*.md"))
    if output.exists() and not (output / RESULTS).exists() and set(output.iterdir()) > set(documents):
        raise StudyError(f"{output} is not empty and holds no report: give a new folder, it would be replaced")
    files = sorted(notebooks.glob("*.ipynb"))
    if not files:
        raise StudyError(f"no executed notebook in {notebooks}: run `make report`")
    pages = [_read_page(path) for path in files]
    pages += [_document_page(path) for path in documents if path.name != NOTICE]
    notice = output / NOTICE
    shown = "".join(path.read_text(encoding="utf-8") for path in files)
    records = [record for stage in STAGES for record in load_records(config.runs_dir, stage)]
    records = shown_records(records, shown)
    exporter = _Exporter(template_name="study", extra_template_basedirs=[str(_TEMPLATES)])
    exporter.register_preprocessor("nbconvert.preprocessors.CoalesceStreamsPreprocessor", True)
    shared = {
        "title": TITLE,
        "pages": pages,
        "notice": _rendered(notice.read_text(encoding="utf-8")) if notice in documents else "",
        "provenance": _provenance(config.preset, records),
        "code_styles": _code_styles(),
    }
    with atomic_folder(output) as folder:
        for page in pages:
            body, _ = exporter.from_notebook_node(page.notebook, {"study": {**shared, "here": page}})
            (folder / page.href).write_text(tidy(body), encoding="utf-8")
        for source in files:
            (folder / source.name).write_text(_without_times(source), encoding="utf-8")
        index = nbformat.v4.new_notebook()
        judged = any(page.href == "06_comparison.html" for page in pages)
        study = {**shared, "here": None, "summary": _summary(config, records) if judged else ""}
        body, _ = exporter.from_notebook_node(index, {"study": study})
        (folder / "index.html").write_text(tidy(body), encoding="utf-8")
        if config.report_from == "records":
            for name in (RESULTS, CURVES):
                shutil.copyfile(output / name, folder / name)
        else:
            write_archive(records, config.runs_dir, folder)
        for document in documents:
            shutil.copyfile(document, folder / document.name)
    return output / "index.html"


def _without_times(path: Path) -> str:
    """An executed notebook without the clock: when cells ran, how long, and in which Python, is no result."""
    notebook = nbformat.read(path, 4)
    notebook.metadata = {"kernelspec": notebook.metadata.get("kernelspec", {}), "language_info": {"name": "python"}}
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        for name in ("papermill", "execution"):
            cell.metadata.pop(name, None)
    return tidy(nbformat.writes(notebook))


def tidy(text: str) -> str:
    """No trailing blanks, so that a report can be committed; no path of the machine that made it."""
    text = text.replace(html.escape(str(PROJECT_ROOT)), ".").replace(str(PROJECT_ROOT), ".")
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
