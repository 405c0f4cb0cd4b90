"""Batches travel as they are stored, and are the same when they are read ahead."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch

from threeml_core.config import make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.data.sequences import widen
from threeml_core.foundation.errors import ParameterError
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


@pytest.mark.parametrize("counts", ["exact", "probabilistic"])
def test_a_schedule_decides_the_rate_of_each_step(counts: str, small: dict) -> None:
    """In any order of steps; where it has the rate of a constant run, the batch is that run's."""
    given = {**small, "mask_counts": counts, "mask_rate": 0.5, "max_steps": 6}
    config = make_config({**given, "mask_rate_schedule": "steps", "mask_rate_levels": 3})
    data = prepare_data(config)
    batches = Batches(config, data, CPU)
    rates = (0.5, 0.5, 0.325, 0.325, 0.15, 0.15, 0.15)  # the last is behind the end
    for step in (6, 3, 0, 5, 1, 2, 4):
        assert batches.mask_rate(step) == rates[step]
        constant = Batches(config.replace(mask_rate=rates[step], mask_rate_schedule="constant"), data, CPU)
        assert torch.equal(batches[step].input_ids, constant[step].input_ids)
        assert torch.equal(batches[step].labels, constant[step].labels)


def test_the_text_is_checked_at_the_highest_rate(small: dict) -> None:
    config = make_config({**small, "mask_rate": 0.3, "mask_rate_schedule": "linear", "mask_rate_end": 0.85})
    data = prepare_data(config)
    crowded = dataclasses.replace(data.train, max_special_tokens=8)
    with pytest.raises(ParameterError, match="mask_rate=0.85 corrupts .* 8 special tokens that stay"):
        Batches(config, dataclasses.replace(data, train=crowded), CPU)


def test_batches_read_ahead_are_the_same(small: dict) -> None:
    """As on a GPU, where a thread reads: any order of steps, none skipped, none left running at the end."""
    config = make_config({**small, "max_steps": 6})
    data = prepare_data(config)
    plain, ahead = Batches(config, data, CPU), Batches(config, data, torch.device("meta"))
    ahead.device = CPU
    for step in (0, 1, 2, 4, 5, 3):
        assert torch.equal(plain[step].input_ids, ahead[step].input_ids)
    assert not [step for step in ahead._reading if step >= 6]
