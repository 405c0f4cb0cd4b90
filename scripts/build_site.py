"""The site in build/site: README, docs, API reference and committed reports as static pages. `make site` runs it.

Pages are laid out in build/site-pages first: README as the landing page, a page per module of the package, the reports
and notebooks, and every other file that a page links to, so that each link of the repository ends inside the site.
`SITE_URL` and `REPOSITORY_URL`, if they are set, say where the site will stand and where its sources do.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
PAGES = BUILD / "site-pages"
SOURCES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/*.md")
COPIED = ("reports", "notebooks", "docs")
"""Folders whose files a page may show or give to download."""
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".cff": "yaml"}
# code, which is left as it is, or a link to a file and its anchor
MARKDOWN_LINK = re.compile(r"```.*?```|`[^`\n]*`|\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)", re.DOTALL)
HTML_LINK = re.compile(r'<a\b[^>]*?\bhref="(?![a-z]+:|#)([^"#]+)')


def write(page: Path, text: str) -> None:
    """Write a page, named by its path below the folder of pages."""
    (PAGES / page).parent.mkdir(parents=True, exist_ok=True)
    (PAGES / page).write_text(text, encoding="utf-8")


def page_of(source: Path) -> Path:
    """The page that a Markdown file of the repository becomes."""
    return Path("index.md") if source == Path("README.md") else source


def destination(file: Path) -> Path:
    """Where a link to a file of the repository leads in the site. Code gets a page that shows it."""
    if file == Path("reports/FINDINGS.md"):
        return Path("reports/index.html")
    if file.suffix == ".md":  # of a report's Markdown files the report has pages
        return file.with_name(f"{file.stem.lower()}.html") if file.parts[0] == "reports" else page_of(file)
    if file.parts[0] in COPIED:
        return file
    page = Path("source", f"{file}.md".lstrip("."))  # hidden folders would be left out
    code = f'````{LANGUAGES.get(file.suffix, "text")} linenums="1"\n{(ROOT / file).read_text(encoding="utf-8")}\n````'
    write(page, f"---\nsearch: {{exclude: true}}\n---\n\n# {file}\n\n{code}\n")
    return page


def moved(link: str, source: Path, page: Path) -> str:
    """A link of a file of the repository as it has to be on its page.

    Raises:
        SystemExit: There is no such file.
    """
    file = Path(os.path.normpath(source.parent / link))
    if not (ROOT / file).is_file():
        sys.exit(f"{source}: the link to {link} leads to no file of the repository; mend it")
    return os.path.relpath(destination(file), page.parent)


def lay_out(source: Path) -> None:
    """Write the page of a Markdown file."""

    def relinked(found: re.Match[str]) -> str:
        return f"]({moved(found[1], source, page_of(source))}{found[2] or ''})" if found[1] else found[0]

    write(page_of(source), MARKDOWN_LINK.sub(relinked, (ROOT / source).read_text(encoding="utf-8")))


def lay_out_report(source: Path) -> None:
    """Write a report's page: as it is, but for links to Markdown files."""

    def relinked(found: re.Match[str]) -> str:
        target = moved(found[1], source, source)
        page = re.sub(r"\.md$", ".html", target)
        return found[0].removesuffix(found[1]) + page

    write(source, HTML_LINK.sub(relinked, (ROOT / source).read_text(encoding="utf-8")))


def reports_page() -> str:
    """The committed reports, each with the first sentence of its first page."""
    parts = ["# Reports\n", "[What the study found](reports/index.html), with both encoders. Then each report:\n"]
    for index in sorted((PAGES / "reports").glob("*/index.html")):
        text = index.read_text(encoding="utf-8")
        title, finding = re.search(r"<h1[^>]*>(.*?)</h1>\s*<p>(.*?)</p>", text, re.DOTALL).groups()  # type: ignore[union-attr]
        parts.append(f"## {index.parent.name}\n\n[{title}](reports/{index.parent.name}/index.html)\n\n{finding}\n")
    return "\n".join(parts)


def summary(module: Path) -> str:
    """The first line of a module's docstring; a package is its folder."""
    file = module / "__init__.py" if module.is_dir() else module
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or "").partition("\n")[0]


def reference(module: Path) -> list | str:
    """Write the pages of a module, or of a package and all that it holds; their place in the navigation."""
    path = module.relative_to(ROOT).with_suffix("")
    name, page = ".".join(path.parts), Path("api", path)
    if module.is_file():
        write(page.with_suffix(".md"), f"::: {name}\n")
        return f"{page}.md"
    inside = [m for m in sorted(module.iterdir()) if (m / "__init__.py").is_file() or m.suffix == ".py"]
    inside = [m for m in inside if m.name != "__init__.py"]
    rows = (f"| [`{m.stem}`]({m.stem}{'/index' if m.is_dir() else ''}.md) | {summary(m)} |\n" for m in inside)
    write(page / "index.md", f"::: {name}\n\n| Module | What is in it |\n|---|---|\n{''.join(rows)}")
    return [f"{page}/index.md", *({m.stem: reference(m)} for m in inside)]


def configuration() -> dict:
    """What mkdocs.yml says, with the modules of the API in its navigation and the addresses that are known."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    next(entry for entry in config["nav"] if "API" in entry)["API"] = reference(ROOT / "threeml_core")
    if address := os.environ.get("SITE_URL"):
        config["site_url"] = address
    if repository := os.environ.get("REPOSITORY_URL"):  # not `repo_url`: that asks the host for its stars
        config["extra"]["social"] = [{"icon": "material/source-repository", "link": repository, "name": "Repository"}]
    return config


def main() -> None:
    """Lay the pages out and build the site."""
    for folder in (PAGES, BUILD / "site"):
        shutil.rmtree(folder, ignore_errors=True)
    for folder in COPIED:
        ignored = shutil.ignore_patterns("local", "*.md", ".*")
        shutil.copytree(ROOT / folder, PAGES / folder, ignore=ignored)
    for page in (PAGES / "reports").rglob("*.html"):
        lay_out_report(page.relative_to(PAGES))
    for source in (file for pattern in SOURCES for file in ROOT.glob(pattern)):
        lay_out(source.relative_to(ROOT))
    write(Path("reports.md"), reports_page())
    completed = BUILD / "mkdocs.yml"
    completed.write_text(yaml.safe_dump(configuration(), sort_keys=False), encoding="utf-8")
    zensical = Path(sys.executable).with_name("zensical")
    if status := subprocess.call([zensical, "build", "--clean", "--strict", "--config-file", completed]):
        sys.exit(status)
    print("build/site/index.html is the site. Its search needs a server: python -m http.server -d build/site")


if __name__ == "__main__":
    main()
