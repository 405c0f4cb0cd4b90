"""From executed notebooks to the HTML report: one page per notebook, an index, no request to any host."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import HTMLExporter
from pygments.formatters import HtmlFormatter

from threeml_core.config import StudyConfig
from threeml_core.foundation.errors import StudyError
from threeml_core.foundation.files import PROJECT_ROOT, atomic_folder, project_path
from threeml_core.reporting.answer import first_page, scale
from threeml_core.reporting.execute import execute_notebooks
from threeml_core.reporting.page import Page, read_page, tidy, to_html, without_dead_links, without_times
from threeml_core.reporting.style import FIGURE, Figure
from threeml_core.reporting.table import Table
from threeml_core.runs.archive import (
    CURVES,
    RESULTS,
    SESSIONS,
    from_records,
    read_archive,
    shown_records,
    write_archive,
)
from threeml_core.runs.record import STAGES, describe_environment, load_records

SCRIPT = (Path(__file__).parent / "template" / "table.js").read_text(encoding="utf-8").strip()
"""The one script of a page."""

_DIGEST = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
# what a browser may do for a page: no other script, and no request to any host
_POLICY = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{_DIGEST}'"

NOTICE = "NOTICE.md"
"""A document of a report's folder that stands above every page: what a reader has to know of numbers made earlier."""


FINDINGS = "FINDINGS.md"
"""A document of a report's folder that is read first."""

_PAPER = "https://arxiv.org/abs/2211.04898"


class Renderer:
    """Turns pages into HTML, with what all pages of a folder have in common.

    Args:
        place: folder in which the pages will stand; their links to the rest of this project lead from there.
        shared: what the template shows on every page.
    """

    def __init__(self, place: Path, **shared: Any) -> None:
        self.place = place
        template: dict[str, Any] = {
            "template_name": "template",
            "extra_template_basedirs": [str(Path(__file__).parent)],
        }
        self.exporter = HTMLExporter(**template, filters={"markdown2html": to_html})
        self.exporter.register_preprocessor("nbconvert.preprocessors.CoalesceStreamsPreprocessor", True)
        light, dark = (HtmlFormatter(style=name).get_style_defs(".highlight") for name in ("default", "github-dark"))
        styles = f"{light}\n@media screen and (prefers-color-scheme: dark) {{\n{dark}\n}}\n"
        own = {"figure": FIGURE, "policy": _POLICY, "script": SCRIPT, "paper": _PAPER}
        self.shared = {"code_styles": re.sub(r" */\*.*?\*/", "", styles), **own, **shared}
        self.shared["elsewhere"] = [("The paper", _PAPER), *self._in_this_project()]

    def __call__(self, page: Page | None) -> str:
        """HTML of a page; None: of the report's first page."""
        notebook = page.notebook if page else nbformat.v4.new_notebook()
        origin = self._link(PROJECT_ROOT / "notebooks" / page.source) if page and page.number else ""
        body, _ = self.exporter.from_notebook_node(notebook, {"study": {**self.shared, "here": page, "origin": origin}})
        return tidy(without_dead_links(body, {"index.html", *(each.href for each in self.shared["pages"])}))

    def _in_this_project(self) -> list[tuple[str, str]]:
        """(words, address) of what a reader may look for next: README, all reports, each other report."""
        reports = PROJECT_ROOT / "reports"
        others = {f"Report {path.parent.name}": path for path in sorted(reports.glob("*/index.html"))}
        wanted = {"README": PROJECT_ROOT / "README.md", "All reports": reports / "index.html", **others}
        links = [(words, self._link(path)) for words, path in wanted.items() if path.parent != self.place]
        return [(words, link) for words, link in links if link]

    def _link(self, path: Path) -> str:
        """The way there from the pages; "": they are not in this project, or it is not there."""
        if not self.place.is_relative_to(PROJECT_ROOT) or not path.exists():
            return ""
        return Path(os.path.relpath(path, self.place)).as_posix()


def _provenance(preset: str, records: list[Any]) -> list[tuple[str, str]]:
    environments = [record.environment for record in records] or [describe_environment()]
    environment = max(environments, key=lambda e: e["finished"])
    changed = " with local changes" if environment["commit_changed"] else ""
    hardware = environment["hardware"]
    return [
        ("Preset", preset),
        ("Seeds", ", ".join(sorted({str(r.parameters["seed"]) for r in records})) or "none"),
        ("Commit", (environment["commit"] or "unknown")[:10] + changed),
        ("Versions", ", ".join(f"{name} {version}" for name, version in environment["versions"].items())),
        ("Hardware", f"{hardware.get('gpu', hardware['cpu'])}, {hardware['cores']} cores"),
        ("Date", environment["finished"][:10]),
    ]


def _shown(part: Figure | Table | str) -> str:
    if isinstance(part, str):
        return f'<section class="text">{to_html(part)}</section>'
    return f'<div class="output">{part._repr_html_()}</div>'


def make_report(config: StudyConfig) -> tuple[Path, list[str]]:
    """Execute the notebooks that are out of date and write the pages: the first page, and a line for each that failed.

    The report's documents, and with `report_from: records` its records, are those committed in `reports/<preset>`.

    Raises:
        StudyError: see `execute_notebooks` and `build_report`.
    """
    committed = project_path(f"reports/{config.preset}")
    output = project_path(config.report_dir or f"reports/local/{config.preset}")
    if config.report_from == "records":
        config = from_records(config, committed)
    notebooks, failed = execute_notebooks(config)
    return build_report(notebooks, output, config, committed), failed


def build_report(
    notebooks: Path, output: Path, config: StudyConfig, committed: Path | None = None, place: Path | None = None
) -> Path:
    """Render executed notebooks, and the records of the runs they show, into `output`, replacing what was there.

    Args:
        notebooks: folder of executed notebooks; their names order the pages.
        output: folder of the report: `index.html`, one page per notebook, the notebooks, the records and their curves.
        config: of the study; its preset is named at the pages' foot.
        committed: folder whose documents (`*.md`) become pages as well, but for `NOTICE.md`, which stands above each
            page, and whose records are shown if `report_from` says so; None: `output`.
        place: folder in which the report will stand, from which its links lead; None: `output`.

    Raises:
        StudyError: no executed notebook, or one that ended in an error.
    """
    committed = committed or output
    documents = sorted(committed.glob("*.md"))
    if output.exists() and not (output / RESULTS).exists() and set(output.iterdir()) > set(output.glob("*.md")):
        raise StudyError(f"{output} is not empty and holds no report: give a new folder, it would be replaced")
    files = sorted(notebooks.glob("*.ipynb"))
    if not files:
        raise StudyError(f"no executed notebook in {notebooks}: run `make report`")
    notice = committed / NOTICE
    shown = "".join(path.read_text(encoding="utf-8") for path in files)
    records = shown_records((record for stage in STAGES for record in load_records(config.runs_dir, stage)), shown)
    sessions = read_archive(committed, SESSIONS) if (committed / SESSIONS).exists() else []
    sentences, parts = first_page(config, records, [path.stem for path in files], committed)
    figure = next((part for part in parts if isinstance(part, Figure)), None)
    sources = sorted((*files, *documents), key=lambda path: (path.name != FINDINGS, path.suffix == ".md", path.name))
    pages = [read_page(path, figure) for path in sources if path.name != NOTICE]
    render = Renderer(
        place or output,
        title=f"3ML: {scale(config, records)}",
        pages=pages,
        notice=to_html(notice.read_text(encoding="utf-8")) if notice in documents else "",
        answer=sentences,
        summary="".join(map(_shown, parts)),
        provenance=_provenance(config.preset, records or sessions),
        archives=[SESSIONS] if sessions and not records else [RESULTS, CURVES],
    )
    kept = config.report_from == "records"
    beside = [path for path in sorted(committed.glob("*.jsonl")) if kept or path.name not in (RESULTS, CURVES)]
    with atomic_folder(output) as folder:
        for page in (*pages, None):
            (folder / (page.href if page else "index.html")).write_text(render(page), encoding="utf-8")
        for source in files:
            (folder / source.name).write_text(without_times(source), encoding="utf-8")
        if not kept:
            write_archive(records, config.runs_dir, folder)
        for path in (*documents, *beside):
            shutil.copyfile(path, folder / path.name)
    return output / "index.html"
