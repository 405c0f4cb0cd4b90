"""Drawing the models of a study: scores as dots with a line through their means, and values with their intervals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.parameters.masking import rate_label
from threeml_core.reporting.cells import measured, measured_perplexity
from threeml_core.reporting.references import AVERAGE, references
from threeml_core.reporting.style import INK, draw_references, hover, legend_below, look_of, note_not_run, span_alike
from threeml_core.runs.record import RunRecord
from threeml_core.statistics.intervals import Interval, mean_interval, ratio_interval
from threeml_core.study.results import Result, averages

ABOVE, LEFT, RIGHT = (0, 10), (-14, 0), (14, 0)  # of a label from its point, in points of type


def draw_means(
    axis: Any, points: Sequence[tuple[float, Sequence[float]]], architecture: str, label: str | None = None
) -> None:
    """A line through the means of (x, values by seed) with their intervals, every seed as a dot.

    There is a note where nothing was run.
    """
    if not points:
        note_not_run(axis)
        return
    look = look_of(architecture)
    found = [mean_interval(values) for _, values in points]
    at = {"x": [x for x, _ in points], "y": [of.mean for of in found], "yerr": _halves(found)}
    drawn = axis.errorbar(**at, capsize=3, linewidth=2, elinewidth=1, markersize=5, label=label, **look)
    name = label or ARCHITECTURES[architecture].label
    hover(drawn[0], (f"{name} at {x:.4g}: {measured(values)}" for x, values in points))
    if dots := [(x, value) for x, values in points for value in values if len(values) > 1]:
        axis.scatter(*zip(*dots, strict=True), s=12, alpha=0.5, color=look["color"])


def _halves(found: Sequence[Interval]) -> list[tuple[float, ...]] | None:
    """Of matplotlib's error bars: how far intervals reach below and above; one seed has none, all of them None."""
    halves = [(0.0, 0.0) if f.low is None or f.high is None else (f.mean - f.low, f.high - f.mean) for f in found]
    return [*zip(*halves, strict=True)] if any(map(any, halves)) else None


def near(scores: Sequence[float], of: Mapping[str, float]) -> list[float]:
    """The scores and what they stand against, as far as that is within ten points of one, for a panel to hold."""
    return [*scores, *(value for value in of.values() if any(abs(value - score) < 10 for score in scores))]


def label_rate(axis: Any, result: Result, x: float, y: float, side: tuple[float, float] = ABOVE) -> None:
    """Write the mask rate beside a point."""
    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "color": INK}
    axis.annotate(rate_label(result.run.config.parameters()), (x, y), side, textcoords="offset points", **look)


_AWAY = ((0, 0), (0, 9), (0, -9), (0, 18), (0, -18), (0, 27), (0, -27))  # tried one after the other; points of type
_WIDE, _HIGH, _MARK = 22, 9, 5  # of a label, and half a mark


def label_rates(axis: Any, points: Sequence[tuple[Result, float, float, tuple[int, int]]]) -> None:
    """As `label_rate` for (model, x, y, side), each label where it covers neither another one nor a mark.

    The panel has to be complete: where its points lie in it is asked here.
    """
    axis.figure.draw_without_rendering()
    places = [72 / axis.figure.dpi * axis.transData.transform((x, y)) for _, x, y, _ in points]
    taken: list[tuple[float, float]] = []

    def is_free(x: float, y: float) -> bool:
        marks = any(abs(x - a) < _WIDE / 2 + _MARK and abs(y - b) < _HIGH / 2 + _MARK for a, b in places)
        return not marks and all(abs(x - a) >= _WIDE or abs(y - b) >= _HIGH for a, b in taken)

    for (result, x, y, side), place in sorted(zip(points, places, strict=True), key=lambda of: of[0][2]):
        tried = [(sign * side[0] + dx, side[1] + dy) for dx, dy in _AWAY for sign in (1, -1)]
        at = next((of for of in tried if is_free(*(place + of))), side)
        taken.append((place[0] + at[0], place[1] + at[1]))
        label_rate(axis, result, x, y, at)


_Values = Sequence[float]
_PANELS: tuple[
    tuple[str, Callable[[Result], list[float]], Callable[[_Values], Interval], Callable[[_Values], str]], ...
] = (
    (
        "validation perplexity, masked",
        lambda of: [*of.metric("eval_perplexity_masked").values()],
        ratio_interval,
        measured_perplexity,
    ),
    ("average score after fine-tuning", lambda of: [*averages(of.comparison).values()], mean_interval, measured),
)


def draw_intervals(
    axes: Sequence[Any], points: Sequence[tuple[float, Result]], side: tuple[int, int] | None = None, **look: Any
) -> None:
    """Perplexity and score of (x, model) with their intervals, in a panel each; mask rates stand at `side`, if any."""
    for axis, (_, values_of, interval, said) in zip(axes, _PANELS, strict=True):
        shown = [(x, result, interval(values)) for x, result in points if (values := values_of(result))]
        if not shown:
            continue
        means, halves = [f.mean for *_, f in shown], _halves([f for *_, f in shown])
        drawn = axis.errorbar([x for x, *_ in shown], means, yerr=halves, capsize=3, **look)
        hover(drawn[0], (f"{result.run.model}: {said(values_of(result))}" for _, result, _ in shown))
        for x, result, found in shown if side else ():
            label_rate(axis, result, x, found.mean, side or ABOVE)


def finish_panels(
    axes: Sequence[Any], results: Sequence[Result], xlabel: str, records: Sequence[RunRecord] | None = None
) -> str:
    """Titles, what the numbers stand against (see `references`), the legend, a note where nothing was run.

    Returns:
        What they stand against, in words.
    """
    for axis, (title, *_) in zip(axes, _PANELS, strict=True):
        axis.set(xlabel=xlabel, title=title)
        if not axis.containers:
            note_not_run(axis)
    scores = [score for result in results for score in averages(result.comparison).values()]
    unigram = [of for result in results for of in result.metric("unigram_perplexity_masked").values()][:1]
    found = [{"unigram": of} for of in unigram] or [{}]
    against = {label: of[AVERAGE] for label, of in references(results, "comparison", records).items()}
    span_alike([(axes[1], near(scores, against))])
    for axis, of in zip(axes, (*found, against), strict=True):
        draw_references(axis, of)
    legend_below(axes, 3)
    return "; ".join(f"{label} {value:.1f}" for of in (*found, against) for label, value in of.items())
