"""Batches travel as they are stored, and are the same when they are read ahead."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from threeml_core.config import at_constant_rate, make_config
from threeml_core.data.prepare import prepare_data
from threeml_core.data.sequences import widen
from threeml_core.foundation.errors import ParameterError
from threeml_core.parameters.masking import corruption_counts
from threeml_core.training.batches import Batches
from threeml_core.training.checkpoint import SavedStates, load_training_state
from threeml_core.training.trainer import Trainer, count_of

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


@pytest.mark.parametrize("kind", ["linear", "cosine", "steps"])
def test_the_rate_of_a_step_follows_from_the_step(kind: str, small: dict) -> None:
    """From `mask_rate` to `mask_rate_end` by levels; what is corrupted has the counts of the step's own level."""
    given = {"max_steps": 60, "mask_rate": 0.5, "mask_rate_end": 0.15, "mask_rate_levels": 5}
    config = make_config({**small, **given, "mask_rate_schedule": kind})
    batches = Batches(config, prepare_data(config), CPU)
    rates = [batches.mask_rate(step) for step in range(60)]
    allowed = [0.5, 0.4125, 0.325, 0.2375, 0.15]
    for step, rate in enumerate(rates):
        t = (step + 0.5) / 60
        wanted = {"steps": t * 5 - 0.5, "linear": 4 * t, "cosine": 2 - 2 * math.cos(math.pi * t)}[kind]
        assert abs(allowed.index(rate) - wanted) <= 0.5 + 1e-9
    assert rates == sorted(rates, reverse=True) and {rates[0], rates[-1]} == {0.5, 0.15}
    assert batches.mask_rate(99) == 0.15
    for step in (0, 30, 59):
        counts = corruption_counts(config.sequence_length, rates[step], config.mask_split)
        found = batches[step]
        assert (found.mask_idx.shape[1], count_of(found)) == (counts.masked, int(8 * counts.total))
    assert [of.mask_idx.shape[1] for of in (batches[59], batches[0])] == [4, 13], "in any order"


def test_resume_across_a_level(small: dict, tmp_path: Path) -> None:
    """Interrupted before the rate changes, a run ends with the weights of one that was left alone."""
    given = {"max_steps": 6, "mask_rate": 0.5, "mask_rate_end": 0.15, "mask_rate_levels": 2}
    config = make_config({**small, **given, "mask_rate_schedule": "steps"})
    data = prepare_data(config)
    whole, first, second = (Trainer(config, data, CPU) for _ in range(3))
    for _ in range(6):
        whole.update()
    for _ in range(2):
        first.update()
    states = SavedStates(tmp_path, 1)
    states.save(first.model, first.optimizer, first.state)
    second.state = load_training_state(states.files()[0], second.model, second.optimizer)
    for _ in range(4):
        second.update()
    for a, b in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("counts", ["exact", "probabilistic"])
def test_a_step_of_a_schedule_is_that_of_a_run_at_its_rate(counts: str, small: dict) -> None:
    given = {**small, "mask_counts": counts, "mask_rate": 0.5, "max_steps": 6}
    config = make_config({**given, "mask_rate_schedule": "steps", "mask_rate_levels": 3})
    data = prepare_data(config)
    batches = Batches(config, data, CPU)
    for step, rate in ((5, 0.15), (0, 0.5), (2, 0.325)):
        constant = Batches(at_constant_rate(config, rate), data, CPU)
        assert torch.equal(batches[step].input_ids, constant[step].input_ids)
        assert torch.equal(batches[step].labels, constant[step].labels)


def test_the_text_is_checked_at_the_highest_rate(small: dict) -> None:
    config = make_config({**small, "mask_rate": 0.3, "mask_rate_schedule": "linear", "mask_rate_end": 0.85})
    data = prepare_data(config)
    crowded = dataclasses.replace(data.train, max_special_tokens=8)
    with pytest.raises(ParameterError, match="mask_rate=0.85 corrupts .* 8 special tokens that stay"):
        Batches(config, dataclasses.replace(data, train=crowded), CPU)
