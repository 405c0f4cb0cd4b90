"""A session of the benchmark: speed in turns, where the time goes, memory, scaling, preparing data; its record."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from transformers.utils import logging as transformers_logging

from threeml_core.benchmark.breakdown import breakdown
from threeml_core.benchmark.load import Load, Patience, wait_until_idle
from threeml_core.benchmark.memory import peaks
from threeml_core.benchmark.preparation import compare_preparation
from threeml_core.benchmark.scaling import measure_scaling
from threeml_core.benchmark.speed import matrix_product_ceiling, take_turns
from threeml_core.benchmark.speeds import why_no_speed, why_no_verdict
from threeml_core.benchmark.variants import at_its_best, make_runner, variants_of, with_vocabulary
from threeml_core.config import BENCHMARK_PARAMETERS, StudyConfig, identity_parameters
from threeml_core.data.prepare import PreparedData, prepare_data
from threeml_core.foundation.errors import BusyError
from threeml_core.foundation.files import PACKAGE, fingerprint, sha256_file
from threeml_core.foundation.log import Log, no_line, print_line
from threeml_core.runs.record import RunRecord, describe_environment, now, read_record, recorded, run_folder, run_id
from threeml_core.training.device import choose_device, describe_device
from threeml_core.training.trainer import precision_of

STAGE = "benchmark"


def code_fingerprint() -> str:
    """Of what is measured: a change of the code is measured again."""
    rooms = ("models", "benchmark", "data", "training")
    files = [path for room in rooms for path in sorted((PACKAGE / room).glob("*.py"))]
    files += [PACKAGE / "masking.py", PACKAGE / "foundation" / "processes.py"]
    return fingerprint([sha256_file(path) for path in files], 32)


def measure_session(config: StudyConfig, number: int, refuse: bool, patience: Patience) -> RunRecord:
    """Measure one session here, see `run_benchmark`."""
    data = with_vocabulary(prepare_data(config, no_line, any_vocabulary=True), config)
    return Session(config, number, data).measure(refuse, patience, print_line)


class Session:
    """A session and its record."""

    def __init__(self, config: StudyConfig, number: int, data: PreparedData) -> None:
        transformers_logging.disable_progress_bar()
        self.config, self.data, self.variants = config, data, variants_of(config)
        self.device = choose_device(config)
        environment = describe_environment()
        describe_device(environment, self.device)
        bf16, compiled = precision_of(config, self.device)
        self.identity = {
            "data": data.data_id,
            "code": code_fingerprint(),
            "hardware": environment["hardware"],
            "torch": environment["versions"]["torch"],
            **identity_parameters(config),
            **{name: getattr(config, name) for name in BENCHMARK_PARAMETERS},
            "bf16": bf16,
            "torch_compile": compiled,
            "session": number,
        }
        self.name = run_id(config.preset, self.identity)
        self.folder = run_folder(config.runs_dir, STAGE, self.name)

    def finished(self, log: Log) -> RunRecord | None:
        """Its record, if it is an answer to what was asked for."""
        if not (self.folder / "record.json").exists():
            return None
        record = read_record(self.folder)
        look = why_no_verdict if self.config.num_benchmark_sessions > 1 else why_no_speed
        why = look(record) if "turns" in record.metrics else ""
        log(f"benchmark {self.name} {f'is measured again: {why}' if why else 'is finished; its record is read'}")
        return None if why else record

    def measure(self, refuse: bool, patience: Patience, log: Log) -> RunRecord:
        """See `run_benchmark`."""
        strict = refuse or self.config.num_benchmark_sessions > 1
        if not strict:  # a report's page does not wait for what its own runs have left in the average
            patience = dataclasses.replace(patience, wait=min(patience.wait, PAGE_WAIT))
        load = wait_until_idle(patience, strict, log)
        problem = load.problem(patience, strict)
        if problem and refuse:
            raise BusyError(
                f"this machine is busy: {problem}, after waiting for {patience.wait:.0f} s; nothing was recorded: let "
                "it idle and run the same command again"
            )
        if problem:
            log(f"this machine is busy: {problem}")

        def work(environment: dict[str, Any]) -> dict[str, Any]:
            environment["hardware"] = self.identity["hardware"]
            return _measure(self, load, log)

        return recorded(self.folder, self.identity, self.config, work, again=True)


PAGE_WAIT = 10.0
"""Seconds that a single session waits for an idle machine, if it may be recorded as busy."""


def _measure(session: Session, load: Load, log: Log) -> dict[str, Any]:
    config, device, data = session.config, session.device, session.data
    variants = [at_its_best(variant, data, device) for variant in session.variants]
    parts = config.listed("benchmark_parts")
    bf16, _ = precision_of(config, device)
    metrics: dict[str, Any] = {
        "load_before": load.average,
        "busy_before": load.busy,
        "process": os.getpid(),
        "started": now(),
        "flops_ceiling": matrix_product_ceiling(device, bf16),
        "arms": {of.name: of.described() for of in variants},
    }
    if "memory" in parts:
        metrics["peak_bytes"] = peaks(variants, data, device, log)
    if "speed" in parts or "breakdown" in parts:
        runners = {variant.name: make_runner(variant, data, device) for variant in variants}
        for name, runner in runners.items():
            metrics["arms"][name]["bf16"] = runner.bf16
        if "speed" in parts:
            metrics |= take_turns(runners, config.num_benchmark_rounds, device, log)
        if "breakdown" in parts:
            log("where the time of a step goes")
            metrics["breakdown"] = {name: breakdown(of, data.vocab_size, device) for name, of in runners.items()}
        del runners
    if "scaling" in parts:
        metrics["scaling"] = [dataclasses.asdict(point) for point in measure_scaling(config, data, device, log)]
    if "preparation" in parts:
        found = compare_preparation(config, data, log)
        metrics["preparation"] = found if isinstance(found, str) else {way: vars(of) for way, of in found.items()}
    return {
        "metrics": metrics,
        "flops": {variant.name: variant.step_flops(data.vocab_size) for variant in variants},
        "data": {"data_id": data.data_id, "vocab_size": data.vocab_size, "corpus": data.meta["corpus"]},
    }
