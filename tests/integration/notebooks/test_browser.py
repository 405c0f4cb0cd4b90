"""The report in a real browser: nothing on the console, no request, no overflow; desktop and phone, light and dark.

Skipped where there is no Chromium. The screenshots stay in pytest's temporary folder.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from threeml_core.foundation.files import PROJECT_ROOT

PAGES = sorted((PROJECT_ROOT / "reports" / "tiny").glob("*.html"))
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

# the pages have no script; this one is added to a copy and tells the frame around it what it measured
PROBE = """<script>
addEventListener("load", () => {
  const root = document.documentElement, wide = root.clientWidth + 1;
  const scrolls = (e) => e && (/auto|scroll/.test(getComputedStyle(e).overflowX) || scrolls(e.parentElement));
  const found = {
    width: root.clientWidth,
    overflow: root.scrollWidth - root.clientWidth,
    outside: [...document.querySelectorAll("main *")]
      .filter((e) => e.getBoundingClientRect().right > wide && !scrolls(e) && !e.closest("svg"))
      .map((e) => e.tagName).slice(0, 5),
    unseen: [...document.querySelectorAll("svg")]
      .filter((e) => !e.closest("details") && e.getBoundingClientRect().width < 50).length,
    ink: getComputedStyle(document.body).color,
    paper: getComputedStyle(document.body).backgroundColor,
    requests: performance.getEntriesByType("resource").map((e) => e.name),
    broken: [...document.images].filter((e) => !e.naturalWidth).map((e) => e.src),
  };
  parent.postMessage(JSON.stringify(found), "*");
});
</script></body>"""

# a frame, as a window of this browser has at least 500 pixels
FRAME = """<body style="margin: 0"><iframe src="{page}" style="width: {width}px; height: 900px; border: 0"></iframe>
<pre id="probe"></pre>
<script>addEventListener("message", (e) => (document.getElementById("probe").textContent = e.data));</script></body>"""


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages with the probe in them."""
    folder = tmp_path_factory.mktemp("report")
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("</body>") == 1
        (folder / page.name).write_text(text.replace("</body>", PROBE), encoding="utf-8")
    return folder


def browse(page: Path, width: int, dark: bool, profile: Path) -> tuple[dict, list[str]]:
    """What the probe measured, and the lines that the page left on the console; a screenshot beside the page."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    shot = page.with_name(f"{page.stem}-{width}-{'dark' if dark else 'light'}.png")
    frame = shot.with_suffix(".html")
    frame.write_text(FRAME.format(page=page.name, width=width), encoding="utf-8")
    common = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
    common += ["--disable-background-networking", f"--user-data-dir={profile}", "--window-size=1300,900"]
    common += [f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--enable-logging=stderr"]
    dumped = subprocess.run([*common, "--dump-dom", frame.as_uri()], capture_output=True, text=True, timeout=120)
    subprocess.run([*common, f"--screenshot={shot}", frame.as_uri()], capture_output=True, timeout=120)
    assert shot.is_file()
    (found,) = re.findall(r'<pre id="probe">(.*?)</pre>', dumped.stdout)
    console = [line for line in dumped.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(found.replace("&gt;", ">").replace("&lt;", "<").replace("&amp;", "&")), console


def lightness(color: str) -> float:
    return sum(map(float, re.findall(r"[\d.]+", color)[:3])) / 765


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_page_in_a_browser(page: Path, copies: Path, tmp_path: Path) -> None:
    for width, dark in ((1200, False), (400, True)):
        found, console = browse(copies / page.name, width, dark, tmp_path / "profile")
        assert console == []
        assert found["requests"] == found["broken"] == []
        assert found["width"] == width and found["overflow"] <= 0 and found["outside"] == []
        assert found["unseen"] == 0
        ink, paper = lightness(found["ink"]), lightness(found["paper"])
        assert (ink > 0.7 and paper < 0.3) if dark else (ink < 0.3 and paper > 0.7)


def test_the_probe_would_notice(copies: Path, tmp_path: Path) -> None:
    """A page that is too wide, loads something and throws is caught."""
    text = (copies / "index.html").read_text(encoding="utf-8")
    bad = '<main><p style="width: 3000px">wide</p><img src="missing.png"><script>undefined_name()</script>'
    assert re.search(r"<main[^>]*>", text)
    (copies / "bad.html").write_text(re.sub(r"<main[^>]*>", bad, text, count=1), encoding="utf-8")
    found, console = browse(copies / "bad.html", 1200, False, tmp_path / "profile")
    assert found["overflow"] > 1000 and "P" in found["outside"]
    assert found["broken"][0].endswith("missing.png")
    assert any("undefined_name" in line for line in console)
