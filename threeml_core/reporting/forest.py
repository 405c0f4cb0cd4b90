"""All claims of the paper as one forest plot: what was measured, what the claim allows, what the paper measured."""

from __future__ import annotations

import dataclasses
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.transforms import blended_transform_factory

from threeml_core.reporting.claims import measured, number_of, reported
from threeml_core.reporting.style import BAD, GOOD, GREY, INK, Figure, drawing, hover
from threeml_core.statistics.verdicts import CONTRADICTED, NOT_RUN, SUPPORTED, UNDECIDED, Claim, Finding

MARKS = {SUPPORTED: "✓", CONTRADICTED: "✗", UNDECIDED: "?", NOT_RUN: "–"}
"""Beside the word of a verdict, for those who do not tell its colour."""

_COLOURS = {SUPPORTED: GOOD, CONTRADICTED: BAD, UNDECIDED: GREY, NOT_RUN: GREY}
_TEXT_COLOURS = {**_COLOURS, UNDECIDED: INK, NOT_RUN: INK}
_UNITS = {
    "points": "difference of scores, points of 100",
    "nats": "difference of validation losses, nats",
    "": "share",
}
FINE_TUNED, PROBES = "fine-tuned", "probes"
"""How encoders are judged."""

_MARKERS = ("o", "s")
_COLUMN = 0.31  # of verdicts; its width, in that of the panels


@dataclasses.dataclass(frozen=True)
class _Line:
    """One of the plot: a claim's heading, or a comparison, with all findings about it."""

    text: str
    verdicts: tuple[str, ...]
    findings: tuple[Finding, ...] = ()

    @property
    def height(self) -> float:
        return 1 + 0.85 * self.text.count("\n") + 0.5 * (not self.findings)


def forest_plot(judged: Mapping[str, Sequence[Claim]]) -> Figure:
    """A panel for each unit, and in it the claims with their comparisons.

    Args:
        judged: how or where -> the claims that were judged so, at most two; the first has all claims and the other
            some of the same, with the same comparisons in the same order.
    """
    judged = {name: found for name, found in judged.items() if found}
    names, (claims, *others) = [*judged], judged.values()
    beside = {_name(claim): claim for other in others for claim in other}
    panels = {unit: lines for unit in _UNITS if (lines := _lines(claims, beside, unit))}
    heights = [sum(line.height for line in lines) + 3 for lines in panels.values()]
    with drawing(len(panels), 0.19 * sum(heights) / len(panels), per_row=1) as (figure, axes):
        axes[0].get_gridspec().set_height_ratios(heights)
        for axis, (unit, lines) in zip(axes, panels.items(), strict=True):
            _draw(axis, unit, lines, len(names))
        for column, name in enumerate(names if len(names) > 1 else ()):
            axes[0].text(1.02 + _COLUMN * column, 1, name, transform=axes[0].transAxes, fontsize=8.5, va="bottom")
        handles: list[Any] = [
            Line2D([], [], marker=mark, color=INK, markersize=5, linewidth=1.5, label=f"{name}, 95% interval")
            for name, mark in zip(names, _MARKERS, strict=False)
        ]
        if any(paper_value(finding) is not None for claim in claims for finding in claim.findings):
            handles.append(Line2D([], [], label="the paper", **_PAPER))
        handles.append(Patch(color=GREY, alpha=0.25, linewidth=0, label="what the claim allows"))
        figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8.5)
    said = "; ".join(_said(claim, beside, names[-1]) for claim in claims)
    return Figure(
        figure,
        f"The paper's claims, each with its comparisons{f', {names[0]} first' if beside else ''}: {said}.",
        "The paper's claims, and their comparisons: means over seeds with 95% intervals, an arrow where one goes on; "
        "grey: what the claim allows; open: what the paper's own numbers give. A mean alone has one seed or no spread. "
        f"{', '.join(f'{mark} {verdict}' for verdict, mark in MARKS.items())}.",
    )


_PAPER: dict[str, Any] = {"marker": "D", "color": INK, "fillstyle": "none", "markersize": 5.5, "linestyle": "none"}


def _name(claim: Claim) -> str:
    return claim.name.partition(" ")[0]  # of one by probes, too


def _lines(claims: Sequence[Claim], beside: Mapping[str, Claim], unit: str) -> list[_Line]:
    lines = []
    for claim in claims:
        other = beside.get(_name(claim))
        both = [claim, *([other] if other else [])]
        pairs = zip(*(of.findings for of in both), strict=False)
        if found := [pair for pair in pairs if pair[0].unit == unit]:
            text = textwrap.fill(f"{_name(claim)}  {claim.text}", 80)
            lines.append(_Line(text, tuple(of.verdict for of in both)))
            for pair in found:
                what = _without_steps(pair).partition(": average")[0].partition(": loss")[0]
                lines.append(_Line(textwrap.fill(what, 44), tuple(of.verdict for of in pair), pair))
    return lines


def _without_steps(pair: Sequence[Finding]) -> str:
    """The comparison, without numbers of steps that differ."""
    first, *others = (of.what for of in pair)
    return first if all(other == first for other in others) else re.sub(r", [\d,]+ steps", "", first)


def _draw(axis: Any, unit: str, lines: Sequence[_Line], columns: int) -> None:
    low, high = _span([finding for line in lines for finding in line.findings])
    place, ticks = 0.0, {}
    left = blended_transform_factory(axis.figure.transFigure, axis.transData)
    right = blended_transform_factory(axis.transAxes, axis.transData)
    for line in lines:
        middle = place - line.height / 2 - 0.25 * (not line.findings)  # a gap above each claim
        if line.findings:
            ticks[middle] = line.text
            allowed = [max(low, line.findings[0].low), min(high, line.findings[0].high)]
            axis.barh(middle, allowed[1] - allowed[0], 0.8, left=allowed[0], color=GREY, alpha=0.25, linewidth=0)
            shifts = (0.2, -0.2) if len(line.findings) > 1 else (0.0,)
            for finding, mark, shift in zip(line.findings, _MARKERS, shifts, strict=False):
                _interval(axis, finding, middle + shift, mark, (low, high))
            if (value := paper_value(line.findings[0])) is not None and low < value < high:
                axis.plot(value, middle, zorder=4, **_PAPER)
        else:
            look = {"transform": left, "va": "center", "fontsize": 8.5, "in_layout": False}
            for column, verdict in enumerate(line.verdicts):  # seen on a phone, where the words are out of sight
                x = 0.004 + 0.02 * column
                axis.text(x, middle, MARKS[verdict], color=_TEXT_COLOURS[verdict], weight="bold", **look)
            axis.text(0.008 + 0.02 * columns, middle, line.text, **look)
        weight = "normal" if line.findings else "bold"
        for column, verdict in enumerate(line.verdicts):
            x, look = 1.02 + _COLUMN * column, {"transform": right, "va": "center", "fontsize": 8.5}
            axis.text(x, middle, MARKS[verdict], color=_TEXT_COLOURS[verdict], weight="bold", **look)
            axis.text(x + 0.035, middle, verdict, weight=weight, **look)
        place -= line.height
    axis.set(xlim=(low, high), ylim=(place - 0.2, 0))
    axis.set_xlabel(_UNITS[unit], fontsize=9)
    axis.tick_params(axis="x", labelsize=9)
    axis.set_yticks([*ticks], ticks.values(), fontsize=8)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.grid(axis="y", visible=False)


def _interval(axis: Any, finding: Finding, y: float, mark: str, span: tuple[float, float]) -> None:
    """A mean and its interval, with an arrow where that goes on beyond the panel."""
    if (found := finding.interval) is None:
        return
    look = {"color": _COLOURS[finding.verdict], "zorder": 3}
    if found.low is not None and found.high is not None:
        axis.plot(np.clip([found.low, found.high], *span), [y, y], linewidth=1.8, **look)
        for is_beyond, edge, arrow in ((found.low < span[0], span[0], "<"), (found.high > span[1], span[1], ">")):
            if is_beyond:
                axis.plot(edge, y, marker=arrow, markersize=5, clip_on=False, **look)
    (drawn,) = axis.plot(found.mean, y, marker=mark, markersize=5, **look)
    hover(drawn, [f"{finding.what}: {measured(finding)}, {finding.verdict}"])


def _span(findings: Sequence[Finding]) -> tuple[float, float]:
    """Of a panel: all means and bounds of claims, and nine tenths of the intervals' ends."""
    known = [found for finding in findings if (found := finding.interval)]
    ends = [end for found in known for end in (found.low, found.high) if end is not None]
    points = [found.mean for found in known] + [value for f in findings if (value := paper_value(f)) is not None]
    points += [bound for finding in findings for bound in (finding.low, finding.high) if math.isfinite(bound)]
    points += list(np.percentile(ends, (5, 95))) if ends else []
    low, high = min(points, default=0.0), max(points, default=1.0)
    margin = 0.08 * (high - low) or 1.0
    return low - margin, high + margin


def paper_value(finding: Finding) -> float | None:
    """What the paper's own numbers give for a comparison; None: it has none."""
    values = [value for setting in finding.settings if (value := reported(setting, finding.unit)) is not None]
    if len(values) != 2:
        return None
    first, second = values
    return {"points": first - second, "nats": math.log(first / second)}.get(finding.unit, second / first)


def _said(claim: Claim, beside: Mapping[str, Claim], name: str) -> str:
    other = beside.get(_name(claim))
    parts = []
    for number, finding in enumerate(claim.findings):
        pair = [finding, other.findings[number]] if other else [finding]
        part = (
            f"{_without_steps(pair)} {', '.join([measured(finding), *(f'{name} {measured(of)}' for of in pair[1:])])}"
        )
        if (value := paper_value(finding)) is not None:
            part += f", the paper {number_of(value, finding, '+' if finding.unit else '')}"
        parts.append(part)
    verdict = claim.verdict + (f", {name} {other.verdict}" if other else "")
    return f"{_name(claim)} {verdict} ({', '.join(parts)})"
