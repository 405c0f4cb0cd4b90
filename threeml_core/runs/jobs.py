"""The runs of a study: what each needs, what follows from it, which are finished."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from threeml_core.foundation.log import Log
from threeml_core.runs.record import RunRecord, read_record, run_folder


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
        num_cpus: cores it takes of a Ray cluster.
        num_gpus: GPUs it takes of a Ray cluster; of a fraction several share one.
        then: called here with its record; gives the jobs that can only be planned when it is finished.
    """

    stage: str
    run_id: str
    work: Callable[[Log], RunRecord]
    needs: tuple[str, ...] = ()
    title: str = ""
    cost: float = 0.0
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    then: Callable[[RunRecord], Sequence[Job]] | None = None

    def is_finished(self, runs_dir: str | Path) -> bool:
        """Has it left its record?"""
        return (run_folder(runs_dir, self.stage, self.run_id) / "record.json").exists()

    def alone(self) -> Job:
        """Without what follows from it: all that has to be sent to do it."""
        return dataclasses.replace(self, then=None)


def in_order(jobs: Iterable[Job], known: Collection[str] = ()) -> list[Job]:
    """Each job once (of one run id the last), in the order given, but behind all it needs, there or in `known`."""
    by_id = {job.run_id: job for job in jobs}
    ordered: dict[str, Job] = {}

    def visit(job: Job, path: tuple[str, ...]) -> None:
        if job.run_id in path:
            raise ValueError(f"jobs need each other: {' -> '.join((*path, job.run_id))}")
        for need in job.needs if job.run_id not in ordered else ():
            if need in by_id:
                visit(by_id[need], (*path, job.run_id))
            elif need not in known:
                raise ValueError(f"job {job.run_id} needs {need}, which is not in the list")
        ordered[job.run_id] = job  # one that is there keeps its place

    for job in by_id.values():
        visit(job, ())
    return list(ordered.values())


class Plan:
    """The jobs of a study that are known so far, and the records of those that are finished."""

    def __init__(self, jobs: Iterable[Job], runs_dir: str | Path) -> None:
        self.runs_dir = runs_dir
        self.jobs: dict[str, Job] = {}
        self.records: dict[str, RunRecord] = {}
        self.waiting: list[Job] = []
        """Neither finished nor handed out."""
        self._add(jobs)

    def _add(self, jobs: Iterable[Job]) -> None:
        new = [job for job in in_order(jobs, self.jobs) if job.run_id not in self.jobs]
        self.jobs |= {job.run_id: job for job in new}
        for job in new:
            if job.is_finished(self.runs_dir):
                self.finish(job, read_record(run_folder(self.runs_dir, job.stage, job.run_id)))
            else:
                self.waiting.append(job)

    def finish(self, job: Job, record: RunRecord) -> None:
        """Take a job's record, and plan what follows from it."""
        self.records[job.run_id] = record
        if job.then is not None:
            self._add(job.then(record))

    def take_ready(self) -> list[Job]:
        """Those of which all they need is finished, the most costly first; they are no longer waiting."""
        ready = [job for job in self.waiting if all(need in self.records for need in job.needs)]
        self.waiting = [job for job in self.waiting if job not in ready]
        return sorted(ready, key=lambda job: -job.cost)

    def finished(self) -> dict[str, RunRecord]:
        """Run id -> record, in the order in which the jobs became known."""
        return {name: self.records[name] for name in self.jobs if name in self.records}
