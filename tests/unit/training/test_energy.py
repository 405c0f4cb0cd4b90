"""Energy, where codecarbon is."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from threeml_core.config import make_config
from threeml_core.training.loop import pretrain


class Tracker:
    """Stands for codecarbon's: half a kilowatt-hour between start and stop."""

    def __init__(self, **settings: object) -> None:
        assert settings["save_to_file"] is False
        self.final_emissions_data = SimpleNamespace(energy_consumed=0.0)

    def start(self) -> None:
        self.final_emissions_data.energy_consumed -= 1.0

    def stop(self) -> None:
        self.final_emissions_data.energy_consumed += 1.5


def test_energy_is_recorded_where_codecarbon_is(small: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config({**small, "max_steps": 2, "runs_dir": str(tmp_path / "without")})
    monkeypatch.setitem(sys.modules, "codecarbon", None)
    assert "energy_kwh" not in pretrain(config).timing
    monkeypatch.setitem(sys.modules, "codecarbon", SimpleNamespace(OfflineEmissionsTracker=Tracker))
    assert pretrain(config.replace(runs_dir=str(tmp_path / "with"))).timing["energy_kwh"] == 0.5


def test_codecarbon_itself(small: dict, tmp_path: Path) -> None:
    pytest.importorskip("codecarbon", reason="codecarbon is not installed")
    config = make_config({**small, "runs_dir": str(tmp_path)})
    assert pretrain(config).timing["energy_kwh"] > 0
