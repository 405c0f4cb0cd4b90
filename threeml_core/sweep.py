"""Many runs: what is finished is skipped, what another run needs goes first, what fails is recorded and counted."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from threeml_core.errors import TrainingError
from threeml_core.log import Log
from threeml_core.results import RunRecord, available_cores, read_record, run_folder


@dataclasses.dataclass(frozen=True)
class Job:
    """One run of a study.

    Attributes:
        stage: folder below `runs_dir`, such as `finetune`.
        run_id: folder of the run.
        work: does it and returns its record; picklable, so that an engine can send it elsewhere.
        needs: run ids that must be finished before.
        title: a few words for the log.
        cost: of two jobs that a worker could take the one with the higher cost goes first.
    """

    stage: str
    run_id: str
    work: Callable[[Log], RunRecord]
    needs: tuple[str, ...] = ()
    title: str = ""
    cost: float = 0.0

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


def run_all(jobs: Sequence[Job], runs_dir: str | Path, log: Log, workers: int = 1) -> dict[str, RunRecord]:
    """Do what is missing and return the records of all.

    A job that was killed starts again; one that ended in a recorded failure is finished, as it would fail again.
    Finished runs are read with their files' sizes checked.

    Args:
        jobs: the study; a job given twice is one job.
        runs_dir: folder of all run folders.
        log: takes a line for each run.
        workers: processes at once, among which the cores are divided; 1: all in this process, with its progress
            lines. Small models keep two cores busier as two processes of one thread than as one of two.

    Raises:
        StudyError: bad input or a damaged run, or a worker was killed; what was finished before stays.
    """
    ordered = in_order(jobs)
    missing = [job for job in ordered if not job.is_finished(runs_dir)]
    if ordered and len(missing) < len(ordered):
        log(f"{len(ordered) - len(missing)} of {len(ordered)} runs are finished; their records are read")
    absent = {job.run_id for job in missing}
    records = {
        job.run_id: read_record(run_folder(runs_dir, job.stage, job.run_id))
        for job in ordered
        if job.run_id not in absent
    }
    done = _in_workers(missing, workers) if workers > 1 and len(missing) > 1 else _here(missing, log)
    for count, (job, record, seconds) in enumerate(done, 1):
        records[job.run_id] = record
        outcome = f"score {record.metrics['score']:.3f}" if "score" in record.metrics else "done"
        outcome = f"failed: {record.failure}" if record.failure else outcome
        log(f"{count}/{len(missing)} {job.title or job.run_id}: {outcome} ({seconds:.1f} s)")
    return {job.run_id: records[job.run_id] for job in ordered}


Done = tuple[Job, RunRecord, float]
"""A job, its record, the seconds it took."""


def _do(job: Job, log: Log) -> Done:
    started = time.perf_counter()
    record = job.work(log)
    return job, record, time.perf_counter() - started


def _here(jobs: Sequence[Job], log: Log) -> Iterator[Done]:
    for job in jobs:
        yield _do(job, log)


def _in_workers(jobs: Sequence[Job], workers: int) -> Iterator[Done]:
    """Each job as soon as a worker is free and what it needs is done, in the order in which they end."""
    waiting = sorted(jobs, key=lambda job: -job.cost)
    unfinished = {job.run_id for job in jobs}
    running: set[Future[Done]] = set()
    with _pool(workers, max(1, available_cores() // workers)) as pool:
        while waiting or running:
            for job in [job for job in waiting if not unfinished.intersection(job.needs)]:
                waiting.remove(job)
                running.add(pool.submit(_do, job, _silent))
            ended, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for future in ended:
                try:
                    job, record, seconds = future.result()
                except BrokenProcessPool:
                    raise TrainingError(
                        "a worker process was killed, perhaps for want of memory; finished runs stay. Run again, "
                        "with fewer workers (workers=1: none)"
                    ) from None
                unfinished.discard(job.run_id)
                yield job, record, seconds


def _silent(line: str) -> None:
    """Lines of a worker go nowhere; the outcome of each run is logged by who waits for it."""


@contextlib.contextmanager
def _pool(workers: int, threads: int) -> Iterator[ProcessPoolExecutor]:
    """Fresh processes; none survives an error, an interruption or the death of this one."""
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=leave_with_parent)
    threads_before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(threads)  # inherited; torch reads it when a worker imports it
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        del os.environ["OMP_NUM_THREADS"]
        if threads_before is not None:
            os.environ["OMP_NUM_THREADS"] = threads_before


LEAVE = "THREEML_LEAVE_WITH_PARENT"
"""Environment variable: a command of this package ends with the process that started it."""


def leave_with_parent() -> None:
    """End this process when the one that started it has ended, however it did."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
