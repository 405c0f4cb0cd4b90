"""Parameters of the report and of the cost plan; none of them changes a result."""

from __future__ import annotations

import dataclasses

from threeml_core.parameters.parameter import POSITIVE, Allowed, in_range, one_of, setting

PAGES = Allowed("'all' or numbers of notebooks joined with commas, such as '00,08'", str, numbers=True)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportParameters:
    """Report."""

    STAGES = "report"

    pages: str = setting("all", "notebooks of the report; all: but 11_speedrun", PAGES)
    report_from: str = setting(
        "runs", "make report: does what is missing, or shows what is committed", one_of(("runs", "records"))
    )
    report_dir: str | None = setting(
        None, "folder of the report; relative: below the project", none="reports/local/<preset>, which git ignores"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanParameters:
    """Cost plan (00_cost_model)."""

    STAGES = "plan"

    gpu_name: str = setting("H100 SXM", "the GPU of the plan, a label")
    gpu_tflops: float = setting(989.0, "its dense bf16 peak; TFLOP/s", POSITIVE)
    gpu_watts: float = setting(700.0, "its power draw; W", POSITIVE)
    mfu: float = setting(
        0.4,
        "model FLOPs utilisation: share of the peak that the model gets",
        in_range("a fraction above 0, at most 1", lambda value: 0 < value <= 1),
    )
