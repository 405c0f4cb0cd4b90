"""A study of seconds; processes that need not import torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.glue_files import write_glue
from tests.preloaded import Preloaded

FINETUNING = {
    "max_length": 32,
    "tasks": "mnli,rte",
    "num_seeds": 2,
    "num_ablation_seeds": 1,
    "num_trials": 1,
    "num_workers": 1,
    "finetune_epochs": 1,
    "finetune_large_epochs": 1,
    "max_steps": 4,
    "ablation_steps": 2,
    "study_mask_rates": "0.15,0.4",
    "study_depths": "1",
    "study_widths": "16",
    "study_splits": "80-10-10,80-0-20",
}


@pytest.fixture
def study(small: dict, tmp_path: Path) -> dict:
    """Its parameters, with tasks and a run folder of its own."""
    glue = write_glue(tmp_path / "glue_data", 16, 8)
    return {**small, **FINETUNING, "glue": str(glue), "runs_dir": str(tmp_path / "runs")}


@pytest.fixture(scope="session")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Preloaded]:
    """For processes that say something; those that are killed are started as users start them."""
    with Preloaded(tmp_path_factory.mktemp("preloaded")) as process:
        yield process
