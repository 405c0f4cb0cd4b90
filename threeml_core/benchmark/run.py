"""One benchmark: speed in turns, where the time goes, memory, scaling, preparing data; left as a record."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from threeml_core import ledger
from threeml_core.benchmark.arms import arms_of, make_runner, with_vocabulary
from threeml_core.benchmark.breakdown import breakdown
from threeml_core.benchmark.memory import peaks
from threeml_core.benchmark.preparation import compare_preparation
from threeml_core.benchmark.scaling import measure_scaling
from threeml_core.benchmark.speed import matrix_product_ceiling, take_turns
from threeml_core.config import BENCHMARK_PARAMETERS, BENCHMARK_PARTS, StudyConfig, identity_parameters, parse_names
from threeml_core.data import prepare_data
from threeml_core.device import choose_device, describe_device
from threeml_core.files import PROJECT_ROOT, exclusive, fingerprint, sha256_file
from threeml_core.log import Log, print_line
from threeml_core.pretrain import precision_of
from threeml_core.results import (
    RunRecord,
    available_cores,
    describe_environment,
    now,
    read_record,
    run_folder,
    run_id,
    write_record,
)
from threeml_core.speeds import AGAIN, BASELINE, ratio, too_noisy

STAGE = "benchmark"


def code_fingerprint() -> str:
    """Of what is measured: a change of the code is measured again."""
    package = PROJECT_ROOT / "threeml_core"
    names = ("models", "benchmark", "data")
    files = [path for name in names for path in sorted((package / name).glob("*.py"))]
    files += [package / f"{name}.py" for name in ("masking", "optim", "pretrain")]
    return fingerprint([sha256_file(path) for path in files], 32)


def run_benchmark(config: StudyConfig, log: Log = print_line) -> RunRecord:
    """Measure what `benchmark_parts` asks for, or return the record of the same code on the same kind of machine.

    A record that was too noisy is not kept as an answer: the next call measures again.

    Args:
        config: geometry, text, arms, rounds.
        log: takes progress lines.

    Raises:
        StudyError: bad parameters or corpus.
    """
    if config.plan_only:
        return ledger.benchmark(config)
    transformers_logging.disable_progress_bar()
    device = choose_device(config)
    environment = describe_environment()
    describe_device(environment, device)
    data = with_vocabulary(prepare_data(config, log, any_vocabulary=True), config)
    bf16, compiled = precision_of(config, device)
    identity = {
        "data": data.data_id,
        "code": code_fingerprint(),
        "hardware": environment["hardware"],
        "torch": environment["versions"]["torch"],
        **identity_parameters(config),
        **{name: getattr(config, name) for name in BENCHMARK_PARAMETERS},
        "bf16": bf16,
        "torch_compile": compiled,
    }
    name = run_id(config.preset, identity)
    folder = run_folder(config.runs_dir, STAGE, name)
    with exclusive(folder / ".lock", f"benchmark {name}"):
        if (folder / "record.json").exists():
            record = read_record(folder)
            if not record.metrics.get("too_noisy"):
                log(f"benchmark {name} is finished; its record is read")
                return record
            log(f"benchmark {name} was too noisy; it is measured again")
        return _measure(config, device, data, identity, environment, folder, log)


def _measure(
    config: StudyConfig,
    device: torch.device,
    data: Any,
    identity: dict[str, Any],
    environment: dict[str, Any],
    folder: Path,
    log: Log,
) -> RunRecord:
    parts = parse_names("benchmark_parts", config.benchmark_parts, BENCHMARK_PARTS)
    arms = arms_of(config)
    bf16, _ = precision_of(config, device)
    load = os.getloadavg()[0]
    metrics: dict[str, Any] = {
        "load_before": load,
        "flops_ceiling": matrix_product_ceiling(device, bf16),
        "arms": {arm.name: {"label": arm.label, "kind": arm.kind, **_about(arm.config)} for arm in arms},
    }
    if load > 0.5 * available_cores():
        log(f"this machine is busy (load {load:.1f} before the start): expect noise")
    if "memory" in parts:
        metrics["peak_bytes"] = peaks(arms, data, device, log)
    if "speed" in parts or "breakdown" in parts:
        runners = {arm.name: make_runner(arm, data, device) for arm in arms}
        if "speed" in parts:
            turns, first = take_turns(runners, config.benchmark_rounds, device, log)
            metrics["first_step_seconds"] = first
            metrics["turns"] = {
                name: {field: values.tolist() for field, values in vars(turn).items()} for name, turn in turns.items()
            }
            metrics["too_noisy"] = too_noisy(ratio(turns[BASELINE].seconds, turns[AGAIN].seconds))
        if "breakdown" in parts:
            log("where the time of a step goes")
            vocab = data.vocab_size
            metrics["breakdown"] = {name: breakdown(runner, vocab, device) for name, runner in runners.items()}
        del runners
    if "scaling" in parts:
        metrics["scaling"] = [dataclasses.asdict(point) for point in measure_scaling(config, data, device, log)]
    if "preparation" in parts:
        found = compare_preparation(config, data, log)
        metrics["preparation"] = (
            found if isinstance(found, str) else {way: dataclasses.asdict(value) for way, value in found.items()}
        )
    environment["finished"] = now()
    record = RunRecord(
        stage=STAGE,
        run_id=folder.name,
        identity=identity,
        parameters=config.parameters(),
        sources=dict(config.sources),
        metrics=metrics,
        flops={arm.name: arm.step_flops(data.vocab_size) for arm in arms},
        timing={},
        data={"data_id": data.data_id, "vocab_size": data.vocab_size, "corpus": data.meta["corpus"]},
        environment=environment,
        files={},
    )
    write_record(record, config.runs_dir)
    return record


def _about(config: StudyConfig) -> dict[str, Any]:
    return {"architecture": config.architecture, "mask_rate": config.mask_rate}
