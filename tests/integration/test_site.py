"""The site of `make site`: every link ends in it, no page asks a host, the API is whole; and its workflow.

What needs the built site is skipped where its tools are not: `make site` installs them.
"""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import tomllib
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from packaging.requirements import Requirement

from threeml_core.foundation.files import PROJECT_ROOT

PYTHON = PROJECT_ROOT / "build" / "site-venv" / "bin" / "python"
SCRIPT = PROJECT_ROOT / "scripts" / "build_site.py"
REPORTS = [page for page in (PROJECT_ROOT / "reports").glob("*/*.html") if page.parent.name != "local"]


@dataclass
class Page(HTMLParser):
    """What a page links to, what it loads, and its anchors."""

    text: str
    links: list[str] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    anchors: set[str] = field(default_factory=set)
    policies: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policies.append(given["content"])
        if tag == "a":
            self.links += [given["href"]] if "href" in given else []
        else:
            self.loads += [given[name] for name in ("src", "srcset", "href", "data", "poster") if name in given]


@pytest.fixture(scope="module")
def site() -> Path:
    """The folder of the site, built now."""
    if not PYTHON.with_name("zensical").is_file():
        pytest.skip("the tools of the site are not installed; `make site` does it")
    done = subprocess.run([PYTHON, SCRIPT], capture_output=True, text=True, cwd=PROJECT_ROOT)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "No issues found" in done.stderr
    return PROJECT_ROOT / "build" / "site"


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Page]:
    """Every page but 404.html, whose links begin at the address where the site will stand."""
    found = (page for page in site.rglob("*.html") if page.name != "404.html")
    return {page: Page(page.read_text(encoding="utf-8")) for page in found}


def faults(pages: dict[Path, Page]) -> list[str]:
    """Links into the site that lead to no file, or to no anchor of a page."""
    wrong = []
    for page, content in pages.items():
        for link in content.links + content.loads:
            parts = urlsplit(link)
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            anchor = unquote(parts.fragment)
            if parts.scheme or parts.netloc:
                continue
            if not target.is_file() or (anchor and target in pages and anchor not in pages[target].anchors):
                wrong.append(f"{page.name}: {link}")
    return wrong


def test_every_link_into_the_site_ends_there(pages: dict[Path, Page]) -> None:
    assert len(pages) > 200 and sum(len(page.links) for page in pages.values()) > 5000
    assert faults(pages) == []


def test_a_broken_link_would_be_seen(tmp_path: Path) -> None:
    links = ("page.html", "page.html#here", "page.html#nowhere", "none.html", "https://a.host/x", "#here")
    text = '<h1 id="here">x</h1>' + "".join(f'<a href="{link}">x</a>' for link in links)
    (tmp_path / "page.html").write_text(text)
    assert faults({tmp_path / "page.html": Page(text)}) == ["page.html: page.html#nowhere", "page.html: none.html"]


def test_no_page_asks_a_host(site: Path, pages: dict[Path, Page]) -> None:
    """Nothing that is loaded has a host; what a script could ask for is forbidden by the page's policy."""
    for path, page in pages.items():
        assert not [load for load in page.loads if urlsplit(load).netloc], path
        of_report = path.relative_to(site).parts[0] == "reports"
        first = "default-src 'none'; img-src data:;" if of_report else "default-src 'self' 'unsafe-inline' data: blob:"
        assert len(page.policies) == 1 and page.policies[0].startswith(first), path
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(https?:)?//", sheet.read_text(encoding="utf-8")), sheet


def test_the_search_index_knows_functions_and_reports(site: Path) -> None:
    items = json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]
    (found,) = (item for item in items if item["title"] == "cross_block_flops")
    assert found["location"] == "api/threeml_core/flops.html#threeml_core.flops.cross_block_flops"
    assert any("unigram" in item["text"] for item in items if item["location"].startswith("docs/"))
    assert {item["title"] for item in items if item["location"].startswith("reports.html#")} >= {"small", "tiny"}
    assert not [item for item in items if item["location"].startswith("source/")]


def test_every_module_has_its_page(site: Path, pages: dict[Path, Page]) -> None:
    for module in (PROJECT_ROOT / "threeml_core").rglob("*.py"):
        path = module.relative_to(PROJECT_ROOT).with_suffix("")
        path = path.with_name("index") if path.name == "__init__" else path
        name = ".".join(path.parts).removesuffix(".index")
        assert name in pages[site / "api" / f"{path}.html"].anchors, name


def test_reports_are_what_was_committed(site: Path) -> None:
    """Pages are as they are but for links to Markdown files, records and notebooks to the byte."""
    for page in REPORTS:
        copy = (site / page.relative_to(PROJECT_ROOT)).read_text(encoding="utf-8")
        kept = [re.sub(r'href="[^"#]*\.(md|html)', 'href="', text) for text in (copy, page.read_text(encoding="utf-8"))]
        assert kept[0] == kept[1], page
    for file in (*PROJECT_ROOT.glob("reports/small/*.jsonl"), *PROJECT_ROOT.glob("notebooks/*.ipynb")):
        assert (site / file.relative_to(PROJECT_ROOT)).read_bytes() == file.read_bytes()


def test_the_landing_page_is_the_readme(site: Path) -> None:
    landing = (site / "index.html").read_text(encoding="utf-8")
    headings = re.findall(r"^##? (.*)$", (PROJECT_ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(headings) > 5 and all(f">{heading}<" in landing for heading in headings)


@pytest.fixture(scope="module")
def build_site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_site", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_link_to_nothing_is_refused(build_site: ModuleType) -> None:
    with pytest.raises(SystemExit, match=r"^docs/study.md: the link to none.md leads to no file .*; mend it$"):
        build_site.moved("none.md", Path("docs/study.md"), Path("docs/study.md"))


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("[`a`](docs/a.md#b)", "docs/a.md"),
        ("`[a](b.md)`", None),
        ("```\n[a](b.md)\n```", None),
        ("[a](https://b)", None),
    ],
)
def test_links_are_told_from_code(build_site: ModuleType, text: str, link: str | None) -> None:
    assert [found[1] for found in build_site.MARKDOWN_LINK.finditer(text) if found[1]] == ([link] if link else [])


def test_the_tools_are_pinned_inside_their_ranges() -> None:
    project = tomllib.loads((PROJECT_ROOT / "pyproject.toml").read_text())
    pins = dict(re.findall(r"^([\w.-]+)==(.*)$", (PROJECT_ROOT / "constraints.txt").read_text(), re.MULTILINE))
    pins = {name.lower(): version for name, version in pins.items()}
    for line in project["dependency-groups"]["site"]:
        assert pins[Requirement(line).name] in Requirement(line).specifier, line


def test_the_workflow_publishes_what_make_builds() -> None:
    """Pushes to main alone, least rights, actions by major version, no secret, and no command but `make site`."""
    text = (PROJECT_ROOT / ".github" / "workflows" / "site.yml").read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow[True] == {"push": {"branches": ["main"]}, "workflow_dispatch": None}  # `on` is true in YAML 1.1
    build, deploy = (workflow["jobs"][name] for name in ("build", "deploy"))
    assert workflow["permissions"] == {} and "secrets" not in text
    assert build["permissions"] == {"contents": "read", "pages": "read"}
    assert deploy["permissions"] == {"pages": "write", "id-token": "write"}
    steps = build["steps"] + deploy["steps"]
    assert all(re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"]) for step in steps if "uses" in step)
    assert [step["run"] for step in steps if "run" in step] == ["make site"]
    assert re.search(r"^site: ", (PROJECT_ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [step["with"]["path"] for step in steps if "upload" in step.get("uses", "")] == ["build/site"]
