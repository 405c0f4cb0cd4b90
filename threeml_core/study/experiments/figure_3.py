"""Figure 3: the vanilla model at different mask rates."""

from __future__ import annotations

import math

from threeml_core.statistics.verdicts import Claim
from threeml_core.study.evidence import Evidence
from threeml_core.study.experiment import Experiment


def masking_40_beats_15(study: Evidence) -> Claim:
    """C1."""
    found = study.scores(study.model("vanilla", 0.4), study.model("vanilla", 0.15), 0, math.inf)
    return Claim("C1", "Masking 40% beats 15% for the vanilla model.", "Figure 3, Table 3", (found,))


FIGURE_3 = Experiment(
    "Figure 3",
    "the vanilla model at different mask rates",
    models=("vanilla",),
    vary={"mask_rate": "study_mask_rates"},
    tasks="ablation",
    heading="Mask rate",
    claims=(masking_40_beats_15,),
)
