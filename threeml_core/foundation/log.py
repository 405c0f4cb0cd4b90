"""Where progress lines go: a function that takes one line."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable

Log = Callable[[str], None]


def print_line(line: str) -> None:
    """Print at once, also into a pipe; from a notebook also into papermill's terminal."""
    print(line, flush=True)
    tell_terminal(line)


def tell_terminal(text: str) -> None:
    """From a notebook write into the terminal of papermill, which shows no output of cells; else do nothing.

    Nor where TQDM_DISABLE asks for no progress, or where they are shown: in JupyterLab, by `papermill --log-output`.
    """
    if not type(sys.stderr).__module__.startswith("ipykernel") or "JPY_SESSION_NAME" in os.environ:
        return
    if os.environ.get("TQDM_DISABLE") or _logs_output():
        return
    descriptor = 2
    with contextlib.suppress(io.UnsupportedOperation):  # the kernel has not put the notebook in its place
        descriptor = sys.stderr.fileno()  # what 2 was when the kernel was started
    with contextlib.suppress(OSError):  # there need not be a terminal
        clear = "\r\x1b[K" if os.isatty(descriptor) else "\n"  # papermill's bar may stand in the line
        os.write(descriptor, f"{clear}{text}\n".encode())


def _logs_output() -> bool:
    import psutil  # which ipykernel needs

    with contextlib.suppress(psutil.Error):
        return "--log-output" in psutil.Process(os.getppid()).cmdline()
    return False


def no_line(line: str) -> None:
    """Lines go nowhere."""
