"""Figure 4: what the states of [MASK]s say about the tokens that stood there, layer by layer."""

from __future__ import annotations

from threeml_core.information.findings import first_block
from threeml_core.parameters.architectures import PAPER_ARCHITECTURES
from threeml_core.statistics.verdicts import Claim
from threeml_core.study.evidence import Evidence
from threeml_core.study.experiment import Experiment


def first_block_knows_as_much(study: Evidence) -> Claim:
    """C8."""
    text = "After its first layer the decoder knows as much of the masked tokens as the vanilla model's last layer."
    return Claim("C8", text, "Figure 4", tuple(first_block(a, study.information) for a in ("self", "cross")))


FIGURE_4 = Experiment(
    "Figure 4",
    "mutual information of states and tokens",
    models=PAPER_ARCHITECTURES,
    claims=(first_block_knows_as_much,),
)
