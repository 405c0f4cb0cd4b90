"""Kill a pre-training again and again (kill -9); it must end as one that was left alone. `python -m tests.chaos`.

Half of the kills come at any moment, the others while a file of one kind is being written: data, a state, the model.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import random
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SETTINGS = {
    "vocab_size": 300,
    "sequence_length": 32,
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 2,
    "decoder_num_hidden_layers": 1,
    "decoder_hidden_size": 32,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "batch_size": 16,
    "micro_batch_size": 8,
    "max_steps": 120,
    "save_steps": 6,
    "logging_steps": 5,
    "eval_steps": 20,
    "max_eval_sequences": 32,
    "bf16": False,  # left open it is measured, and on a busy machine not always with one result
}

PLACES = {
    "preparing data": "data/.*.part",
    "saving a state": "pretrain/*/training_state/.*.part",
    "writing the model": "pretrain/*/.*.part",
}
"""Where a kill can strike, and the file that tells; everywhere else: in the loop, or before it."""


def train(settings: dict[str, Any]) -> None:
    """What is killed."""
    import torch

    from threeml_core.config import make_config
    from threeml_core.foundation.log import no_line
    from threeml_core.training.loop import pretrain

    torch.set_num_threads(1)
    pretrain(make_config(settings), no_line)


def checksum(runs_dir: Path) -> str:
    """Of weights, metrics (but for speeds) and results of the one finished run in a folder."""
    (record,) = runs_dir.glob("pretrain/*/record.json")
    lines = [json.loads(line) for line in (record.parent / "metrics.jsonl").read_text().splitlines()]
    values = json.loads(record.read_text())
    content = [
        [{name: value for name, value in line.items() if name != "tokens_per_second"} for line in lines],
        values["metrics"],
        [values["files"][name] for name in ("model/model.safetensors", "encoder/model.safetensors")],
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def partial(runs_dir: Path, pattern: str) -> set[Path]:
    """Files that are being written, or that a kill has left."""
    return set(runs_dir.glob(pattern))


def place(runs_dir: Path, left: set[Path]) -> str:
    """Where the kill struck; `left`: what kills before it had left."""
    struck = (name for name, pattern in PLACES.items() if partial(runs_dir, pattern) - left)
    return next(struck, "in the loop" if next(runs_dir.glob("pretrain/*/metrics.jsonl"), None) else "before the loop")


def chaos(kills: int, seed: int, folder: Path, text: Path | None = None, log: Any = print) -> Counter[str]:
    """Kill `kills` times; each run that ends in between must have the undisturbed one's checksum.

    Args:
        kills: how often.
        seed: of the moments.
        folder: for the runs.
        text: a corpus; None: the bundled one.
        log: takes lines.

    Returns:
        Where the kills struck.

    Raises:
        AssertionError: a run ended otherwise, or something was left behind.
    """
    rng = random.Random(seed)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["threeml_core.training.loop"])
    settings = {**SETTINGS, **({"corpus": str(text)} if text else {})}

    def start(runs_dir: Path, seed: int = 0) -> Any:
        process = context.Process(target=train, args=({**settings, "runs_dir": str(runs_dir), "seed": seed},))
        process.start()
        return process

    def timed(runs_dir: Path, seed: int = 0) -> float:
        started = time.monotonic()
        start(runs_dir, seed).join()
        return time.monotonic() - started

    undisturbed = folder / "undisturbed"
    start(undisturbed).join()  # the first start imports
    expected = checksum(undisturbed)
    log(f"undisturbed: {expected[:16]}")
    whole = timed(folder / "timed")
    training = timed(folder / "timed", seed=1)  # the data are there

    struck: Counter[str] = Counter()
    ended, is_running = 0, True
    while struck.total() < kills or is_running:
        runs_dir = folder / f"killed-{ended}"
        target = rng.choice([None, None, None, *PLACES.values()]) if struck.total() < kills else ""
        delay = rng.uniform(0, training / 3 if next(runs_dir.glob("data/*/meta.json"), None) else whole)
        left = {path for pattern in PLACES.values() for path in partial(runs_dir, pattern)}
        process = start(runs_dir)
        killed = target != "" and _wait(process, runs_dir, target, delay, left)
        if killed:
            process.kill()
        process.join()
        if process.exitcode not in (0, -9):
            raise AssertionError(f"status {process.exitcode} after {struck.total()} kills")
        is_running = process.exitcode == -9
        if is_running:
            where = place(runs_dir, left)
            struck[where] += 1
            log(f"kill {struck.total()}: {where}")
            continue
        ended += 1
        assert checksum(runs_dir) == expected, f"another end than the undisturbed run's, in {runs_dir}"
        files = [path for path in runs_dir.rglob("*") if path.name.endswith(".part") or path.name == "training_state"]
        assert not files, f"left behind: {files}"
        log(f"run {ended} ended as the undisturbed one")
    return struck


def _wait(process: Any, runs_dir: Path, target: str | None, delay: float, left: set[Path]) -> bool:
    """Until the moment of the kill; False: the run ended before."""
    deadline = time.monotonic() + delay
    while process.is_alive():
        if target is None and time.monotonic() > deadline:
            return True
        if target is not None and partial(runs_dir, target) - left:
            return True
        if target is None:
            time.sleep(0.001)
    return False


def summary(struck: Mapping[str, int]) -> str:
    """In words."""
    return ", ".join(f"{number} {name}" for name, number in sorted(struck.items()))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None, help="of the moments; left out: another one each time")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"{options.kills} kills, seed {seed}", flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        struck = chaos(options.kills, seed, Path(folder))
    print(f"{struck.total()} kills ({summary(struck)}): nothing lost, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
