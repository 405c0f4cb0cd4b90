"""The study: what its tables and figures need and is not there yet, run; with `plan_only` read. `threeml study`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from threeml_core.config import DATA_PARAMETERS, StudyConfig
from threeml_core.foundation.log import Log, no_line, print_line
from threeml_core.runs.jobs import Job, Plan
from threeml_core.runs.ledger import find as find_records
from threeml_core.runs.ledger import newest
from threeml_core.runs.record import RunRecord, recorded, run_folder
from threeml_core.runs.sweep import run_jobs
from threeml_core.study.experiment import Experiment
from threeml_core.study.ledger import chosen_experiments, find
from threeml_core.study.results import Result

# What needs torch is imported where something is done: pages of records do not wait for it.


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
    from threeml_core.study.jobs import study_jobs

    chosen = chosen_experiments(experiments)
    return find(config, chosen, do_jobs(study_jobs(config, chosen, log)).values(), any_text=True)


def prepare(config: StudyConfig, log: Log = print_line) -> RunRecord:
    """Prepare the text, and return the record of what it is: sizes and token counts; with `plan_only` read it.

    Raises:
        StudyError: see `prepare_data`; with `plan_only`: there is no record.
    """
    if config.plan_only:
        return newest(find_records(config, "data", DATA_PARAMETERS), config, "stage data")
    from threeml_core.data.prepare import prepare_data

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
    from threeml_core.data.prepare import prepare_data
    from threeml_core.training.evaluation import corruption_example, fixed_corruption, masking_of, validation_sequences

    data = prepare_data(config)
    sequences = validation_sequences(config, data)[:1]
    batch = fixed_corruption(sequences, masking_of(config, data, evaluation=True))
    return corruption_example(data.tokenizer(), sequences, batch)
