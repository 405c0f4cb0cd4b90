"""Table 2b: width of the decoder."""

from __future__ import annotations

from threeml_core.config import MODEL_NAMES, parse_grid
from threeml_core.statistics.verdicts import Claim
from threeml_core.study.evidence import MARGIN, Evidence
from threeml_core.study.experiment import Experiment


def width_hardly_matters(study: Evidence) -> Claim:
    """C5."""
    width = study.config.decoder_hidden_size
    return Claim(
        "C5",
        "The decoder's width hardly matters.",
        "Table 2b",
        tuple(
            study.scores(
                study.of("Table 2b", architecture=a, decoder_hidden_size=other),
                study.of("Table 2b", architecture=a, decoder_hidden_size=width),
                -MARGIN,
                MARGIN,
                f"{MODEL_NAMES[a]}, width {other} against {width}",
            )
            for a in ("self", "cross")
            for other in parse_grid("study_widths", study.config.study_widths)
            if other != width
        ),
    )


TABLE_2B = Experiment(
    "Table 2b",
    "width of the decoder",
    models=("self", "cross"),
    vary={"decoder_hidden_size": "study_widths"},
    tasks="ablation",
    is_ablation=True,
    heading="Decoder width",
    reported="Table 2b",
    claims=(width_hardly_matters,),
)
