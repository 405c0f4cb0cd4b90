"""The files of a corpus that is a folder: which are read, and what is passed over and why."""

from __future__ import annotations

import collections
import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NoReturn

from threeml_core.foundation.errors import CorpusError
from threeml_core.foundation.files import explain_path

COMPRESSED = {".gz", ".xz", ".bz2", ".zst"}
FORMATS = {".txt", ".jsonl", ".parquet"}

HIDDEN = "below a name with a dot in front"
TWICE = "links to what is read already"

_MOST_KINDS = 8
"""Further extensions are counted together."""


def format_of(path: Path) -> str:
    """`.txt` of `a.txt.gz`; empty if there is no extension."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def find_texts(folder: Path, formats: Collection[str] = FORMATS) -> tuple[list[Path], dict[str, int]]:
    """The files of these formats in a folder and all folders below it, sorted; and what is passed over.

    Names with a dot in front are copies that editors and systems keep (`.ipynb_checkpoints`, `._a.txt`): neither such
    files nor anything below such folders is read. Links to folders are followed; what links lead to twice is read once;
    a text that is a link to nothing is a `CorpusError`.

    Returns:
        The files, and reason or extension -> how many files were passed over, the most frequent first.
    """
    passed_over: collections.Counter[str] = collections.Counter()
    texts: list[Path] = []
    with explain_path(folder):
        for path in _files_below(folder, passed_over):
            if format_of(path) not in formats:
                passed_over[_extension(path)] += 1
            elif path.is_file():
                texts.append(path)
            else:
                raise CorpusError(f"corpus file {path} leads to no file: remove it, or bring back what it links to")
    texts.sort(key=lambda path: (path.is_symlink(), path), reverse=True)  # rather its own name than that of a link
    names = {_key(path): path for path in texts}
    passed_over.update([TWICE] * (len(texts) - len(names)))
    kinds = passed_over.most_common()
    kept, others = kinds[:_MOST_KINDS], sum(count for _, count in kinds[_MOST_KINDS:])
    return sorted(names.values()), dict(kept) | ({"of other kinds": others} if others else {})


def _extension(path: Path) -> str:
    suffix = path.suffix.lower()
    return "".join(path.suffixes[-2:]).lower() if suffix in COMPRESSED else suffix or "without extension"


def _files_below(folder: Path, passed_over: collections.Counter[str]) -> Iterator[Path]:
    """All entries that are no folders and not hidden; one folder that may not be entered stops it."""

    def stop(error: OSError) -> NoReturn:
        raise error

    entered: set[tuple[int, int]] = set()
    todo = [folder]
    while todo:
        start = todo.pop(0)
        if _key(start) in entered:
            passed_over[TWICE] += 1
            continue
        for parent, folders, names in os.walk(start, onerror=stop):
            entered.add(_key(Path(parent)))
            hidden = [name for name in folders if name.startswith(".")]
            below = (files for name in hidden for _, _, files in os.walk(Path(parent, name)))  # links not followed
            passed_over[HIDDEN] += sum(map(len, below))
            # links come last, so that a text has the name it has without them
            shown = (Path(parent, name) for name in folders if name not in hidden)
            links = sorted(path for path in shown if path.is_symlink())
            passed_over[TWICE] += sum(_leads_up(link) for link in links)
            todo += [link for link in links if not _leads_up(link)]
            folders[:] = sorted({*folders} - {*hidden} - {link.name for link in links})
            for name in sorted(names):
                if name.startswith("."):
                    passed_over[HIDDEN] += 1
                else:
                    yield Path(parent, name)
    passed_over += collections.Counter()  # without zeros


def _leads_up(link: Path) -> bool:
    """Does a link to a folder lead to one that it lies in?"""
    return link.parent.resolve().is_relative_to(link.resolve())


def _key(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
