"""Many runs: order, skipping, failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from threeml_core.errors import DamagedFileError, TrainingError
from threeml_core.results import RunRecord, describe_environment, write_record
from threeml_core.sweep import Job, in_order, run_all


def job(runs_dir: Path, name: str, *needs: str, failure: str | None = None, calls: list | None = None) -> Job:
    def work(log: object) -> RunRecord:
        if calls is not None:
            calls.append(name)
        empty: dict = {"identity": {}, "parameters": {}, "sources": {}, "flops": {}, "timing": {}, "data": {}}
        metrics = {} if failure else {"score": 0.5}
        environment = {**describe_environment(), "finished": "now"}
        record = RunRecord(
            stage="s", run_id=name, metrics=metrics, files={}, environment=environment, failure=failure, **empty
        )
        write_record(record, runs_dir)
        return record

    return Job("s", name, work, needs, name)


def test_what_is_needed_goes_first(tmp_path: Path) -> None:
    jobs = [job(tmp_path, "rte", "mnli"), job(tmp_path, "cola"), job(tmp_path, "mnli"), job(tmp_path, "cola")]
    assert [j.run_id for j in in_order(jobs)] == ["mnli", "rte", "cola"], "else in the order given, each once"


def test_impossible_orders(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a needs b, which is not in the list"):
        in_order([job(tmp_path, "a", "b")])
    with pytest.raises(ValueError, match="jobs need each other"):
        in_order([job(tmp_path, "a", "b"), job(tmp_path, "b", "a")])


def test_finished_and_failed_runs_are_not_repeated(tmp_path: Path) -> None:
    calls: list[str] = []
    lines: list[str] = []
    jobs = [job(tmp_path, "a", calls=calls), job(tmp_path, "b", failure="it diverged", calls=calls)]
    records = run_all(jobs[:1], tmp_path, lines.append)
    assert [j.is_finished(tmp_path) for j in jobs] == [True, False]
    records = run_all(jobs, tmp_path, lines.append)
    records = run_all(jobs, tmp_path, lines.append)
    assert calls == ["a", "b"] and records["b"].failure == "it diverged" and records["a"].failure is None
    assert "1/1 b: failed: it diverged" in "\n".join(lines) and "2 of 2 runs are finished" in lines[-1]


def test_an_error_keeps_what_was_done(tmp_path: Path) -> None:
    def broken(log: object) -> RunRecord:
        raise TrainingError("no")

    with pytest.raises(TrainingError):
        run_all([job(tmp_path, "a"), Job("s", "b", broken)], tmp_path, lambda line: None)
    assert [j.is_finished(tmp_path) for j in (job(tmp_path, "a"), job(tmp_path, "b"))] == [True, False]
    (tmp_path / "s" / "a" / "record.json").write_text("{")
    with pytest.raises(DamagedFileError, match="record.json cannot be read"):
        run_all([job(tmp_path, "a")], tmp_path, lambda line: None)
