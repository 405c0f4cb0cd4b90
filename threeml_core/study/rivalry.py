"""The rivals, run: learning rates, then every budget, the common corruptions, probes, and the clock in turns."""

from __future__ import annotations

from collections.abc import Sequence

from threeml_core.benchmark.clock import measure_steps
from threeml_core.config import DATA_PARAMETERS, StudyConfig
from threeml_core.data.prepare import prepare_data
from threeml_core.foundation.errors import ParameterError
from threeml_core.foundation.log import Log, print_line
from threeml_core.information.ledger import probe_records
from threeml_core.information.probing import run_probing
from threeml_core.information.questions import questions_of
from threeml_core.information.rates import rate_matrix
from threeml_core.parameters.glue import RANDOM as RANDOM_WEIGHTS
from threeml_core.runs.ledger import find
from threeml_core.runs.record import RunRecord
from threeml_core.runs.sweep import run_jobs
from threeml_core.study.experiment import StudyRun
from threeml_core.study.probes import RANDOM, Probes
from threeml_core.study.results import Result
from threeml_core.study.rivals import (
    LOSSES,
    Race,
    Raced,
    budget_runs,
    chosen_rivals,
    losses_of,
    raced,
    sweep_runs,
    swept_results,
    timed,
)
from threeml_core.study.run import pretrain_job
from threeml_core.study.rungs import clock_record


def run_rivals(config: StudyConfig, log: Log = print_line) -> Race:
    """What the rivals gave; with `plan_only` as far as there are records.

    Raises:
        StudyError: no such rival, `probe_rates` without those that are compared, bad text, before any run starts.
    """
    rivals = chosen_rivals(config)
    if missing := [rate for rate in LOSSES if float(rate) not in config.listed("probe_rates")]:
        raise ParameterError(f"probe_rates={config.probe_rates!r}: {missing[0]} is compared here, put it among them")
    if config.plan_only:
        losses = losses_of(find(config, "rates", (*DATA_PARAMETERS, "probe_rates")))
        found = raced(config, rivals, losses, clock_record(config, timed(config, rivals)))
        return Race(found, _probed(config, found, log))
    data = prepare_data(config, log)
    questions_of(config, log)  # or an error, before hours of training

    def train(runs: list[StudyRun]) -> list[RunRecord]:
        jobs = [pretrain_job(run, seed, data, lambda *_: []) for run in runs for seed in run.seeds]
        return list(run_jobs(jobs, config, log, config.num_workers).values())

    records = train([run for rival in rivals for run in sweep_runs(config, rival)])
    tuned = swept_results(config, rivals, records)
    losses = losses_of(rate_matrix(config, [record for of in tuned for record in _ended(of)], log))
    pairs = list(zip(rivals, tuned, strict=True))
    records += train([run for rival, of in pairs for run in budget_runs(config, rival, of, losses)])
    found = raced(config, rivals, losses, None, records)
    losses |= losses_of(rate_matrix(config, [record for of in found for record in _ended(of.results)], log))
    found = raced(config, rivals, losses, None, records)
    probes = _probed(config, found, log)
    clock = measure_steps(config, timed(config, rivals), log, memory=True)
    return Race(raced(config, rivals, losses, clock, records), probes)


def _ended(results: Sequence[Result]) -> list[RunRecord]:
    return [record for result in results for record in result.ended.values()]


def _probed(config: StudyConfig, found: Sequence[Raced], log: Log) -> Probes | None:
    """Encoders of the largest budget, and the baseline's with random weights; None: nothing is there."""
    asked: list[tuple[str, int, RunRecord]] = []
    for of in found:
        ended = of.results[-1].ended if of.results else {}
        for name in (of.rival.name, *([RANDOM] if of is found[0] else [])):
            asked += [(name, seed, record) for seed, record in ended.items()]
    if not asked:
        return None
    answers: list[RunRecord | None]
    if config.plan_only:
        try:
            words, *there = probe_records(config)
        except ParameterError:
            return None
        answers = [_answer(there, run, seed if name == RANDOM else None) for name, seed, run in asked]
    else:
        folders = [f"{config.runs_dir}/{run.stage}/{run.run_id}/encoder" for _, _, run in asked]
        checkpoints = [RANDOM_WEIGHTS * (asked[i][0] == RANDOM) + folder for i, folder in enumerate(folders)]
        words, *done = run_probing(config, checkpoints, [seed for _, seed, _ in asked], log)
        answers = list(done)
    models: dict[str, dict[int, RunRecord]] = {}
    for (name, seed, _), answer in zip(asked, answers, strict=True):
        if answer is not None:
            models.setdefault(name, {})[seed] = answer
    return Probes(words, models, {})


def _answer(there: Sequence[RunRecord], run: RunRecord, weights_seed: int | None) -> RunRecord | None:
    """The newest record of a run's encoder, or of one of its size with the random weights of a seed."""
    if weights_seed is None:
        found = [record for record in there if record.data["run"] == run.run_id and not record.data["is_random"]]
    else:
        known = run.data["encoder_parameters"]
        found = [
            record
            for record in there
            if record.identity["weights_seed"] == weights_seed and record.data["parameters"] == known
        ]
    return found[-1] if found else None
