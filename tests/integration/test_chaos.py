"""Kills at random moments; `make chaos` does more of them."""

from __future__ import annotations

from pathlib import Path

from tests.chaos import chaos


def test_killed_runs_end_as_an_undisturbed_one(corpus_file: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    struck = chaos(8, seed=3, folder=tmp_path, text=corpus_file, log=lines.append)
    assert struck.total() >= 8 and len(struck) > 1, "in more than one place"
    assert sum("ended as the undisturbed one" in line for line in lines) >= 1
