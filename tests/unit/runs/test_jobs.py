"""The order of jobs: what is needed goes first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.jobs import job
from threeml_core.runs.jobs import in_order


def test_what_is_needed_goes_first(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "rte", "mnli"), job(tmp_path, "cola"), job(tmp_path, "mnli"), job(tmp_path, "cola")]
    assert [j.run_id for j in in_order(jobs)] == ["mnli", "rte", "cola"], "else in the order given, each once"


def test_impossible_orders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a needs b, which is not in the list"):
        in_order([job(tmp_path, "a", "b")])
    with pytest.raises(ValueError, match="jobs need each other"):
        in_order([job(tmp_path, "a", "b"), job(tmp_path, "b", "a")])
