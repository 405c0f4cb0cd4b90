"""The study, run: what its tables and figures need and is not there yet. `threeml study`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

from threeml_core.config import RANDOM, StudyConfig
from threeml_core.data.prepare import PreparedData, prepare_data
from threeml_core.foundation.errors import TrainingError
from threeml_core.foundation.files import exclusive
from threeml_core.foundation.log import Log, no_line, print_line
from threeml_core.glue.encoders import open_encoder
from threeml_core.glue.finetune import Setting, finetune_glue, load_tasks, make_setting, plan_jobs
from threeml_core.glue.ledger import Point, glue, of_pretraining, of_untrained, point_of
from threeml_core.glue.protocol import GlueStudy, planned_tasks, runs_of
from threeml_core.glue.readers import TaskData
from threeml_core.runs.jobs import Job, Plan
from threeml_core.runs.ledger import data_record
from threeml_core.runs.record import (
    RunRecord,
    describe_environment,
    load_records,
    read_record,
    run_folder,
    write_record,
)
from threeml_core.runs.sweep import run_jobs
from threeml_core.study.results import Outcome, StudyRun, find_outcomes, finetune_configs, make_outcome, study_runs
from threeml_core.training.device import choose_device
from threeml_core.training.evaluation import corruption_example
from threeml_core.training.loop import STAGE, pretrain, pretrain_run_id, record_failure


def run_study(config: StudyConfig, artefacts: Sequence[str] | None = None, log: Log = print_line) -> list[Outcome]:
    """Pre-train and fine-tune all that tables and figures need; do what is missing, read what is there.

    An encoder is fine-tuned as soon as it is there and a worker is free. A run whose loss diverges is a failed
    outcome, not the end of the study; it is not tried again. With `plan_only` nothing is done: what is there is read.

    Args:
        config: of the study; `engine` and `workers` say what does the runs.
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
    return _study(config, artefacts, log, functools.partial(run_jobs, config=config, log=log, workers=config.workers))


def finished_outcomes(config: StudyConfig, artefacts: Sequence[str] | None = None) -> list[Outcome]:
    """What is there of a study, without doing any of it; text and tasks have been prepared by `run_study`."""
    if config.plan_only:
        return run_study(config, artefacts, no_line)
    return _study(config, artefacts, no_line, lambda jobs: Plan(jobs, config.runs_dir).finished())


def prepare(config: StudyConfig, log: Log = print_line) -> RunRecord:
    """Prepare the text, and return the record of what it is: sizes and token counts; with `plan_only` read it.

    Raises:
        StudyError: see `prepare_data`; with `plan_only`: there is no record.
    """
    if config.plan_only:
        return data_record(config)
    data = prepare_data(config, log)
    name = f"text-{data.data_id}"
    folder = run_folder(config.runs_dir, "data", name)
    with exclusive(folder / ".lock", f"record {name}", wait=True):
        if not (folder / "record.json").exists():
            about = {name: value for name, value in data.meta.items() if name != "identity"}
            empty: dict[str, Any] = {key: {} for key in ("flops", "timing", "files")}
            record = RunRecord(
                "data",
                name,
                identity=data.meta["identity"],
                parameters=config.parameters(),
                sources=dict(config.sources),
                metrics={"train_counts": data.train_counts().tolist()},
                data=about,
                environment=describe_environment(),
                **empty,
            )
            write_record(record, config.runs_dir)
        return read_record(folder)


def corruption_rows(config: StudyConfig) -> list[dict[str, str]]:
    """Of `evaluation.corruption_example`; with `plan_only` a row that says that a record holds no text."""
    if config.plan_only:
        return [{"Token": "not shown", "Why": "plan_only=True: this page is made of records, which hold no text"}]
    return corruption_example(config, prepare_data(config))


def finetune_study(config: StudyConfig, log: Log = print_line) -> list[GlueStudy]:
    """Fine-tune `checkpoint` by the protocol, and with `random_baseline` the same encoder without its training.

    Without `checkpoint` it is the encoder that `02_pretrain` makes with the same parameters; if it is not there yet, it
    is pre-trained now. With `plan_only` the records are read.

    Raises:
        StudyError: bad input, before anything is trained; with `plan_only`: there is no record.
    """
    if config.plan_only:
        return glue(config)
    data = load_tasks(config, log)
    checkpoint = config.checkpoint or pretrain(of_pretraining(config), log).folder(config.runs_dir) / "encoder"
    encoder = open_encoder(checkpoint)
    log(f"{encoder.checkpoint}: {encoder.parameters:,} parameters, at most {encoder.positions} tokens")
    studies = [finetune_glue(config, encoder, data, log)]
    if config.random_baseline:
        untrained = open_encoder(f"{RANDOM}{encoder.checkpoint}")
        studies.append(finetune_glue(of_untrained(config), untrained, data, log))
    return studies


def _study(
    config: StudyConfig,
    artefacts: Sequence[str] | None,
    log: Log,
    do_jobs: Callable[[Sequence[Job]], dict[str, RunRecord]],
) -> list[Outcome]:
    runs = study_runs(config, artefacts)
    tuned = {c.tasks: c for run in runs for c in finetune_configs(run, config)}
    tuning = _Finetuning(config, {name: load_tasks(chosen, log) for name, chosen in tuned.items()})
    pretraining = _pretrain_jobs(runs, prepare_data(config, log), tuning)
    records = do_jobs([job for of_run in pretraining for job in of_run.values()])
    outcomes = []
    for run, of_run in zip(runs, pretraining, strict=True):
        trained = {seed: records[job.run_id] for seed, job in of_run.items() if job.run_id in records}
        planned = {seed: tuning.planned.get(record.run_id, []) for seed, record in trained.items()}
        found = {
            seed: {point: records[job.run_id] for point, job in of if job.run_id in records}
            for seed, of in planned.items()
            if of
        }
        outcomes.append(make_outcome(run, config, trained, {seed: of for seed, of in found.items() if of}))
    return outcomes


def _pretrain_jobs(runs: Sequence[StudyRun], data: PreparedData, tuning: _Finetuning) -> list[dict[int, Job]]:
    """Of each run: seed -> its job, from which its fine-tunings follow."""
    jobs = []
    for run in runs:
        of_run = {}
        for seed in run.seeds:
            config = run.config.replace(seed=seed)
            device = choose_device(config)
            name = pretrain_run_id(config, data, device)
            of_run[seed] = Job(
                STAGE,
                name,
                functools.partial(_pretrain, config, name),
                title=f"{name}: {run.model}, {config.max_steps:,} updates, for {', '.join(run.artefacts)}",
                cost=config.max_steps,
                num_cpus=max(config.ray_num_cpus, config.num_processes),
                num_gpus=0 if device.type == "cpu" else config.num_processes,
                then=functools.partial(tuning.plan, run),
            )
        jobs.append(of_run)
    return jobs


def _pretrain(config: StudyConfig, name: str, log: Log) -> RunRecord:
    """As `pretrain`; a run that diverges leaves a record that says so."""
    try:
        return pretrain(config, log)
    except TrainingError as error:
        folder = run_folder(config.runs_dir, STAGE, name)
        return read_record(folder) if (folder / "record.json").exists() else record_failure(config, name, str(error))


class _Finetuning:
    """Plans the fine-tunings of each encoder. All encoders share the tokenised tasks."""

    def __init__(self, config: StudyConfig, examples: dict[str, dict[str, TaskData]]) -> None:
        """`examples`: the tasks that a fine-tuning asks for -> their examples."""
        self.config, self.examples = config, examples
        self.planned: dict[str, list[tuple[Point, Job]]] = {}
        """Run id of a pre-training -> its fine-tunings."""
        self._settings: dict[str, Setting] = {}

    def plan(self, run: StudyRun, record: RunRecord) -> list[Job]:
        """The fine-tunings that follow from a run's pre-training; none if that failed."""
        chosen = finetune_configs(run, self.config)
        if record.failure or not chosen:
            return []
        encoder = open_encoder(record.folder(self.config.runs_dir) / "encoder")
        planned = self.planned[record.run_id] = []
        # of a job planned twice the last counts: Table 3's keeps the encoder that other tasks start from
        for each in reversed(chosen):
            if each.tasks not in self._settings:
                self._settings[each.tasks] = make_setting(each, encoder, self.examples[each.tasks])
            jobs = plan_jobs(dataclasses.replace(self._settings[each.tasks], config=each, encoder=encoder))
            for task in planned_tasks(each):
                points = [point_of(point) for point in runs_of(task, each)]
                planned += zip(points, jobs[task.name], strict=True)
        return [job for _, job in planned]
