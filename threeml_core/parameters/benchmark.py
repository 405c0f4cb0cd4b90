"""Parameters of the benchmark (08_performance); none of them changes what a model learns."""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from typing import Any

from threeml_core.parameters.architectures import ARCHITECTURES, PAPER_ARCHITECTURES
from threeml_core.parameters.masking import MASK_RATES
from threeml_core.parameters.parameter import COUNT, at_least, parameter, setting, some_of

PARTS = ("speed", "breakdown", "memory", "scaling", "preparation")
_THEIRS = dict[str, Any](hf="", hf_bare="")
VARIANTS = ChainMap(ARCHITECTURES, _THEIRS)  # later registered architectures are in it


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchmarkParameters:
    """Benchmark: what is measured, given the geometry."""

    STAGES = "benchmark"

    benchmark_parts: str = parameter("all", "what is measured", some_of(PARTS))
    benchmark_variants: str = parameter(
        "all", "models beside vanilla-15%", some_of(VARIANTS, (*_THEIRS, *PAPER_ARCHITECTURES))
    )
    benchmark_rates: str = parameter("0.4,0.5", "mask rates of the models compared with vanilla-15%", MASK_RATES)
    num_benchmark_rounds: int = parameter(
        25, "rounds in which every model takes its turn", at_least(6, ", as the median of fewer has no 95% interval")
    )
    num_benchmark_sessions: int = setting(
        1, "processes, one after the other, that measure speed; a verdict on the clock needs 5", COUNT
    )
    benchmark_megabytes: int = parameter(20, "text that both ways of preparing data are given; MB", COUNT)
