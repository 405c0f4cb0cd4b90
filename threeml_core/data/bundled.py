"""The bundled corpus: the English Wikipedia sample inside the gensim wheel. Real text, no download.

106 articles by Wikipedia's contributors, CC BY-SA. `gensim.scripts.segment_wiki` splits and strips most of the
markup; what it leaves (bold and italic marks, list items, table rows, image lines, empty brackets) goes here.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
from importlib import metadata
from pathlib import Path

from threeml_core.foundation.errors import CorpusError

_FILE = "gensim/test/test_data/enwiki-latest-pages-articles1.xml-p000000010p000030302-shortened.bz2"
_NOT_PROSE = re.compile(
    "references|external links|see also|further reading|notes|bibliography|footnotes|sources|notes and references|"
    "citations|filmography|discography"
)
_QUOTE_MARKS = re.compile(r"'{2,}")
_EMPTY_BRACKETS = re.compile(r"\(\s*[,;:.\s]*\)|\[\s*\]")
_BRACKET_START = re.compile(r"\(\s*(?:[,;:]\s*)+")
_SPACE_BEFORE = re.compile(r"\s+([,.;:!?)])")
_SPACES = re.compile(r"\s+")


def bundled_file() -> Path:
    """Where the sample lies; a `CorpusError` if gensim is not installed or lacks it."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        path = Path(str(metadata.distribution("gensim").locate_file(_FILE)))
        if path.is_file():
            return path
    raise CorpusError(
        "corpus 'bundled' is the Wikipedia sample inside the gensim wheel, which is not installed here: "
        "`pip install gensim`, or set corpus to a file, a folder or a prepared folder"
    )


def clean_line(line: str) -> str:
    """A line of a section without its remaining markup; empty if it is not prose."""
    line = line.strip()
    if line[:1] in "*#:;|!{}=<[" or "|" in line or line.startswith(("File:", "Image:")):
        return ""
    line = _QUOTE_MARKS.sub("", line)
    line = _BRACKET_START.sub("(", _EMPTY_BRACKETS.sub("", line))
    line = _SPACES.sub(" ", _SPACE_BEFORE.sub(r"\1", line)).strip()
    # captions, column heads and what is left of formulas are short or end without a full stop
    return line if len(line) >= 40 and line[-1] in ".!?\"')" else ""


@functools.cache
def bundled_articles() -> tuple[tuple[str, str], ...]:
    """Title and text of each article: a paragraph a line, in the order of the dump. Kept: 2.5 MB, 5 s to parse."""
    from gensim.scripts.segment_wiki import extract_page_xmls, segment
    from gensim.utils import open as gensim_open

    logging.getLogger("gensim").setLevel(logging.WARNING)
    articles = []
    with gensim_open(str(bundled_file()), "rb") as handle:
        for title, sections in map(segment, extract_page_xmls(handle)):
            if not sections or sections[0][1].lstrip().lower().startswith("#redirect"):
                continue
            bodies = (body for heading, body in sections if not _NOT_PROSE.fullmatch(heading.lower()))
            lines = (clean_line(line) for body in bodies for line in body.split("\n"))
            if text := "\n".join(filter(None, lines)):
                articles.append((title, text))
    return tuple(articles)
