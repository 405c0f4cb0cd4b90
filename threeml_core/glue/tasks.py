"""Downstream tasks as data: columns, labels and their order, metrics, grid, where a task starts. No torch here.

Source: section 3.1 (tasks and metrics), Table 6 (grids, and which tasks start from the MNLI model).
"""

from __future__ import annotations

import dataclasses
import difflib
import re

from threeml_core.config import StudyConfig
from threeml_core.foundation.errors import ParameterError


@dataclasses.dataclass(frozen=True)
class Task:
    """A classification or regression task on a sentence or a pair of sentences.

    Attributes:
        name: key in `tasks`, in records and on the Hugging Face hub.
        title: name in tables, and the folder of the official `glue_data` layout.
        columns: text columns of the official TSV file; one or two.
        labels: label texts of the TSV file, class ids in this order; empty: regression.
        official_sizes: rows of the official training and validation splits; fewer rows are labelled a subset.
        hub_columns: text columns on the Hugging Face hub, where the label column is `label`.
        hub_labels: label names on the hub for the same class ids; empty: as `labels`.
        metrics: of `threeml_core.glue.metrics`; the task's score is their mean over all validation splits.
        validation: tags of the validation splits: `("",)` or `("matched", "mismatched")`.
        large: takes the grid of the large tasks (`finetune_large_*`).
        starts_from: the task whose fine-tuned model this one starts from, or None.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    label_column: str
    labels: tuple[str, ...]
    metrics: tuple[str, ...]
    official_sizes: tuple[int, ...] = ()
    hub_columns: tuple[str, ...] = ()
    hub_labels: tuple[str, ...] = ()
    validation: tuple[str, ...] = ("",)
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


def _by_name(*tasks: Task) -> dict[str, Task]:
    return {task.name: task for task in tasks}


_SENTENCE, _PAIR = ("sentence",), ("sentence1", "sentence2")
_YES_OR_NO, _ENTAILMENT = ("0", "1"), ("entailment", "not_entailment")
_MCC, _ACCURACY, _F1_ACCURACY = ("mcc",), ("accuracy",), ("f1", "accuracy")
_RELATION, _RELATIONS = "passage_relation", ("next", "same_article", "other_article")

GLUE_TASKS = _by_name(
    Task("cola", "CoLA", _SENTENCE, "label", _YES_OR_NO, _MCC, (8551, 1043), hub_labels=("unacceptable", "acceptable")),
    Task("sst2", "SST-2", _SENTENCE, "label", _YES_OR_NO, _ACCURACY, (67349, 872), hub_labels=("negative", "positive")),
    Task(
        *("mrpc", "MRPC", ("#1 String", "#2 String"), "Quality", _YES_OR_NO, _F1_ACCURACY, (3668, 408)),
        hub_columns=_PAIR,
        hub_labels=("not_equivalent", "equivalent"),
        starts_from="mnli",
    ),
    Task("stsb", "STS-B", _PAIR, "score", (), ("pearson", "spearman"), (5749, 1500), starts_from="mnli"),
    Task(
        *("qqp", "QQP", ("question1", "question2"), "is_duplicate", _YES_OR_NO, _F1_ACCURACY, (363846, 40430)),
        hub_labels=("not_duplicate", "duplicate"),
        large=True,
    ),
    Task(
        *("mnli", "MNLI", _PAIR, "gold_label", ("entailment", "neutral", "contradiction"), _ACCURACY),
        official_sizes=(392702, 9815, 9832),
        hub_columns=("premise", "hypothesis"),
        validation=("matched", "mismatched"),
        large=True,
    ),
    Task("qnli", "QNLI", ("question", "sentence"), "label", _ENTAILMENT, _ACCURACY, (104743, 5463), large=True),
    Task("rte", "RTE", _PAIR, "label", _ENTAILMENT, _ACCURACY, (2490, 277), starts_from="mnli"),
)
"""The eight tasks of Table 3 in its order; WNLI is left out, as in the paper (section 3.1)."""

DIAGNOSTIC_TASKS = _by_name(
    Task("word_order", "Word order", _SENTENCE, "label", ("shuffled", "original"), _MCC),
    Task("next_sentence", "Next sentence", _PAIR, "label", ("elsewhere", "next"), _ACCURACY, starts_from=_RELATION),
    Task(_RELATION, "Passage relation", _PAIR, "label", _RELATIONS, _ACCURACY, large=True),
)
"""Tasks this project makes from the bundled articles (`threeml_core.glue.diagnostic`); they are not GLUE."""

ABLATION_TASKS = ("mnli", "qnli", "qqp")
"""The tasks of the paper's ablations, in the order of Table 2."""

HELD_OUT = 0.2
"""Share of the articles the diagnostic tasks are made from; with a `validation_fraction` of at least this unseen."""


def tasks_of_source(glue: str) -> dict[str, Task]:
    """The tasks that the parameter `glue` gives access to."""
    return DIAGNOSTIC_TASKS if glue == "bundled" else GLUE_TASKS


def select_tasks(config: StudyConfig) -> list[Task]:
    """The tasks of the parameter `tasks`, in the order of the table; a ParameterError for an unknown name, or none."""
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
    return re.sub("[-_ ]", "", name.strip().lower())
