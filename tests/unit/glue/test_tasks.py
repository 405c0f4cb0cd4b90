"""Choosing tasks, and the paper's exceptions."""

from __future__ import annotations

import pytest

from threeml_core.config import make_config
from threeml_core.foundation.errors import ParameterError
from threeml_core.glue.tasks import GLUE_TASKS, select_tasks


def test_choosing_tasks() -> None:
    def names(tasks: str, glue: str = "hub") -> list[str]:
        return [task.name for task in select_tasks(make_config({"tasks": tasks, "glue": glue}))]

    assert names("all") == ["cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte"]
    assert names("RTE, SST-2,sts") == ["sst2", "stsb", "rte"], "in the paper's order and spelling"
    assert names("ablation") == ["qqp", "mnli", "qnli"]
    assert names("all", "bundled") == ["word_order", "next_sentence", "passage_relation"]


@pytest.mark.parametrize(
    ("tasks", "glue", "message"),
    [
        ("colla", "hub", "unknown task 'colla': did you mean 'cola'?"),
        ("cola", "bundled", "unknown task 'cola': glue='bundled' has: word_order"),
        ("wnli", "hub", "WNLI is left out, as in the paper"),
        (" , ", "hub", "expected all, or names from cola"),
    ],
)
def test_unknown_tasks(tasks: str, glue: str, message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        select_tasks(make_config({"tasks": tasks, "glue": glue}))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_the_papers_exceptions() -> None:
    assert "wnli" not in GLUE_TASKS
    assert {name for name, task in GLUE_TASKS.items() if task.starts_from == "mnli"} == {"rte", "stsb", "mrpc"}
    assert {name for name, task in GLUE_TASKS.items() if task.large} == {"qqp", "mnli", "qnli"}
