"""How far the estimates are from the truth on synthetic states, and its record."""

from __future__ import annotations

from pathlib import Path

import pytest

from threeml_core.config import make_config
from threeml_core.information.bias import bias_points, bias_study
from threeml_core.reporting.information import bias_table, plot_bias


def test_the_bias_falls_with_the_number_of_states() -> None:
    points = bias_points(100, 25, (0.0, 0.5), (5, 50, 500), 0)
    for coupling in (0.0, 0.5):
        here = [point for point in points if point.coupling == coupling]
        few, more, many = (point.found.plug_in[0] - point.truth for point in here)
        assert few > 3 * more > 9 * many > 0
        for point, excess in zip(here, (few, more, many), strict=True):
            assert abs(point.found.value - point.truth) < 0.7 * excess
        assert here[-1].found.value == pytest.approx(here[-1].truth, abs=0.02)
        assert not here[0].found.has_enough_states and here[-1].found.has_enough_states


def test_the_bias_study_is_recorded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page shows comes from the record: another machine's last digits change nothing."""
    small = {"num_clusters": 20, "tokens": 5, "couplings": (0.0, 1.0), "states_per_cluster": (5, 50), "seed": 0}
    monkeypatch.setattr("threeml_core.information.bias._STUDY", small)
    config = make_config({"preset": "tiny", "runs_dir": str(tmp_path)})
    found = bias_study(config, lambda line: None)
    monkeypatch.setattr("threeml_core.information.bias.bias_points", lambda **_: pytest.fail("it is there already"))
    for again in (bias_study(config), bias_study(config.replace(plan_only=True))):
        assert bias_table(again).rows == bias_table(found).rows and plot_bias(again).alt == plot_bias(found).alt
    assert found.run_id in bias_table(found).caption, "a report takes the records that its pages name"
    assert [row[1] for row in bias_table(found).rows] == ["100", "1,000"] * 2
