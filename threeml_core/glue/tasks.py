"""Downstream tasks as data: columns, labels and their order, metrics, grid, where a task starts. No torch here.

Source: section 3.1 (tasks and metrics), Table 6 (grids, and which tasks start from the MNLI model).
"""

from __future__ import annotations

import dataclasses
import difflib

from threeml_core.config import StudyConfig
from threeml_core.foundation.errors import ParameterError


@dataclasses.dataclass(frozen=True)
class Task:
    """A classification or regression task on a sentence or a pair of sentences.

    Attributes:
        name: key in `tasks`, in records and on the Hugging Face hub.
        title: name in tables, and the folder of the official `glue_data` layout.
        columns: text columns of the official TSV file; one or two.
        label_column: its label column.
        labels: label texts of the TSV file, class ids in this order; empty: regression.
        hub_columns: text columns on the Hugging Face hub, where the label column is `label`.
        hub_labels: label names on the hub for the same class ids; empty: as `labels`.
        metrics: of `threeml_core.glue.metrics`; the task's score is their mean over all validation splits.
        validation: tags of the validation splits: `("",)` or `("matched", "mismatched")`.
        official_sizes: rows of the official training and validation splits; fewer rows are labelled a subset.
        large: takes the grid of the large tasks (`finetune_large_*`).
        starts_from: the task whose fine-tuned model this one starts from, or None.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    label_column: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    hub_columns: tuple[str, ...] = ()
    hub_labels: tuple[str, ...] = ()
    validation: tuple[str, ...] = ("",)
    official_sizes: tuple[int, ...] = ()
    large: bool = False
    starts_from: str | None = None

    @property
    def is_regression(self) -> bool:
        """Are the labels numbers?"""
        return not self.labels

    @property
    def num_labels(self) -> int:
        """Outputs of the classification head: classes, or 1 for regression."""
        return len(self.labels) or 1

    @property
    def metric_keys(self) -> tuple[str, ...]:
        """Names in a record, such as `accuracy` or `matched_accuracy`, in the paper's order."""
        return tuple(f"{tag}_{metric}" if tag else metric for tag in self.validation for metric in self.metrics)


_PAIR = ("sentence1", "sentence2")
_ENTAILMENT = ("entailment", "not_entailment")

GLUE_TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "cola",
            "CoLA",
            ("sentence",),
            "label",
            ("0", "1"),
            ("mcc",),
            hub_labels=("unacceptable", "acceptable"),
            official_sizes=(8551, 1043),
        ),
        Task(
            "sst2",
            "SST-2",
            ("sentence",),
            "label",
            ("0", "1"),
            ("accuracy",),
            hub_labels=("negative", "positive"),
            official_sizes=(67349, 872),
        ),
        Task(
            "mrpc",
            "MRPC",
            ("#1 String", "#2 String"),
            "Quality",
            ("0", "1"),
            ("f1", "accuracy"),
            hub_columns=_PAIR,
            hub_labels=("not_equivalent", "equivalent"),
            official_sizes=(3668, 408),
            starts_from="mnli",
        ),
        Task(
            "stsb",
            "STS-B",
            _PAIR,
            "score",
            (),
            ("pearson", "spearman"),
            official_sizes=(5749, 1500),
            starts_from="mnli",
        ),
        Task(
            "qqp",
            "QQP",
            ("question1", "question2"),
            "is_duplicate",
            ("0", "1"),
            ("f1", "accuracy"),
            hub_labels=("not_duplicate", "duplicate"),
            official_sizes=(363846, 40430),
            large=True,
        ),
        Task(
            "mnli",
            "MNLI",
            _PAIR,
            "gold_label",
            ("entailment", "neutral", "contradiction"),
            ("accuracy",),
            hub_columns=("premise", "hypothesis"),
            validation=("matched", "mismatched"),
            official_sizes=(392702, 9815, 9832),
            large=True,
        ),
        Task(
            "qnli",
            "QNLI",
            ("question", "sentence"),
            "label",
            _ENTAILMENT,
            ("accuracy",),
            official_sizes=(104743, 5463),
            large=True,
        ),
        Task(
            "rte",
            "RTE",
            _PAIR,
            "label",
            _ENTAILMENT,
            ("accuracy",),
            official_sizes=(2490, 277),
            starts_from="mnli",
        ),
    )
}
"""The eight tasks of Table 3 in its order; WNLI is left out, as in the paper (section 3.1)."""

DIAGNOSTIC_TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("word_order", "Word order", ("sentence",), "label", ("shuffled", "original"), ("mcc",)),
        Task(
            "next_sentence",
            "Next sentence",
            _PAIR,
            "label",
            ("elsewhere", "next"),
            ("accuracy",),
            starts_from="passage_relation",
        ),
        Task(
            "passage_relation",
            "Passage relation",
            _PAIR,
            "label",
            ("next", "same_article", "other_article"),
            ("accuracy",),
            large=True,
        ),
    )
}
"""Tasks this project makes from the bundled articles (`threeml_core.glue.diagnostic`); they are not GLUE."""

ABLATION_TASKS = ("mnli", "qnli", "qqp")
"""The tasks of the paper's ablations, in the order of Table 2."""


HELD_OUT = 0.2
"""Share of the articles the diagnostic tasks are made from.

A model pre-trained on the bundled corpus has not seen them if its `validation_fraction` is at least this.
"""


def tasks_of_source(glue: str) -> dict[str, Task]:
    """The tasks that the parameter `glue` gives access to."""
    return DIAGNOSTIC_TASKS if glue == "bundled" else GLUE_TASKS


def select_tasks(config: StudyConfig) -> list[Task]:
    """The tasks of the parameter `tasks`, in the order of the table.

    Raises:
        ParameterError: an unknown name, or none at all.
    """
    known = tasks_of_source(config.glue)
    names = {_plain(name): name for name in known}
    names |= {_plain(task.title): task.name for task in known.values()} | {"sts": "stsb", "sst": "sst2"}
    wanted: set[str] = set()
    for part in config.tasks.split(","):
        name = _plain(part)
        if name == "all":
            wanted |= known.keys()
        elif name == "ablation" and known is GLUE_TASKS:
            wanted |= set(ABLATION_TASKS)
        elif names.get(name) in known:
            wanted.add(names[name])
        elif name == "wnli":
            raise ParameterError(
                "tasks='wnli': WNLI is left out, as in the paper: fine-tuning does not beat its majority class"
            )
        elif name:
            close = difflib.get_close_matches(name, names, 1)
            hint = f"did you mean {names[close[0]]!r}? " if close else ""
            source = f"glue={config.glue!r} has: {', '.join(known)}"
            raise ParameterError(f"unknown task {part.strip()!r}: {hint}{source}; or all")
    if not wanted:
        raise ParameterError(f"tasks={config.tasks!r}: expected all, or names from {', '.join(known)}")
    return [task for task in known.values() if task.name in wanted]


def _plain(name: str) -> str:
    return name.strip().lower().replace("-", "").replace("_", "").replace(" ", "")
