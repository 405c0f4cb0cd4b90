"""Table 3: the paper's main result, all tasks."""

from __future__ import annotations

import math
from typing import Any, cast

from threeml_core import flops
from threeml_core.config import StudyConfig, study_steps, variant
from threeml_core.statistics.verdicts import Claim
from threeml_core.study.evidence import MARGIN, Evidence
from threeml_core.study.experiment import Experiment

STUDY_MODELS = (("vanilla", 0.15), ("vanilla", 0.4), ("self", 0.4), ("self", 0.5), ("cross", 0.4))
"""The five models of the efficient recipe, with their mask rates; the paper's longer one has no vanilla at 40%."""


def equal_budget(config: StudyConfig) -> list[dict[str, Any]]:
    """With `equal_budget` the 3ML models again, in steps that cost the FLOPs of the vanilla model at 15%.

    Source: the longer recipe; for 125K this gives 152.4K, 160.0K and 156.9K, reported as 153K, 160K and 157K.
    With `budget_flops: exact` by what is executed: whole tokens and the decoder's last layer differ by some per cent.
    """
    runs, mode = [], cast(flops.Mode, config.budget_flops)
    for architecture, rate in STUDY_MODELS:
        if architecture != "vanilla" and config.equal_budget:
            model = {"architecture": architecture, "mask_rate": rate}
            speedup = flops.config_speedup(variant(config, **model), mode, 0.15)
            runs.append({**model, "max_steps": round(study_steps(config) * speedup)})
    return runs


def self_loses_nothing(study: Evidence) -> Claim:
    """C2."""
    vanilla = study.model("vanilla", 0.4)
    found = (study.scores(study.model("self", rate), vanilla, -MARGIN, math.inf) for rate in (0.4, 0.5))
    text = f"3ML_self at 40 and 50% loses nothing (at most {MARGIN} points) against the vanilla model at 40%."
    return Claim("C2", text, "Figure 5, Table 3", tuple(found))


def self_beats_cross(study: Evidence) -> Claim:
    """C3."""
    found = study.scores(study.model("self", 0.4), study.model("cross", 0.4), 0, math.inf)
    return Claim("C3", "3ML_self is better downstream than 3ML_cross.", "Tables 2 and 3", (found,))


TABLE_3 = Experiment(
    "Table 3",
    "GLUE development sets",
    models=STUDY_MODELS,
    further=equal_budget,
    tasks="all",
    claims=(self_loses_nothing, self_beats_cross),
)
