"""How two threads of torch train beside another busy process, by how long they spin; every setting in turns.

    python tests/measurements/threads_benchmark.py [ROUNDS] [SECONDS]

Prints tokens/s of the tiny 3ML_self, idle and beside one busy process, for libgomp's own number of spins, for some
others, and for one thread. On a machine that does nothing else. Leaves nothing behind.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time

from threeml_core.foundation.processes import SPIN

(NAME,) = SPIN
SETTINGS = {
    "300000 (libgomp's own)": {NAME: "300000"},
    "10000": {NAME: "10000"},
    f"{SPIN[NAME]} (ours)": SPIN,
    "0": {NAME: "0"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}


def tokens_per_second(runs_dir: str, seconds: float) -> float:
    """Of updates of the tiny 3ML_self in this process."""
    import torch

    from threeml_core.config import make_config
    from threeml_core.data.prepare import prepare_data
    from threeml_core.training.trainer import Trainer

    config = make_config({"runs_dir": runs_dir})
    trainer = Trainer(config, prepare_data(config), torch.device("cpu"))
    for _ in range(3):
        trainer.update()
    updates, started = 0, time.perf_counter()
    while (took := time.perf_counter() - started) < seconds:
        trainer.update()
        updates += 1
    return updates * config.batch_size * config.sequence_length / took


def measure(setting: dict[str, str], busy: bool, folder: str, seconds: str) -> float:
    """The same in a fresh process with these variables."""
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if busy else None
    try:
        command = [sys.executable, __file__, "--child", folder, seconds]
        done = subprocess.run(command, env={**os.environ, **setting}, check=True, capture_output=True, text=True)
        return float(done.stdout.splitlines()[-1])
    finally:
        if other:
            other.kill()
            other.wait()


def main() -> None:
    """Measure and print."""
    rounds, seconds = [*sys.argv[1:3], *("3", "5")[len(sys.argv) - 1 :]]
    found: dict[tuple[str, bool], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        measure({}, False, folder, "1")  # prepares the text
        for _ in range(int(rounds)):
            for name, setting in SETTINGS.items():
                for busy in (False, True):
                    found.setdefault((name, busy), []).append(measure(setting, busy, folder, seconds))
    print(f"{'spins':24} {'idle':>22} {'beside a busy process':>26}   tokens/s: median (least to most)")
    for name in SETTINGS:
        shown = [found[name, busy] for busy in (False, True)]
        cells = [f"{statistics.median(v):8,.0f} ({min(v):,.0f} to {max(v):,.0f})" for v in shown]
        print(f"{name:24} {cells[0]:>22} {cells[1]:>26}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        print(tokens_per_second(sys.argv[2], float(sys.argv[3])))
    else:
        main()
