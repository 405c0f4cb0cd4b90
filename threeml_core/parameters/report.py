"""Parameters of the report and of the cost plan; none of them changes a result."""

from __future__ import annotations

import dataclasses

from threeml_core.parameters.parameter import NOT_NEGATIVE, POSITIVE, Allowed, in_range, numbers, one_of, setting

PAGES = Allowed("'all' or numbers of notebooks joined with commas, such as '00,08'", str, numbers=True)
_UTILISATION = in_range("a fraction above 0, at most 1", lambda value: 0 < value <= 1)
_SHARES = numbers(float, "fractions of at most 1, such as '0.3,0.4'")


def _read_shares(text: str) -> tuple[float, ...]:
    return tuple(map(_UTILISATION.read, _SHARES.read(text)))


UTILISATIONS = dataclasses.replace(_SHARES, read=_read_shares)


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
    gpu_price: float = setting(2.8, "its price, an assumption; USD per hour", NOT_NEGATIVE)
    mfu: float = setting(0.4, "model FLOPs utilisation: share of the peak that the model gets", _UTILISATION)
    plan_mfus: str = setting("0.3,0.4,0.5", "utilisations for which the plan has hours, money, energy", UTILISATIONS)
