"""Peak memory of training: each variant in a process of its own, as a process's largest size cannot be reset."""

from __future__ import annotations

import functools
import multiprocessing
from collections.abc import Callable, Sequence
from typing import Any

import torch

from threeml_core.benchmark.variants import Variant, make_runner
from threeml_core.data.prepare import PreparedData
from threeml_core.foundation.log import Log
from threeml_core.training.device import peak_memory, reset_peak_memory

STEPS = 3


def in_own_process(function: Callable[..., Any], *arguments: Any) -> Any:
    """What `function(*arguments)` returns in a fresh process, which has torch and transformers imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["threeml_core.benchmark.variants", "threeml_core.benchmark.preparation"])
    with context.Pool(1, maxtasksperchild=1) as pool:
        return pool.apply(function, arguments)


def _training_peak(variant: Variant, data: PreparedData, device: torch.device, threads: int) -> int:
    """Bytes that a model and `STEPS` of its steps take above what was taken before."""
    torch.set_num_threads(threads)
    before = torch.cuda.memory_allocated(device) if device.type == "cuda" else peak_memory(device)
    reset_peak_memory(device)
    runner = make_runner(variant, data, device)
    for _ in range(STEPS):
        runner.step(runner.batch())
    return peak_memory(device) - before


def peaks(variants: Sequence[Variant], data: PreparedData, device: torch.device, log: Log) -> dict[str, int]:
    """Variant -> peak bytes: of a GPU's allocator, or of a process, less what its imports take."""
    log("peak memory, one process per variant" if device.type == "cpu" else "peak memory")
    of = functools.partial(in_own_process, _training_peak) if device.type == "cpu" else _training_peak
    return {variant.name: of(variant, data, device, torch.get_num_threads()) for variant in variants}
