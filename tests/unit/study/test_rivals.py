"""The rivals' arithmetic: equal FLOPs, the best rate, who is judged better, what a page says of it."""

from __future__ import annotations

import dataclasses
import math

import pytest

from tests.study_records import pretrained, record
from threeml_core import flops
from threeml_core.config import executed_rate, make_config
from threeml_core.reporting import rivals as shown
from threeml_core.runs.record import RunRecord
from threeml_core.study.experiment import StudyRun
from threeml_core.study.probes import DECIDING, RANDOM, Probes
from threeml_core.study.results import Result
from threeml_core.study.rivals import (
    LOSSES,
    RIVALRY,
    RIVALS,
    Losses,
    Race,
    Raced,
    best_rate,
    budget_runs,
    chosen_rivals,
    share_of_flops,
    step_flops,
    sweep_runs,
    timed,
)

CONFIG = make_config({"preset": "rivals"})
RATES = (0.01, 0.02, 0.04)
NAMES = [rival.name for rival in RIVALS]


def test_each_rival_gets_the_flops_of_the_budget_to_half_a_step() -> None:
    base = flops.forward_flops(sweep_runs(CONFIG, RIVALS[0])[0].config, "exact")
    for rival in RIVALS:
        for run in sweep_runs(CONFIG, rival):
            forward = flops.forward_flops(run.config, "exact")
            assert abs(run.config.max_steps * forward - CONFIG.sweep_steps * base) <= forward * 0.51
    assert share_of_flops(CONFIG, RIVALS[0]) == 1
    assert len(set(NAMES)) == len(RIVALS) == len(chosen_rivals(CONFIG))


def test_a_rival_is_what_its_name_says_whatever_the_study_has() -> None:
    other = CONFIG.replace(mask_rate_schedule="linear", mask_adaptation="soft", mask_split="100-0-0")
    for rival in RIVALS:
        mine, theirs = (sweep_runs(config, rival)[0].config for config in (CONFIG, other))
        assert mine.parameters() == theirs.parameters()


def test_a_schedule_is_timed_at_its_mean_rate() -> None:
    falling = RIVALS[NAMES.index("vanilla-40 to 15%")]
    at = timed(CONFIG, [RIVALS[0], falling])[falling.name].config
    assert at.mask_rate_schedule == "constant"
    assert executed_rate(at) == pytest.approx(executed_rate(sweep_runs(CONFIG, falling)[0].config), abs=1 / 32)


def test_the_optimizer_weighs_more_on_cheap_steps() -> None:
    def with_it(name: str) -> float:
        rival = RIVALS[NAMES.index(name)]
        return step_flops(CONFIG, rival, optimizer=True) / step_flops(CONFIG, rival)

    assert with_it("SparseQueries-15%") > with_it("vanilla-15%") > with_it("vanilla-40%") > 1.1
    assert step_flops(CONFIG.replace(optimizer="adamw"), RIVALS[0], optimizer=True) == step_flops(CONFIG, RIVALS[0])


def test_the_baseline_takes_part_even_if_it_is_not_named() -> None:
    chosen = chosen_rivals(CONFIG.replace(rivals="3ML_self-50%"))
    assert [rival.name for rival in chosen] == ["vanilla-40%", "3ML_self-50%"]


def swept(ends: dict[float, float]) -> tuple[list[Result], Losses]:
    """Losses by rate; inf: diverged."""
    found, losses = [], {}
    for run in sweep_runs(CONFIG, RIVALS[0]):
        if (end := ends.get(run.config.muon_learning_rate)) is None:
            found.append(Result(run, {}, {}, {}))
            continue
        failure = "the loss is not finite" if math.isinf(end) else None
        of = dataclasses.replace(pretrained(run, 0), failure=failure)
        found.append(Result(run, {0: of}, {}, {}))
        losses |= {} if failure else {of.run_id: dict.fromkeys(LOSSES, end)}
    return found, losses


def test_the_best_rate_has_the_lowest_loss_and_did_not_diverge() -> None:
    results, losses = swept({0.01: 5.5, 0.02: 5.1, 0.04: math.inf})
    assert best_rate(results, losses) == 0.02
    runs = budget_runs(CONFIG, RIVALS[0], results, losses)
    found = [(run.config.max_steps, run.config.muon_learning_rate) for run in runs]
    assert found == [(steps, 0.02) for steps in (200, 400, 800)]
    assert 0 not in runs[0].seeds and len(runs[0].seeds) == 3


@pytest.mark.parametrize("ends", [dict.fromkeys(RATES, math.inf), {0.01: 5.5, 0.02: 5.1}, {}])
def test_no_rate_is_best_if_all_diverged_or_some_are_missing(ends: dict[float, float]) -> None:
    results, losses = swept(ends)
    assert best_rate(results, losses) is None and budget_runs(CONFIG, RIVALS[0], results, losses) == []
    results, losses = swept(dict.fromkeys(RATES, 5.0))
    assert best_rate(results, {}) is None  # not examined


def raced(name: str, by_seed: list[float], ended: int = 3) -> Raced:
    """A rival whose losses are these; seeds beyond `ended` diverged."""
    results, losses = swept(dict.fromkeys(RATES, 9.0))
    config = budget_runs(CONFIG, RIVALS[NAMES.index(name)], results, losses)[-1].config
    run = StudyRun(config, (RIVALRY,))
    records = {seed: pretrained(run, seed) for seed in run.seeds}
    for seed in list(run.seeds)[ended:]:
        records[seed] = dataclasses.replace(records[seed], failure="the run diverged")
    of_runs = {of.run_id: dict.fromkeys(LOSSES, loss) for of, loss in zip(records.values(), by_seed, strict=True)}
    return Raced(RIVALS[NAMES.index(name)], 1.0, results, [Result(run, records, {}, {})], of_runs)


def probed(accuracies: dict[str, list[float]]) -> Probes:
    """Models whose three seeds have these accuracies on each deciding task, over 20 documents of 50 units."""

    def of(accuracy: float) -> RunRecord:
        right = [round(50 * accuracy)] * 20
        task = {"accuracy": sum(right) / 1000, "right": right}
        return record("probe", "probe", CONFIG, metrics={"tasks": dict.fromkeys(DECIDING, task)})

    words = record("probe", "words", CONFIG, metrics={"tasks": {task: {"sizes": [50] * 20} for task in DECIDING}})
    return Probes(words, {m: {s: of(a) for s, a in enumerate(seeds, 1)} for m, seeds in accuracies.items()}, {})


@pytest.mark.parametrize(("shift", "word"), [(-0.3, "better"), (0.3, "worse"), (0.0, "undecided")])
def test_a_lower_loss_and_a_higher_accuracy_are_better(shift: float, word: str) -> None:
    base = raced("vanilla-40%", [5.0, 5.1, 5.2])
    rival = raced("3ML_self-40%", [5.0 + shift + 0.01, 5.1 + shift, 5.2 + shift - 0.01])
    known = [0.60, 0.62, 0.64]
    accuracies = [0.60 - shift + 0.02, 0.62 - shift, 0.64 - shift - 0.02]
    probes = probed({"vanilla-40%": known, "3ML_self-40%": accuracies, RANDOM: [0.2, 0.2, 0.2]})
    said = " ".join(shown.answer(Race([base, rival], probes)))
    for name in ("probes", "loss at 15%", "loss at 40%"):
        assert f"By {name}, at equal FLOPs and against vanilla-40%: 3ML_self-40% is {word}." in said
    assert Race([base, rival], probes).findings(rival, base)["probes"].values == pytest.approx(
        tuple(100 * (a - b) for a, b in zip(accuracies, known, strict=True))
    )


def test_without_random_weights_no_probe_gives_a_verdict() -> None:
    base, rival = raced("vanilla-40%", [5.0, 5.1, 5.2]), raced("3ML_self-40%", [4.0, 4.1, 4.2])
    probes = probed({"vanilla-40%": [0.6, 0.6, 0.6], "3ML_self-40%": [0.8, 0.8, 0.8]})
    finding = Race([base, rival], probes).findings(rival, base)["probes"]
    assert finding.verdict == "undecided" and finding.doubt == "random weights were not probed"


def test_a_seed_that_diverged_is_said_and_nothing_else_is_hidden() -> None:
    base, rival = raced("vanilla-40%", [5.0, 5.1, 5.2]), raced("vanilla-15%", [5.0, 5.1, 5.2], ended=2)
    race = Race([base, rival], None)
    table = shown.comparison_table(race)
    assert [row[table.columns.index("Seeds")] for row in table.rows] == ["3", "2 of 3"]
    assert len(race.findings(rival, base)["loss at 15%"].values) == 2
    none = Race([base, dataclasses.replace(rival, results=[])], None)
    assert "vanilla-15% is not run" in shown.answer(none)[0] and "not run" in str(shown.comparison_table(none))


def test_a_rival_stands_beside_the_vanilla_model_that_masks_alike() -> None:
    of = [raced(name, [5.0, 5.1, 5.2]) for name in ("vanilla-40%", "vanilla-15%", "MAE-LM-15%", "3ML_self-40%")]
    of = [
        dataclasses.replace(one, swept=[Result(run, {}, {}, {}) for run in sweep_runs(CONFIG, one.rival)]) for one in of
    ]
    table = shown.contrast_table(Race(of, None))
    assert {row[0]: row[1] for row in table.rows} == {
        "vanilla-15%": "—",
        "MAE-LM-15%": "vanilla-15%",
        "3ML_self-40%": "vanilla-40%",
    }
