"""Where the time of a step goes, by torch's profiler: every operator's own time, sorted into a few kinds."""

from __future__ import annotations

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from threeml_core.benchmark.variants import Runner, wait_for

KINDS = ("matrix products", "attention", "head", "dropout", "GELU and norms", "optimizer", "data", "the rest")
"""Of operators; `attention` is the two products of queries, keys and values and the softmax between, `matrix products`
are those of the blocks, `head` whatever has the vocabulary as an axis."""

STEPS = 3
"""Steps that are profiled."""

_DATA = "threeml: data"
_LOSS = ("nll_loss", "log_softmax", "cross_entropy")


def kind_of(name: str, shapes: list[Any], ancestors: list[str], vocab: int) -> str:
    """The kind of an operator such as `aten::mm`, by its inputs' shapes and what called it; `vocab`: of the head."""
    names = [of.lower() for of in (name, *ancestors)]

    def has(*parts: str) -> bool:
        return any(part in of for of in names for part in parts)

    if _DATA in names:
        return "data"
    if has("optimizer.", "adam", "clip_grad"):
        return "optimizer"
    if has("dropout") or {"aten::bernoulli_", "aten::random_"} & set(names):
        return "dropout"
    heads = {vocab, vocab + -vocab % 64}  # padded or not
    if any(heads & set(shape) for shape in shapes if isinstance(shape, list)) or has(*_LOSS):
        return "head"
    if has("scaled_dot_product", "softmax") or name in ("aten::bmm", "aten::baddbmm"):
        return "attention"
    if name in ("aten::mm", "aten::addmm", "aten::linear", "aten::matmul"):
        return "matrix products"
    return "GELU and norms" if has("gelu", "layer_norm") else "the rest"


def breakdown(runner: Runner, vocab: int, device: torch.device) -> dict[str, float]:
    """Kind of operator -> seconds a step, of a CPU or of a GPU's kernels. Compiled models are profiled as they are.

    On a GPU what a compiled model fuses counts as "the rest".
    """
    gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if gpu else [])
    runner.step(runner.batch())
    wait_for(device)
    with profile(activities=activities, record_shapes=True) as profiler:
        for _ in range(STEPS):
            with record_function(_DATA):
                batch = runner.batch()
            runner.step(batch)
        wait_for(device)
    found = dict.fromkeys(KINDS, 0.0)
    for event in profiler.events() or []:
        own = event.self_device_time_total if gpu else event.self_cpu_time_total
        if own <= 0:
            continue
        ancestors, parent = [], event.cpu_parent
        while parent is not None:
            ancestors.append(parent.name)
            parent = parent.cpu_parent
        found[kind_of(event.name, event.input_shapes or [], ancestors, vocab)] += own / 1e6 / STEPS
    return found
