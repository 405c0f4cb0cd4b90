"""Where progress lines go: a function that takes one line."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable

Log = Callable[[str], None]


def print_line(line: str) -> None:
    """Print at once, also into a pipe."""
    print(line, flush=True)


def announce(line: str) -> None:
    """Print; from a notebook that papermill runs also into papermill's terminal, which shows no output of cells."""
    print_line(line)
    if type(sys.stderr).__module__.startswith("ipykernel") and "JPY_SESSION_NAME" not in os.environ:
        descriptor = 2
        with contextlib.suppress(io.UnsupportedOperation):  # the kernel has not put the notebook in its place
            descriptor = sys.stderr.fileno()  # what 2 was when the kernel was started
        with contextlib.suppress(OSError):  # there need not be a terminal
            os.write(descriptor, f"\n{line}\n".encode())


def no_line(line: str) -> None:
    """Lines go nowhere."""
