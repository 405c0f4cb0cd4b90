"""What a run says while it trains: metric lines, in metrics.jsonl and to trackers."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from threeml_core.foundation.errors import TrainingError
from threeml_core.foundation.files import atomic_file, explain_full_disk, json_text
from threeml_core.runs.record import read_metrics


@contextlib.contextmanager
def metrics_writer(
    folder: Path, done: int, report: Callable[[int, dict[str, float]], object]
) -> Iterator[Callable[[int, dict[str, float]], None]]:
    """Append lines to metrics.jsonl, then `report` them; lines after step `done`, of a killed run, are dropped.

    The run's lock keeps others from the file, and a finished run's is never opened for writing. Only who removes the
    folder of a run at work removes the lock too; then the run that is there now goes on, and this one stops with a
    `TrainingError`, as its record would tell the size of the other's file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "metrics.jsonl"
    kept = [line for line in read_metrics(path) if line["step"] <= done]
    with atomic_file(path) as temporary:
        temporary.write_text("".join(json_text(line) + "\n" for line in kept), encoding="utf-8")
    with path.open("a", encoding="utf-8") as handle:

        def write(step: int, values: dict[str, float]) -> None:
            if not (path.exists() and os.path.samestat(os.fstat(handle.fileno()), path.stat())):
                raise TrainingError(
                    f"{folder} was removed or begun anew while this process wrote to it, so it stops at step {step}; "
                    "when no other process is at this run, the same command does it again"
                )
            with explain_full_disk(path):
                handle.write(json_text({"step": step, **values}) + "\n")
                handle.flush()
            report(step, values)

        yield write
