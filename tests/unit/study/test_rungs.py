"""The speedrun's arithmetic: steps to a target, gains with their intervals, the same tuning for all."""

from __future__ import annotations

import collections
import math
from pathlib import Path

import numpy as np
import pytest

from tests.study_records import pretrained, record
from threeml_core.config import make_config
from threeml_core.foundation.errors import ParameterError
from threeml_core.runs.record import write_record
from threeml_core.study.experiment import StudyRun
from threeml_core.study.ledger import results_of, study_runs
from threeml_core.study.results import Result
from threeml_core.study.rungs import (
    RUNGS,
    SPEEDRUN,
    TUNED,
    Climbed,
    Rung,
    climbed,
    gain,
    rung_runs,
    steps_to,
    sweep,
    sweep_of,
    timed,
    timed_as,
    too_slow,
    untuned,
)

CONFIG = make_config({"preset": "speedrun"})
RUN = StudyRun(CONFIG, (SPEEDRUN,))


def test_steps_are_exact_where_perplexity_is_a_power_of_them() -> None:
    ends = {steps: 900 * steps**-0.5 for steps in (100, 400, 1600, 6400)}
    assert steps_to(30.0, ends) == pytest.approx(900.0)
    assert steps_to(900 * 400**-0.5, ends) == pytest.approx(400)  # a budget that just reaches it
    assert steps_to(200.0, ends) == 100  # the first budget: fewer may be enough
    assert steps_to(1.0, ends) == math.inf and steps_to(30.0, {}) == math.inf


def test_a_budget_that_diverged_has_missed() -> None:
    assert steps_to(30.0, {100: math.inf, 200: 20.0}) == pytest.approx(200)


def test_a_gain_is_the_ratio_of_steps_times_that_of_the_clock() -> None:
    def of(steps: dict[int, int], turns: list[float], first: float = 60.0) -> Climbed:
        """A rung that is at the target after these steps of a seed, or nowhere near it (0), and misses it before."""
        results = [
            Result(StudyRun(CONFIG.replace(max_steps=at), (SPEEDRUN,)), {seed: trained}, {}, {})
            for seed, count in steps.items()
            for at, end in ((10, first), (count or 1000, 18.0 if count else 60.0))
            for trained in [pretrained(RUN, seed, eval_perplexity_masked=end)]
        ]
        return Climbed(Rung("", {}), results, np.array(turns), 18.0)

    slow, fast = of({1: 1000, 2: 1200, 3: 900}, [0.2] * 8), of({1: 500, 2: 600, 3: 450}, [0.1] * 8)
    found = gain(slow, fast)
    assert found is not None and found.low is not None and found.high is not None
    assert (found.mean, found.low, found.high) == pytest.approx((4.0, 4.0, 4.0))  # neither seeds nor rounds differ
    uneven = gain(slow, of({1: 500, 2: 600, 3: 300}, [0.1] * 8))
    assert uneven is not None and uneven.low is not None and uneven.low < 4 < uneven.mean
    noisy = gain(slow, of({1: 500, 2: 600, 3: 450}, [0.08, 0.12] * 4))
    assert noisy is not None and noisy.low is not None and noisy.low < 4.0  # the clock's error alone
    assert gain(slow, of({1: 500, 2: 600, 3: 0}, [0.1] * 8)) is None
    assert gain(slow, of({1: 500, 2: 600}, [0.1] * 8)) is None
    at_once = of({1: 10, 2: 10, 3: 10}, [0.1] * 8, first=18.0)  # with its first budget: it may need fewer steps
    assert at_once.is_bound and not slow.is_bound
    assert gain(at_once, slow) is None and gain(slow, at_once) is not None


def test_a_recipe_that_does_not_get_there_is_tuned_again() -> None:
    runs = study_runs(CONFIG, [sweep_of()])
    results = []
    for run in runs:
        end = 50.0 if run.config.layer_norm == "post" else 9.0
        results.append(Result(run, {0: pretrained(run, 0, eval_perplexity_masked=end)}, {}, {}))
    again = too_slow(CONFIG, results)
    assert len(again) == 2  # the first rungs' and that with 40%
    further = study_runs(CONFIG, [sweep_of(again=again)])[len(runs) :]
    assert len(further) == 8 and {run.config.max_steps for run in further} == {4000}
    assert {run.config.layer_norm for run in further} == {"post"}


def test_what_no_rate_is_tuned_for_is_no_rung() -> None:
    with pytest.raises(ParameterError, match="rung 'batch' changes batch_size"):
        untuned(CONFIG, (Rung("batch", {"batch_size": 8}),))
    with pytest.raises(ParameterError, match="expected as many for both"):
        sweep(CONFIG.replace(sweep_learning_rates="1e-3"))


def test_everything_is_timed_once_and_found_by_what_it_is() -> None:
    twice = (
        *RUNGS[:4],
        Rung("scaled", {"initialization": "scaled"}),
        Rung("pre-LN", {"layer_norm": "pre"}),
        *RUNGS[5:],
    )
    for rungs in (RUNGS, twice):
        found = timed(CONFIG, rungs)
        keys = [of.key for of in found.values()]
        assert len(set(keys)) == len(keys) and list(found)[1] == "vanilla-15"
        assert all(timed_as(of, rung.ours)[0] in keys for rung, of in zip(rungs, untuned(CONFIG, rungs), strict=True))
    longer = timed(make_config({"preset": "longer-base", "layer_norm": "post"}))
    assert any("post-LN" in name for name in longer)


def test_every_recipe_is_tuned_with_the_same_budget() -> None:
    runs = study_runs(CONFIG, [sweep_of()])
    names = ("encoder", "optimizer", "architecture", "mask_rate", "layer_norm", "initialization")
    tried = collections.Counter(tuple(getattr(run.config, name) for name in names) for run in runs)
    assert set(tried.values()) == {4} and {run.config.max_steps for run in runs} == {CONFIG.sweep_steps}
    cells = {(e, o, a, r) for e, o, a, r, place, init in tried if (place, init) == ("pre", "scaled")}
    models = (("vanilla", 0.15), ("vanilla", 0.4), ("self", 0.4))
    assert cells == {(e, o, *m) for e in ("roberta", "modernbert") for o in TUNED for m in models}
    assert {*map(len, (CONFIG.listed("sweep_learning_rates"), CONFIG.listed("sweep_muon_learning_rates")))} == {4}
    assert sweep(make_config({"preset": "small"})) and {seed for run in runs for seed in run.seeds} == {CONFIG.seed}


def test_the_ladder_begins_with_run_mlm_and_switches_one_thing_on_at_a_time() -> None:
    trained = untuned(CONFIG)
    first = trained[0]
    assert (first.architecture, first.mask_rate, first.optimizer, first.encoder) == (
        "vanilla",
        0.15,
        "adamw",
        "roberta",
    )
    assert (first.layer_norm, first.initialization, first.bf16) == ("post", "bert", False)
    same = {"intermediate_size", "decoder_num_attention_heads"}  # follow from others
    for rung, below, of in zip(RUNGS[1:], trained, trained[1:], strict=False):
        changed = {name for name, value in of.parameters().items() if value != getattr(below, name)}
        assert changed - same == rung.changes.keys() - {n for n, v in rung.changes.items() if getattr(below, n) == v}
    assert [rung.ours for rung in RUNGS] == [False, *[True] * (len(RUNGS) - 1)]


def test_rungs_take_the_best_rate_and_stop_at_the_target(tmp_path: Path) -> None:
    rungs = (Rung("first", {"mask_rate": 0.15}), Rung("Muon", {"optimizer": "muon"}))
    given = {"preset": "speedrun", "runs_dir": str(tmp_path), "speedrun_steps": "10,20,40", "bf16": False}
    config = make_config({**given, "num_pretrain_seeds": 2, "speedrun_target": 18})
    for run in study_runs(config, [sweep_of(rungs)]):
        c = run.config
        rate = getattr(c, TUNED[c.optimizer])
        perplexity = {2e-3: 20.0, 0.04: 21.0}.get(rate, 30.0)
        write_record(pretrained(run, 0, eval_perplexity_masked=perplexity), tmp_path)
    swept = results_of(config, study_runs(config, [sweep_of(rungs)]))
    first, muon = rung_runs(config, swept, rungs)
    assert {run.config.learning_rate for run in first} == {2e-3} == {config.learning_rate}
    assert {run.config.muon_learning_rate for run in muon} == {0.04}
    assert [run.config.max_steps for run in muon] == [10, 20, 40] and list(muon[0].seeds) == [1, 2]
    for run, end in zip(first, (60.0, 24.0, 12.0), strict=True):
        for seed in run.seeds:
            write_record(pretrained(run, seed, eval_perplexity_masked=end), tmp_path)
    write_record(pretrained(muon[0], 1, eval_perplexity_masked=17.0), tmp_path)
    turns = {"seconds": [0.5] * 6, "cpu_seconds": [0.5] * 6}
    names = timed(config, rungs)
    metrics = {"turns": dict.fromkeys((*names, "vanilla-15 again"), turns)}
    identity = {"variants": {name: of.key for name, of in names.items()}}
    write_record(record("clock", "speedrun-0123456789", config, identity=identity, metrics=metrics), tmp_path)
    found = climbed(config, swept, rungs)
    between = math.exp(math.log(20) + math.log(24 / 18) / math.log(24 / 12) * math.log(2))
    assert found[0].steps == pytest.approx({1: between, 2: between})
    assert found[0].times == pytest.approx({1: between / 2, 2: between / 2})
    assert found[1].steps == {1: 10.0} and gain(*found) is None  # a seed is missing
    other = config.replace(hidden_size=192, num_attention_heads=12)
    assert climbed(other, swept, rungs)[0].seconds is None  # another geometry was not timed
