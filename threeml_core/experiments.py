"""The study, run: what its tables and figures need and is not there yet. `python -m threeml_core.experiments`."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
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
from threeml_core.results import RunRecord, describe_environment, load_records
from threeml_core.study import Outcome, StudyRun, find_outcomes, finetune_configs, study_runs
from threeml_core.sweep import Job, run_all


def conduct(config: StudyConfig, artefacts: Sequence[str] | None = None, log: Log = print_line) -> list[Outcome]:
    """Pre-train and fine-tune all that tables and figures need; do what is missing, read what is there.

    All runs are pre-trained first, then each encoder is fine-tuned. A run whose loss diverges is a failed outcome, not
    the end of the study. With `plan_only` nothing is done: what is there is read.

    Args:
        config: of the study; `workers` processes at once.
        artefacts: such as `("Table 2a", "Figure 5")`; None: all.
        log: takes a line for each run.

    Raises:
        StudyError: bad input, before any run starts; a damaged run.
    """
    if config.plan_only:
        stages = [load_records(config.runs_dir, stage) for stage in (STAGE, "finetune")]
        log("plan_only: nothing is run; the records that are there are read")
        return find_outcomes(config, artefacts, *stages)
    runs = study_runs(config, artefacts)
    tuned = {c.tasks: c for run in runs for c in finetune_configs(run, config)}
    examples = {name: load_tasks(chosen, log) for name, chosen in tuned.items()}
    data = prepare_data(config, log)
    pretraining = run_all(_pretrain_jobs(runs, data), config.runs_dir, log, config.workers)
    outcomes = find_outcomes(config, artefacts, pretraining.values(), ())
    finetuning = run_all(_finetune_jobs(config, outcomes, examples), config.runs_dir, log, config.workers)
    return find_outcomes(config, artefacts, pretraining.values(), finetuning.values())


def _pretrain_jobs(runs: Sequence[StudyRun], data: PreparedData) -> list[Job]:
    """The longest first, so that no worker is left with one of them at the end."""
    jobs = []
    for run in sorted(runs, key=lambda run: -run.config.max_steps):
        device = choose_device(run.config)
        for seed in run.seeds:
            config = run.config.replace(seed=seed)
            name = pretrain_run_id(config, data, device)
            title = f"{name}: {run.model}, {config.max_steps:,} updates, for {', '.join(run.artefacts)}"
            jobs.append(Job(STAGE, name, functools.partial(_pretrain, config, name), title=title))
    return jobs


def _pretrain(config: StudyConfig, name: str, log: Log) -> RunRecord:
    """As `pretrain`; a run that diverges gives a record that says so, which is not written: it may be tried again."""
    try:
        return pretrain(config, log)
    except TrainingError as error:
        empty: dict[str, Any] = {key: {} for key in ("identity", "metrics", "flops", "timing", "data", "files")}
        parameters, sources = config.parameters(), dict(config.sources)
        environment = describe_environment()
        return RunRecord(
            STAGE, name, parameters=parameters, sources=sources, environment=environment, failure=str(error), **empty
        )


def _finetune_jobs(
    config: StudyConfig, outcomes: Sequence[Outcome], examples: dict[str, dict[str, TaskData]]
) -> list[Job]:
    """All fine-tunings of all encoders, which share the tokenised tasks."""
    settings: dict[str, Setting] = {}
    jobs: list[Job] = []
    for outcome in outcomes:
        chosen = finetune_configs(outcome.run, config)
        for record in outcome.ended.values() if chosen else ():
            encoder = open_encoder(record.folder(config.runs_dir) / "encoder")
            for each in reversed(
                chosen
            ):  # of a run planned twice the last counts: Table 3's keeps what others start from
                if each.tasks not in settings:
                    settings[each.tasks] = make_setting(each, encoder, examples[each.tasks])
                setting = dataclasses.replace(settings[each.tasks], config=each, encoder=encoder)
                jobs += [job for of_task in plan_jobs(setting).values() for job in of_task]
    return jobs


@command_line
def main() -> None:
    """The command `python -m threeml_core.experiments`."""
    config = parse_arguments("Run the whole study, as notebooks 04 to 06 do table by table.")
    outcomes = conduct(config)
    finished = [outcome for outcome in outcomes if outcome.is_finished]
    print(f"{len(finished)} of {len(outcomes)} runs of the study are finished, fine-tuning included")


if __name__ == "__main__":
    main()
