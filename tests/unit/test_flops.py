"""Appendix C against its closed form, the paper's figures, and torch's own counter."""

from __future__ import annotations

import pytest

from threeml_core import flops
from threeml_core.config import StudyConfig, at_constant_rate, make_config, variant
from threeml_core.models.counting import count_forward_flops
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.parameters.masking import levels_of
from threeml_core.study.experiments.table_3 import equal_budget

LARGE, BASE = "efficient-large", "longer-base"


def preset(name: str, architecture: str, rate: float) -> StudyConfig:
    return make_config({"preset": name, "architecture": architecture, "mask_rate": rate})


def test_block_is_the_sum_of_its_parts() -> None:
    n, d = 128, 1024
    qkv, attention_map, attention, out, ffn = 6 * n * d * d, 2 * n * n * d, 2 * n * n * d, 2 * n * d * d, 16 * n * d * d
    assert flops.block_flops(n, d) == qkv + attention_map + attention + out + ffn == 24 * n * d**2 + 4 * n**2 * d


def test_cross_block_by_the_reported_total() -> None:
    n_en, n_de, d = 77, 51, 512
    expected = 4 * n_en * d**2 + 28 * n_de * d**2 + 4 * n_en * n_de * d + 4 * n_de**2 * d
    assert flops.cross_block_flops(n_en, n_de, d) == expected


@pytest.mark.parametrize(
    ("name", "architecture", "rate", "gflops"),
    [
        (LARGE, "vanilla", 0.15, 80.937),
        (LARGE, "vanilla", 0.40, 84.298),
        (LARGE, "self", 0.4, 60.4085),
        (LARGE, "self", 0.5, 55.379),
        (LARGE, "cross", 0.4, 59.547),
        (BASE, "vanilla", 0.15, 102.657),
        (BASE, "vanilla", 0.40, 112.690),
        (BASE, "self", 0.4, 84.178),
        (BASE, "self", 0.5, 80.189),
        (BASE, "cross", 0.4, 81.794),
    ],
)
def test_forward_cost(name: str, architecture: str, rate: float, gflops: float) -> None:
    assert flops.forward_flops(preset(name, architecture, rate)) / 1e9 == pytest.approx(gflops, abs=5e-4)


@pytest.mark.parametrize(
    ("name", "architecture", "rate", "over_15", "same_rate"),
    [
        (LARGE, "self", 0.4, 1.3398, 1.3955),
        (LARGE, "self", 0.5, 1.4615, 1.5465),
        (LARGE, "cross", 0.4, 1.3592, 1.4157),
        (BASE, "self", 0.4, 1.2195, 1.3387),
        (BASE, "self", 0.5, 1.2802, 1.4554),
        (LARGE, "vanilla", 0.4, 0.960, 1.0),
    ],
)
def test_speedups(name: str, architecture: str, rate: float, over_15: float, same_rate: float) -> None:
    config = preset(name, architecture, rate)
    digits = 5e-5 if architecture != "vanilla" else 5e-4
    assert flops.config_speedup(config) == pytest.approx(over_15, abs=digits)
    assert flops.config_speedup(config, baseline_mask_rate=rate) == pytest.approx(same_rate, abs=digits)


def test_budgets_and_updates() -> None:
    for rate, percent in ((0.4, 74.6), (0.5, 68.4)):
        assert 100 / flops.config_speedup(preset(LARGE, "self", rate)) == pytest.approx(percent, abs=0.05)
    for architecture, rate, updates in (("self", 0.4, 152.4), ("self", 0.5, 160.0), ("cross", 0.4, 156.9)):
        assert 125 * flops.config_speedup(preset(BASE, architecture, rate)) == pytest.approx(updates, abs=0.05)


@pytest.mark.parametrize(
    ("name", "architecture", "millions"),
    [
        (LARGE, "vanilla", 355.4),
        (LARGE, "self", 361.98),
        (LARGE, "cross", 364.09),
        (BASE, "vanilla", 124.70),
        (BASE, "self", 128.44),
    ],
)
def test_parameter_counts(name: str, architecture: str, millions: float) -> None:
    assert flops.parameter_count(preset(name, architecture, 0.4)) / 1e6 == pytest.approx(millions, abs=0.05)


def test_base_cross_parameters_are_pre_ln() -> None:
    config = make_config({"preset": BASE, "architecture": "cross", "layer_norm": "pre"})
    assert flops.parameter_count(config) / 1e6 == pytest.approx(129.63, abs=0.005)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("visible_head", ["shared", "separate"])
@pytest.mark.parametrize("name", [LARGE, BASE])
def test_torch_counts_exactly_the_formula(architecture: str, visible_head: str, name: str) -> None:
    config = preset(name, architecture, 0.5).replace(visible_head=visible_head)
    assert count_forward_flops(config) == flops.forward_flops(config, "exact")


def test_paper_mode_equals_exact_mode_where_counts_are_whole() -> None:
    """n = 500 and r = 0.4 give 160 [MASK]s and 40 visible tokens without rounding.

    3ML_self executes less than the appendix counts: the last decoder block's queries, output and FFN (20d² a token)
    and attention (4nd) are computed at the 200 predicted tokens of 500.
    """
    for architecture in ARCHITECTURES:
        config = preset(BASE, architecture, 0.4).replace(sequence_length=500, visible_head="separate")
        d = config.decoder_hidden_size
        saved = 300 * (20 * d**2 + 4 * 500 * d) if architecture == "self" else 0
        paper, exact = flops.forward_flops(config, "paper"), flops.forward_flops(config, "exact")
        assert paper == pytest.approx(exact + saved, rel=1e-12)


def test_a_last_block_needed_everywhere_is_a_block() -> None:
    assert flops.last_block_flops(128, 128, 512) == flops.block_flops(128, 512)


@pytest.mark.parametrize("mode", ["paper", "exact"])
@pytest.mark.parametrize("kind", ["linear", "cosine", "steps"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_cost_of_a_schedule_is_the_sum_over_its_steps(architecture: str, kind: str, mode: flops.Mode) -> None:
    config = preset(LARGE, architecture, 0.75).replace(mask_rate_schedule=kind, max_steps=100)
    rates = [level.rate for level in levels_of(config.parameters()) for _ in range(len(level))]
    by_step = [flops.forward_flops(at_constant_rate(config, rate), mode) for rate in rates]
    assert len(by_step) == 100
    assert flops.forward_flops(config, mode) == pytest.approx(sum(by_step) / 100, rel=1e-12)
    assert by_step[0] < by_step[-1] if architecture != "vanilla" else by_step[0] > by_step[-1]


@pytest.mark.parametrize(
    ("rate", "end", "vanilla", "threeml_self", "threeml_cross"),
    [(0.3, 0.15, 0.99, 1.18, 1.19), (0.75, 0.3, 0.94, 1.50, 1.51), (0.75, 0.15, 0.95, 1.40, 1.41)],
)
def test_schedules_over_vanilla_15(
    rate: float, end: float, vanilla: float, threeml_self: float, threeml_cross: float
) -> None:
    speedups = []
    for architecture in ARCHITECTURES:
        config = preset(LARGE, architecture, rate).replace(mask_rate_schedule="linear", mask_rate_end=end)
        speedups.append(round(flops.config_speedup(config, "exact"), 2))
        same = config.replace(architecture="vanilla")
        expected = flops.forward_flops(same, "exact") / flops.forward_flops(config, "exact")
        assert flops.config_speedup(config, "exact", None) == expected
    assert speedups == [vanilla, threeml_self, threeml_cross]


def test_equal_budgets_with_a_schedule() -> None:
    """As many steps as cost what the vanilla model at 15% does, whose rate does not change."""
    config = make_config({"preset": LARGE, "equal_budget": True, "mask_rate_schedule": "linear"})
    found = equal_budget(config)
    assert [changes["architecture"] for changes in found] == ["self", "self", "cross"]
    baseline = flops.forward_flops(preset(LARGE, "vanilla", 0.15)) * config.max_steps
    for changes in found:
        model = variant(config, **changes)
        assert flops.forward_flops(model) * changes["max_steps"] == pytest.approx(baseline, rel=2e-4)


def test_a_step_costs_three_forward_passes() -> None:
    assert flops.training_flops(10.0, batch_size=4, updates=5, mode="exact") == 3 * 4 * 5 * 10
    assert flops.training_flops(10.0, batch_size=4, updates=5, mode="paper") == 2 * 4 * 5 * 10
