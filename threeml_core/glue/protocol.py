"""The paper's fine-tuning protocol as numbers: which runs, which of them count, what a table row says. No torch.

Source: Table 6 and the text beside it: the whole grid is run with five seeds, the best of the grid is taken for each
seed, the median over seeds is reported. For all eight tasks (4 x 3 + 24 x 5) x 5 = 660 runs a checkpoint.
"""

from __future__ import annotations

import dataclasses
import itertools
import statistics
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from threeml_core.config import StudyConfig
from threeml_core.glue.metrics import Comparison, Splits, chance_level, compare, macro_average, score_interval
from threeml_core.glue.predictions import load_predictions
from threeml_core.glue.tasks import Task, select_tasks, tasks_of_source
from threeml_core.runs.record import RunRecord, load_records, recorded, run_folder, run_id

STAGE = "finetune"


@dataclasses.dataclass(frozen=True)
class FinetuneRun:
    """One fine-tuning: a task, a seed, a point of the grid."""

    task: str
    seed: int
    learning_rate: float
    batch_size: int
    epochs: int

    @classmethod
    def of(cls, record: RunRecord) -> FinetuneRun:
        """That left a record."""
        return cls(**{field.name: record.identity[field.name] for field in dataclasses.fields(cls)})

    @property
    def title(self) -> str:
        """For the log."""
        return f"{self.task} seed {self.seed}, lr {self.learning_rate:g}, batch {self.batch_size}, {self.epochs} epochs"


def planned_tasks(config: StudyConfig) -> list[Task]:
    """The tasks to fine-tune: those asked for, and those they start from."""
    asked = select_tasks(config)
    starts = {start_of(task, config) for task in asked}
    return [task for task in tasks_of_source(config.glue).values() if task in asked or task.name in starts]


def start_of(task: Task, config: StudyConfig) -> str | None:
    """The task whose model this one starts from under this configuration."""
    return task.starts_from if config.from_mnli else None


def runs_of(task: Task, config: StudyConfig) -> list[FinetuneRun]:
    """Grid x seeds for a task, or `trials` random points of the grid for each seed."""
    size = "finetune_large_" if task.large else "finetune_"
    axes = (config.listed(f"{size}{axis}") for axis in ("learning_rates", "batch_sizes", "epochs"))
    grid = list(itertools.product(*axes))
    runs = []
    for seed in range(config.seed, config.seed + config.num_seeds):
        order = np.random.default_rng((seed, zlib.crc32(task.name.encode()))).permutation(len(grid))
        runs += [FinetuneRun(task.name, seed, *grid[i]) for i in sorted(order[: config.num_trials])]
    return runs


def planned_runs(config: StudyConfig) -> list[FinetuneRun]:
    """All runs of a checkpoint: 660 for the paper's grids, seeds and tasks."""
    return [run for task in planned_tasks(config) for run in runs_of(task, config)]


def best_run(records: Sequence[RunRecord]) -> RunRecord | None:
    """The record with the best score among those that ended; the first of equal ones."""
    ended = [record for record in records if record.failure is None]
    return max(ended, key=lambda record: record.metrics["score"], default=None)


def best_of_seeds(records: Sequence[RunRecord]) -> list[RunRecord]:
    """The best run of each seed that has one, in the order of the records. Source: Table 6."""
    by_seed: dict[int, list[RunRecord]] = {}
    for record in records:
        by_seed.setdefault(record.identity["seed"], []).append(record)
    return [found for group in by_seed.values() if (found := best_run(group))]


def median_metrics(task: Task, best: Sequence[RunRecord]) -> dict[str, float]:
    """Each metric's median over the best runs of the seeds. Source: Table 6."""
    return {key: statistics.median(record.metrics[key] for record in best) for key in task.metric_keys}


@dataclasses.dataclass(frozen=True)
class TaskResult:
    """What the protocol says about one task.

    Attributes:
        records: of all its runs, failed ones included.
        best: the best run of each seed that has one.
        metrics: median over the best runs, for each metric.
        score: mean of `metrics`; None if no run ended.
        low: lower end of the 95% interval (to `high`) of the mean over seeds, see `score_interval`.
        chance: score of the best constant answer.
        examples: tag of a validation split -> its size.
        baseline: record of the bag of words (`threeml_core.glue.baselines`).
        is_older: is the interval an older record's, of resampled seeds? With few seeds it is too narrow.
    """

    task: Task
    records: tuple[RunRecord, ...]
    best: tuple[RunRecord, ...]
    metrics: Mapping[str, float]
    score: float | None
    low: float | None
    high: float | None
    chance: float | None
    examples: Mapping[str, int]
    baseline: RunRecord
    is_older: bool = False

    @property
    def title(self) -> str:
        """Of the task; a subset says so wherever it is named."""
        return f"{self.task.title} (subset)" if self.is_subset else self.task.title

    @property
    def seeds(self) -> int:
        """Seeds tried; there are fewer `best` runs where all of a seed's runs failed."""
        return len({record.identity["seed"] for record in self.records})

    @property
    def undefined(self) -> list[str]:
        """Metrics that are undefined in a best run (one answer for everything) and count as 0."""
        return sorted({key for record in self.best for key in record.metrics["undefined"]})

    @property
    def seed_scores(self) -> list[float]:
        """Score of the best run of each seed."""
        return [record.metrics["score"] for record in self.best]

    @property
    def failed(self) -> list[RunRecord]:
        """Runs that gave no result."""
        return [record for record in self.records if record.failure is not None]

    @property
    def collapsed(self) -> list[RunRecord]:
        """Runs that give one and the same answer to every example."""
        return [r for r in self.records if r.failure is None and r.metrics["is_constant"]]

    @property
    def is_subset(self) -> bool:
        """Were the examples fewer than the official ones, here or where the task starts?"""
        return any(record.data["is_subset"] for record in self.records)


def task_result(
    task: Task, records: Sequence[RunRecord], baseline: RunRecord, runs_dir: str | Path, resamples: int = 1000
) -> TaskResult:
    """Apply the protocol to the records of all runs of a task: best of the grid for each seed, median over seeds.

    The score is the mean of the metrics' medians, so a reported row gives its own average; the interval, which the
    paper does not have, is of the mean over seeds, by the answers below `runs_dir` or an earlier bootstrap's record.
    """
    best = best_of_seeds(records)
    if not best:
        return TaskResult(task, tuple(records), (), {}, None, None, None, None, {}, baseline)

    def measure() -> dict[str, Any]:
        splits = answers_of(task, best, runs_dir)
        low, high = score_interval(task, splits, resamples)
        examples = {tag: len(labels) for tag, (labels, _) in splits[0].items()}
        return {"low": low, "high": high, "chance": chance_level(task, splits[0]), "examples": examples}

    identity = {"task": task.name, "runs": [record.run_id for record in best], "resamples": resamples}
    of, is_older = _bootstrapped(identity, best[0], runs_dir, measure)
    medians = median_metrics(task, best)
    score, is_narrow = statistics.fmean(medians.values()), is_older and len(best) > 1
    return TaskResult(task, tuple(records), tuple(best), medians, score, **of, baseline=baseline, is_older=is_narrow)


def answers_of(task: Task, records: Sequence[RunRecord], runs_dir: str | Path) -> list[Splits]:
    """What each of some runs answered."""
    return [load_predictions(task, record.folder(runs_dir)).splits for record in records]


def compare_results(
    first: TaskResult, second: TaskResult, runs_dir: str | Path, resamples: int = 2000
) -> Comparison | None:
    """The best runs of two models on one task, see `compare`; None: one of them has no result.

    An older record's p-value, of resampled seeds, is passed over: with few seeds it is too small.
    """
    if not first.best or not second.best:
        return None

    def measure() -> dict[str, Any]:
        ours, theirs = (answers_of(first.task, result.best, runs_dir) for result in (first, second))
        return dataclasses.asdict(compare(first.task, ours, theirs, resamples))

    sides = {"runs": [r.run_id for r in first.best], "against": [r.run_id for r in second.best]}
    identity = {"task": first.task.name, **sides, "resamples": resamples}
    of, is_older = _bootstrapped(identity, first.best[0], runs_dir, measure)
    return Comparison(**{**of, "p_value": None} if is_older else of)


def _bootstrapped(
    identity: dict[str, Any], run: RunRecord, runs_dir: str | Path, measure: Callable[[], dict[str, Any]]
) -> tuple[dict[str, Any], bool]:
    """What a bootstrap of the runs in `identity` gave: from its record, which needs no predictions, else measured.

    A new record takes the parameters of `run`, one of them. The second value tells whether the record is older than
    the method: then seeds were resampled as well as examples.
    """
    latest = {**identity, "method": "spread over seeds, bootstrap of examples"}
    folder = run_folder(runs_dir, "bootstrap", run_id(f"{identity['task']}-bootstrap", latest))
    if not (folder / "record.json").exists():
        if older := [record for record in load_records(runs_dir, "bootstrap") if record.identity == identity]:
            return older[-1].metrics, True
    data = {"task": identity["task"]}
    return recorded(folder, latest, run, lambda _: {"metrics": measure(), "data": data}, wait=True).metrics, False


@dataclasses.dataclass(frozen=True)
class GlueStudy:
    """A checkpoint under the protocol: one row of Table 3, with all that stands behind it.

    Attributes:
        architecture: of an encoder pre-trained here, as in `StudyConfig.architecture`; else None.
        checkpoint: as given.
        results: of the tasks asked for, in the table's order.
        starts: of the tasks that were run only because others start from them.
        notes: what a reader has to know, such as which examples are subsets.
    """

    name: str
    architecture: str | None
    checkpoint: str
    results: tuple[TaskResult, ...]
    starts: tuple[TaskResult, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def average(self) -> float | None:
        """Macro average over the tasks asked for; None if one has no score. Source: section 3.1."""
        scores = [result.score for result in self.results if result.score is not None]
        return macro_average(scores) if len(scores) == len(self.results) else None

    @property
    def runs(self) -> list[RunRecord]:
        """All fine-tuning records, failed ones included."""
        return [record for result in self.all_results for record in result.records]

    @property
    def all_results(self) -> tuple[TaskResult, ...]:
        """`results` and `starts`."""
        return (*self.results, *self.starts)

    def result(self, name: str) -> TaskResult:
        """The result of a task asked for."""
        return next(result for result in self.results if result.task.name == name)
