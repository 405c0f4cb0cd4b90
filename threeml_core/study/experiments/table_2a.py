"""Table 2a: depth of the decoder."""

from __future__ import annotations

import math

from threeml_core.config import MODEL_NAMES, parse_grid
from threeml_core.statistics.verdicts import Claim
from threeml_core.study.evidence import Evidence
from threeml_core.study.experiment import Experiment


def shallow_beats_deep(study: Evidence) -> Claim:
    """C4."""
    depths = parse_grid("study_depths", study.config.study_depths)
    deepest = max(depths)
    shallow = [d for d in depths if 1 < d < deepest] or [d for d in depths if d < deepest]
    return Claim(
        "C4",
        "A shallow decoder is better downstream than a deep one.",
        "Table 2a",
        tuple(
            study.scores(
                study.of("Table 2a", architecture=a, decoder_num_hidden_layers=depth),
                study.of("Table 2a", architecture=a, decoder_num_hidden_layers=deepest),
                0,
                math.inf,
                f"{MODEL_NAMES[a]}, {depth} block{'s' * (depth > 1)} against {deepest}",
            )
            for a in ("self", "cross")
            for depth in shallow
        ),
    )


TABLE_2A = Experiment(
    "Table 2a",
    "depth of the decoder",
    models=("self", "cross"),
    vary={"decoder_num_hidden_layers": "study_depths"},
    tasks="ablation",
    is_ablation=True,
    heading="Decoder blocks",
    reported="Table 2a",
    claims=(shallow_beats_deep,),
)
