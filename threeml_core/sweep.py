"""Many runs: what is finished is skipped, what another run needs goes first, what fails is recorded and counted."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from threeml_core.log import Log
from threeml_core.results import RunRecord, read_record, run_folder


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of a study.

    Attributes:
        stage: folder below `runs_dir`, such as `finetune`.
        run_id: folder of the run.
        work: does it and returns its record; picklable, so that an engine can send it elsewhere.
        needs: run ids that must be finished before.
        title: a few words for the log.
    """

    stage: str
    run_id: str
    work: Callable[[Log], RunRecord]
    needs: tuple[str, ...] = ()
    title: str = ""

    def is_finished(self, runs_dir: str | Path) -> bool:
        """Has it left its record?"""
        return (run_folder(runs_dir, self.stage, self.run_id) / "record.json").exists()


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """Each job once, in the order given, but behind all it needs.

    Raises:
        ValueError: jobs need each other, or one that is not there.
    """
    by_id = {job.run_id: job for job in jobs}
    ordered: dict[str, Job] = {}

    def visit(job: Job, path: tuple[str, ...]) -> None:
        if job.run_id in path:
            raise ValueError(f"jobs need each other: {' -> '.join((*path, job.run_id))}")
        for need in job.needs:
            if need not in by_id:
                raise ValueError(f"job {job.run_id} needs {need}, which is not in the list")
            if need not in ordered:
                visit(by_id[need], (*path, job.run_id))
        ordered[job.run_id] = job

    for job in by_id.values():
        if job.run_id not in ordered:
            visit(job, ())
    return list(ordered.values())


def run_all(jobs: Sequence[Job], runs_dir: str | Path, log: Log) -> dict[str, RunRecord]:
    """Do what is missing, one job after the other, and return the records of all.

    A job that was killed starts again; one that ended in a recorded failure is finished, as it would fail again.
    Finished runs are read with their files' sizes checked.

    Args:
        jobs: the study; a job given twice is one job.
        runs_dir: folder of all run folders.
        log: takes a line for each run.

    Raises:
        StudyError: bad input or a damaged run; what was finished before stays.
    """
    ordered = in_order(jobs)
    missing = {job.run_id for job in ordered if not job.is_finished(runs_dir)}
    if ordered and len(missing) < len(ordered):
        log(f"{len(ordered) - len(missing)} of {len(ordered)} runs are finished; their records are read")
    records: dict[str, RunRecord] = {}
    done = 0
    for job in ordered:
        if job.run_id not in missing:
            records[job.run_id] = read_record(run_folder(runs_dir, job.stage, job.run_id))
            continue
        started = time.perf_counter()
        record = records[job.run_id] = job.work(log)
        done += 1
        outcome = f"score {record.metrics['score']:.3f}" if "score" in record.metrics else "done"
        outcome = f"failed: {record.failure}" if record.failure else outcome
        log(f"{done}/{len(missing)} {job.title or job.run_id}: {outcome} ({time.perf_counter() - started:.1f} s)")
    return records
