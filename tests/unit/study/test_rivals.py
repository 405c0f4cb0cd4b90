"""The rivals' arithmetic: equal FLOPs, the best rate, who is judged better."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tests.study_records import pretrained
from threeml_core import flops
from threeml_core.config import make_config
from threeml_core.study.experiment import StudyRun
from threeml_core.study.results import Result
from threeml_core.study.rivals import (
    LOSSES,
    RIVALRY,
    RIVALS,
    Race,
    Raced,
    best_rate,
    budget_runs,
    chosen_rivals,
    share_of_flops,
    sweep_runs,
)

CONFIG = make_config({"preset": "rivals"})


def test_each_rival_gets_the_flops_of_the_budget_to_half_a_step() -> None:
    base = flops.forward_flops(sweep_runs(CONFIG, RIVALS[0])[0].config, "exact")
    for rival in RIVALS:
        for run in sweep_runs(CONFIG, rival):
            forward = flops.forward_flops(run.config, "exact")
            assert abs(run.config.max_steps * forward - CONFIG.sweep_steps * base) <= forward * 0.51
    assert share_of_flops(CONFIG, RIVALS[0]) == 1
    assert len({rival.name for rival in RIVALS}) == len(RIVALS) == 14 and len(chosen_rivals(CONFIG)) == 14


def test_the_baseline_takes_part_even_if_it_is_not_named() -> None:
    chosen = chosen_rivals(CONFIG.replace(rivals="3ML_self-50%"))
    assert [rival.name for rival in chosen] == ["vanilla-40%", "3ML_self-50%"]


def swept(ends: dict[float, float]) -> list[Result]:
    """Perplexities by rate; inf: diverged."""
    found = []
    for run in sweep_runs(CONFIG, RIVALS[0]):
        end = ends[run.config.muon_learning_rate]
        failure = "the loss is not finite" if math.isinf(end) else None
        record = pretrained(run, 0, eval_perplexity_masked=0 if failure else end)
        found.append(Result(run, {0: dataclasses.replace(record, failure=failure)}, {}, {}))
    return found


def test_the_best_rate_has_the_lowest_perplexity_and_did_not_diverge() -> None:
    results = swept({0.01: 300.0, 0.02: 200.0, 0.04: 250.0, 0.08: math.inf})
    assert best_rate(results) == 0.02 and best_rate([]) is None
    assert best_rate(swept(dict.fromkeys((0.01, 0.02, 0.04, 0.08), math.inf))) is None
    runs = budget_runs(CONFIG, RIVALS[0], results)
    assert [(run.config.max_steps, run.config.muon_learning_rate) for run in runs] == [
        (250, 0.02),
        (500, 0.02),
        (1000, 0.02),
    ]
    assert 0 not in runs[0].seeds and len(runs[0].seeds) == 3
    assert budget_runs(CONFIG, RIVALS[0], []) == []


@pytest.mark.parametrize(("shift", "verdict"), [(-0.3, "supported"), (0.3, "contradicted"), (0.0, "undecided")])
def test_a_lower_loss_is_better(shift: float, verdict: str) -> None:
    def raced(rival: int, losses: list[float]) -> Raced:
        run = StudyRun(
            budget_runs(CONFIG, RIVALS[rival], swept(dict.fromkeys((0.01, 0.02, 0.04, 0.08), 9.0)))[-1].config,
            (RIVALRY,),
        )
        records = {seed: pretrained(run, seed, eval_perplexity_masked=9.0) for seed in run.seeds}
        of_runs = {
            record.run_id: dict.fromkeys(LOSSES, loss) for record, loss in zip(records.values(), losses, strict=True)
        }
        return Raced(RIVALS[rival], 1.0, [], [Result(run, records, {}, {})], of_runs)

    base = raced(0, [5.0, 5.1, 5.2])
    race = Race([base, raced(3, [5.0 + shift + 0.01, 5.1 + shift, 5.2 + shift - 0.01])], None)
    assert {name: claim.verdict for (_, name), claim in race.claims.items()} == {
        "loss at 15%": verdict,
        "loss at 40%": verdict,
    }
