"""The plan of a fine-tuning study: which runs, which tasks, which points of the grid."""

from __future__ import annotations

import dataclasses

import pytest

from threeml_core.config import make_config
from threeml_core.foundation.errors import ParameterError
from threeml_core.glue import protocol
from threeml_core.glue.protocol import planned_runs, runs_of
from threeml_core.glue.tasks import GLUE_TASKS


def test_the_papers_protocol_is_660_runs() -> None:
    """(4 x 3 + 24 x 5) x 5, without loading anything."""
    for preset in ("efficient-large", "longer-base"):
        config = make_config({"preset": preset})
        runs = planned_runs(config)
        assert len(runs) == len(set(runs)) == (4 * 3 + 24 * 5) * 5 == 660
        assert sum(run.task == "mnli" for run in runs) == 4 * 5 and sum(run.task == "cola" for run in runs) == 24 * 5
        assert {run.seed for run in runs} == {0, 1, 2, 3, 4}


def test_starts_are_planned_even_if_not_asked_for() -> None:
    config = make_config({"preset": "efficient-large", "tasks": "rte"})
    assert [task.name for task in protocol.planned_tasks(config)] == ["mnli", "rte"]
    alone = config.replace(from_mnli=False)
    assert [task.name for task in protocol.planned_tasks(alone)] == ["rte"]


def test_trials_draw_points_of_the_grid() -> None:
    config = make_config({"preset": "efficient-large", "num_trials": 5})
    runs = runs_of(GLUE_TASKS["cola"], config)
    assert len(runs) == 25 and runs == runs_of(GLUE_TASKS["cola"], config)
    whole = {dataclasses.replace(run, seed=0) for run in runs_of(GLUE_TASKS["cola"], config.replace(num_trials=None))}
    points = [{dataclasses.replace(run, seed=0) for run in runs if run.seed == seed} for seed in range(5)]
    assert all(len(drawn) == 5 and drawn <= whole for drawn in points) and points[0] != points[1]
    assert len(runs_of(GLUE_TASKS["qnli"], config)) == 4 * 5, "no more than the grid holds"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"finetune_epochs": "3,x"}, "finetune_epochs='3,x': expected whole numbers such as '16,32'"),
        ({"finetune_epochs": "3,3"}, "each above 0 and given once"),
        ({"finetune_learning_rates": "0"}, "expected learning rates such as"),
        ({"finetune_batch_sizes": ""}, "expected whole numbers"),
        ({"num_trials": 0}, "num_trials=0: expected at least 1, or None for all"),
        ({"num_seeds": 0}, "num_seeds=0: expected at least 1"),
        ({"max_length": 4}, "max_length=4: expected at least 8 tokens"),
        ({"finetune_select": "first"}, "expected one of last, best"),
    ],
)
def test_bad_parameters(given: dict, message: str) -> None:
    with pytest.raises(ParameterError) as caught:
        make_config(given)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_grid_may_come_as_a_number_or_a_list() -> None:
    """papermill's `-p finetune_epochs 3` is a number; YAML may hold a list."""
    assert make_config({"finetune_epochs": 3}).finetune_epochs == "3"
    assert make_config({"finetune_learning_rates": [1e-5, "3e-5"]}).finetune_learning_rates == "1e-05,3e-5"
