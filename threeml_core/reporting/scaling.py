"""Scaling: Table 3's models with encoders of several sizes, which the paper leaves open."""

from __future__ import annotations

from collections.abc import Sequence

from threeml_core.config import StudyConfig
from threeml_core.reporting import cells
from threeml_core.reporting.commands import commands_of
from threeml_core.reporting.drawing import draw_intervals, finish_panels
from threeml_core.reporting.style import Figure, drawing, look_of
from threeml_core.reporting.table import MISSING, NOT_RUN, Table
from threeml_core.study.results import Result


def scaling_table(results: Sequence[Result], config: StudyConfig) -> Table:
    """Each model against vanilla-40% of its size, on the same text."""
    rows, by_size = [], cells.by_size(cells.shown_in("Scaling", results))
    for (layers, width), models in by_size.items():
        vanilla = next((result for result in models if result.run.model == "vanilla-40%"), None)
        for result in models:
            loss = average = MISSING
            if vanilla is not None and result is not vanilla:
                loss = cells.loss_difference(result, vanilla)
                average = cells.average_difference(result.comparison, vanilla.comparison)
            row = {"Encoder": f"{layers} × {width}", "Model": result.run.model}
            row |= {"Parameters": cells.parameters(result), "Steps": f"{result.run.config.max_steps:,}"}
            row |= {"Perplexity, masked": cells.perplexity(result)}
            row["Average"] = cells.average(result.comparison)
            row["Loss over all corrupted, against vanilla-40% (nats)"] = loss
            rows.append({**row, "Average against vanilla-40% (points)": average})
    if not rows:
        return Table([{"Encoder": "one size: set study_sizes"}], "Scaling")
    commands = commands_of(sum(by_size.values(), []), config, "Scaling", "hidden_size")
    return Table(
        rows, f"Scaling: the models of Table 3 at several sizes, same text and {_same(config)}", commands=commands
    )


def _same(config: StudyConfig) -> str:
    return "executed FLOPs" if config.equal_size_flops else "steps"


def plot_scaling(results: Sequence[Result]) -> Figure:
    """Masked perplexity and average score of each model against the size of the encoder."""
    by_size, ends = cells.by_size(cells.shown_in("Scaling", results)), []
    shown = sum(by_size.values(), [])
    with drawing(2) as (figure, axes):
        for label in dict.fromkeys(result.run.model for result in shown):
            models = [result for result in shown if result.run.model == label]
            c = models[0].run.config
            look = {**look_of(c.architecture), "markersize": 5, "alpha": 1 if c.mask_rate == 0.4 else 0.6}
            points = [(next(iter(o.ended.values())).data["parameters"] / 1e6, o) for o in models if o.ended]
            draw_intervals(axes, points, label=label, **look)
            ends.append(f"{label}: {', '.join(map(cells.perplexity, models))}")
        against = finish_panels(axes, shown, "parameters in pre-training (M)")
    sizes = ", ".join(f"{layers} × {width}" for layers, width in by_size) or NOT_RUN
    return Figure(
        figure,
        f"The models of Table 3 with encoders of several sizes ({sizes}, layers × width) on the same text: validation "
        f"perplexity at masked positions, and average score. That perplexity from the smallest to the largest: "
        f"{'; '.join(ends) or NOT_RUN}." + f" Against: {against}." * bool(against),
    )
