"""Figure 5: average score against the speed-up of pre-training in FLOPs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from threeml_core.config import StudyConfig
from threeml_core.paper import reported_values
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.reporting import cells
from threeml_core.reporting.commands import commands_of
from threeml_core.reporting.drawing import ABOVE, LEFT, draw_means, label_rates, near
from threeml_core.reporting.references import AVERAGE, references
from threeml_core.reporting.style import GREY, Figure, draw_references, drawing, legend_below, note_not_run, span_alike
from threeml_core.reporting.table import Table
from threeml_core.statistics.intervals import mean_interval
from threeml_core.study.results import Result, averages

_SIDES = {"vanilla": LEFT, "self": (14, 7), "cross": (14, -7)}  # of a label from its point, as they lie close


def figure_5(results: Sequence[Result]) -> Figure:
    """Score against speed-up, over the vanilla model at 15% and at the same rate; the paper's speed-ups in grey."""
    found = [(result, list(averages(result.ablation).values())) for result in cells.shown_in("Figure 5", results)]
    said = sorted({v.value for v in reported_values() if v.metric == "speedup_said"})
    against = {label: of[AVERAGE] for label, of in references([o for o, _ in found], "ablation").items()}
    scores = near([value for _, values in found for value in values], against)
    labels: list[list[tuple[Result, float, float, tuple[int, int]]]] = []
    with drawing(2, 3.8) as (figure, axes):
        for axis, baseline in zip(axes, cells.SPEEDUPS, strict=True):
            known = [(o, up, values) for o, values in found for up in cells.speedup(o, baseline) if values]
            for architecture, entry in ARCHITECTURES.items():
                if points := [(x, values) for o, x, values in known if o.run.config.architecture == architecture]:
                    draw_means(axis, points, architecture, entry.label)
            sides = [_SIDES.get(result.run.config.architecture, ABOVE) for result, *_ in known]
            labels.append([(o, x, mean_interval(v).mean, side) for (o, x, v), side in zip(known, sides, strict=True)])
            if not known:
                note_not_run(axis)
            span_alike([(axis, scores)])
            draw_references(axis, against)
            for value in said if baseline == "15%" else ():
                axis.axvline(value, color=GREY, alpha=0.35, linewidth=4, label="in the paper's text")
            axis.margins(x=0.15)
            axis.set(xlabel="speed-up in FLOPs", title=f"over vanilla at {baseline}")
        axes[0].set_ylabel("average score")
        legend_below(axes[:1])
        for axis, labelled in zip(axes, labels, strict=True):
            label_rates(axis, labelled)
    ends = [f"{o.run.model} {cells.measured(values)} at {cells.measured(cells.speedup(o), 2)}" for o, values in found]
    grey = " and ".join(f"{value:g}" for value in said)
    return Figure(
        figure,
        "Average score against the speed-up of pre-training in FLOPs. Over the vanilla model at 15%: "
        f"{'; '.join(ends)}. Bars: 95% intervals, as far as the panel goes. Grey: "
        f"the speed-ups of which the paper's text speaks ({grey}); its figure has no numbers.",
    )


def figure_5_values(results: Sequence[Result], config: StudyConfig) -> Table:
    """Figure 5 in numbers; clocks of a machine's different days are not compared: page 08 does it in turns."""
    shown = cells.shown_in("Figure 5", results)
    optima = {v.setting: v.value for v in reported_values() if v.artefact == "Figure 5"}
    rows = []
    for result in shown:
        c, row = result.run.config, {"Model": result.run.model, "Average": cells.average(result.ablation)}
        row |= {f"Speed-up in FLOPs, {of}": cells.measured(cells.speedup(result, of), 2) for of in cells.SPEEDUPS}
        best = math.isclose(optima.get(c.architecture, math.nan), 100 * c.mask_rate)
        rows.append({**row, "Paper": "its best rate" if best else ""})
    caption = "Figure 5 in numbers: score against speed-up in FLOPs, over the vanilla model at 15% and at the same rate"
    return Table(rows, caption, commands=commands_of(shown, config, "Figure 5"))
