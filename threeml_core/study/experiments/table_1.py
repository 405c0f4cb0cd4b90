"""Table 1: validation perplexity of the three models on one corruption."""

from __future__ import annotations

import math

from threeml_core.parameters.architectures import PAPER_ARCHITECTURES
from threeml_core.statistics.verdicts import Claim
from threeml_core.study.evidence import MARGIN, Evidence
from threeml_core.study.experiment import Experiment


def perplexity_is_not_quality(study: Evidence) -> Claim:
    """C7."""
    vanilla = study.of("Table 1", architecture="vanilla")
    losses = [study.losses(study.of("Table 1", architecture=a), vanilla) for a in ("self", "cross")]
    scores = study.scores(study.model("self", 0.4), study.model("vanilla", 0.4), -MARGIN, math.inf)
    text = "The vanilla model has the lower perplexity (all corrupted tokens), although it is no better downstream."
    return Claim("C7", text, "Table 1", (*losses, scores))


TABLE_1 = Experiment(
    "Table 1", "validation perplexity", models=PAPER_ARCHITECTURES, claims=(perplexity_is_not_quality,)
)
