"""Many runs: what is finished is skipped, what another run needs goes first, what fails is recorded and counted."""

from __future__ import annotations

import html
import json
import os
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from threeml_core.config import StudyConfig
from threeml_core.foundation.log import Log
from threeml_core.runs.engines import Engine, Inline, running_file, worker_pool
from threeml_core.runs.jobs import Job, Plan
from threeml_core.runs.record import RunRecord, read_metrics, run_folder

_LINE_EVERY = 60.0  # seconds between lines about a study that is waiting for its runs
_LOOK_EVERY = 5.0  # seconds between looks at the runs


def run_all(
    jobs: Sequence[Job],
    runs_dir: str | Path,
    log: Log,
    workers: int = 1,
    engine: str = "inline",
    ray_address: str | None = None,
    ray_max_retries: int = 3,
) -> dict[str, RunRecord]:
    """Do what is missing and return the records of all, of jobs that followed from others (`Job.then`) too.

    A job that was killed starts again; one that ended in a recorded failure is finished, as it would fail again.
    A job starts as soon as all it needs is finished and there is room for it.

    Args:
        jobs: the study; a job given twice is one job.
        runs_dir: folder of all run folders; on Ray all hosts must see it under this name.
        log: takes a line for each run, and now and then one about all.
        workers: of `inline`: processes at once, among which the cores are divided; 1: all in this process, with its
            progress lines. Small models keep two cores busier as two processes of one thread than as one of two.
        engine: `inline` or `ray`.
        ray_address: of a running cluster; None: Ray is started on this host.
        ray_max_retries: how often a run is started again on another worker if its own is lost.

    Raises:
        StudyError: bad input or a damaged run, or a worker was lost; what was finished before stays.
    """
    plan = Plan(jobs, runs_dir)
    if plan.records:
        log(f"{len(plan.records)} of {len(plan.jobs)} runs are finished; their records are read")
    if not plan.waiting:
        return plan.finished()
    single = len(plan.waiting) == 1 and plan.waiting[0].then is None
    ended = 0
    with _open(engine, 1 if single else workers, runs_dir, log, ray_address, ray_max_retries) as at_work:
        progress = _Progress(runs_dir, log)
        while plan.waiting or at_work.jobs:
            for job in plan.take_ready():
                at_work.submit(job)
            progress.show(at_work.jobs, len(plan.waiting), ended)
            done = at_work.ended(_LOOK_EVERY)
            for left, (job, record, seconds) in zip(range(len(done) - 1, -1, -1), done, strict=True):
                plan.finish(job, record)
                ended += 1
                said = f"score {record.metrics['score']:.3f}" if "score" in record.metrics else "done"
                said = f"failed: {record.failure}" if record.failure else said
                total = ended + left + len(at_work.jobs) + len(plan.waiting)
                log(f"{ended}/{total} {job.title or job.run_id}: {said} ({seconds:.1f} s)")
        progress.show([], 0, ended)
    return plan.finished()


def run_jobs(jobs: Sequence[Job], config: StudyConfig, log: Log, workers: int = 1) -> dict[str, RunRecord]:
    """`run_all` with the engine that `config` names."""
    return run_all(jobs, config.runs_dir, log, workers, config.engine, config.ray_address, config.ray_max_retries)


def _open(
    engine: str, count: int, runs_dir: str | Path, log: Log, ray_address: str | None, ray_max_retries: int
) -> AbstractContextManager[Engine]:
    if engine == "ray":
        from threeml_core.runs.ray_engine import ray_cluster

        return ray_cluster(runs_dir, log, ray_address, ray_max_retries)
    return worker_pool(count, runs_dir) if count > 1 else nullcontext(Inline(runs_dir, log))


class _Progress:
    """Which runs are being done, where and how far: a table in JupyterLab, a line now and then elsewhere."""

    def __init__(self, runs_dir: str | Path, log: Log) -> None:
        self.runs_dir, self.log = runs_dir, log
        self._said = time.monotonic()
        self._table: Any = None
        if "JPY_SESSION_NAME" in os.environ:  # set by a Jupyter server, not by papermill or nbval
            from IPython.display import HTML, display

            self._table = display(HTML(""), display_id=True)

    def show(self, jobs: Sequence[Job], waiting: int, ended: int) -> None:
        """Say what is going on, if it is time to; `jobs` are handed out and not ended, others wait or have ended."""
        if self._table is None and time.monotonic() < self._said + _LINE_EVERY:
            return
        self._said = time.monotonic()
        rows = list(filter(None, map(self._row, jobs)))
        counts = f"{ended} ended, {len(rows)} running, {len(jobs) - len(rows) + waiting} waiting"
        if self._table is not None:
            from IPython.display import HTML

            cells = ("".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in rows)
            body = "".join(f"<tr>{row}</tr>" for row in cells)
            self._table.update(HTML(f"<table><caption>{counts}</caption><tbody>{body}</tbody></table>"))
        elif jobs:
            self.log("; ".join([counts, *(" ".join(filter(None, row)) for row in rows[:4])]))

    def _row(self, job: Job) -> tuple[str, str, str, str] | None:
        """(run, where, for how long, how far) of a job that is being done."""
        try:
            about = json.loads(running_file(self.runs_dir, job.stage, job.run_id).read_text(encoding="utf-8"))
        except (OSError, ValueError):  # waits for a worker, or has just ended
            return None
        lines = read_metrics(run_folder(self.runs_dir, job.stage, job.run_id) / "metrics.jsonl")
        far = f"step {lines[-1]['step']}" if lines else ""
        return job.run_id, f"on {about['host']}", f"{max(0.0, time.time() - about['started']):.0f} s", far
