"""The speedrun, run: the sweep, then the rungs, each until it reaches the target, then the clock. See `study.rungs`."""

from __future__ import annotations

from collections.abc import Sequence

from threeml_core.benchmark.clock import measure_steps
from threeml_core.config import StudyConfig
from threeml_core.data.prepare import PreparedData, prepare_data
from threeml_core.foundation.errors import ParameterError
from threeml_core.foundation.log import Log, print_line
from threeml_core.runs.jobs import Job
from threeml_core.runs.record import RunRecord
from threeml_core.runs.sweep import run_jobs
from threeml_core.study.experiment import StudyRun
from threeml_core.study.jobs import pretrain_job
from threeml_core.study.results import Result
from threeml_core.study.run import run_study
from threeml_core.study.rungs import (
    RUNGS,
    Climbed,
    Rung,
    climbed,
    end_of,
    read_sweep,
    rung_runs,
    sweep_of,
    timed,
    too_slow,
)


def run_speedrun(
    config: StudyConfig, log: Log = print_line, rungs: Sequence[Rung] = RUNGS
) -> tuple[list[Result], list[Climbed]]:
    """What the sweep gave, and what each rung did; with `plan_only` as far as there are records.

    Raises:
        StudyError: `speedrun_target` is missing; see `run_study`.
    """
    if config.speedrun_target is None:
        raise ParameterError(
            "speedrun_target is missing: give the masked perplexity to which the rungs are timed, or -p preset speedrun"
        )
    if config.plan_only:
        swept = read_sweep(config, rungs)
        return swept, climbed(config, swept, rungs)
    swept = run_study(config, [sweep_of(rungs)], log)
    if slow := too_slow(config, swept):
        log(f"{len(slow)} recipes have not reached the target: they are tuned again, with the most steps")
        swept = run_study(config, [sweep_of(rungs, slow)], log)
    data = prepare_data(config, log)
    chains = [runs for runs in rung_runs(config, swept, rungs) if runs]
    jobs = [_attempt(runs, seed, data, config.speedrun_target) for runs in chains for seed in runs[0].seeds]
    records = run_jobs(jobs, config, log, config.num_workers)
    clock = measure_steps(config, timed(config, rungs), log)
    return swept, climbed(config, swept, rungs, records.values(), clock)


def _attempt(runs: Sequence[StudyRun], seed: int, data: PreparedData, target: float) -> Job:
    """The first of a rung's runs, and after it the next, until one reaches the target."""

    def then(run: StudyRun, record: RunRecord) -> list[Job]:
        further = runs[1:] if end_of(record) > target else []
        return [_attempt(further, seed, data, target)] if further else []

    return pretrain_job(runs[0], seed, data, then)
