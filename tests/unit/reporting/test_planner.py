"""The planner: hours, money and energy follow from FLOPs, peak, utilisation, power and price."""

from __future__ import annotations

import re

import pytest

from threeml_core import flops
from threeml_core.config import make_config
from threeml_core.foundation.errors import ParameterError
from threeml_core.reporting.planner import (
    GPUS,
    duration,
    gpu_table,
    measured_table,
    plan_sentence,
    plan_table,
    utilisation_table,
)
from threeml_core.reporting.table import NOT_RUN, Table

LARGE = make_config({"preset": "efficient-large"})


def rows(table: Table) -> list[dict[str, str]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


def numbers(cell: str) -> list[float]:
    """Hours, USD and kWh of a cell."""
    match = re.fullmatch(r"([\d.,]+) h, ([\d.,]+) USD, ([\d.,]+) kWh", cell)
    assert match, cell
    return [float(number.replace(",", "")) for number in match.groups()]


def test_by_hand() -> None:
    """3ML_self-40% of the large recipe: its FLOPs over what a GPU of 1,000 TFLOP/s gets done at a quarter of them."""
    given = {"gpu_name": "mine", "gpu_tflops": 1000.0, "gpu_watts": 500.0, "gpu_price": 2.0, "plan_mfus": "0.25,0.5"}
    config = make_config({"preset": "efficient-large", **given})
    (row,) = (r for r in rows(plan_table(config)) if r["Model"] == "3ML_self-40%" and r["Preset"] == config.preset)
    total = 3 * flops.forward_flops(LARGE, "exact") * 4096 * 23_000
    hours = total / 250e12 / 3600
    assert numbers(row["at 25%"]) == pytest.approx([hours, 2 * hours, hours / 2], abs=0.51)
    assert numbers(row["at 50%"]) == pytest.approx([hours / 2, hours, hours / 4], abs=0.51)
    own, *others = rows(gpu_table(config))
    assert own["GPU"] == "mine" and own["efficient-large"] == row["at 50%"], "the middle one, of two the larger"
    assert [other["GPU"] for other in others] == [gpu.name for gpu in GPUS]


@pytest.mark.parametrize("preset", ["tiny", "small", "efficient-large", "longer-base"])
def test_large_presets_are_always_shown(preset: str) -> None:
    """Five models each; a preset of seconds has no rows, and the caption says why."""
    table = plan_table(make_config({"preset": preset}))
    assert [row["Preset"] for row in rows(table)].count("efficient-large") == 5
    assert [row["Preset"] for row in rows(table)].count("longer-base") == 5
    assert len(table.rows) == 10 and (f"of {preset} each takes under a minute" in table.caption) == (
        preset in ("tiny", "small")
    )


def test_the_plan_in_a_sentence() -> None:
    for part in ("efficient-large, 3ML_self-40%: one H100 SXM at 40%", " h, ", " USD, ", " kWh; vanilla-15%: "):
        assert part in plan_sentence(make_config({}))


def test_known_gpus_keep_their_source() -> None:
    """The default is one of them, and says where its peak is from; another price makes it the user's own."""
    assert rows(gpu_table(LARGE))[0]["Peak and power from"].startswith("data sheet")
    own = rows(gpu_table(LARGE.replace(gpu_price=9.0)))
    assert own[0]["Price, assumed"] == "9 USD per hour" and own[0]["Peak and power from"] == "gpu_* parameters"
    assert len(own) == len(GPUS)


def test_the_papers_hours() -> None:
    """144 V100-hours of 24hBERT and 1,152 of RoBERTa are a plausible share of the peak."""
    shares = [float(row["Share of the peak"].removesuffix("%")) for row in rows(utilisation_table())]
    assert len(shares) == 2 and all(10 < share < 60 for share in shares)


def test_measured(tmp_path: object) -> None:
    table = measured_table(make_config({"runs_dir": str(tmp_path)}))
    assert [row["Training time"] for row in rows(table)] == [NOT_RUN] * 5


@pytest.mark.parametrize(
    ("hours", "text"), [(1e-4, "under 1 min"), (0.5, "30 min"), (1.26, "1.3 h"), (1234.5, "1,234 h")]
)
def test_duration(hours: float, text: str) -> None:
    assert duration(hours) == text


@pytest.mark.parametrize("value", ["0.3,1.2", "0", "x", "0.4,0.4"])
def test_bad_utilisations(value: str) -> None:
    with pytest.raises(ParameterError, match=f"plan_mfus='{value}': expected fractions of at most 1"):
        make_config({"plan_mfus": value})
