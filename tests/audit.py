"""What Python itself says is opened, imported or started: `sys.addaudithook`, switched on for a few lines."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

Events = list[tuple[str, tuple[Any, ...]]]
_LISTENING: list[tuple[frozenset[str], Events]] = []


def _hear(event: str, arguments: tuple[Any, ...]) -> None:
    for names, events in _LISTENING:
        if event in names:
            events.append((event, arguments))


sys.addaudithook(_hear)  # cannot be taken away again


@contextlib.contextmanager
def audited(*names: str) -> Iterator[Events]:
    """Collect the audit events `names`, such as `open` or `subprocess.Popen`, with their arguments."""
    listening = frozenset(names), Events()
    _LISTENING.append(listening)
    try:
        yield listening[1]
    finally:
        _LISTENING.remove(listening)
