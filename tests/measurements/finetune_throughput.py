"""Length-bucketed batches against fixed padding (the run_glue recipe), on the same model, task and seeds, in turns.

    python tests/measurements/finetune_throughput.py ROUNDS -p checkpoint FOLDER -p glue FOLDER -p tasks sst2

Prints sequences/s of both, the paired ratio with a 95% bootstrap interval, and the scores. Leaves nothing behind.
"""

from __future__ import annotations

import sys
import tempfile

import numpy as np

from threeml_core.config import StudyConfig, parse_arguments
from threeml_core.foundation.errors import ParameterError, command_line
from threeml_core.glue.finetune import finetune, load_tasks, make_setting
from threeml_core.glue.metrics import interval
from threeml_core.glue.protocol import planned_tasks, runs_of
from threeml_core.training.encoders import open_encoder


def rounds_of(config: StudyConfig, checkpoint: str, rounds: int) -> np.ndarray:
    """(rounds, 2, 2): for each round and variant (bucketed, fixed), sequences/s and score."""
    encoder, data = open_encoder(checkpoint), load_tasks(config)
    variants = [make_setting(config.replace(pad_to_max_length=fixed), encoder, data) for fixed in (False, True)]
    (task,) = planned_tasks(config)
    measured = []
    for run in runs_of(task, config.replace(num_seeds=rounds + 1, num_trials=1)):
        records = [finetune(variant, run, (), False) for variant in variants]
        measured.append([[r.timing["sequences_per_second"], r.metrics["score"]] for r in records])
        print(f"seed {run.seed}: " + ", ".join(f"{speed:.0f}/s score {score:.3f}" for speed, score in measured[-1]))
    return np.array(measured[1:])  # the first round warms up


@command_line
def main() -> None:
    """Measure and print."""
    rounds, config = int(sys.argv[1]), parse_arguments(__doc__ or "", sys.argv[2:])
    if config.checkpoint is None or len(planned_tasks(config)) != 1:
        raise ParameterError("give -p checkpoint and one task; RTE, STS-B and MRPC with -p from_mnli False")
    with tempfile.TemporaryDirectory() as folder:
        measured = rounds_of(config.replace(runs_dir=folder), config.checkpoint, rounds)
    ratios = measured[:, 0, 0] / measured[:, 1, 0]
    draws = np.random.default_rng(0).integers(0, rounds, (2000, rounds))
    low, high = interval(np.median(ratios[draws], axis=1))
    for variant, name in enumerate(("bucketed", "fixed padding")):
        speed, score = np.median(measured[:, variant], axis=0)
        spread = f"{measured[:, variant, 1].min():.3f} to {measured[:, variant, 1].max():.3f}"
        print(f"{name}: {speed:.0f} sequences/s, score {score:.3f} ({spread})")
    print(f"ratio: {np.median(ratios):.2f} [{low:.2f}, {high:.2f}] over {rounds} rounds")


if __name__ == "__main__":
    main()
