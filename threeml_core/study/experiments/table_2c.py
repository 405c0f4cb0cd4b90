"""Table 2c: masking strategy."""

from __future__ import annotations

import math

from threeml_core.config import MODEL_NAMES
from threeml_core.statistics.verdicts import Claim
from threeml_core.study.evidence import Evidence
from threeml_core.study.experiment import Experiment, listed


def unchanged_tokens_matter(study: Evidence) -> Claim:
    """C6."""
    return Claim(
        "C6",
        "Unchanged tokens matter: 80-10-10 and 80-0-20 beat 100-0-0.",
        "Table 2c",
        tuple(
            study.scores(
                study.of("Table 2c", architecture=a, mask_split=split),
                study.of("Table 2c", architecture=a, mask_split="100-0-0"),
                0,
                math.inf,
                f"{MODEL_NAMES[a]}, {split} against 100-0-0",
            )
            for a in ("self", "cross")
            for split in listed(study.config, "study_splits")
            if split in ("80-10-10", "80-0-20")
        ),
    )


TABLE_2C = Experiment(
    "Table 2c",
    "masking strategy",
    models=("self", "cross"),
    vary={"mask_split": "study_splits"},
    tasks="ablation",
    is_ablation=True,
    heading="Split",
    columns={"Perplexity, masked": "eval_perplexity_masked", "Perplexity, own split": "own_perplexity"},
    reported="Table 2c",
    claims=(unchanged_tokens_matter,),
)
