"""Batches travel as they are stored, and are the same when they are read ahead."""

from __future__ import annotations

import numpy as np
import torch

from threeml_core.config import make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.data.sequences import widen
from threeml_core.training.batches import Batches
from threeml_core.training.trainer import count_of

CPU = torch.device("cpu")


def test_blocks_travel_as_they_are_stored(small: dict) -> None:
    """A quarter of int64's bytes go to a GPU, and become the same ids there."""
    config = make_config({**small, "batch_size": 4, "architecture": "self", "mask_rate": 0.5})
    data = prepare_data(config)
    stored = data.train.stored(np.arange(4))
    assert stored.dtype == torch.int16 and torch.equal(widen(stored), data.train[np.arange(4)])
    large = torch.tensor([[65535, 40000, 5]], dtype=torch.int32).to(torch.int16)
    assert widen(large).tolist() == [[65535, 40000, 5]]
    batches = Batches(config, data, CPU)
    assert count_of(batches[0]) == int((batches[0].labels != -100).sum()) == 4 * 16 + 1


def test_batches_read_ahead_are_the_same(small: dict) -> None:
    """As on a GPU, where a thread reads: any order of steps, none skipped, none left running at the end."""
    config = make_config({**small, "max_steps": 6})
    data = prepare_data(config)
    plain, ahead = Batches(config, data, CPU), Batches(config, data, torch.device("meta"))
    ahead.device = CPU
    for step in (0, 1, 2, 4, 5, 3):
        assert torch.equal(plain[step].input_ids, ahead[step].input_ids)
    assert not [step for step in ahead._reading if step >= 6]
