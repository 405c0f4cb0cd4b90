"""What AdamW's step and Muon's cost, by themselves and as a share of a whole step, at three widths, in turns.

    python tests/measurements/optimizer_step.py ROUNDS -p num_hidden_layers 4 -p batch_size 32 -p sequence_length 64

Prints medians in ms. On a machine that does nothing else. Leaves nothing behind.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from threeml_core.config import parse_arguments
from threeml_core.data.prepare import prepare_data
from threeml_core.foundation.errors import command_line
from threeml_core.foundation.log import no_line
from threeml_core.training.trainer import Trainer

WIDTHS = (96, 256, 768)
OPTIMIZERS = ("adamw", "muon")


def milliseconds(work: Callable[[], Any]) -> float:
    """How long it takes, on a CPU."""
    started = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - started)


@command_line
def main() -> None:
    """Measure and print."""
    rounds, asked = int(sys.argv[1]), parse_arguments(__doc__ or "", sys.argv[2:])
    print(f"{'width':>5} {'optimizer':>9} {'its step':>9} {'a step':>9} {'share':>6}")
    with tempfile.TemporaryDirectory() as folder:
        data = prepare_data(asked.replace(runs_dir=folder), no_line)
        for width in WIDTHS:
            size = {"hidden_size": width, "num_attention_heads": width // 32, "intermediate_size": None}
            decoder = {"decoder_hidden_size": width // 2, "decoder_num_attention_heads": None}
            config = asked.replace(**size, **decoder)
            trainers = {o: Trainer(config.replace(optimizer=o), data, torch.device("cpu")) for o in OPTIMIZERS}
            found: dict[str, list[tuple[float, float]]] = {name: [] for name in OPTIMIZERS}
            for _ in range(rounds + 1):
                for name, trainer in trainers.items():
                    whole = milliseconds(trainer.update)
                    found[name].append((milliseconds(trainer.optimizer.step), whole))  # its gradients are still there
            for name, measured in found.items():
                alone, whole = map(statistics.median, zip(*measured[1:], strict=True))  # the first round warms up
                print(f"{width:5} {name:>9} {alone:9.2f} {whole:9.1f} {alone / whole:6.1%}", flush=True)


if __name__ == "__main__":
    main()
