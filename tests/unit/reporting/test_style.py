"""Figures as SVG: what the pointer shows, and colours that are the page's own."""

from __future__ import annotations

import math
import re

from threeml_core.reporting.style import BAD, INK, Figure, drawing, hover


def titles(svg: str) -> list[str]:
    return re.findall("<title>(.*?)</title>", svg)


def test_each_mark_says_its_value() -> None:
    """Also what looks like markup; a line says its label, one without says nothing; no id is left over."""
    with drawing() as (figure, (axis,)):
        (line,) = axis.plot([1, 2, 3], [1, 2, 3], marker="o", label="other")
        hover(line, ["one", "two <b>", 'three "'])
        axis.plot([1, 2], [2, 2], label="a line at $2")
        axis.plot([1, 2], [1, 1])
    svg = Figure(figure, "A figure.").svg
    assert titles(svg) == ["one", "two &lt;b&gt;", 'three "', "a line at $2"]
    assert len(re.findall(r"<use [^>]*><title>", svg)) == 3 and "hover" not in svg


def test_marks_that_are_not_drawn_take_no_text_from_others() -> None:
    with drawing() as (figure, (axis,)):
        (line,) = axis.plot([1, 2, 3], [1, math.nan, 3], marker="o")
        hover(line, ["one", "two", "three"])
    (title,) = re.findall("(?s)<title>(.*?)</title>", Figure(figure, "A figure.").svg)
    assert title.split() == ["one", "two", "three"], "all of it, as it is not known whose is whose"


def test_colours_of_the_page() -> None:
    with drawing() as (figure, (axis,)):
        axis.text(0.5, 0.5, "no", color=BAD)
        axis.text(0.5, 0.2, "ink", color=INK)
    svg = Figure(figure, "A figure.").svg
    assert f"fill: var(--bad, {BAD})" in svg and "fill: currentColor" in svg and INK not in svg
