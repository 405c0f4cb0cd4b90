"""What `scripts/ten_minute_gpu.sh` runs; see there."""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

import torch

from threeml_core.config import StudyConfig, make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.foundation.errors import ParameterError, TrainingError, command_line
from threeml_core.foundation.files import find_path
from threeml_core.foundation.log import print_line
from threeml_core.glue.finetune import finetune_glue, load_tasks
from threeml_core.runs.archive import write_archive
from threeml_core.runs.record import STAGES, load_records
from threeml_core.study.experiment import comparison_config
from threeml_core.study.ledger import study_runs
from threeml_core.study.run import prepare as prepare_record
from threeml_core.training.encoders import open_encoder
from threeml_core.training.loop import pretrain

PRESET = "ten-minute-gpu"
LUGGAGE = Path("runs") / PRESET
"""Text and tasks that are brought along."""

SECONDS = 600
"""Time for all of it."""

HUNDREDTH = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "decoder_hidden_size": 32,
    "max_steps": 25,
    "batch_size": 16,
    "micro_batch_size": 16,
    "max_train_examples": 64,
    "max_eval_sequences": 32,
    "device": "cpu",
    "study_widths": "32",
}
"""Of a rehearsal on a CPU."""


def prepare(corpus: str, glue: str) -> None:
    """Write the text as blocks, and copy the tasks."""
    shutil.rmtree(LUGGAGE, ignore_errors=True)
    data = prepare_data(
        make_config({"preset": PRESET, "corpus": corpus, "runs_dir": str(LUGGAGE / "cache")}), print_line
    )
    shutil.copytree(data.folder, LUGGAGE / "text")
    shutil.copytree(find_path(glue), LUGGAGE / "glue")
    shutil.rmtree(LUGGAGE / "cache")
    size = sum(path.stat().st_size for path in LUGGAGE.rglob("*") if path.is_file())
    print(f"{LUGGAGE}: {size / 1e6:.1f} MB to bring along")


def run(config: StudyConfig, until: float) -> list[str]:
    """Pre-train and fine-tune model after model; what was left out.

    Args:
        config: of the preset.
        until: when nothing new begins, on the monotonic clock.
    """
    tuned = comparison_config(config)
    prepare_record(config, print_line)
    tasks = load_tasks(tuned, print_line)
    left_out, longest = [], 0.0
    for each in study_runs(config, ["Table 3"]):
        started = time.monotonic()
        if started + longest > until:
            left_out.append(each.model)
            continue
        try:
            folder = pretrain(each.config, print_line).folder(config.runs_dir)
        except TrainingError as error:  # the other models are worth having
            left_out.append(f"{each.model} ({error})")
            continue
        finetune_glue(tuned, open_encoder(folder / "encoder"), tasks, print_line)
        longest = max(longest, time.monotonic() - started)
    return left_out


@command_line
def main() -> None:
    """Prepare, run or rehearse."""
    began = time.monotonic()
    parser = argparse.ArgumentParser(description="Table 3 in ten minutes; see scripts/ten_minute_gpu.sh")
    parser.add_argument("arguments", nargs="*")
    parser.add_argument("--rehearse", action="store_true", help="on a CPU, a hundredth of the size")
    options = parser.parse_args()
    if options.arguments[:1] == ["prepare"]:
        if len(options.arguments) != 3:
            raise ParameterError("expected: scripts/ten_minute_gpu.sh prepare CORPUS GLUE")
        prepare(*options.arguments[1:])
        return
    if not (LUGGAGE / "text" / "meta.json").exists():
        raise ParameterError(
            f"{LUGGAGE} holds no prepared text: run `scripts/ten_minute_gpu.sh prepare CORPUS GLUE` where the package "
            "is installed, and bring the folder along"
        )
    if not options.rehearse and not torch.cuda.is_available():
        raise ParameterError("no GPU here; `scripts/ten_minute_gpu.sh --rehearse` tries everything on a CPU")
    out = Path(options.arguments[0] if options.arguments else PRESET)
    out.mkdir(parents=True, exist_ok=True)
    given = {"preset": PRESET, "corpus": str(LUGGAGE / "text"), "glue": str(LUGGAGE / "glue")}
    config = make_config({**given, "runs_dir": str(out / "runs"), **(HUNDREDTH if options.rehearse else {})})
    left_out = run(config, began + SECONDS)
    records = [record for stage in STAGES for record in load_records(config.runs_dir, stage)]
    write_archive(records, config.runs_dir, out)
    print(f"{len(records)} records in {out} after {time.monotonic() - began:.0f} s")
    if left_out:
        print(f"left out: {', '.join(left_out)}")


if __name__ == "__main__":  # child processes import it again
    main()
