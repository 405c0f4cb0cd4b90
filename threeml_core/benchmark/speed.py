"""Timing in turns: every arm takes its turn in every round, and only ratios within a round are compared."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Mapping

import numpy as np
import torch

from threeml_core.benchmark.arms import BASELINE, Runner, wait_for
from threeml_core.log import Log

AGAIN = f"{BASELINE} again"
"""The second turn of the baseline in a round."""

TURN_SECONDS = 0.5
"""A turn lasts at least about this long; a fast arm does several steps in it."""

NOISE_LIMIT = 0.05
"""The baseline may differ from itself by this share; else no speed is given."""


@dataclasses.dataclass(frozen=True)
class Turns:
    """Of one arm, over the rounds: (rounds,) seconds of a step by the clock, of the process's CPUs, of its data."""

    seconds: np.ndarray
    cpu_seconds: np.ndarray
    data_seconds: np.ndarray


@dataclasses.dataclass(frozen=True)
class Interval:
    """A median and its 95% bootstrap interval."""

    median: float
    low: float
    high: float

    def times(self, factor: float) -> Interval:
        """Scaled."""
        return Interval(self.median * factor, self.low * factor, self.high * factor)


def interval(values: np.ndarray, resamples: int = 10_000) -> Interval:
    """Median of (rounds,) values, and the percentile bootstrap of it; the same values give the same interval."""
    rng = np.random.default_rng(0)
    medians = np.median(values[rng.integers(len(values), size=(resamples, len(values)))], 1)
    low, high = np.percentile(medians, [2.5, 97.5])
    return Interval(float(np.median(values)), float(low), float(high))


def ratio(baseline: np.ndarray, arm: np.ndarray) -> Interval:
    """How many times faster the arm is: the median of the ratios of seconds within each round."""
    return interval(baseline / arm)


def too_noisy(noise: Interval) -> bool:
    """Does the baseline differ from itself by more than `NOISE_LIMIT`?"""
    return abs(noise.median - 1) > NOISE_LIMIT


def take_turns(
    runners: Mapping[str, Runner], rounds: int, device: torch.device, log: Log
) -> tuple[dict[str, Turns], dict[str, float]]:
    """Time the arms; the baseline has two turns a round, and every other round goes backwards.

    Returns:
        `Turns` by arm (and `AGAIN`), and the seconds of each arm's first step, compiling included.
    """
    first: dict[str, float] = {}
    shortest = math.inf
    for name, runner in runners.items():
        for attempt in range(3):
            started = time.perf_counter()
            runner.step(runner.batch())
            wait_for(device)
            took = time.perf_counter() - started
            first.setdefault(name, took)
            shortest = min(shortest, took) if attempt else shortest
    steps = max(1, math.ceil(TURN_SECONDS / shortest))
    order = [*runners, AGAIN]
    log(f"{rounds} rounds of {len(order)} turns, {steps} step{'s' if steps > 1 else ''} each")
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in order}
    for turn in range(rounds):
        for name in order if turn % 2 == 0 else order[::-1]:
            found[name].append(_turn(runners[BASELINE if name == AGAIN else name], steps, device))
    return {name: Turns(*np.array(values).T / steps) for name, values in found.items()}, first


def _turn(runner: Runner, steps: int, device: torch.device) -> tuple[float, float, float]:
    wait_for(device)
    cpu, started, waited = time.process_time(), time.perf_counter(), 0.0
    for _ in range(steps):
        asked = time.perf_counter()
        batch = runner.batch()
        waited += time.perf_counter() - asked
        runner.step(batch)
    wait_for(device)
    return time.perf_counter() - started, time.process_time() - cpu, waited


def matrix_product_ceiling(device: torch.device, bf16: bool) -> float:
    """FLOP/s of the best of many square matrix products in the precision of the training."""
    size, count = (8192, 20) if device.type == "cuda" else (1536, 12)
    dtype = torch.bfloat16 if bf16 else torch.float32
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    best = math.inf
    for _ in range(count):
        wait_for(device)
        started = time.perf_counter()
        a @ b
        wait_for(device)
        best = min(best, time.perf_counter() - started)
    return 2 * size**3 / best
