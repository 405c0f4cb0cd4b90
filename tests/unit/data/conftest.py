"""A folder of texts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """60 documents, and all that lies about in such folders."""
    folder = tmp_path / "texts"
    (folder / "more").mkdir(parents=True)
    for i in range(60):
        text = f"Document {i} says {i * 7919}, and goes on for a while about the cat, the dog and the garden.\n" * 3
        (folder / ("more" if i % 2 else "") / f"{i:02}.txt").write_text(text)
    for copies in (folder / ".ipynb_checkpoints", folder / "more" / ".ipynb_checkpoints"):
        shutil.copytree(folder / "more", copies)
    (folder / "._00.txt").write_text("a Macintosh's own\n")
    (folder / "README.md").write_text("no text to train on\n")
    (folder / "notes.tar.gz").write_bytes(b"")
    (folder / "LICENSE").write_text("none\n")
    return folder
