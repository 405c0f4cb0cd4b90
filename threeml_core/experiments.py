"""The study, run: what its tables and figures need and is not there yet. `python -m threeml_core.experiments`."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from threeml_core.config import StudyConfig, parse_arguments
from threeml_core.data import PreparedData, prepare_data
from threeml_core.data.glue import TaskData
from threeml_core.device import choose_device
from threeml_core.encoders import open_encoder
from threeml_core.errors import TrainingError, command_line
from threeml_core.finetune import Setting, load_tasks, make_setting, plan_jobs
from threeml_core.log import Log, print_line
from threeml_core.pretrain import STAGE, pretrain, pretrain_run_id
from threeml_core.protocol import planned_tasks, runs_of
from threeml_core.results import (
    RunRecord,
    describe_environment,
    load_records,
    now,
    read_record,
    run_folder,
    write_record,
)
from threeml_core.study import (
    Outcome,
    Point,
    StudyRun,
    find_outcomes,
    finetune_configs,
    make_outcome,
    point_of,
    study_runs,
)
from threeml_core.sweep import LEAVE, Job, leave_with_parent, run_all


def conduct(config: StudyConfig, artefacts: Sequence[str] | None = None, log: Log = print_line) -> list[Outcome]:
    """Pre-train and fine-tune all that tables and figures need; do what is missing, read what is there.

    All runs are pre-trained first, then each encoder is fine-tuned. A run whose loss diverges is a failed outcome, not
    the end of the study; it is not tried again. With `plan_only` nothing is done: what is there is read.

    Args:
        config: of the study; `workers` processes at once.
        artefacts: such as `("Table 2a", "Figure 5")`; None: all.
        log: takes a line for each run.

    Raises:
        StudyError: bad input, before any run starts; a damaged run.
    """
    if config.plan_only:
        log("plan_only: nothing is run; the records that are there are read")
        return find_outcomes(
            config, artefacts, *(load_records(config.runs_dir, stage) for stage in (STAGE, "finetune"))
        )
    return _study(config, artefacts, log, functools.partial(run_all, log=log, workers=config.workers))


def finished_outcomes(config: StudyConfig, artefacts: Sequence[str] | None = None) -> list[Outcome]:
    """What is there of a study, without doing any of it; text and tasks have been prepared by `conduct`."""

    def finished(jobs: Sequence[Job], runs_dir: str) -> dict[str, RunRecord]:
        done = [job for job in jobs if job.is_finished(runs_dir)]
        return {job.run_id: read_record(run_folder(runs_dir, job.stage, job.run_id)) for job in done}

    return _study(config, artefacts, lambda line: None, finished)


def _study(
    config: StudyConfig,
    artefacts: Sequence[str] | None,
    log: Log,
    run_jobs: Callable[[Sequence[Job], str], dict[str, RunRecord]],
) -> list[Outcome]:
    runs = study_runs(config, artefacts)
    tuned = {c.tasks: c for run in runs for c in finetune_configs(run, config)}
    examples = {name: load_tasks(chosen, log) for name, chosen in tuned.items()}
    pretraining = _pretrain_jobs(runs, prepare_data(config, log))
    records = run_jobs([job for of_run in pretraining for job in of_run.values()], config.runs_dir)
    trained = [
        {seed: records[job.run_id] for seed, job in of_run.items() if job.run_id in records} for of_run in pretraining
    ]
    finetuning = _finetune_jobs(config, runs, trained, examples)
    records = run_jobs([job for of_run in finetuning for of in of_run.values() for _, job in of], config.runs_dir)
    outcomes = []
    for run, by_seed, of_run in zip(runs, trained, finetuning, strict=True):
        found = {
            seed: {point: records[job.run_id] for point, job in of if job.run_id in records}
            for seed, of in of_run.items()
        }
        outcomes.append(make_outcome(run, config, by_seed, {seed: of for seed, of in found.items() if of}))
    return outcomes


def _pretrain_jobs(runs: Sequence[StudyRun], data: PreparedData) -> list[dict[int, Job]]:
    """Of each run: seed -> its job."""
    jobs = []
    for run in runs:
        of_run = {}
        for seed in run.seeds:
            config = run.config.replace(seed=seed)
            name = pretrain_run_id(config, data, choose_device(config))
            title = f"{name}: {run.model}, {config.max_steps:,} updates, for {', '.join(run.artefacts)}"
            of_run[seed] = Job(
                STAGE, name, functools.partial(_pretrain, config, name), title=title, cost=config.max_steps
            )
        jobs.append(of_run)
    return jobs


def _pretrain(config: StudyConfig, name: str, log: Log) -> RunRecord:
    """As `pretrain`; a run that diverges leaves a record that says so."""
    try:
        return pretrain(config, log)
    except TrainingError as error:
        environment = {**describe_environment(), "finished": now()}
        empty: dict[str, Any] = {key: {} for key in ("identity", "metrics", "flops", "timing", "data", "files")}
        parameters, sources = config.parameters(), dict(config.sources)
        record = RunRecord(
            STAGE, name, parameters=parameters, sources=sources, environment=environment, failure=str(error), **empty
        )
        write_record(record, config.runs_dir)
        return record


def _finetune_jobs(
    config: StudyConfig,
    runs: Sequence[StudyRun],
    trained: Sequence[dict[int, RunRecord]],
    examples: dict[str, dict[str, TaskData]],
) -> list[dict[int, list[tuple[Point, Job]]]]:
    """Of each run: pre-training seed -> its fine-tunings. All encoders share the tokenised tasks."""
    settings: dict[str, Setting] = {}
    jobs = []
    for run, by_seed in zip(runs, trained, strict=True):
        of_run: dict[int, list[tuple[Point, Job]]] = {}
        chosen = finetune_configs(run, config)
        for seed, record in by_seed.items():
            if record.failure or not chosen:
                continue
            encoder = open_encoder(record.folder(config.runs_dir) / "encoder")
            of_run[seed] = []
            # of a job planned twice the last counts: Table 3's keeps the encoder that other tasks start from
            for each in reversed(chosen):
                if each.tasks not in settings:
                    settings[each.tasks] = make_setting(each, encoder, examples[each.tasks])
                planned = plan_jobs(dataclasses.replace(settings[each.tasks], config=each, encoder=encoder))
                for task in planned_tasks(each):
                    points = [point_of(point) for point in runs_of(task, each)]
                    of_run[seed] += zip(points, planned[task.name], strict=True)
        jobs.append(of_run)
    return jobs


@command_line
def main() -> None:
    """The command `python -m threeml_core.experiments`."""
    if LEAVE in os.environ:
        leave_with_parent()
    config = parse_arguments("Run the whole study, as notebooks 04 to 06 do table by table.")
    outcomes = conduct(config)
    finished = [outcome for outcome in outcomes if outcome.is_finished]
    print(f"{len(finished)} of {len(outcomes)} runs of the study are finished, fine-tuning included")


if __name__ == "__main__":
    main()
