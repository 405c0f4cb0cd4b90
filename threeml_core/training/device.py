"""Where a run computes, in which precision, and how much memory it took."""

from __future__ import annotations

import ctypes
import re
import resource
import sys
from typing import Any

import torch

from threeml_core.config import StudyConfig
from threeml_core.foundation.errors import ParameterError

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_LARGEST_BLOCK = 2**30


def choose_device(config: StudyConfig, local_rank: int = 0) -> torch.device:
    """The device asked for, else a GPU, else the CPU; of GPUs the one of number `local_rank`, if none is named.

    Raises:
        ParameterError: there is no such device.
    """
    name = ("cuda" if torch.cuda.is_available() else "cpu") if config.device is None else config.device
    expected = "expected cpu, cuda, cuda:1 or None"
    if not re.fullmatch("cpu|cuda(:[0-9]+)?", name):
        raise ParameterError(f"device={name!r}: not available here; {expected}")
    try:
        device = torch.device(f"cuda:{local_rank}" if name == "cuda" else name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0]
        raise ParameterError(f"device={name!r}: not available here ({reason}); {expected}") from None
    return device


def keep_freed_memory() -> None:
    """Have glibc keep what a step frees for the next one; elsewhere nothing happens.

    By default it gives large sequences back to the system, which hands them out again page by page, zeroed: up to
    80,000 page faults a step. The process's memory stays at its peak, which the next step needs again anyway.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:  # not glibc: no harm
            for option in (_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD):
                mallopt(option, _LARGEST_BLOCK)


def reset_peak_memory(device: torch.device) -> None:
    """Start `peak_memory` anew on a GPU; a process's largest resident size cannot be reset."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int:
    """Bytes: of the GPU's allocator, or the largest resident size of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def gpu_share(config: StudyConfig) -> float:
    """GPUs that a run on one device takes of a Ray cluster, see `ray_num_gpus`."""
    if choose_device(config).type == "cpu":
        return 0.0
    return 1.0 if config.ray_num_gpus is None else config.ray_num_gpus


def describe_device(environment: dict[str, Any], device: torch.device) -> None:
    """Add the GPU's name and torch's threads to a record's environment."""
    if device.type == "cuda":
        environment["hardware"]["gpu"] = torch.cuda.get_device_name(device)
    environment["hardware"]["threads"] = torch.get_num_threads()
