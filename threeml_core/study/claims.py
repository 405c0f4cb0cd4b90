"""The paper's claims, and what a study says of each by the rule of `verdicts`; they stand with their experiments."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from threeml_core.config import StudyConfig, at_constant_rate, deciding_parameters
from threeml_core.runs.ledger import has_parameters
from threeml_core.runs.record import RunRecord
from threeml_core.statistics.verdicts import Claim
from threeml_core.study.evidence import Evidence
from threeml_core.study.ledger import EXPERIMENTS
from threeml_core.study.results import Result


def claims(
    config: StudyConfig,
    results: Sequence[Result],
    information: Iterable[RunRecord],
    benchmarks: Iterable[RunRecord] = (),
) -> list[Claim]:
    """All claims of the study's experiments, with what all its runs say, in the order of their names.

    Of the records of stages `mutual_information` and `benchmark`, oldest first, those of other runs are left out.
    """
    runs = {record.run_id for r in results if "Figure 4" in r.run.exhibits for record in r.ended.values()}
    benchmarked = at_constant_rate(config)
    names = deciding_parameters(benchmarked)
    evidence = Evidence(
        config,
        results,
        [record for record in information if record.data["run"] in runs],
        [record for record in benchmarks if has_parameters(record, benchmarked, names)],
    )
    found = [claim(evidence) for experiment in EXPERIMENTS.values() for claim in experiment.claims]
    return sorted(found, key=lambda claim: claim.name)
