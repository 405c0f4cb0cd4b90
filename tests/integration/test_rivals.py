"""The rivals, run: tuned, given equal FLOPs, examined and timed, and read again from the records."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from threeml_core.config import make_config
from threeml_core.foundation.errors import ParameterError
from threeml_core.reporting import rivals as shown
from threeml_core.study.rivalry import run_rivals


@pytest.fixture
def given(own_runs: dict[str, object]) -> dict[str, object]:
    few = {"rivals": "vanilla-15%,3ML_self-40%,MAE-LM-15%", "rival_steps": "16,8", "num_pretrain_seeds": 2}
    tuned = {"sweep_steps": 4, "sweep_learning_rates": "1e-3,4e-3", "num_benchmark_rounds": 6}
    asked = {"probe_tasks": "bigram_shift", "probe_rates": "0.15,0.4", "max_probe_sentences": 200}
    return {**own_runs, **few, **tuned, **asked}


def test_all_get_the_same_flops_and_the_records_say_the_same(given: dict[str, object]) -> None:
    config = make_config(given)
    race = run_rivals(config)
    assert [of.rival.name for of in race.raced] == ["vanilla-40%", "vanilla-15%", "3ML_self-40%", "MAE-LM-15%"]
    base = race.raced[0]
    for of in race.raced:
        assert len(of.swept) == 2 and [len(result.ended) for result in of.results] == [2, 2]
        assert 1 not in {seed for result in of.swept for seed in result.ended} and set(of.loss(0, "0.15")) == {1, 2}
        for mine, theirs in zip(of.results, base.results, strict=True):
            spent, budget = mine.ended[1].flops["training"], theirs.ended[1].flops["training"]
            step = spent / mine.run.config.max_steps
            assert abs(spent - budget) <= step / 2 and step == pytest.approx(
                of.share * budget / theirs.run.config.max_steps
            )
        assert of.turns is not None and len(of.turns) == 6 and of.memory and of.memory > 0
    mae = race.raced[3].results[0].run.config
    assert (mae.decoder_hidden_size, mae.decoder_num_hidden_layers, mae.mask_split) == (32, 1, "100-0-0")
    assert race.probes is not None and set(race.probes.models) == {of.rival.name for of in race.raced} | {
        "random weights"
    }
    loss = race.findings(race.raced[1], base)["loss at 15%"]
    assert len(loss.values) == 2 and all(map(math.isfinite, loss.values)) and loss.verdict != "not run"
    assert race.findings(race.raced[1], base)["probes"].doubt == "not asked: upos, deprel"
    again = run_rivals(config.replace(plan_only=True))
    assert [of.losses for of in again.raced] == [of.losses for of in race.raced]
    assert [of.memory for of in again.raced] == [of.memory for of in race.raced]
    assert [list(of.turns) for of in again.raced if of.turns is not None] == [list(of.turns) for of in race.raced]
    assert again.probes is not None and again.probes.models == race.probes.models
    assert "By loss at 15%, against vanilla-40% at equal FLOPs: " in shown.answer(race)
    assert [row[0] for row in shown.cost_table(race, config).rows] == [of.rival.name for of in race.raced]
    assert "4,000" not in str(shown.tuning_table(race)) and "0.004" in str(shown.tuning_table(race))
    assert len(shown.comparison_table(race).rows) == 4 and len(shown.curve_table(race, config, "0.4").rows) == 4
    for figure in (shown.plot_curves(race), shown.plot_scores(race, config)):
        assert figure.svg.startswith("<svg")


def test_without_runs_the_page_says_so(given: dict[str, object]) -> None:
    race = run_rivals(make_config({**given, "plan_only": True}))
    assert shown.answer(race) == "Nothing has been run yet." and race.probes is None
    assert "not run" in str(shown.comparison_table(race)) and shown.plot_scores(race, config).svg.startswith("<svg")


def test_an_unknown_rival_is_one_line(given: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="rivals: no 'electra'; expected all, or some of vanilla-40%, "):
        run_rivals(make_config({**given, "rivals": "3ML_self-40%,electra"}))
    assert not (tmp_path / "pretrain").exists()
