"""What a step of any configurations costs, in turns, on one thread: core-seconds that may be compared. A record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from threeml_core.benchmark.load import Patience, wait_until_idle
from threeml_core.benchmark.measure import PAGE_WAIT, code_fingerprint
from threeml_core.benchmark.memory import peaks
from threeml_core.benchmark.speed import take_turns
from threeml_core.benchmark.speeds import Timed, why_no_speed
from threeml_core.benchmark.variants import Variant, at_its_best, make_runner
from threeml_core.config import StudyConfig
from threeml_core.data.prepare import prepare_data
from threeml_core.foundation.log import Log, print_line
from threeml_core.runs.record import RunRecord, describe_environment, read_record, recorded, run_folder, run_id
from threeml_core.training.device import choose_device, describe_device

STAGE = "clock"


def measure_steps(
    config: StudyConfig, variants: Mapping[str, Timed], log: Log = print_line, memory: bool = False
) -> RunRecord:
    """Time a step of each in turns, in `num_benchmark_rounds` rounds, or read the record of a quiet measurement.

    On a CPU with one thread, so that seconds are core-seconds; validation is not in it.

    Args:
        config: text, rounds.
        variants: by name; `BASELINE` is among them.
        log: takes progress lines.
        memory: peak memory of training too, of each in a process of its own.
    """
    data, device = prepare_data(config, log), choose_device(config)
    environment = describe_environment()
    describe_device(environment, device)
    known = {"data": data.data_id, "code": code_fingerprint(), "hardware": environment["hardware"]}
    known |= {"torch": environment["versions"]["torch"], "rounds": config.num_benchmark_rounds}
    known |= {"variants": {name: of.key for name, of in variants.items()}}
    known |= {"memory": True} if memory else {}
    folder = run_folder(config.runs_dir, STAGE, run_id(config.preset, known))
    if (folder / "record.json").exists() and not why_no_speed(read_record(folder)):
        return read_record(folder)
    load = wait_until_idle(Patience(wait=PAGE_WAIT), False, log)

    def work(environment: dict[str, Any]) -> dict[str, Any]:
        environment["hardware"] = known["hardware"]
        found = [Variant(name, name, "ours" if of.ours else "hf", of.config) for name, of in variants.items()]
        threads = torch.get_num_threads()
        torch.set_num_threads(1 if device.type == "cpu" else threads)
        try:
            best = [at_its_best(variant, data, device) for variant in found]
            runners = {variant.name: make_runner(variant, data, device) for variant in best}
            turns = take_turns(runners, config.num_benchmark_rounds, device, log)
        finally:
            torch.set_num_threads(threads)
        arms = {name: {"label": name, "bf16": runner.bf16} for name, runner in runners.items()}
        metrics = {
            "load_before": load.average,
            "busy_before": load.busy,
            "threads": 1 if device.type == "cpu" else threads,
            "arms": arms,
            **turns,
        }
        if memory:
            metrics["peak_memory_bytes"] = peaks(best, data, device, log)
        about = {"data_id": data.data_id, "vocab_size": data.vocab_size, "corpus": data.meta["corpus"]}
        flops = {variant.name: variant.step_flops(data.vocab_size) for variant in best}
        return {"metrics": metrics, "flops": flops, "data": about}

    return recorded(folder, known, config, work, again=True)
