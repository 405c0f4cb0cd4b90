"""The rivals, run: tuned, given equal FLOPs, examined and timed, and read again from the records."""

from __future__ import annotations

import math
from collections.abc import Collection
from pathlib import Path

import pytest

from threeml_core.benchmark import clock
from threeml_core.benchmark.variants import Variant
from threeml_core.config import make_config
from threeml_core.foundation.errors import ParameterError
from threeml_core.reporting import rivals as shown
from threeml_core.runs.record import load_records
from threeml_core.study.rivalry import run_rivals
from threeml_core.study.rivals import LOSSES, best_rate, mean_loss

CHOSEN = ["vanilla-40%", "MAE-LM-15%", "token dropping-40%", "3ML_self adaptive-40 to 15%"]


@pytest.fixture
def given(own_runs: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    def peaks(variants: Collection[Variant], *_: object) -> dict[str, int]:
        return {variant.name: 2**20 * place for place, variant in enumerate(variants, 1)}

    monkeypatch.setattr(clock, "peaks", peaks)  # processes of their own; test_benchmark has the real one
    monkeypatch.setattr(clock, "PAGE_WAIT", 0.0)  # beside other tests no machine is idle
    few = {"rivals": ",".join(CHOSEN[1:]), "rival_steps": "16,8", "num_pretrain_seeds": 2, "num_workers": 1}
    tuned = {"sweep_steps": 4, "sweep_learning_rates": "1e-3,4e-3", "num_benchmark_rounds": 6}
    asked = {"probe_tasks": "bigram_shift", "probe_rates": "0.15,0.4", "max_probe_sentences": 200}
    return {**own_runs, **few, **tuned, **asked}


def test_all_get_the_same_flops_and_the_records_say_the_same(given: dict[str, object]) -> None:
    config = make_config(given)
    race = run_rivals(config)
    assert [of.rival.name for of in race.raced] == CHOSEN
    base = race.raced[0]
    for of in race.raced:
        assert len(of.swept) == 2 and [len(result.ended) for result in of.results] == [2, 2]
        assert 1 not in {seed for result in of.swept for seed in result.ended} and set(of.loss(0, "0.15")) == {1, 2}
        budgets = [result.ended[1].flops["training"] for result in base.results]
        for mine, budget in zip(of.results, budgets, strict=True):
            spent = mine.ended[1].flops["training"]
            assert abs(spent - budget) <= spent / mine.run.config.max_steps
        tried = {r.run.config.learning_rate: mean_loss(of.losses, r.ended[0]) for r in of.swept}
        assert best_rate(of.swept, of.losses) == min(tried, key=lambda rate: tried[rate])
        assert {result.run.config.learning_rate for result in of.results} == {best_rate(of.swept, of.losses)}
        assert of.turns is not None and len(of.turns) == 6
    assert [of.memory for of in race.raced] == [2**20, 2**21, 3 * 2**20, 2**22]
    mae = race.raced[1].results[0].run.config
    assert (mae.decoder_hidden_size, mae.decoder_num_hidden_layers, mae.mask_split) == (32, 1, "100-0-0")
    falling = race.raced[3].results[0].run.config
    assert (falling.mask_adaptation, falling.mask_rate_schedule, falling.mask_rate_end) == ("hard", "linear", 0.15)
    assert race.probes is not None and set(race.probes.models) == {*CHOSEN, "random weights"}
    findings = race.findings(race.raced[1], base)
    assert all(len(findings[f"loss at {float(r):.0%}"].values) == 2 for r in LOSSES)
    assert findings["probes"].doubt == "not asked: upos, deprel"
    again = run_rivals(config.replace(plan_only=True))
    assert [of.losses for of in again.raced] == [of.losses for of in race.raced]
    assert [of.memory for of in again.raced] == [of.memory for of in race.raced]
    assert [list(of.turns) for of in again.raced if of.turns is not None] == [list(of.turns) for of in race.raced]
    assert again.probes is not None and again.probes.models == race.probes.models
    assert again.examined == race.examined and len(race.examined) == 4 * (2 + 4)
    behind = str(shown.exams_table(race))  # an archive has the records that a page names
    assert all(name in behind for name in race.examined.values()) and race.probes.words.run_id in behind
    assert [row[0] for row in shown.cost_table(race, config).rows] == CHOSEN
    assert len(shown.comparison_table(race).rows) == 4 and len(shown.curve_table(race, config, "0.4").rows) == 5
    assert "0.004" in str(shown.tuning_table(race)) and "edge" in str(shown.tuning_table(race))
    assert "token dropping-40% at 15%: " in shown.plot_curves(race, config).alt
    part = run_rivals(config.replace(plan_only=True, rivals="MAE-LM-15%"))  # the clock of all is that of some
    assert [list(of.turns) for of in part.raced if of.turns is not None] == [list(of.turns) for of in race.raced[:2]]


def test_without_runs_the_page_says_so(given: dict[str, object]) -> None:
    config = make_config({**given, "plan_only": True})
    race = run_rivals(config)
    assert shown.answer(race) == ["Nothing has been run yet."] and race.probes is None
    assert "not run" in str(shown.comparison_table(race)) and "not run" in shown.plot_scores(race, config).alt
    assert not any(
        map(math.isfinite, [mean_loss({}, r) for of in race.raced for s in of.swept for r in s.ended.values()])
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rivals": "3ML_self-40%,electra"}, "rivals: no 'electra'; expected all, or some of vanilla-40%, "),
        ({"probe_rates": "0.4,0.6"}, "probe_rates='0.4,0.6': 0.15 is compared here, put it among them"),
        ({"ud": "nowhere"}, "nowhere: no such folder; expected a folder of .conllu files"),
    ],
)
def test_bad_input_is_one_line_before_any_run(
    given: dict[str, object], tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    probes = {"probe_tasks": "all"} if "ud" in changes else {}
    with pytest.raises(Exception, match=message) as refused:
        run_rivals(make_config({**given, **changes, **probes}))
    assert type(refused.value).__module__ == ParameterError.__module__ and "\n" not in str(refused.value)
    assert not load_records(tmp_path, "pretrain")
