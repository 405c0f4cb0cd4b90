"""The runs of a study: which the tables and figures need, each once, with the parameters the paper gives."""

from __future__ import annotations

import dataclasses

import pytest

from tests.study_records import finetuned, pretrained
from threeml_core.config import StudyConfig, identity_parameters, make_config
from threeml_core.flops import config_speedup, forward_flops
from threeml_core.foundation.errors import ParameterError
from threeml_core.glue.protocol import planned_runs, planned_tasks
from threeml_core.paper import reported_values
from threeml_core.parameters.architectures import PAPER_ARCHITECTURES
from threeml_core.reporting.cost import study_plan
from threeml_core.runs.record import RunRecord
from threeml_core.study.experiments.table_3 import STUDY_MODELS
from threeml_core.study.ledger import find, study_runs

LARGE = make_config({"preset": "efficient-large"})


def test_every_run_stands_there_once() -> None:
    runs = study_runs(LARGE)
    assert len({str(identity_parameters(run.config)) for run in runs}) == len(runs) == 36
    assert {name for run in runs for name in run.exhibits} == {
        *("Figure 3", "Figure 4", "Figure 5", "Table 1", "Table 2a", "Table 2b", "Table 2c", "Table 3")
    }
    default = next(run for run in runs if run.config.architecture == "self" and run.config.mask_rate == 0.4)
    assert default.exhibits == ("Table 1", "Figure 4", "Table 2a", "Table 2b", "Table 2c", "Figure 5", "Table 3")
    assert identity_parameters(default.config) == identity_parameters(LARGE), "it is what 02_pretrain makes"


def test_every_setting_that_the_paper_prints_has_its_run() -> None:
    """Tables 1, 2 and the efficient half of Table 3, by the settings of the transcribed figures."""
    for artefact in ("Table 1", "Table 2a", "Table 2b", "Table 2c", "Table 3"):
        for value in reported_values():
            if value.artefact == artefact and value.recipe == "efficient-large":
                architecture, rate, *varied = value.setting.split()
                configs = [
                    run.config
                    for run in study_runs(LARGE, [artefact])
                    if (run.config.architecture, run.config.mask_rate) == (architecture, float(rate))
                ]
                for change in varied:
                    key, _, wanted = change.partition("=")
                    configs = [config for config in configs if str(getattr(config, key)) == wanted]
                assert len(configs) == 1, value.setting


def test_table_3_of_the_longer_recipe() -> None:
    """The 3ML models also at the FLOPs of the baseline: the paper's 153K, 160K and 157K updates for 125K, computed."""
    base = make_config({"preset": "longer-base"})
    runs = study_runs(base, ["Table 3"])
    assert [(run.config.architecture, run.config.mask_rate) for run in runs[:5]] == list(STUDY_MODELS)
    assert {run.config.max_steps for run in runs[:5]} == {125_000}
    reported = {"self 0.4": 153, "self 0.5": 160, "cross 0.4": 157}
    for run in runs[5:]:
        thousands = reported.pop(f"{run.config.architecture} {run.config.mask_rate:g}")
        assert run.config.max_steps / 1000 == pytest.approx(thousands, abs=0.6)
    assert reported == {}
    for run in study_runs(base):
        expected = "pre" if run.config.architecture == "cross" else "post"
        assert run.config.layer_norm == expected, "Appendix A"


def test_equal_budgets_of_a_schedule() -> None:
    """The FLOPs of all steps are those of the vanilla model at a constant 15%, to a step of each level."""
    base = LARGE.replace(mask_rate_schedule="linear", mask_rate_end=0.3, equal_budget=True, max_steps=1000)
    runs = study_runs(base, ["Table 3"])[5:]
    baseline = 1000 * forward_flops(LARGE.replace(architecture="vanilla", mask_rate=0.15))
    assert [run.model for run in runs] == ["3ML_self-40→30%", "3ML_self-50%", "3ML_cross-40→30%"]
    for run in runs:
        assert run.config.max_steps * forward_flops(run.config) == pytest.approx(baseline, rel=1e-3)
    assert runs[0].config.max_steps < 1000 * config_speedup(LARGE.replace(mask_rate=0.4))


def test_widths_keep_the_size_of_a_head() -> None:
    for run in study_runs(LARGE, ["Table 2b"]):
        assert run.config.decoder_hidden_size // run.config.decoder_num_attention_heads == 64


def test_updates() -> None:
    config = LARGE.replace(study_steps=2000, ablation_steps=500)
    assert {run.config.max_steps for run in study_runs(config, ["Table 3"])} == {2000}
    assert {run.config.max_steps for run in study_runs(config, ["Figure 3", "Table 2c"])} == {500}
    assert {run.config.max_steps for run in study_runs(LARGE.replace(study_steps=2000))} == {2000}


def test_the_lists_choose() -> None:
    given = {"preset": "tiny", "study_mask_rates": 0.3, "study_splits": "80-10-10, 100-0-0", "study_depths": [1, 3]}
    config = make_config(given)  # as papermill hands them over
    figure = study_runs(config, ["Figure 5"])
    assert [(run.config.architecture, run.model.split("-")[1]) for run in figure] == [
        (a, "30%") for a in PAPER_ARCHITECTURES
    ]
    assert [run.config.mask_split for run in study_runs(config, ["Table 2c"])] == ["80-10-10"] * 2 + ["100-0-0"] * 2
    assert [run.config.decoder_num_hidden_layers for run in study_runs(config, ["Table 2a"])] == [1, 1, 3, 3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"study_mask_rates": "0.4,0.4"}, "study_mask_rates='0.4,0.4': expected mask rates such as"),
        ({"study_depths": "1.5"}, "study_depths='1.5': expected whole numbers"),
        ({"study_splits": "80-10"}, "study_splits='80-10': expected splits joined with commas"),
        ({"ablation_steps": 0}, "ablation_steps=0: expected at least 1, or None"),
    ],
)
def test_bad_lists(settings: dict, message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        make_config(settings)


def test_bad_values_and_names() -> None:
    with pytest.raises(ParameterError, match="mask_rate=1.4: expected a fraction"):
        study_runs(make_config({"study_mask_rates": "0.4,1.4"}))
    with pytest.raises(ParameterError, match="no runs are known for 'Table 4': expected one of Figure 3, Table 1"):
        study_runs(LARGE, ["Table 4"])


def test_the_plan_adds_up() -> None:
    """Hours, and fine-tunings: 660 for each of the five models of Table 3, 24 for each task and seed of an ablation."""
    table = study_plan(LARGE)
    hours = [float(row[table.columns.index("GPU time")].removesuffix(" h")) for row in table.rows]
    assert sum(hours[:-1]) == pytest.approx(hours[-1], abs=0.05 * len(hours))
    assert table.rows[-1][0] == "all 36" and len(table.rows) == 37
    tunings = [int(row[table.columns.index("Fine-tunings")].replace(",", "")) for row in table.rows]
    assert sum(tunings[:-1]) == tunings[-1] == 5 * 660 + 31 * 3 * 4 * 5
    seeds = study_plan(LARGE.replace(num_pretrain_seeds=3))
    assert seeds.rows[-1][0] == "all 36, 3 seeds each"
    assert seeds.rows[-1][seeds.columns.index("Fine-tunings")] == f"{3 * tunings[-1]:,}"


# -- what the runs gave -----------------------------------------------------------------------------------------

FEW = make_config(
    {"preset": "efficient-large", "num_seeds": 2, "num_ablation_seeds": 1, "num_trials": 2, "num_pretrain_seeds": 2}
)
TASKS = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte")


def records_of(config: StudyConfig, score: float = 0.8) -> tuple[list[RunRecord], list[RunRecord]]:
    trained, tuned = [], []
    for run in study_runs(config):
        for seed in run.seeds:
            trained.append(pretrained(run, seed))
            tuned += finetuned(run, trained[-1], config, dict.fromkeys(TASKS, score))
    return trained, tuned


def test_results_hold_every_seed_and_task() -> None:
    results = find(FEW, None, sum(records_of(FEW), []))
    assert len(results) == 36
    for result in results:
        assert result.is_finished and list(result.pretraining) == [0, 1]
        names = set(result.run.exhibits)
        for seed in (0, 1):
            if "Table 3" in names:
                assert set(result.comparison[seed].records) == set(TASKS)
                assert result.comparison[seed].average == pytest.approx(0.8)
            if names & {"Figure 3", "Figure 5", "Table 2a", "Table 2b", "Table 2c"}:
                assert [task.name for task in result.ablation[seed].tasks] == ["qqp", "mnli", "qnli"]
                assert result.ablation[seed].average == pytest.approx(0.8)


def test_an_unfinished_grid_is_not_run() -> None:
    trained, tuned = records_of(FEW)
    (default,) = (r for r in trained if r.parameters["architecture"] == "cross" and is_default(r) and seed_of(r) == 1)
    lost = [r for r in tuned if not (r.data["checkpoint"].endswith(f"{default.run_id}/encoder") and is_first_cola(r))]
    assert len(lost) == len(tuned) - 1
    result = next(o for o in find(FEW, ["Table 3"], [*trained, *lost]) if default in o.pretraining.values())
    assert "cola" not in result.comparison[1].records and result.comparison[1].average is None
    assert result.comparison[0].average == pytest.approx(0.8) and not result.is_finished


def is_default(record: RunRecord) -> bool:
    p = record.parameters
    return (p["mask_rate"], p["mask_split"], p["decoder_num_hidden_layers"], p["decoder_hidden_size"]) == (
        *(0.4, "80-10-10"),
        *(2, 512),
    )


def seed_of(record: RunRecord) -> int:
    return record.parameters["seed"]


def is_first_cola(record: RunRecord) -> bool:
    first = next(run for run in planned_runs(FEW) if run.task == "cola")
    return all(
        record.identity[name] == getattr(first, name) for name in ("task", "seed", "learning_rate", "batch_size")
    )


def test_records_of_other_text_or_length_are_strangers() -> None:
    trained, tuned = records_of(FEW)
    for name, value in (("corpus", "/data/other"), ("max_steps", 1000), ("learning_rate", 1e-3)):
        others = [dataclasses.replace(r, parameters={**r.parameters, name: value}) for r in trained]
        assert not any(o.pretraining for o in find(FEW, None, [*others, *tuned])), name
    for name, value in (("glue", "/data/glue"), ("max_length", 64), ("max_train_examples", 10)):
        others = [dataclasses.replace(r, parameters={**r.parameters, name: value}) for r in tuned]
        found = find(FEW, None, [*trained, *others])
        assert not any(o.comparison or o.ablation for o in found), name


def test_mnli_is_weighted_in_ablations_and_averaged_in_table_3() -> None:
    """Section 3.1: ablations weigh both sets by their sizes; and of QQP they report the accuracy alone."""
    (run,) = [r for r in study_runs(FEW) if r.model == "3ML_self-40%" and "Table 3" in r.exhibits]
    trained = pretrained(run, 0)
    scores = {**dict.fromkeys(TASKS, 0.5), "mnli": {"matched_accuracy": 0.8, "mismatched_accuracy": 0.9}}
    scores["qqp"] = {"f1": 0.6, "accuracy": 0.7}
    tuned = finetuned(run, trained, FEW, scores)
    result = next(o for o in find(FEW, ["Figure 5", "Table 3"], [trained, *tuned]) if o.pretraining)
    mnli, qqp = (next(t for t in result.ablation[0].tasks if t.name == name) for name in ("mnli", "qqp"))
    assert result.ablation[0].score(mnli) == pytest.approx((0.8 * 9815 + 0.9 * 9832) / (9815 + 9832))
    assert result.comparison[0].score(mnli) == pytest.approx(0.85)
    assert result.ablation[0].score(qqp) == 0.7 and result.comparison[0].score(qqp) == pytest.approx(0.65)


def test_own_perplexity_weighs_the_kinds_in_nats() -> None:
    run = next(r for r in study_runs(FEW, ["Table 2c"]) if r.config.mask_split == "80-0-20")
    kinds = {"eval_perplexity_masked": 15.1, "eval_perplexity_replaced": 999.0, "eval_perplexity_unchanged": 1.1}
    (result,) = [o for o in find(FEW, ["Table 2c"], [pretrained(run, 0, **kinds)]) if o.pretraining]
    assert result.own_perplexity == {0: pytest.approx(15.1**0.8 * 1.1**0.2)}


def test_a_failed_pretraining_is_an_result_without_numbers() -> None:
    run = study_runs(FEW, ["Table 1"])[0]
    failed = dataclasses.replace(pretrained(run, 0), failure="it diverged", metrics={})
    result = find(FEW, ["Table 1"], [failed])[0]
    assert result.pretraining and not result.ended and result.metric("eval_loss") == {} and not result.on_plateau


def test_a_random_baseline_is_not_the_encoder() -> None:
    """03 can fine-tune the same encoder without its training; its runs look alike but for the checkpoint."""
    trained, tuned = records_of(FEW)
    others = [
        dataclasses.replace(
            r, data={**r.data, "checkpoint": f"random:{r.data['checkpoint']}"}, metrics={**r.metrics, "mcc": 0.0}
        )
        for r in tuned
    ]
    assert find(FEW, None, [*trained, *tuned, *others]) == find(FEW, None, [*trained, *tuned])


def test_rte_from_another_mnli_model_is_another_run() -> None:
    trained, tuned = records_of(FEW)
    strangers = [
        dataclasses.replace(r, identity={**r.identity, "starts": ["mnli-s0-elsewhere"]}, metrics={})
        for r in tuned
        if r.identity["task"] == "rte"
    ]
    assert strangers
    assert find(FEW, None, [*trained, *tuned, *strangers]) == find(FEW, None, [*trained, *tuned])


# -- sizes and seeds --------------------------------------------------------------------------------------------


def test_a_ladder_of_sizes() -> None:
    """Table 3's models at each size: heads as wide, the decoder in proportion, the preset's own size among them."""
    config = make_config({"preset": "tiny", "study_sizes": "2x32, 4x48", "equal_budget": True})
    runs = study_runs(config, ["Table 3", "Scaling"])
    ladder = [run for run in runs if "Scaling" in run.exhibits]
    assert [(run.config.architecture, run.config.mask_rate) for run in ladder] == list(STUDY_MODELS) * 3
    sizes = [(run.config.num_hidden_layers, run.config.hidden_size, run.config.decoder_hidden_size) for run in ladder]
    assert sizes == [(4, 64, 64)] * 5 + [(2, 32, 32)] * 5 + [(4, 48, 48)] * 5
    for run in ladder:
        c = run.config
        assert c.hidden_size // c.num_attention_heads == c.decoder_hidden_size // c.decoder_num_attention_heads == 16
        assert c.intermediate_size == 4 * c.hidden_size and c.max_steps == config.max_steps
    assert [run.exhibits for run in runs if run.config.max_steps != config.max_steps] == [("Table 3",)] * 3
    assert study_runs(config.replace(study_sizes=None), ["Scaling"]) == []
    assert all(
        planned_tasks(each) == planned_tasks(config) for run in ladder for each in run.finetunings(config).values()
    )


def test_a_ladder_of_equal_flops() -> None:
    """All models of all sizes cost what vanilla at 15% does; that one, and the 3ML models of Table 3, are run once."""
    given = {"study_sizes": "2x32,4x96", "equal_size_flops": True, "equal_budget": True, "budget_flops": "exact"}
    runs = study_runs(make_config(given), ["Table 3", "Scaling"])
    ladder = [run.config for run in runs if "Scaling" in run.exhibits]
    assert len(ladder) == 15 and len({config.max_steps for config in ladder}) == 15
    assert sum(len(run.exhibits) == 2 for run in runs) == 4
    (baseline,) = (c for run in runs if len(run.exhibits) == 2 for c in [run.config] if c.architecture == "vanilla")
    assert (baseline.mask_rate, baseline.hidden_size, baseline.max_steps) == (0.15, 64, make_config({}).max_steps)
    budget = forward_flops(baseline, "exact") * baseline.max_steps
    for config in ladder:
        assert forward_flops(config, "exact") * config.max_steps == pytest.approx(budget, rel=1e-3)


@pytest.mark.parametrize("sizes", ["2", "2x32,", "2x32,2x32", "0x32", "2x32x4", "x", "2 x 32"])
def test_bad_sizes(sizes: str) -> None:
    with pytest.raises(ParameterError, match="expected layers x width of encoders, each once"):
        make_config({"study_sizes": sizes})


def test_a_size_that_no_heads_fill() -> None:
    with pytest.raises(ParameterError, match="2x40 with a decoder of width 40: expected multiples of 16"):
        study_runs(make_config({"study_sizes": "2x40"}), ["Scaling"])


def test_seeds_of_ablations() -> None:
    """What only an ablation needs has its own number of seeds; what Table 3 or Table 1 needs has theirs."""
    config = LARGE.replace(num_pretrain_seeds=3, num_ablation_pretrain_seeds=2)
    for run in study_runs(config):
        alone = not {"Table 1", "Table 3", "Figure 4"} & set(run.exhibits)
        assert list(run.seeds) == [0, 1] if alone else [0, 1, 2]
    assert {len(run.seeds) for run in study_runs(LARGE.replace(num_pretrain_seeds=3))} == {3}
    plan = study_plan(config)
    assert plan.rows[-1][0].endswith("2 to 3 seeds each")
