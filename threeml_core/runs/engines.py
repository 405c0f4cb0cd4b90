"""What does the jobs of a study: this process, or others on this host; `ray_engine` for a cluster."""

from __future__ import annotations

import abc
import concurrent.futures
import contextlib
import multiprocessing
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

from threeml_core.foundation.errors import StudyError, TrainingError
from threeml_core.foundation.files import project_path, write_json
from threeml_core.foundation.log import Log, no_line
from threeml_core.foundation.processes import available_cores, environment_of_children, leave_with, spin_environment
from threeml_core.runs.jobs import Job
from threeml_core.runs.record import RunRecord

Done = tuple[Job, RunRecord, float]
"""A job, its record, the seconds it took."""

_GRACE = 30.0  # seconds that workers have to save when the study ends early


class Engine(abc.ABC):
    """Takes jobs, does them in an order of its own, and gives their records as they come."""

    def __init__(self, runs_dir: str | Path) -> None:
        self.runs_dir = runs_dir
        self._running: dict[Any, Job] = {}

    @property
    def jobs(self) -> list[Job]:
        """Those that were taken and have not been given back, in the order in which they came."""
        return list(self._running.values())

    def submit(self, job: Job) -> None:
        """Take a job; all it needs is finished."""
        self._running[self._start(job)] = job

    @abc.abstractmethod
    def _start(self, job: Job) -> Any:
        """Begin with a job; what stands for it until it ends."""

    @abc.abstractmethod
    def ended(self, timeout: float) -> list[Done]:
        """Wait for a job, about `timeout` seconds; those ended since the last call, or a `StudyError` that one gave."""


def running_file(runs_dir: str | Path, stage: str, run_id: str) -> Path:
    """There while the run is being done by an engine: says where and since when."""
    return project_path(runs_dir) / "running" / f"{stage}-{run_id}.json"


def do(job: Job, runs_dir: str | Path, log: Log) -> tuple[RunRecord, float]:
    """Do a job here: its record and the seconds it took; a `StudyError` if it is another run than was planned."""
    started = time.perf_counter()
    file = running_file(runs_dir, job.stage, job.run_id)
    write_json(file, {"host": socket.gethostname(), "pid": os.getpid(), "started": time.time()})
    try:
        record = job.work(log)
    finally:
        file.unlink(missing_ok=True)
    if record.run_id != job.run_id:
        raise StudyError(
            f"planned as {job.run_id}, this run is {record.run_id} on {socket.gethostname()}: the study was planned on "
            "a host with another kind of device. Start it on a host like those that do the runs, or give device and "
            "bf16 explicitly"
        )
    return record, time.perf_counter() - started


class Inline(Engine):
    """One job after the other, in this process, with its progress lines."""

    def __init__(self, runs_dir: str | Path, log: Log) -> None:
        super().__init__(runs_dir)
        self.log = log

    def _start(self, job: Job) -> str:
        return job.run_id

    def ended(self, timeout: float) -> list[Done]:
        """See `Engine`; takes as long as the job does."""
        job = self._running.pop(next(iter(self._running)))
        return [(job, *do(job, self.runs_dir, self.log))]


class Workers(Engine):
    """Processes of this host, among which its cores are divided; see `worker_pool`."""

    def __init__(self, pool: ProcessPoolExecutor, runs_dir: str | Path) -> None:
        super().__init__(runs_dir)
        self.pool = pool

    def _start(self, job: Job) -> Future[tuple[RunRecord, float]]:
        return self.pool.submit(do, job.alone(), self.runs_dir, no_line)

    def ended(self, timeout: float) -> list[Done]:
        """See `Engine`."""
        ended, _ = concurrent.futures.wait(self._running, timeout, return_when=concurrent.futures.FIRST_COMPLETED)
        try:
            return [(self._running.pop(future), *future.result()) for future in ended]
        except BrokenProcessPool:
            raise TrainingError(
                "a worker process was killed, perhaps for want of memory; finished runs stay. Run again, "
                "with fewer workers (num_workers=1: none)"
            ) from None


@contextlib.contextmanager
def worker_pool(count: int, runs_dir: str | Path) -> Iterator[Workers]:
    """Fresh processes; none survives an error, an interruption or the death of this one."""
    before = set(multiprocessing.active_children())
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, context, initializer=leave_with, initargs=(os.getpid(),))
    threads = str(max(1, available_cores() // count))  # read by torch when a worker imports it
    try:
        with environment_of_children(OMP_NUM_THREADS=threads, **spin_environment()):
            yield Workers(pool, runs_dir)
            pool.shutdown()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        started = set(multiprocessing.active_children()) - before
        for process in started:
            process.terminate()  # a pre-training saves its state
        deadline = time.monotonic() + _GRACE
        for process in started:
            process.join(max(0.0, deadline - time.monotonic()))
            process.kill()
        raise
