"""What jobs do in the tests of a cluster: here, as its workers import it by name."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import ray

from tests.unit.runs.test_sweep import leave_record
from threeml_core.foundation.errors import Preempted
from threeml_core.foundation.files import exclusive
from threeml_core.runs.record import RunRecord


def leave_host(runs_dir: Path, name: str, seconds: float, log: Callable[[str], None]) -> RunRecord:
    """As `leave_record`; every start is noted with the host it was on."""
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


def die(log: object) -> RunRecord:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def hold(runs_dir: Path, log: Callable[[str], None]) -> RunRecord:
    """Refused while the lock of the process before, of a lost host, is held."""
    with exclusive(runs_dir / ".lock", "run held"):
        return leave_record(runs_dir, "held", 0, log)
