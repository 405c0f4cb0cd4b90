"""Figure 3: scores of the vanilla model against the mask rate of its pre-training."""

from __future__ import annotations

from collections.abc import Sequence

from threeml_core.config import StudyConfig
from threeml_core.glue.tasks import select_tasks
from threeml_core.paper import reported_values
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.reporting import cells
from threeml_core.reporting.commands import commands_of
from threeml_core.reporting.drawing import draw_means, near
from threeml_core.reporting.references import AVERAGE, references
from threeml_core.reporting.style import GREY, Figure, draw_references, drawing, legend_below, span_alike
from threeml_core.reporting.table import Table
from threeml_core.study.experiment import ablation_config
from threeml_core.study.results import Result


def figure_3(results: Sequence[Result], config: StudyConfig) -> Figure:
    """Score against the mask rate by task and on average; in grey the paper's optima and what needs no encoder."""
    shown = cells.shown_in("Figure 3", results)
    optima = {v.metric: v.value for v in reported_values() if v.artefact == "Figure 3"}
    panels, said = [*select_tasks(ablation_config(config)), None], []  # None: the average
    known = references(shown, "ablation")
    spans, against = [], []
    with drawing(len(panels), 3.0) as (figure, axes):
        for axis, task in zip(axes, panels, strict=True):
            title, key = (task.title, f"{task.name}_best_mask_rate") if task else ("Average", "best_mask_rate")
            points = []
            for result in shown:
                numbers = [study.score(task) if task else study.average for study in result.ablation.values()]
                if values := [100 * number for number in numbers if number is not None]:
                    points.append((100 * result.run.config.mask_rate, values))
            draw_means(axis, points, "vanilla", ARCHITECTURES["vanilla"].label)
            against.append({label: of[task.name if task else AVERAGE] for label, of in known.items()})
            spans.append((axis, near([value for _, values in points for value in values], against[-1])))
            if key in optima:
                axis.axvline(optima[key], color=GREY, alpha=0.35, linewidth=4, label="best in the paper")
                said.append(f"{title} {optima[key]:g}%")
            axis.set(title=title, xlabel="mask rate (%)")
            axis.margins(x=0.12)
        span_alike(spans)
        for axis, of in zip(axes, against, strict=True):
            draw_references(axis, of)
        axes[0].set_ylabel("score")
        legend_below(axes)
    ran = ", ".join(f"{o.run.config.mask_rate:.0%}: {cells.average(o.ablation)}" for o in shown)
    beside = "; ".join(f"{label} {of[AVERAGE]:.1f}" for label, of in known.items())
    return Figure(
        figure,
        f"Score of the vanilla model after fine-tuning against the mask rate of pre-training. Average at {ran}"
        f"{f' ({beside})' if beside else ''}. All panels span the same number of points; 95% intervals "
        "are drawn as far as they go. Grey bars: the best rate by "
        f"the paper's text ({', '.join(said)}; the paper's figure has no numbers).",
    )


def figure_3_values(results: Sequence[Result], config: StudyConfig) -> Table:
    """Figure 3 in numbers: scores and perplexity at each mask rate."""
    tasks = select_tasks(ablation_config(config))
    rows, shown = [], cells.shown_in("Figure 3", results)
    for result in shown:
        row = {"Mask rate": f"{result.run.config.mask_rate:.0%}", **cells.ablation(result, tasks)}
        rows.append({**row, "Perplexity, masked": cells.perplexity(result)})
    commands = commands_of(shown, config, "Figure 3")
    return Table(rows, "Figure 3 in numbers: the vanilla model at different mask rates", commands=commands)
