"""Many runs: order, skipping, failures."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from threeml_core.foundation.errors import DamagedFileError, StudyError, TrainingError
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.foundation.log import no_line
from threeml_core.foundation.processes import available_cores, is_running
from threeml_core.runs import sweep
from threeml_core.runs.engines import do
from threeml_core.runs.jobs import Job, in_order
from threeml_core.runs.record import RunRecord, describe_environment, write_record
from threeml_core.runs.sweep import run_all


def job(runs_dir: Path, name: str, *needs: str, failure: str | None = None, calls: list | None = None) -> Job:
    def work(log: object) -> RunRecord:
        if calls is not None:
            calls.append(name)
        empty: dict = {"identity": {}, "parameters": {}, "sources": {}, "flops": {}, "timing": {}, "data": {}}
        metrics = {} if failure else {"score": 0.5}
        environment = {**describe_environment(), "finished": "now"}
        record = RunRecord(
            stage="baseline", run_id=name, metrics=metrics, files={}, environment=environment, failure=failure, **empty
        )
        write_record(record, runs_dir)
        return record

    return Job("baseline", name, work, needs, name)


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
        run_all([job(tmp_path, "a"), Job("baseline", "b", broken)], tmp_path, lambda line: None)
    assert [j.is_finished(tmp_path) for j in (job(tmp_path, "a"), job(tmp_path, "b"))] == [True, False]
    (tmp_path / "baseline" / "a" / "record.json").write_text("{")
    with pytest.raises(DamagedFileError, match="record.json cannot be read"):
        run_all([job(tmp_path, "a")], tmp_path, lambda line: None)


# -- workers ----------------------------------------------------------------------------------------------------


def leave_record(runs_dir: Path, name: str, seconds: float, log: object) -> RunRecord:
    """A job that can be sent to another process; it says when, where and with how many threads it ran."""
    started = time.time()
    time.sleep(seconds)
    done = job(runs_dir, name).work(log)
    about = {"started": started, "ended": time.time(), "process": os.getpid(), "threads": os.environ["OMP_NUM_THREADS"]}
    (runs_dir / f"{name}.json").write_text(json.dumps(about))
    return done


def sent(runs_dir: Path, name: str, *needs: str, seconds: float = 0.2) -> Job:
    return Job("baseline", name, functools.partial(leave_record, runs_dir, name, seconds), needs, name)


def fail(log: object) -> RunRecord:
    raise TrainingError("no")


def die(log: object) -> RunRecord:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def test_workers_share_the_work_and_keep_the_order(tmp_path: Path) -> None:
    """Other processes, side by side, cores divided; what needs another waits for it; the second call does nothing."""
    lines: list[str] = []
    jobs = [sent(tmp_path, "rte", "mnli"), sent(tmp_path, "mnli"), sent(tmp_path, "a"), sent(tmp_path, "b")]
    before = os.environ.get("OMP_NUM_THREADS")
    records = run_all(jobs, tmp_path, lines.append, workers=2)
    assert os.environ.get("OMP_NUM_THREADS") == before
    assert list(records) == ["mnli", "rte", "a", "b"] and all(r.metrics["score"] == 0.5 for r in records.values())
    about = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in records}
    assert about["rte"]["started"] >= about["mnli"]["ended"]
    assert os.getpid() not in {a["process"] for a in about.values()}
    assert {a["threads"] for a in about.values()} == {str(max(1, available_cores() // 2))}
    assert [line.split(" ")[0] for line in lines] == ["1/4", "2/4", "3/4", "4/4"]
    written = {name: (tmp_path / f"{name}.json").stat().st_mtime_ns for name in records}
    run_all(jobs, tmp_path, lines.append, workers=2)
    assert written == {name: (tmp_path / f"{name}.json").stat().st_mtime_ns for name in records}


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


def test_an_error_in_a_worker_ends_the_study(tmp_path: Path) -> None:
    jobs = [
        sent(tmp_path, "a", seconds=0),
        Job("baseline", "b", fail),
        *(sent(tmp_path, f"c{i}", seconds=1) for i in range(8)),
    ]
    with pytest.raises(TrainingError, match="^no$"):
        run_all(jobs, tmp_path, lambda line: None, workers=2)
    assert not jobs[-1].is_finished(tmp_path)


def test_a_killed_worker_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="a worker process was killed, perhaps for want of memory"):
        run_all([Job("baseline", "a", die), sent(tmp_path, "b", seconds=2)], tmp_path, lambda line: None, workers=2)


def test_workers_do_not_outlive_the_study(tmp_path: Path) -> None:
    """Killed without a chance to clean up, a study takes its workers with it within seconds."""
    script = f"""
import pathlib
from tests.unit.runs.test_sweep import run_all, sent
if __name__ == "__main__":
    runs = pathlib.Path({str(tmp_path)!r})
    run_all([sent(runs, "quick", seconds=0), *(sent(runs, f"slow{{i}}", seconds=60) for i in range(2))], runs, print, 2)
"""
    (tmp_path / "study.py").write_text(script)
    environment = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}
    study = subprocess.Popen([sys.executable, str(tmp_path / "study.py")], env=environment)
    while not (tmp_path / "baseline" / "quick" / "record.json").exists():
        assert study.poll() is None
        time.sleep(0.2)
    children = f"/proc/{study.pid}/task/{study.pid}/children"
    if not Path(children).exists():
        study.kill()
        pytest.skip("needs /proc")
    workers = Path(children).read_text().split()
    assert len(workers) >= 2
    study.kill()
    study.wait()
    deadline = time.monotonic() + 30
    while any(is_running(int(pid)) for pid in workers) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not [pid for pid in workers if is_running(int(pid))]
    assert not (tmp_path / "baseline" / "slow0" / "record.json").exists()


def test_an_ended_process_that_is_still_listed_is_not_running() -> None:
    process = subprocess.Popen([sys.executable, "-c", "pass"])
    assert is_running(os.getpid())
    deadline = time.monotonic() + 30
    while is_running(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(process.pid), "nobody has waited for it yet"
    process.wait()
    assert not is_running(process.pid)


def test_it_says_what_is_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where, for how long, how far; in JupyterLab as a table."""
    monkeypatch.setattr(sweep, "_LINE_EVERY", 0.0)
    monkeypatch.setattr(sweep, "_LOOK_EVERY", 0.2)
    lines: list[str] = []
    run_all([sent(tmp_path, "a", seconds=2), sent(tmp_path, "b", "a")], tmp_path, lines.append, workers=2)
    assert any(re.fullmatch(r"0 ended, 1 running, 1 waiting; a on \S+ \d s", line) for line in lines), lines
    assert not list((tmp_path / "running").iterdir())
    shown: list[str] = []
    handle = SimpleNamespace(update=lambda page: shown.append(page.data))
    monkeypatch.setenv("JPY_SESSION_NAME", "x")
    monkeypatch.setattr("IPython.display.display", lambda *a, **k: handle)
    run_all([sent(tmp_path, "c", seconds=2), sent(tmp_path, "d", seconds=0)], tmp_path, lines.append, workers=2)
    assert any("1 running" in page and "<td>c</td><td>on " in page for page in shown)
    assert "<caption>2 ended, 0 running, 0 waiting" in shown[-1]


# -- what follows from a run ------------------------------------------------------------------------------------


def followed(runs_dir: Path, name: str, *then: Job, planned: list | None = None) -> Job:
    """A job from which others follow; `planned` notes that they were asked for."""

    def follow(record: RunRecord) -> list[Job]:
        if planned is not None:
            planned.append(record.run_id)
        return list(then)

    return Job("baseline", name, functools.partial(leave_record, runs_dir, name, 0.2), (), name, then=follow)


@pytest.mark.parametrize("workers", [1, 2])
def test_jobs_follow_from_others(workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fine-tunings are planned when their encoder is there, not when all are; the next call finds all of them."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    lines: list[str] = []
    slow = Job(
        "baseline", "slow", functools.partial(leave_record, tmp_path, "slow", 3.0 if workers > 1 else 0.0), (), "slow"
    )
    tuned = [sent(tmp_path, "mnli"), sent(tmp_path, "rte", "mnli")]
    jobs = [slow, followed(tmp_path, "encoder", *tuned)]
    records = run_all(jobs, tmp_path, lines.append, workers)
    assert list(records) == ["slow", "encoder", "mnli", "rte"]
    about = {name: json.loads((tmp_path / f"{name}.json").read_text()) for name in records}
    assert about["encoder"]["ended"] <= about["mnli"]["started"] <= about["rte"]["started"]
    if workers > 1:
        assert about["rte"]["ended"] < about["slow"]["ended"], "the other worker did not wait for the slow one"
    assert lines[-1].startswith("4/4 ")
    lines.clear()
    planned: list[str] = []
    again = run_all([slow, followed(tmp_path, "encoder", *tuned, planned=planned)], tmp_path, lines.append, workers)
    assert list(again) == list(records) and planned == ["encoder"]
    assert lines == ["4 of 4 runs are finished; their records are read"]


def test_a_run_that_is_another_one_here(tmp_path: Path) -> None:
    """Planned on a host with a GPU, done on one without: the record would stand under another name."""
    wrong = Job("baseline", "planned", sent(tmp_path, "other", seconds=0).work)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with pytest.raises(StudyError, match="planned as planned, this run is other on .*another kind of device"):
        run_all([wrong], tmp_path, lambda line: None)
