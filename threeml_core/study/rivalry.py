"""The rivals, run: learning rates, then every budget, the common corruptions, probes, and the clock in turns."""

from __future__ import annotations

from threeml_core.benchmark.clock import measure_steps
from threeml_core.config import StudyConfig
from threeml_core.data.prepare import prepare_data
from threeml_core.foundation.errors import ParameterError
from threeml_core.foundation.log import Log, print_line
from threeml_core.information.ledger import probe_records, rate_records
from threeml_core.information.probing import run_probing
from threeml_core.information.rates import rate_matrix
from threeml_core.parameters.glue import RANDOM as RANDOM_WEIGHTS
from threeml_core.runs.record import RunRecord
from threeml_core.runs.sweep import run_jobs
from threeml_core.study.experiment import StudyRun
from threeml_core.study.probes import RANDOM, Probes
from threeml_core.study.rivals import (
    Race,
    Raced,
    budget_runs,
    chosen_rivals,
    clock_record,
    raced,
    sweep_runs,
    swept_results,
    timed,
)
from threeml_core.study.run import pretrain_job


def run_rivals(config: StudyConfig, log: Log = print_line) -> Race:
    """What the rivals gave; with `plan_only` as far as there are records.

    Raises:
        StudyError: no such rival; bad input, before any run starts.
    """
    rivals = chosen_rivals(config)
    if config.plan_only:
        found = raced(config, rivals, _rates(config, raced(config, rivals, (), None)), clock_record(config, rivals))
        return Race(found, _probed(config, found, log))
    data = prepare_data(config, log)

    def train(runs: list[StudyRun]) -> list[RunRecord]:
        jobs = [pretrain_job(run, seed, data, lambda *_: []) for run in runs for seed in run.seeds]
        return list(run_jobs(jobs, config, log, config.num_workers).values())

    swept = train([run for rival in rivals for run in sweep_runs(config, rival)])
    tuned = zip(rivals, swept_results(config, rivals, swept), strict=True)
    records = swept + train([run for rival, of in tuned for run in budget_runs(config, rival, of)])
    ended = [record for of in raced(config, rivals, (), None, records) for record in _ended(of)]
    rates = rate_matrix(config, ended, log)
    found = raced(config, rivals, rates, None, records)
    probes = _probed(config, found, log)
    clock = measure_steps(config, timed(config, rivals), log, memory=True)
    return Race(raced(config, rivals, rates, clock, records), probes)


def _ended(of: Raced) -> list[RunRecord]:
    return [record for result in of.results for record in result.ended.values()]


def _rates(config: StudyConfig, found: list[Raced]) -> list[RunRecord]:
    try:
        return rate_records(config, [record for of in found for record in _ended(of)])
    except ParameterError:
        return []


def _probed(config: StudyConfig, found: list[Raced], log: Log) -> Probes | None:
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
        by_run = {(record.data["run"], record.data["is_random"]): record for record in there}
        answers = [by_run.get((run.run_id, name == RANDOM)) for name, _, run in asked]
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
