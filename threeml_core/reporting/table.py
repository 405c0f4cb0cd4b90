"""Tables that read well in JupyterLab, in the report, on a terminal and in a comparison by nbval."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence

MISSING = "—"  # a cell for which there is nothing to show
NOT_RUN = "not run"  # a cell whose run is missing
Command = tuple[str, str]  # a label, and what to type


class Table:
    """Rows of formatted text, by column, with a caption. Cells that look like numbers are set flush right.

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
        self.columns = list(dict.fromkeys(name for row in rows for name in row))
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
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in self.columns)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.rows)
        caption = html.escape(self.caption)
        head, body = f"<thead><tr>{head}</tr></thead>", f"<tbody>{body}</tbody>"
        if self.folded:
            return f'<details><summary>{caption}</summary><table class="study">{head}{body}</table></details>'
        table = f'<table class="study"><caption>{caption}</caption>{head}{body}</table>'
        if not self.commands:
            return table
        lines = "\n".join(f"# {label}\n{command}" for label, command in self.commands)
        return f"{table}<details><summary>repeat a row</summary><pre>{html.escape(lines)}</pre></details>"


_NUMBER = re.compile(
    r"[+-]?\d[\d,.]*(e[+-]?\d+)?[×%KMG]?( ± [\d.]+| \([\d.]+ to [\d.]+\))?"
    r"( (M|G|s|min|h|kWh|Wh|GiB|MiB|GFLOP/s|tokens/s))?"
)


def _is_number(text: str) -> bool:
    return text in (MISSING, "") or _NUMBER.fullmatch(text) is not None


def _cell(text: str) -> str:
    style = 'style="text-align:left"'
    if text and _is_number(text):
        style = 'class="number" style="text-align:right"'
    elif len(text) <= 20:  # names of models and splits are not broken
        style = f'class="short" {style}'
    return f"<td {style}>{html.escape(text)}</td>"
