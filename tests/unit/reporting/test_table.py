"""Tables: what stands in a cell, what heads a row and a column, and that columns of nothing are left out."""

from __future__ import annotations

import re

import pytest

from threeml_core.reporting.table import Table, beside

TABLE = Table(
    [
        {
            "Model": "a",
            "Average": "81.9 ± 2.1 (subset) (paper 84.3)",
            "MRPC (F1/acc.)": "9.5 ± 2/63.2 (paper 92.0/89.0)",
        },
        {"Model": "b", "Average": "—", "MRPC (F1/acc.)": "not run", "Nothing": "", "Neither": "—"},
    ],
    "caption",
)


def test_columns_of_nothing_are_left_out() -> None:
    """But for the first, which heads the rows; what was not run is something."""
    assert TABLE.columns == ["Model", "Average", "MRPC (F1/acc.)"]
    assert Table([{"A": "", "B": "not run"}], "").columns == ["A", "B"]
    assert repr(Table([], "empty")) == "empty\n"


@pytest.mark.parametrize("reported", [None, "", "—"])
def test_without_a_reported_value_a_cell_is_ours(reported: str | None) -> None:
    assert beside("1.0", reported) == "1.0" and beside("1.0", "2") == "1.0 (paper 2)"


def test_heads_of_rows_and_columns() -> None:
    found = re.findall(r'<th scope="(\w+)"', TABLE._repr_html_())
    assert found == ["col"] * 3 + ["row"] * 2
    assert Table([{"A": "1"}], "", folded=True)._repr_html_().count('scope="row"') == 1


def test_our_value_and_the_papers_in_one_cell() -> None:
    """The paper's in an element of its own; between the metrics of a task there is a place to break."""
    html = TABLE._repr_html_()
    assert "<span>81.9 ± 2.1</span> <wbr><span>(subset)</span><small> (paper 84.3)</small></td>" in html
    assert "<span>9.5 ± 2/</span><wbr><span>63.2</span><small> (paper 92.0/89.0)</small></td>" in html
    assert "(paper 84.3)" in repr(TABLE) and "(paper 84.3) |" in TABLE.markdown()


def test_numbers_are_flush_right_with_their_head() -> None:
    """Also where one of them was not run; without a style sheet too."""
    html = TABLE._repr_html_()
    assert re.findall(r'<th scope="col" style="text-align:(\w+)"', html) == ["left", "right", "right"]
    assert '<td class="short" style="text-align:right">not run</td>' in html
    assert '<td class="number" style="text-align:right">—</td>' in html
