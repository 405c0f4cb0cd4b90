"""The runs of a study: which the tables and figures need, each once, with the parameters the paper gives."""

from __future__ import annotations

import pytest

from threeml_core.config import ARCHITECTURES, identity_parameters, make_config
from threeml_core.errors import ParameterError
from threeml_core.paper import printed_values
from threeml_core.reporting import study_plan
from threeml_core.study import STUDY_MODELS, study_runs

LARGE = make_config({"preset": "efficient-large"})


def test_every_run_stands_there_once() -> None:
    runs = study_runs(LARGE)
    assert len({str(identity_parameters(run.config)) for run in runs}) == len(runs) == 36
    assert {name for run in runs for name in run.artefacts} == {
        *("Figure 3", "Figure 4", "Figure 5", "Table 1", "Table 2a", "Table 2b", "Table 2c", "Table 3")
    }
    default = next(run for run in runs if run.config.architecture == "self" and run.config.mask_rate == 0.4)
    assert default.artefacts == ("Table 1", "Figure 4", "Table 2a", "Table 2b", "Table 2c", "Figure 5", "Table 3")
    assert identity_parameters(default.config) == identity_parameters(LARGE), "it is what 02_pretrain makes"


def test_every_setting_that_the_paper_prints_has_its_run() -> None:
    """Tables 1, 2 and the efficient half of Table 3, by the settings of the transcribed figures."""
    for artefact in ("Table 1", "Table 2a", "Table 2b", "Table 2c", "Table 3"):
        for value in printed_values():
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
    printed = {"self 0.4": 153, "self 0.5": 160, "cross 0.4": 157}
    for run in runs[5:]:
        thousands = printed.pop(f"{run.config.architecture} {run.config.mask_rate:g}")
        assert run.config.max_steps / 1000 == pytest.approx(thousands, abs=0.6)
    assert printed == {}
    for run in study_runs(base):
        expected = "pre" if run.config.architecture == "cross" else "post"
        assert run.config.layer_norm == expected, "Appendix A"


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
    assert [(run.config.architecture, run.model.split("-")[1]) for run in figure] == [(a, "30%") for a in ARCHITECTURES]
    assert [run.config.mask_split for run in study_runs(config, ["Table 2c"])] == ["80-10-10"] * 2 + ["100-0-0"] * 2
    assert [run.config.decoder_num_hidden_layers for run in study_runs(config, ["Table 2a"])] == [1, 1, 3, 3]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"study_mask_rates": "0.4,0.4"}, "study_mask_rates='0.4,0.4': expected mask rates such as"),
        ({"study_depths": "1.5"}, "study_depths='1.5': expected whole numbers"),
        ({"study_splits": "80-10"}, "mask_split='80-10': expected masked-replaced-unchanged"),
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
    table = study_plan(LARGE)
    hours = [float(row[table.columns.index("GPU time")].removesuffix(" h")) for row in table.rows]
    assert sum(hours[:-1]) == pytest.approx(hours[-1], abs=0.05 * len(hours))
    assert table.rows[-1][0] == "all 36" and len(table.rows) == 37
