"""The study's encoders, probed: pre-trained if need be, each beside its like with random weights. `threeml probe`."""

from __future__ import annotations

from collections.abc import Sequence

from threeml_core.config import StudyConfig
from threeml_core.foundation.log import Log, print_line
from threeml_core.information.ledger import named_encoders, probe_records, rate_records
from threeml_core.parameters.glue import RANDOM as RANDOM_WEIGHTS
from threeml_core.runs.record import RunRecord
from threeml_core.study.probes import (
    BASELINE,
    PROBED,
    Probes,
    RateMatrix,
    named,
    probes_by_name,
    probes_of,
    results_to_probe,
)
from threeml_core.study.results import Result
from threeml_core.study.run import run_study


def rate_study(config: StudyConfig, found: Probes, log: Log = print_line) -> RateMatrix | None:
    """The rate matrix of the models that were probed; None: they are not the study's.

    Raises:
        StudyError: see `rate_matrix`.
    """
    if not found.runs:
        return None
    runs = [run for seeds in found.runs.values() for run in seeds.values()]
    records = {record.data["run"]: record for record in _rates(config, runs, log)}
    return {model: {s: records[run.run_id] for s, run in seeds.items()} for model, seeds in found.runs.items()}


def probe_study(config: StudyConfig, log: Log = print_line) -> tuple[list[Result], Probes]:
    """Probe `encoders`, or the study's models with all their seeds and random weights with as many.

    Returns:
        The study's models, as far as they are pre-trained (none with `encoders`), and what the probes found.

    Raises:
        StudyError: see `run_probing` and `run_study`.
    """
    if config.encoders is not None:
        names = named_encoders(config)
        return [], probes_by_name(names, _probed(config, names, (), log))
    trained = run_study(config, PROBED, log)
    results = results_to_probe(config, trained)
    if config.plan_only:
        return results, probes_of(config, results, probe_records(config))
    checkpoints, seeds = [], []
    for result in results:
        for seed, record in result.ended.items():
            encoder = f"{config.runs_dir}/{record.stage}/{record.run_id}/encoder"
            random = [RANDOM_WEIGHTS + encoder] if named(result, config) == BASELINE else []
            for checkpoint in (encoder, *random):
                checkpoints.append(checkpoint)
                seeds.append(seed)
    return results, probes_of(config, results, _probed(config, checkpoints, seeds, log))


def _probed(config: StudyConfig, checkpoints: Sequence[str], seeds: Sequence[int], log: Log) -> list[RunRecord]:
    if config.plan_only:
        return probe_records(config, checkpoints)
    from threeml_core.information.probing import run_probing

    return run_probing(config, checkpoints, seeds, log)


def _rates(config: StudyConfig, runs: Sequence[RunRecord], log: Log) -> list[RunRecord]:
    if config.plan_only:
        return rate_records(config, runs)
    from threeml_core.information.rates import rate_matrix

    return rate_matrix(config, runs, log)
