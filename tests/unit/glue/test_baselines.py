"""A bag of words beside every task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.glue_files import write_glue
from threeml_core.config import StudyConfig, make_config
from threeml_core.glue.baselines import bag_of_words
from threeml_core.glue.metrics import metric_value
from threeml_core.glue.readers import load_task
from threeml_core.glue.tasks import DIAGNOSTIC_TASKS, GLUE_TASKS


def config_of(folder: Path | str, **given: object) -> StudyConfig:
    return make_config({"glue": str(folder), **given})


@pytest.fixture
def glue(tmp_path: Path) -> Path:
    return write_glue(tmp_path / "glue_data", train=6, dev=4)


@pytest.mark.parametrize("name", DIAGNOSTIC_TASKS)
def test_a_bag_of_words_stays_at_chance(name: str) -> None:
    """No word, mark or length tells the answer: word counts stay inside the chance interval of the validation set."""
    task = DIAGNOSTIC_TASKS[name]
    data = load_task(task, config_of("bundled"))
    labels, predictions = bag_of_words(data).splits[""]
    accuracy = metric_value("accuracy", labels, predictions)[0]
    chance = 1 / len(task.labels)
    assert abs(accuracy - chance) < 2.6 * (chance * (1 - chance) / len(labels)) ** 0.5


def test_the_bag_of_words_finds_what_a_word_tells(tmp_path: Path) -> None:
    """The same baseline reads an answer off a word: it would have noticed a leak."""
    data = load_task(GLUE_TASKS["qnli"], config_of(write_glue(tmp_path, train=60, dev=30)))
    labels, predictions = bag_of_words(data).splits[""]
    assert np.array_equal(labels, predictions)
    data = load_task(GLUE_TASKS["stsb"], config_of(tmp_path))
    labels, predictions = bag_of_words(data).splits[""]
    assert np.corrcoef(labels, predictions)[0, 1] > 0.95


def test_the_bag_of_words_with_one_class(tmp_path: Path) -> None:
    data = load_task(GLUE_TASKS["qnli"], config_of(write_glue(tmp_path, train=1, dev=6)))
    assert (bag_of_words(data).splits[""][1] == data.train.labels[0]).all()
