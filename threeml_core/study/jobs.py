"""The jobs of a study: each pre-training, and the fine-tunings that follow from it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from threeml_core.config import StudyConfig
from threeml_core.data.prepare import PreparedData, prepare_data
from threeml_core.foundation.errors import NotFiniteError, TrainingError
from threeml_core.foundation.log import Log
from threeml_core.glue.finetune import Setting, load_tasks, make_setting, plan_jobs
from threeml_core.runs.jobs import Job
from threeml_core.runs.record import RunRecord, describe_environment, leave_record, read_record
from threeml_core.study.experiment import Experiment, StudyRun
from threeml_core.study.ledger import study_runs
from threeml_core.training.device import choose_device
from threeml_core.training.encoders import open_encoder
from threeml_core.training.loop import STAGE, planned_run, pretrain


def study_jobs(config: StudyConfig, experiments: Iterable[Experiment], log: Log) -> list[Job]:
    """All that experiments need, done or not; an encoder is fine-tuned as soon as it is there.

    Raises:
        StudyError: bad input.
    """
    runs = study_runs(config, experiments)
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

    return [pretrain_job(run, seed, data, finetunings) for run in runs for seed in run.seeds]


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
