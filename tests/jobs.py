"""What jobs do in tests: here, as other processes and the workers of a cluster import it by name."""

from __future__ import annotations

import functools
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from threeml_core.foundation.errors import Preempted, TrainingError
from threeml_core.foundation.files import exclusive
from threeml_core.runs.jobs import Job
from threeml_core.runs.record import RunRecord, describe_environment, write_record


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


def leave_host(runs_dir: Path, name: str, seconds: float, log: Callable[[str], None]) -> RunRecord:
    """As `leave_record`; every start is noted with the host it was on."""
    import ray

    with (runs_dir / f"{name}.starts").open("a") as handle:
        handle.write(ray.get_runtime_context().get_node_id() + "\n")
    return leave_record(runs_dir, name, seconds, log)


def die_once(runs_dir: Path, log: Callable[[str], None]) -> RunRecord:
    if not (runs_dir / "died").exists():
        (runs_dir / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return leave_record(runs_dir, "once", 0, log)


def preempted_once(runs_dir: Path, log: Callable[[str], None]) -> RunRecord:
    """As a pre-training that got SIGTERM."""
    if not (runs_dir / "stopped").exists():
        (runs_dir / "stopped").touch()
        raise Preempted("asked to stop")
    return leave_record(runs_dir, "preempted", 0, log)


def hold(runs_dir: Path, log: Callable[[str], None]) -> RunRecord:
    """Refused while the lock of the process before, of a lost host, is held."""
    with exclusive(runs_dir / ".lock", "run held"):
        return leave_record(runs_dir, "held", 0, log)
