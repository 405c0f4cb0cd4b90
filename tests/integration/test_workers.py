"""Jobs in worker processes: shared, in order, killed, never outliving the study."""

from __future__ import annotations

import functools
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.jobs import die, fail, leave_record, sent
from threeml_core.foundation.errors import TrainingError
from threeml_core.foundation.files import PROJECT_ROOT
from threeml_core.foundation.processes import available_cores, is_running
from threeml_core.runs import sweep
from threeml_core.runs.jobs import Job
from threeml_core.runs.record import RunRecord
from threeml_core.runs.sweep import run_all


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
from tests.jobs import sent
from threeml_core.runs.sweep import run_all
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
