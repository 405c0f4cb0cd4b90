"""Whether the machine is busy."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from threeml_core.benchmark.load import Load, OthersMeter, Patience, wait_until_idle
from threeml_core.foundation.processes import available_cores


def test_a_session_waits_until_the_machine_is_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    """What this project did just before stands in the load average for a minute: a page does not wait for that."""
    looks = iter([Load(99.0, 99.0), Load(99.0, 0.0), Load(0.0, 0.0)] * 2)
    monkeypatch.setattr("threeml_core.benchmark.load.look", lambda: next(looks))
    monkeypatch.setattr("threeml_core.benchmark.load.time.sleep", lambda seconds: None)
    lines: list[str] = []
    assert wait_until_idle(Patience(), True, lines.append) == Load(0.0, 0.0)
    assert wait_until_idle(Patience(), False, lines.append) == Load(99.0, 0.0)
    assert len(lines) == 2 and "its load average is 99.00" in lines[0] and "load average" not in lines[1]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/stat")
def test_others_are_seen_and_this_process_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second process at work all the time counts for about a core; own work for none."""
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        if OthersMeter().cores() is None:
            pytest.skip("this system does not tell")
        beside = OthersMeter()
        ended = time.monotonic() + 1
        while time.monotonic() < ended:
            pass
        assert beside.cores() > 0.4 / available_cores()
    finally:
        busy.kill()
        busy.wait()
    monkeypatch.setattr("threeml_core.benchmark.load._busy_seconds", time.process_time)  # as if nothing else ran
    alone, ended = OthersMeter(), time.monotonic() + 0.3
    while time.monotonic() < ended:
        pass
    assert alone.cores() < 0.05
