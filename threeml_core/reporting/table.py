"""Tables that read well in JupyterLab, in the report, on a terminal and in a comparison by nbval."""

from __future__ import annotations

import html
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence

MISSING = "—"  # a cell for which there is nothing to show
PAPER = "paper"  # before a value, or the model of a row, that the paper reports
NOT_RUN = "not run"  # a cell whose run is missing
_NOTHING = (None, "", MISSING)
Command = tuple[str, str]  # a label, and what to type


class Table:
    """Rows of formatted text, by column, with a caption. Cells that look like numbers are set flush right.

    The first column heads its row; of the others, those in which nothing stands are left out. It needs no script: a
    report's own (`template/table.js`) sorts, switches columns and makes cards of rows on a phone.

    Args:
        rows: column -> text, for each row.
        caption: what the table shows.
        folded: show only the caption until it is clicked.
        commands: (label, command) for what stands in the rows; folded below them.
    """

    def __init__(
        self, rows: Sequence[Mapping[str, str]], caption: str, folded: bool = False, commands: Iterable[Command] = ()
    ) -> None:
        self.caption, self.folded, self.commands = caption, folded, tuple(commands)
        names = enumerate(dict.fromkeys(name for row in rows for name in row))
        self.columns = [name for i, name in names if i == 0 or any(row.get(name) not in _NOTHING for row in rows)]
        self.rows = [[row.get(name, "") for name in self.columns] for row in rows]

    @classmethod
    def of(cls, values: Mapping[str, str], caption: str) -> Table:
        """A row for each quantity with its value."""
        return cls([{"Quantity": name, "Value": value} for name, value in values.items()], caption)

    def __repr__(self) -> str:
        grid = [self.columns, *self.rows]
        widths = [max(len(row[i]) for row in grid) for i in range(len(self.columns))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in grid]
        return "\n".join([self.caption, *lines])

    def markdown(self) -> str:
        """The table for a document, whose text has the caption."""

        def line(cells: Iterable[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        rule = ["--:" if all(map(_is_number, column)) else "---" for column in zip(*self.rows, strict=True)]
        return "\n".join([line(self.columns), line(rule), *map(line, self.rows)])

    def _repr_html_(self) -> str:
        sides = list(map(_side, zip(*self.rows, strict=True)))
        head = "".join(map(_head, self.columns, sides))
        body = "".join(f"<tr>{''.join(map(_cell, row, sides, itertools.count()))}</tr>" for row in self.rows)
        caption = html.escape(self.caption)
        head, body = f"<thead><tr>{head}</tr></thead>", f"<tbody>{body}</tbody>"
        if self.folded:
            return f'<details><summary>{caption}</summary><table class="study">{head}{body}</table></details>'
        table = f'<table class="study"><caption>{caption}</caption>{head}{body}</table>'
        if not self.commands:
            return table
        lines = "\n".join(f"# {label}\n{command}" for label, command in self.commands)
        return f"{table}<details><summary>repeat a row</summary><pre>{html.escape(lines)}</pre></details>"


def beside(ours: str, reported: str | None) -> str:
    """A cell with our value and the paper's, if it has one."""
    return ours if reported in _NOTHING else f"{ours} ({PAPER} {reported})"


_NUMBER = re.compile(
    r"[+-]?\d[\d,.]*(e[+-]?\d+)?[×%KMG]?( ± [\d.]+| \([\d.]+ to [\d.]+\))?"
    r"( (M|G|s|min|h|kWh|Wh|GiB|MiB|GFLOP/s|tokens/s))?( \(subset\))?"
)
_METRICS = re.compile(r"/(?=[\d+-])")  # between the numbers of a task with several
_BREAKS = re.compile(r"(?<=/)(?=[\d+-])| (?=\()")
_LONG = re.compile(r"(?<=\S{7}/)")  # where a heading may break
_REPORTED = re.compile(rf" \({PAPER} [^()]*\)$")


def _is_number(text: str) -> bool:
    parts = _METRICS.split(_REPORTED.sub("", text))
    return text in (MISSING, "") or all(map(_NUMBER.fullmatch, parts))


def _side(column: Iterable[str]) -> str:
    """Flush right are columns of numbers; said inline, for viewers of notebooks."""
    known = [_is_number(ours) for text in column if (ours := _REPORTED.sub("", text)) not in (*_NOTHING, NOT_RUN)]
    return f'style="text-align:{"right" if 2 * sum(known) > len(known) else "left"}"'


def _head(name: str, side: str) -> str:
    return f'<th scope="col" {side}>{_LONG.sub("<wbr>", html.escape(name))}</th>'


def _cell(text: str, side: str, column: int) -> str:
    """The paper's value in an element of its own; long numbers in parts, between which they may break."""
    tag, scope = ("td", "") if column else ("th", ' scope="row"')
    ours = _REPORTED.sub("", text)
    shown, reported = html.escape(ours), html.escape(text[len(ours) :])
    # names of models and splits are not broken either
    look = ' class="number"' if _is_number(text) else ' class="short"' if len(ours) <= 20 else ""
    if _is_number(text) and _BREAKS.search(ours):
        shown = _BREAKS.sub(r"</span>\g<0><wbr><span>", f"<span>{shown}</span>")
    return f"<{tag}{scope}{look} {side}>{shown}{f'<small>{reported}</small>' if reported else ''}</{tag}>"
