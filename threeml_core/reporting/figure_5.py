"""Figure 5: average score against the speed-up of pre-training in FLOPs."""

from __future__ import annotations

import math
from collections.abc import Sequence

from threeml_core.config import StudyConfig
from threeml_core.paper import reported_values
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.reporting import cells
from threeml_core.reporting.commands import commands_of
from threeml_core.reporting.drawing import draw_means, label_rate
from threeml_core.reporting.style import GREY, Figure, drawing, legend_below, note_not_run, show_ten_points
from threeml_core.reporting.table import Table
from threeml_core.statistics.intervals import mean_interval
from threeml_core.study.results import Result, averages


def figure_5(results: Sequence[Result]) -> Figure:
    """Score against speed-up, over the vanilla model at 15% and at the same rate; the paper's speed-ups in grey."""
    found = [(result, list(averages(result.ablation).values())) for result in cells.shown_in("Figure 5", results)]
    said = sorted({v.value for v in reported_values() if v.metric == "speedup_said"})
    with drawing(2) as (figure, axes):
        for axis, baseline in zip(axes, cells.SPEEDUPS, strict=True):
            shown: list[float] = []
            for architecture, entry in ARCHITECTURES.items():
                points: list[tuple[float, list[float]]] = []
                for result, values in found:
                    ups = cells.speedup(result, baseline)
                    if result.run.config.architecture == architecture and values and ups:
                        points.append((ups[0], values))
                        label_rate(axis, result, ups[0], mean_interval(values).mean)
                        shown += values
                if points:
                    draw_means(axis, points, architecture, entry.label)
            if not shown:
                note_not_run(axis)
            show_ten_points(axis, shown)
            for value in said if baseline == "15%" else ():
                axis.axvline(value, color=GREY, linestyle="-.", linewidth=1)
            axis.margins(x=0.15)
            axis.set(xlabel="speed-up in FLOPs", title=f"over vanilla at {baseline}")
        axes[0].set_ylabel("average score")
        legend_below(figure, axes[0])
    ends = [f"{o.run.model} {cells.measured(values)} at {cells.measured(cells.speedup(o), 2)}" for o, values in found]
    grey = " and ".join(f"{value:g}" for value in said)
    return Figure(
        figure,
        "Average score against the speed-up of pre-training in FLOPs. Over the vanilla model at 15%: "
        f"{'; '.join(ends)}. Grey: the speed-ups of which the paper's text speaks ({grey}); its figure has no numbers.",
    )


def figure_5_values(results: Sequence[Result], config: StudyConfig) -> Table:
    """Figure 5 in numbers; clocks of a machine's different days are not compared: page 08 does it in turns."""
    shown = cells.shown_in("Figure 5", results)
    optima = {v.setting: v.value for v in reported_values() if v.artefact == "Figure 5"}
    rows = []
    for result in shown:
        c = result.run.config
        row = {"Model": result.run.model, "Average": cells.average(result.ablation)}
        for name in cells.SPEEDUPS:
            row[f"Speed-up in FLOPs, {name}"] = cells.measured(cells.speedup(result, name), 2)
        best = math.isclose(optima.get(c.architecture, math.nan), 100 * c.mask_rate)
        rows.append({**row, "Paper": "its best rate" if best else ""})
    return Table(
        rows,
        "Figure 5 in numbers: score against speed-up in FLOPs, over the vanilla model at 15% and at the same rate",
        commands=commands_of(shown, config, "Figure 5"),
    )
