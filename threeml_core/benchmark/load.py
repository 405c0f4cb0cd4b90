"""How busy other processes keep this machine, and waiting until they do not."""

from __future__ import annotations

import dataclasses
import os
import time
from pathlib import Path

from threeml_core.benchmark.speeds import BUSY_LIMIT, LOAD_LIMIT
from threeml_core.foundation.log import Log
from threeml_core.foundation.processes import available_cores

PROBE_SECONDS = 1.0
"""For so long this process looks at the others and does nothing."""

_EVERY = 5.0  # seconds between two looks


@dataclasses.dataclass(frozen=True)
class Patience:
    """What a session waits for.

    Attributes:
        wait: seconds at most until the machine is idle.
        pause: seconds between a session and the next one, so that they are not all of the same moment.
        load: load average a core that counts as idle.
        busy: share of the cores' time that others may take.
    """

    wait: float = 120.0
    pause: float = 60.0
    load: float = LOAD_LIMIT
    busy: float = BUSY_LIMIT


@dataclasses.dataclass(frozen=True)
class Load:
    """How busy the machine is.

    Attributes:
        average: runnable processes, the system's mean over about a minute.
        busy: cores that other processes keep at work now; None: this system does not tell.
    """

    average: float
    busy: float | None

    def problem(self, patience: Patience, average_too: bool) -> str:
        """Why this is too much, or ""; `average_too`: the load average has to be low even where `busy` is known."""
        cores = available_cores()
        found = []
        if self.average > patience.load * cores and (average_too or self.busy is None):
            found.append(f"its load average is {self.average:.2f} (expected at most {patience.load * cores:.2f})")
        if self.busy is not None and self.busy > patience.busy * cores:
            most = f"expected at most {patience.busy * cores:.2f}"
            found.append(f"other processes keep {self.busy:.2f} of {cores} cores at work ({most})")
        return " and ".join(found)


class OthersMeter:
    """Counts the cores that other processes keep at work, from its making on."""

    def __init__(self) -> None:
        self._started, self._own, self._all = time.perf_counter(), time.process_time(), _busy_seconds()

    def cores(self) -> float | None:
        """In the mean so far; None: this system does not tell."""
        now = _busy_seconds()
        if self._all is None or now is None:
            return None
        others = now - self._all - (time.process_time() - self._own)
        return max(0.0, others / (time.perf_counter() - self._started))


def _busy_seconds() -> float | None:
    """CPU seconds since the start of the system that the cores of this process were not idle.

    Source: proc(5), /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
    """
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)} if hasattr(os, "sched_getaffinity") else set()
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text(encoding="ascii").splitlines()]
        ticks = [[int(value) for value in line[1:9]] for line in lines if line and line[0] in ours]
    except (OSError, ValueError):
        return None
    busy = sum(sum(values) - values[3] - values[4] for values in ticks)
    return busy / os.sysconf("SC_CLK_TCK") if busy else None  # some containers show zeros


def look() -> Load:
    """Take `PROBE_SECONDS` to see how busy the others are."""
    meter = OthersMeter()
    time.sleep(PROBE_SECONDS)
    return Load(os.getloadavg()[0], meter.cores())


def wait_until_idle(patience: Patience, average_too: bool, log: Log) -> Load:
    """Look, again and again for at most `patience.wait` seconds, until `Load.problem` sees none; the last look."""
    deadline = time.monotonic() + patience.wait
    load = look()
    if (problem := load.problem(patience, average_too)) and patience.wait > 0:
        log(f"this machine is busy, {problem}: waiting, at most {patience.wait:.0f} s")
    while load.problem(patience, average_too) and time.monotonic() < deadline:
        time.sleep(min(_EVERY, max(0.0, deadline - time.monotonic())))
        load = look()
    return load
