"""The rivals, run: learning rates, then every budget, the common corruptions, probes, and the clock in turns."""

from __future__ import annotations

from collections.abc import Sequence

from threeml_core.benchmark.clock import measure_steps
from threeml_core.config import StudyConfig
from threeml_core.data.prepare import prepare_data
from threeml_core.foundation.log import Log, print_line
from threeml_core.information.probing import run_probing
from threeml_core.information.questions import questions_of
from threeml_core.information.rates import rate_matrix
from threeml_core.parameters.glue import RANDOM as RANDOM_WEIGHTS
from threeml_core.runs.record import RunRecord
from threeml_core.runs.sweep import run_jobs
from threeml_core.study.experiment import StudyRun
from threeml_core.study.jobs import pretrain_job
from threeml_core.study.probes import RANDOM, Probes
from threeml_core.study.results import Result
from threeml_core.study.rivals import (
    Race,
    Raced,
    budget_runs,
    check_rates,
    chosen_rivals,
    encoders_of,
    losses_of,
    probes_of_encoders,
    raced,
    read_race,
    sweep_runs,
    swept_results,
    timed,
)


def run_rivals(config: StudyConfig, log: Log = print_line) -> Race:
    """What the rivals gave; with `plan_only` as far as there are records.

    Raises:
        StudyError: no such rival, `probe_rates` without those that are compared, bad text, before any run starts.
    """
    rivals = chosen_rivals(config)
    check_rates(config)
    if config.plan_only:
        return read_race(config)
    data = prepare_data(config, log)
    questions_of(config, log)  # or an error, before hours of training

    def train(runs: list[StudyRun]) -> list[RunRecord]:
        jobs = [pretrain_job(run, seed, data, lambda *_: []) for run in runs for seed in run.seeds]
        return list(run_jobs(jobs, config, log, config.num_workers).values())

    records = train([run for rival in rivals for run in sweep_runs(config, rival)])
    tuned = swept_results(config, rivals, records)
    rates = rate_matrix(config, [record for of in tuned for record in _ended(of)], log)
    losses = losses_of(rates)
    pairs = list(zip(rivals, tuned, strict=True))
    records += train([run for rival, of in pairs for run in budget_runs(config, rival, of, losses)])
    found = raced(config, rivals, losses, None, records)
    rates += rate_matrix(config, [record for of in found for record in _ended(of.results)], log)
    probes = _probed(config, found, log)
    clock = measure_steps(config, timed(config, rivals), log, memory=True)
    found = raced(config, rivals, losses_of(rates), clock, records)
    return Race(found, probes, {record.data["run"]: record.run_id for record in rates})


def _ended(results: Sequence[Result]) -> list[RunRecord]:
    return [record for result in results for record in result.ended.values()]


def _probed(config: StudyConfig, found: Sequence[Raced], log: Log) -> Probes | None:
    """Encoders of the largest budget, and the baseline's with random weights; None: nothing is there."""
    if not (asked := encoders_of(found)):
        return None
    folders = [f"{config.runs_dir}/{run.stage}/{run.run_id}/encoder" for _, _, run in asked]
    checkpoints = [RANDOM_WEIGHTS * (asked[i][0] == RANDOM) + folder for i, folder in enumerate(folders)]
    words, *answers = run_probing(config, checkpoints, [seed for _, seed, _ in asked], log)
    return probes_of_encoders(words, asked, answers)
