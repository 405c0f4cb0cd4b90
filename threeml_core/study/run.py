"""The study, run: what its tables and figures need and is not there yet. `threeml study`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from threeml_core.config import DATA_PARAMETERS, StudyConfig
from threeml_core.data.prepare import PreparedData, prepare_data
from threeml_core.foundation.errors import NotFiniteError, TrainingError
from threeml_core.foundation.log import Log, no_line, print_line
from threeml_core.glue.finetune import Setting, load_tasks, make_setting, plan_jobs
from threeml_core.runs.jobs import Job, Plan
from threeml_core.runs.ledger import find as find_records
from threeml_core.runs.ledger import newest
from threeml_core.runs.record import RunRecord, describe_environment, leave_record, read_record, recorded, run_folder
from threeml_core.runs.sweep import run_jobs
from threeml_core.study.experiment import Experiment, StudyRun
from threeml_core.study.ledger import chosen_experiments, find, study_runs
from threeml_core.study.results import Result
from threeml_core.training.device import choose_device
from threeml_core.training.encoders import open_encoder
from threeml_core.training.evaluation import corruption_example, fixed_corruption, masking_of, validation_sequences
from threeml_core.training.loop import STAGE, planned_run, pretrain


def run_study(
    config: StudyConfig, experiments: Iterable[Experiment | str] | None = None, log: Log = print_line
) -> list[Result]:
    """Pre-train and fine-tune all that experiments need; do what is missing, `find` what it gave.

    An encoder is fine-tuned as soon as it is there and a worker is free. A run whose loss diverges is a failed
    result, not the end of the study; it is not tried again. With `plan_only` nothing is done: what is finished is read.
    Experiments are named as in `("Table 2a", "Figure 5")`; None: all.

    Raises:
        StudyError: bad input, before any run starts; a damaged run.
    """
    if config.plan_only:
        log("plan_only: nothing is run; finished runs are read")
    return _run(config, experiments, log, lambda jobs: run_jobs(jobs, config, log, config.num_workers))


def finished_results(config: StudyConfig, experiments: Iterable[Experiment | str] | None = None) -> list[Result]:
    """What is there of a study, without doing any of it, by whatever paths its text and tasks were given."""
    return _run(config, experiments, no_line, lambda jobs: Plan(jobs, config.runs_dir).finished())


def _run(
    config: StudyConfig,
    experiments: Iterable[Experiment | str] | None,
    log: Log,
    do_jobs: Callable[[Sequence[Job]], dict[str, RunRecord]],
) -> list[Result]:
    if config.plan_only:
        return find(config, experiments)
    chosen = chosen_experiments(experiments)
    runs = study_runs(config, chosen)
    ways = {way.tasks: way for run in runs for way in run.finetunings(config).values()}
    examples = {tasks: load_tasks(way, log) for tasks, way in ways.items()}
    data = prepare_data(config, log)
    settings: dict[str, Setting] = {}

    def finetunings(run: StudyRun, record: RunRecord) -> list[Job]:
        """Those that follow from a run's pre-training, if that did not fail. All encoders share the tokenised tasks."""
        wanted = run.finetunings(config)
        if record.failure or not wanted:
            return []
        encoder = open_encoder(record.folder(config.runs_dir) / "encoder")
        jobs = []
        # of a job planned twice the last counts: Table 3's keeps the encoder that other tasks start from
        for way in reversed(wanted.values()):
            if way.tasks not in settings:
                settings[way.tasks] = make_setting(way, encoder, examples[way.tasks])
            jobs += plan_jobs(dataclasses.replace(settings[way.tasks], config=way, encoder=encoder))
        return jobs

    jobs = [pretrain_job(run, seed, data, finetunings) for run in runs for seed in run.seeds]
    return find(config, chosen, do_jobs(jobs).values(), any_text=True)


def pretrain_job(run: StudyRun, seed: int, data: PreparedData, then: Callable[..., list[Job]]) -> Job:
    """The pre-training of a run with a seed; `then` takes the run and its record, see `Job.then`."""
    config = run.config.replace(seed=seed, push_to_hub=None)  # one repository holds one run
    device = choose_device(config)
    folder, identity = planned_run(config, data, device)
    return Job(
        STAGE,
        folder.name,
        functools.partial(_pretrain, config, folder, identity),
        title=f"{folder.name}: {run.model}, {config.max_steps:,} steps, for {', '.join(run.exhibits)}",
        cost=config.max_steps,
        num_cpus=max(config.ray_num_cpus, config.num_processes),
        num_gpus=0 if device.type == "cpu" else config.num_processes,
        then=functools.partial(then, run),
    )


def _pretrain(config: StudyConfig, folder: Path, identity: dict[str, Any], log: Log) -> RunRecord:
    """As `pretrain`; a run that diverges leaves a record that says so. What is the machine's fault ends the study."""
    try:
        return pretrain(config, log)
    except TrainingError as error:
        if (folder / "record.json").exists():
            return read_record(folder)
        if not isinstance(error, NotFiniteError):
            raise
        return leave_record(folder, identity, config, describe_environment(), failure=str(error))


def prepare(config: StudyConfig, log: Log = print_line) -> RunRecord:
    """Prepare the text, and return the record of what it is: sizes and token counts; with `plan_only` read it.

    Raises:
        StudyError: see `prepare_data`; with `plan_only`: there is no record.
    """
    if config.plan_only:
        return newest(find_records(config, "data", DATA_PARAMETERS), config, "stage data")
    data = prepare_data(config, log)

    def work(environment: dict[str, Any]) -> dict[str, Any]:
        about = {name: value for name, value in data.meta.items() if name != "identity"}
        return {"metrics": {"train_counts": data.train_counts().tolist()}, "data": about}

    folder = run_folder(config.runs_dir, "data", f"text-{data.data_id}")
    return recorded(folder, data.meta["identity"], config, work, wait=True)


def corruption_rows(config: StudyConfig) -> list[dict[str, str]]:
    """Of `evaluation.corruption_example`; with `plan_only` a row that says that a record holds no text."""
    if config.plan_only:
        return [{"Token": "not shown", "Why": "plan_only=True: this page is made of records, which hold no text"}]
    data = prepare_data(config)
    sequences = validation_sequences(config, data)[:1]
    batch = fixed_corruption(sequences, masking_of(config, data, evaluation=True))
    return corruption_example(data.tokenizer(), sequences, batch)
