"""What the runs of a study gave, read from records. No torch."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping

from threeml_core.glue.metrics import task_score, weighted_accuracy
from threeml_core.glue.protocol import best_of_seeds, median_metrics
from threeml_core.glue.tasks import GLUE_TASKS, Task
from threeml_core.parameters.masking import KINDS, parse_mask_split
from threeml_core.runs.record import RunRecord
from threeml_core.study.experiment import StudyRun


@dataclasses.dataclass(frozen=True)
class Downstream:
    """What one pre-trained encoder gave downstream by the paper's protocol: medians over fine-tuning seeds.

    Attributes:
        tasks: all tasks that were planned.
        records: of each task whose runs are all finished.
        accuracies: the ablations' number of a task is an accuracy, in Table 3 it is the mean of all its metrics.
    """

    tasks: tuple[Task, ...]
    records: Mapping[str, tuple[RunRecord, ...]]
    accuracies: bool

    def metrics(self, task: Task) -> dict[str, float] | None:
        """Metric -> median over seeds of the best of the grid; None: not run, or every run failed."""
        best = best_of_seeds(self.records.get(task.name, ()))
        return median_metrics(task, best) if best else None

    def score(self, task: Task) -> float | None:
        """The task's one number, a fraction; None: not run, or every run failed."""
        return self._number(task, metrics) if (metrics := self.metrics(task)) else None

    def _number(self, task: Task, metrics: Mapping[str, float]) -> float:
        if not self.accuracies or task.name not in GLUE_TASKS:
            return task_score(task, metrics)
        keys = [key for key in task.metric_keys if key.endswith("accuracy")]
        splits = self.records[task.name][0].data["splits"]
        sizes = [about["examples"] for name, about in splits.items() if name != "train"]
        return weighted_accuracy([metrics[key] for key in keys], sizes)

    @property
    def average(self) -> float | None:
        """Macro average; None: a task has no number. Source: section 3.1."""
        known = [score for task in self.tasks if (score := self.score(task)) is not None]
        return statistics.fmean(known) if known and len(known) == len(self.tasks) else None

    @property
    def is_subset(self) -> bool:
        """Were the examples of a task fewer than the official ones?"""
        return any(record.data["is_subset"] for records in self.records.values() for record in records)

    @property
    def chance(self) -> float:
        """What the best constant answer to each task gives as the average; nan: the records do not say."""
        known = [value for task in self.tasks if (value := self.constant(task)) is not None]
        return statistics.fmean(known) if len(known) == len(self.tasks) else math.nan

    def constant(self, task: Task) -> float | None:
        """`score` of the best constant answer to a task; None: the records do not say."""
        ended = [record for record in self.records.get(task.name, ()) if record.failure is None]
        answers = ended[0].metrics.get("constant_answers") if ended else None
        return max(self._number(task, answer) for answer in answers) if answers else None


def averages(studies: Mapping[int, Downstream]) -> dict[int, float]:
    """Macro average by pre-training seed, times 100; without seeds of which a task was not run."""
    return {seed: 100 * study.average for seed, study in studies.items() if study.average is not None}


@dataclasses.dataclass(frozen=True)
class Result:
    """What a run of the study gave, seed by seed. A seed that was not run is not in it.

    Attributes:
        run: what was asked for.
        pretraining: pre-training seed -> its record, failed ones included.
        comparison: seed -> fine-tuning on all tasks, where an experiment needs it.
        ablation: seed -> fine-tuning on the tasks of the ablations, where one needs it.
    """

    run: StudyRun
    pretraining: Mapping[int, RunRecord]
    comparison: Mapping[int, Downstream]
    ablation: Mapping[int, Downstream]

    @property
    def ended(self) -> dict[int, RunRecord]:
        """Pre-training records that did not fail."""
        return {seed: record for seed, record in self.pretraining.items() if record.failure is None}

    def metric(self, name: str) -> dict[int, float]:
        """A metric of pre-training by seed, or `own_perplexity`; without seeds that do not have it."""
        if name == "own_perplexity":
            return self.own_perplexity
        return {seed: record.metrics[name] for seed, record in self.ended.items() if name in record.metrics}

    @property
    def on_plateau(self) -> bool:
        """Has a seed not left the unigram plateau?"""
        return any(self.metric("on_unigram_plateau").values())

    @property
    def lacks(self) -> tuple[str, ...]:
        """Kinds of corrupted tokens that its split asks for and that it was never trained on."""
        shares = zip(KINDS, parse_mask_split(self.run.config.mask_split), strict=True)
        executed = [record.identity.get("corruption", {}) for record in self.ended.values()]
        return tuple(kind for kind, share in shares if share and any(of.get(kind) == "0" for of in executed))

    @property
    def is_finished(self) -> bool:
        """Is there everything that the run's tables and figures need?"""
        if set(self.pretraining) != set(self.run.seeds):
            return False
        found = {"all": self.comparison, "ablation": self.ablation}
        needed = [found[experiment.tasks] for experiment in self.run.experiments if experiment.tasks in found]
        return all(seed in of and len(of[seed].records) == len(of[seed].tasks) for of in needed for seed in self.ended)

    @property
    def own_perplexity(self) -> dict[int, float]:
        """Perplexity over the kinds of corrupted tokens in the proportions of the run's own split, by seed.

        All models are validated on one corruption; this weighs its kinds (in nats) as the run's `mask_split` does.
        Without seeds whose validation has no token of a kind.
        """
        shares = zip(KINDS, parse_mask_split(self.run.config.mask_split), strict=True)
        parts = [(share, self.metric(f"eval_perplexity_{kind}")) for kind, share in shares if share]
        return {
            seed: math.exp(sum(share * math.log(of[seed]) for share, of in parts))
            for seed in self.ended
            if all(seed in of for _, of in parts)
        }
