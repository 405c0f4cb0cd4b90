"""Where the study's models stand: what each costs, its perplexity, and what its frozen encoder knows, by probes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from threeml_core.config import StudyConfig
from threeml_core.reporting import cells
from threeml_core.reporting.claims import measured
from threeml_core.reporting.table import MISSING, NOT_RUN, Table
from threeml_core.study.experiments.table_3 import STUDY_MODELS
from threeml_core.study.probes import DECIDING, OTHER_SIZES, ProbeEvidence, Probes, named
from threeml_core.study.results import Result

_AGAINST = ("vanilla-15%", "vanilla-40%")


def standing_table(found: Probes, results: Sequence[Result], config: StudyConfig) -> Table:
    """Table 3's models, at equal steps and at equal FLOPs: what each costs, its perplexity, what its encoder knows."""
    shown = cells.shown_in("Table 3", results)
    vanilla = [result for result in cells.with_equal_steps(shown, config) if result.run.model in _AGAINST]
    rows = []
    for result in (result for result in shown if result.ended):
        row = {"Model": named(result, config), "Steps": f"{result.run.config.max_steps:,}"}
        for other in (result for result in vanilla if result.run.model == _AGAINST[0] and result.ended):
            spent, budget = (next(iter(of.ended.values())).flops["training"] for of in (result, other))
            row["FLOPs of vanilla-15%"] = f"{spent / budget:.0%}"
        rows.append({**row, **_known(result, vanilla, found, config)})
    return Table(
        rows or [{"Model": NOT_RUN}],
        "Cost and knowledge. Probes: the mean accuracy of part of speech, dependency label and bigram shift. All with "
        "95% intervals; those of differences are what judges the claims",
    )


def size_table(found: Probes, results: Sequence[Result], config: StudyConfig) -> Table:
    """Table 3's models at each size of `study_sizes`, against the vanilla ones of that size."""
    ended = [result for result in cells.shown_in(OTHER_SIZES.name, results) if result.ended]
    rows = []
    for (layers, width), models in cells.by_size(ended).items():
        vanilla = [result for result in models if result.run.model in _AGAINST]
        for result in sorted(models, key=_place):
            row = {"Encoder": f"{layers} × {width}", "Model": result.run.model, "Parameters": cells.parameters(result)}
            row["Steps"] = f"{result.run.config.max_steps:,}"
            rows.append({**row, **_known(result, vanilla, found, config)})
    same = "executed FLOPs" if config.equal_size_flops else "steps"
    return Table(
        rows or [{"Encoder": "one size: set study_sizes and probe_sizes"}],
        f"Sizes: every model of every size has the same text and {same}; differences are within a size",
    )


def _place(result: Result) -> int:
    return STUDY_MODELS.index((result.run.config.architecture, result.run.config.mask_rate))


def _known(result: Result, vanilla: Sequence[Result], found: Probes, config: StudyConfig) -> dict[str, str]:
    """Perplexity, mean accuracy, and how much more that is than each vanilla model's."""
    evidence, name = ProbeEvidence(config, (), probes=found), named(result, config)
    row = {"Perplexity at [MASK]s": cells.perplexity(result)}
    seeds = found.models.get(name, ()) if {*DECIDING} <= {*found.tasks} else ()
    row["Probes, %"] = cells.measured(100 * found.mean(name, seed, DECIDING) for seed in seeds)
    for other in vanilla:
        against = measured(evidence.scores(result, other, -math.inf, math.inf)).removesuffix(" points")
        row[f"Against {other.run.model}, points"] = MISSING if other is result else against
    return row
