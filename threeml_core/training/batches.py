"""The corrupted sequences of each step: a function of step, seed, kind of device and, if there are any, weights."""

from __future__ import annotations

import dataclasses
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import torch

from threeml_core.config import StudyConfig
from threeml_core.data.prepare import PreparedData
from threeml_core.data.sequences import batch_indices, widen
from threeml_core.masking import Batch, corrupt
from threeml_core.parameters.masking import levels_of
from threeml_core.training.evaluation import masking_of


class Batches:
    """The corrupted sequences of each step: a function of step, seed and kind of device, and of `weights`, if any.

    On a CPU a batch is made when it is asked for, as a second thread would take its core from the training. On a GPU
    a thread reads the next sequences into pinned memory as they are stored (16 bits a token), and they are copied and
    corrupted on the device, without waiting for it.
    """

    AHEAD = 2
    """Batches that are read before they are asked for."""

    weights: torch.Tensor | None = None
    """(vocab,) of `corrupt`, on the device; those of the moment at which a batch is asked for."""

    def __init__(self, config: StudyConfig, data: PreparedData, device: torch.device) -> None:
        self.config, self.data, self.device = config, data, device
        self._masking = masking_of(config, data)
        self._levels = levels_of(config.parameters())
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="batches") if device.type != "cpu" else None
        self._reading: dict[int, Future[torch.Tensor]] = {}

    def __getitem__(self, step: int) -> Batch:
        """The sequences of step `step` (from 0), corrupted, on the device."""
        sequences = widen(self._stored(step).to(self.device, non_blocking=True))
        generator = torch.Generator(self.device).manual_seed(seed_of(self.config.seed, step))
        masking = dataclasses.replace(self._masking, mask_rate=self.mask_rate(step))
        return corrupt(sequences, masking, generator, self.weights)

    def mask_rate(self, step: int) -> float:
        """Of a step; behind the last that of the last."""
        last = min(step, self.config.max_steps - 1)
        return next(level.rate for level in self._levels if level.first <= last < level.stop)

    def _stored(self, step: int) -> torch.Tensor:
        if self._reader is None:
            return self._read(step)
        for ahead in range(step, step + 1 + self.AHEAD):
            if ahead not in self._reading and ahead < max(step + 1, self.config.max_steps):
                self._reading[ahead] = self._reader.submit(self._read, ahead)
        sequences = self._reading.pop(step).result()
        self._reading = {ahead: found for ahead, found in self._reading.items() if ahead > step}
        return sequences

    def _read(self, step: int) -> torch.Tensor:
        config = self.config
        sequences = self.data.train.stored(batch_indices(len(self.data.train), config.batch_size, step, config.seed))
        return sequences.pin_memory() if self.device.type == "cuda" else sequences


def seed_of(*numbers: int) -> int:
    """64 bits that no other numbers give (zeros at the end do not count)."""
    high, low = np.random.SeedSequence(numbers).generate_state(2, np.uint32)
    return int(high) << 32 | int(low)
