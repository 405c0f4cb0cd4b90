"""Processes: how many cores there are, to end with the process that started this one, to stop when asked to."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

LEAVE = "THREEML_LEAVE_WITH"
"""Environment variable: a command of this package ends with the process of this number."""

_GRACE = 10.0  # seconds to end by itself


def available_cores() -> int:
    """CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


SPIN = {"GOMP_SPINCOUNT": "1000"}
"""For the processes of this package: how often a thread of torch's that waits for the others looks, before it sleeps.

By default it looks 300,000 times: beside a busy process two threads do a third of their work (docs/performance.md).
"""


def spin_environment() -> dict[str, str]:
    """`SPIN`, unless the user has decided how threads wait."""
    return {} if {"OMP_WAIT_POLICY", *SPIN} & os.environ.keys() else SPIN


def spin_briefly() -> None:
    """Let the threads of this process wait as `SPIN` says; without effect once torch is imported, which reads it."""
    os.environ.update(spin_environment())


@contextlib.contextmanager
def environment_of_children(**values: str) -> Iterator[None]:
    """Environment variables that processes started meanwhile inherit."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)


def is_running(pid: int) -> bool:
    """Is there such a process, and has it not ended? One that ended may stay listed until its parent looks."""
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except PermissionError:
        return True
    except OSError:
        return False


def leave_with(pid: int) -> None:
    """End this process soon after the end of process `pid`, however that ends: by SIGTERM, so that it may save."""

    def watch() -> None:
        while is_running(pid):
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_GRACE)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def leave_if_asked() -> None:
    """As `LEAVE` says in the environment."""
    if LEAVE in os.environ:
        leave_with(int(os.environ[LEAVE]))


@contextlib.contextmanager
def ended_with_us(process: subprocess.Popen[Any]) -> Iterator[None]:
    """Wait for a process at the end; leave early, and it gets SIGTERM, so that it may save, before it is waited for."""
    try:
        yield
    except BaseException:
        process.terminate()
        raise
    finally:
        process.wait()


@contextlib.contextmanager
def on_sigterm(handler: Callable[..., None]) -> Iterator[None]:
    """Within it SIGTERM calls `handler`; in a thread other than the main one nothing changes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether SIGTERM has come: work ends where it can be taken up again."""
    asked = threading.Event()
    with on_sigterm(lambda number, frame: asked.set()):
        yield asked.is_set
