"""Peak memory of training: each arm in a process of its own, as a process's largest size cannot be reset."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

import torch

from threeml_core.benchmark.arms import Arm, make_runner
from threeml_core.data.prepare import PreparedData
from threeml_core.foundation.log import Log
from threeml_core.training.device import peak_memory, reset_peak_memory

STEPS = 3


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function(*arguments)` returns in a fresh process, which has torch and transformers imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["threeml_core.benchmark.arms", "threeml_core.benchmark.preparation"])
    with context.Pool(1, maxtasksperchild=1) as pool:
        return pool.apply(function, arguments)


def training_peak(arm: Arm | None, data: PreparedData, threads: int) -> int:
    """Bytes, by CPU: the largest resident size of this process in `STEPS` updates; None: of the imports alone."""
    torch.set_num_threads(threads)
    device = torch.device("cpu")
    if arm is not None:
        runner = make_runner(arm, data, device)
        for _ in range(STEPS):
            runner.step(runner.batch())
    return peak_memory(device)


def peaks(arms: Sequence[Arm], data: PreparedData, device: torch.device, log: Log) -> dict[str, int]:
    """Arm -> peak bytes: of a GPU's allocator, or of a process, less what its imports take."""
    log("peak memory, a process an arm" if device.type == "cpu" else "peak memory")
    if device.type == "cpu":
        threads = torch.get_num_threads()
        empty = in_own_process(training_peak, None, data, threads)
        return {arm.name: in_own_process(training_peak, arm, data, threads) - empty for arm in arms}
    found = {}
    for arm in arms:
        before = torch.cuda.memory_allocated(device)
        reset_peak_memory(device)
        runner = make_runner(arm, data, device)
        for _ in range(STEPS):
            runner.step(runner.batch())
        found[arm.name] = peak_memory(device) - before
        del runner
    return found
