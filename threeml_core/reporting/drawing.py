"""Drawing the models of a study: scores as dots with a line through their means, and values with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from threeml_core.parameters.masking import rate_label
from threeml_core.reporting.style import INK, legend_below, look_of, note_not_run, show_ten_points
from threeml_core.statistics.intervals import Interval, mean_interval, ratio_interval
from threeml_core.study.results import Result, averages

ABOVE, BELOW, LEFT, RIGHT = (0, 10), (0, -10), (-14, 0), (14, 0)  # of a label from its point, in points of type


def draw_means(
    axis: Any, points: Sequence[tuple[float, Sequence[float]]], architecture: str, label: str | None = None
) -> None:
    """A line through the means of (x, values by seed), every seed as a dot; a note where nothing was run."""
    if not points:
        note_not_run(axis)
        return
    look = look_of(architecture)
    means = [mean_interval(values).mean for _, values in points]
    axis.plot([x for x, _ in points], means, linewidth=2, markersize=5, label=label, **look)
    if dots := [(x, value) for x, values in points for value in values if len(values) > 1]:
        axis.scatter(*zip(*dots, strict=True), s=12, alpha=0.5, color=look["color"])


def label_rate(axis: Any, result: Result, x: float, y: float, side: tuple[int, int] = ABOVE) -> None:
    """Write the mask rate beside a point."""
    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "color": INK}
    axis.annotate(rate_label(result.run.config.parameters()), (x, y), side, textcoords="offset points", **look)


_PANELS: tuple[tuple[str, Callable[[Result], list[float]], Callable[[Sequence[float]], Interval]], ...] = (
    ("validation perplexity, masked", lambda of: [*of.metric("eval_perplexity_masked").values()], ratio_interval),
    ("average score after fine-tuning", lambda of: [*averages(of.comparison).values()], mean_interval),
)


def draw_intervals(
    axes: Sequence[Any], points: Sequence[tuple[float, Result]], side: tuple[int, int] | None = None, **look: Any
) -> None:
    """Perplexity and score of (x, model) with their intervals, in a panel each; mask rates stand at `side`, if any."""
    for axis, (_, values_of, interval) in zip(axes, _PANELS, strict=True):
        shown = [(x, result, interval(values)) for x, result in points if (values := values_of(result))]
        if not shown:
            continue
        bars = [(0.0, 0.0) if f.low is None or f.high is None else (f.mean - f.low, f.high - f.mean) for *_, f in shown]
        heights = [*zip(*bars, strict=True)] if any(map(any, bars)) else None  # one seed has no interval
        axis.errorbar([x for x, *_ in shown], [f.mean for *_, f in shown], yerr=heights, capsize=3, **look)
        for x, result, found in shown if side else ():
            label_rate(axis, result, x, found.mean, side or ABOVE)


def finish_panels(axes: Sequence[Any], results: Iterable[Result], xlabel: str) -> None:
    """Titles, the legend, and a note in a panel where nothing was run."""
    for axis, (title, *_) in zip(axes, _PANELS, strict=True):
        axis.set(xlabel=xlabel, title=title)
        if not axis.containers:
            note_not_run(axis)
    show_ten_points(axes[1], [score for result in results for score in averages(result.comparison).values()])
    legend_below(axes[0], 3)
