"""One session of a benchmark in a new process, `threeml_core.benchmark.child`, told on its input what."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile

from threeml_core.benchmark.load import Patience
from threeml_core.config import StudyConfig, given_parameters
from threeml_core.foundation.errors import BusyError, StudyError
from threeml_core.foundation.log import Log
from threeml_core.foundation.processes import LEAVE, ended_with_us


def in_new_process(config: StudyConfig, number: int, refuse: bool, patience: Patience, log: Log) -> None:
    """Measure a session in a process of its own, which ends with this one and leaves its record; see `run_benchmark`.

    Raises:
        BusyError: the machine is busy.
        StudyError: it failed, with its own line.
    """
    asked = {"parameters": given_parameters(config), "number": number, "refuse": refuse, "patience": vars(patience)}
    command = [sys.executable, "-m", "threeml_core.benchmark.child"]
    environment, pipe = {**os.environ, LEAVE: str(os.getpid())}, subprocess.PIPE
    with tempfile.TemporaryFile("w+", encoding="utf-8") as errors:
        process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=errors, text=True)
        assert process.stdin is not None and process.stdout is not None
        with process.stdout, ended_with_us(process):
            with process.stdin:
                process.stdin.write(json.dumps(asked))
            for line in process.stdout:
                log(line.rstrip("\n"))
        errors.seek(0)
        lines = errors.read().splitlines()
    if process.returncode:
        own = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
        kind = BusyError if process.returncode == BusyError.exit_status else StudyError
        raise kind(own[0] if own else f"session {number}: {' '.join(lines[-5:]) or 'it said nothing'}")
