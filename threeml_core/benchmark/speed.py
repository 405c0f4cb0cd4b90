"""Timing in turns: every variant takes its turn in every round; `benchmark.speeds` compares within rounds."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from threeml_core.benchmark.load import OthersMeter
from threeml_core.benchmark.speeds import AGAIN, BASELINE
from threeml_core.benchmark.variants import Runner, wait_for
from threeml_core.foundation.log import Log

TURN_SECONDS = 0.25
"""A turn lasts at least about this long; a fast variant does several steps in it."""


def take_turns(runners: Mapping[str, Runner], rounds: int, device: torch.device, log: Log) -> dict[str, Any]:
    """Time the variants; the baseline has two turns a round, and every other round goes backwards.

    Returns:
        `busy_during`: how many cores other processes kept at work, see `OthersMeter`; `first_step_seconds` by variant,
        compiling included; `turns` by variant (and `AGAIN`): over the rounds, seconds of a step by the clock
        (`seconds`), of the process's CPUs (`cpu_seconds`), and of its data (`data_seconds`).
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
    others = OthersMeter()
    for turn in range(rounds):
        for name in order if turn % 2 == 0 else order[::-1]:
            found[name].append(_turn(runners[BASELINE if name == AGAIN else name], steps, device))
    busy, kinds = others.cores(), ("seconds", "cpu_seconds", "data_seconds")
    turns = {
        name: dict(zip(kinds, (np.array(values).T / steps).tolist(), strict=True)) for name, values in found.items()
    }
    return {"busy_during": busy, "first_step_seconds": first, "turns": turns}


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
