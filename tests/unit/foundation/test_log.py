"""Where a line of a notebook is written: papermill's terminal, once."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from threeml_core.foundation.log import print_line

KERNEL = """
import io, sys
from threeml_core.foundation.log import print_line
sys.stderr = type("OutStream", (io.TextIOWrapper,), {"__module__": "ipykernel.iostream"})(sys.stderr.buffer)
print_line("step 1")
"""
"""What ipykernel puts in the place of stderr is told by its module."""


@pytest.mark.parametrize(
    ("caller", "environment", "told"),
    [
        ([], {}, "\nstep 1\n"),
        (["--log-output"], {}, ""),
        ([], {"JPY_SESSION_NAME": "x"}, ""),
        ([], {"TQDM_DISABLE": "1"}, ""),
    ],
)
def test_told_once(caller: list[str], environment: dict[str, str], told: str) -> None:
    """A kernel's line goes to the terminal of what started it, unless that shows it already."""
    start = f"import subprocess, sys; sys.exit(subprocess.call([sys.executable, '-c', {KERNEL!r}]))"
    outside = {k: v for k, v in os.environ.items() if k not in ("TQDM_DISABLE", "JPY_SESSION_NAME")}
    command = [sys.executable, "-c", start, *caller]
    done = subprocess.run(command, capture_output=True, text=True, env=outside | environment)
    assert (done.returncode, done.stdout, done.stderr) == (0, "step 1\n", told)


def test_outside_a_notebook(capfd: pytest.CaptureFixture[str]) -> None:
    print_line("step 1")
    assert capfd.readouterr() == ("step 1\n", "")
