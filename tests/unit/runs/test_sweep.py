"""A study's runs: what is finished is not repeated, what follows comes, what is running is said."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from tests.jobs import job, sent
from threeml_core.foundation.errors import DamagedFileError, StudyError, TrainingError
from threeml_core.foundation.log import no_line
from threeml_core.runs import sweep
from threeml_core.runs.engines import do
from threeml_core.runs.jobs import Job
from threeml_core.runs.record import RunRecord
from threeml_core.runs.sweep import run_all


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
        run_all([job(tmp_path, "a"), Job("baseline", "b", broken)], tmp_path, lambda line: None)
    assert [j.is_finished(tmp_path) for j in (job(tmp_path, "a"), job(tmp_path, "b"))] == [True, False]
    (tmp_path / "baseline" / "a" / "record.json").write_text("{")
    with pytest.raises(DamagedFileError, match="record.json cannot be read"):
        run_all([job(tmp_path, "a")], tmp_path, lambda line: None)


def test_jobs_that_end_together_are_counted_as_one_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Together:
        """Does all that it was given at once."""

        def __init__(self) -> None:
            self.jobs: list[Job] = []

        def __len__(self) -> int:
            return len(self.jobs)

        def submit(self, job: Job) -> None:
            self.jobs.append(job)

        def ended(self, timeout: float) -> list[tuple[Job, RunRecord, float]]:
            done = [(job, *do(job, tmp_path, no_line)) for job in self.jobs]
            self.jobs.clear()
            return done

    monkeypatch.setattr(sweep, "_open", lambda *given: contextlib.nullcontext(Together()))
    lines: list[str] = []
    run_all([sent(tmp_path, name, seconds=0) for name in "abc"], tmp_path, lines.append)
    assert [line.split(" ")[0] for line in lines] == ["1/3", "2/3", "3/3"]


def test_a_run_that_is_another_one_here(tmp_path: Path) -> None:
    """Planned on a host with a GPU, done on one without: the record would stand under another name."""
    wrong = Job("baseline", "planned", sent(tmp_path, "other", seconds=0).work)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with pytest.raises(StudyError, match="planned as planned, this run is other on .*another kind of device"):
        run_all([wrong], tmp_path, lambda line: None)
