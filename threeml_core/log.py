"""Where progress lines go: a function that takes one line."""

from __future__ import annotations

from collections.abc import Callable

Log = Callable[[str], None]


def print_line(line: str) -> None:
    """Print at once, also into a pipe."""
    print(line, flush=True)


def no_line(line: str) -> None:
    """Lines go nowhere."""
