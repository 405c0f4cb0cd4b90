"""Where the study's models stand: what each costs, its perplexity, and what its frozen encoder knows, by probes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from threeml_core.config import StudyConfig
from threeml_core.reporting import cells
from threeml_core.reporting.claims import measured
from threeml_core.reporting.table import MISSING, NOT_RUN, Table
from threeml_core.study.experiments.table_3 import STUDY_MODELS
from threeml_core.study.probes import BASELINE, DECIDING, OTHER_SIZES, PROBED_ABLATIONS, ProbeEvidence, Probes, named
from threeml_core.study.results import Result

_AGAINST = ("vanilla-15%", "vanilla-40%")


def standing_table(found: Probes, results: Sequence[Result], config: StudyConfig) -> Table:
    """Table 3's models, at equal steps and at equal FLOPs: what each costs, its perplexity, what its encoder knows."""
    shown, same = cells.shown_in("Table 3", results), _with_equal_steps(results, config)
    against = {_points(name): same[name] for name in _AGAINST if name in same}
    rows = []
    for result in (result for result in shown if result.ended):
        row = {"Model": named(result, config), "Steps": f"{result.run.config.max_steps:,}"}
        rows.append({**row, **_share(result, same), **_known(result, against, found, config)})
    return Table(
        rows or [{"Model": NOT_RUN}],
        "Cost and knowledge. Probes: the mean accuracy of part of speech, dependency label and bigram shift. All with "
        "95% intervals; those of differences are what judges the claims",
    )


def ablation_table(found: Probes, results: Sequence[Result], config: StudyConfig) -> Table:
    """Table 2's models, each against the one that nothing was changed in, and against the vanilla model at 40%."""
    same, rows = _with_equal_steps(results, config), []
    for result in cells.shown_in(PROBED_ABLATIONS.name, results):
        if result.ended:
            default, vanilla = same.get(result.run.model), same.get(BASELINE)
            against = {"Against the default, points": default, _points(BASELINE): vanilla}
            row = {"Model": named(result, config), **_share(result, same)}
            known = _known(result, {heading: of for heading, of in against.items() if of is not None}, found, config)
            rows.append({**row, **known})
    return Table(
        rows or [{"Model": f"{NOT_RUN}: set probe_ablations"}],
        "Table 2's models by probes: a decoder of another depth or width, another masking strategy. Differences are "
        "over the seeds that both have",
    )


def _with_equal_steps(results: Sequence[Result], config: StudyConfig) -> dict[str, Result]:
    shown = cells.with_equal_steps(cells.shown_in("Table 3", results), config)
    return {result.run.model: result for result in shown if result.ended}


def _share(result: Result, same: Mapping[str, Result]) -> dict[str, str]:
    """Executed FLOPs of its training as a share of those of vanilla-15%, if that was run."""
    if _AGAINST[0] not in same:
        return {}
    spent, budget = (next(iter(of.ended.values())).flops["training"] for of in (result, same[_AGAINST[0]]))
    return {"FLOPs of vanilla-15%": f"{spent / budget:.0%}"}


def _points(model: str) -> str:
    return f"Against {model}, points"


def size_table(found: Probes, results: Sequence[Result], config: StudyConfig) -> Table:
    """Table 3's models at each size of `study_sizes`, against the vanilla ones of that size."""
    ended = [result for result in cells.shown_in(OTHER_SIZES.name, results) if result.ended]
    rows = []
    for (layers, width), models in cells.by_size(ended).items():
        vanilla = {_points(of.run.model): of for of in models if of.run.model in _AGAINST}
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


def _known(result: Result, against: Mapping[str, Result], found: Probes, config: StudyConfig) -> dict[str, str]:
    """Perplexity, mean accuracy, and, by heading, how much more that is than another model's."""
    evidence, name = ProbeEvidence(config, (), probes=found), named(result, config)
    row = {"Perplexity at [MASK]s": cells.perplexity(result)}
    seeds = found.models.get(name, ()) if {*DECIDING} <= {*found.tasks} else ()
    row["Probes, %"] = cells.measured(100 * found.mean(name, seed, DECIDING) for seed in seeds)
    for heading, other in against.items():
        difference = measured(evidence.scores(result, other, -math.inf, math.inf)).removesuffix(" points")
        row[heading] = MISSING if other is result else difference
    return row
