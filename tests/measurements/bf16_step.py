"""A training step in bfloat16 against float32 on this CPU, in turns: every model at several widths.

    python tests/measurements/bf16_step.py ROUNDS [WIDTH ...]

Width 256 has the benchmark's geometry (12 layers, n = 128, 16 sequences), others `small`'s (4 layers, n = 32, 64
sequences). Prints milliseconds (medians) and the median ratio with the quartiles of the rounds. Leaves nothing behind.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time

import torch

from threeml_core.config import make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.training.trainer import Trainer

MODELS = (("vanilla", 0.15), ("self", 0.4), ("self", 0.5), ("cross", 0.4))


def main() -> None:
    """Measure and print."""
    rounds, widths = int(sys.argv[1]), [int(width) for width in sys.argv[2:]] or [32, 64, 96, 256, 768]
    print(f"{torch.get_num_threads()} threads")
    with tempfile.TemporaryDirectory() as folder:
        for width in widths:
            for architecture, rate in MODELS:
                given = {"preset": "benchmark" if width == 256 else "small", "corpus": "bundled", "tokenizer": "train"}
                given |= {"hidden_size": width, "num_attention_heads": max(2, width // 64), "runs_dir": folder}
                given |= {"architecture": architecture, "mask_rate": rate, "decoder_hidden_size": width // 2}
                configs = [make_config({**given, "bf16": bf16}) for bf16 in (False, True)]
                trainers = [Trainer(c, prepare_data(c, lambda line: None), torch.device("cpu")) for c in configs]
                seconds = []
                for _ in range(rounds + 1):
                    turn = []
                    for trainer in trainers:
                        started = time.perf_counter()
                        trainer.update()
                        turn.append(time.perf_counter() - started)
                    seconds.append(turn)
                full, half = (1e3 * statistics.median(column) for column in zip(*seconds[1:], strict=True))
                low, middle, high = statistics.quantiles(turn[0] / turn[1] for turn in seconds[1:])
                print(
                    f"width {width:4}  {architecture}-{100 * rate:.0f}: fp32 {full:7.1f} ms, bf16 {half:7.1f} ms, "
                    f"ratio {middle:.2f} ({low:.2f} to {high:.2f})",
                    flush=True,
                )


if __name__ == "__main__":
    main()
