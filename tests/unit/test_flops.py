"""Appendix C against its closed form, the paper's figures, and torch's own counter."""

from __future__ import annotations

import itertools

import pytest

from tests.combinations import PARTIAL, WITH_ENCODERS
from threeml_core import flops
from threeml_core.config import StudyConfig, at_constant_rate, make_config, variant
from threeml_core.models.build import build_model
from threeml_core.models.counting import count_forward_flops
from threeml_core.parameters.architectures import ARCHITECTURES, PAPER_ARCHITECTURES
from threeml_core.parameters.masking import levels_of
from threeml_core.study.experiments.table_3 import equal_budget

LARGE, BASE = "efficient-large", "longer-base"


def preset(name: str, architecture: str, rate: float, **given: object) -> StudyConfig:
    return make_config({"preset": name, "architecture": architecture, "mask_rate": rate, **given})


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


@pytest.mark.parametrize("architecture", PAPER_ARCHITECTURES)
@pytest.mark.parametrize("visible_head", ["shared", "separate"])
@pytest.mark.parametrize(("name", "encoder"), [(LARGE, "roberta"), (BASE, "roberta"), (BASE, "modernbert")])
def test_torch_counts_exactly_the_formula(architecture: str, visible_head: str, name: str, encoder: str) -> None:
    config = preset(name, architecture, 0.5).replace(visible_head=visible_head, encoder=encoder)
    assert count_forward_flops(config) == flops.forward_flops(config, "exact")
    odd = config.replace(
        hidden_size=72,
        num_attention_heads=12,
        intermediate_size=101,
        decoder_hidden_size=36,
        decoder_num_attention_heads=6,
    )
    assert count_forward_flops(odd, 99) == flops.forward_flops(odd, "exact", 99)


@pytest.mark.parametrize("mode", ["paper", "exact"])
def test_a_gate_costs_what_it_saves_in_width(mode: flops.Mode) -> None:
    """At widths that three divides the default of ModernBERT costs what RoBERTa's does; its window saves nothing."""
    for architecture in PAPER_ARCHITECTURES:
        config = preset(BASE, architecture, 0.4).replace(encoder="modernbert", intermediate_size=None)
        assert (config.intermediate_size, config.layer_norm) == (2048, "pre")
        roberta = flops.forward_flops(preset(BASE, architecture, 0.4), mode)
        assert flops.forward_flops(config, mode) == pytest.approx(roberta)
        assert flops.forward_flops(config.replace(local_attention=16), mode) == pytest.approx(roberta)


@pytest.mark.parametrize(("architecture", "encoder"), WITH_ENCODERS)
@pytest.mark.parametrize("visible_head", ["shared", "separate"])
def test_parameters_of_the_parts(architecture: str, visible_head: str, encoder: str) -> None:
    """The decoder's, without the head; the encoder's; and the head with its bias."""
    given = {"architecture": architecture, "encoder": encoder, "visible_head": visible_head, "hidden_size": 32}
    config = make_config({**given, "num_attention_heads": 4, "decoder_hidden_size": 24, "num_hidden_layers": 3})
    model = build_model(config, 99)
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    decoder = sum(size for name, size in sizes.items() if not name.startswith(("encoder.", "head")))
    assert decoder == flops.decoder_parameters(config)
    assert sum(sizes.values()) == flops.parameter_count(config, 99)
    layers = [size for name, size in sizes.items() if name.startswith("encoder.") and ".embeddings." not in name]
    assert sum(layers) == flops.encoder_block_parameters(config)


@pytest.mark.parametrize("given", [{}, {"full_layers": 0}, {"full_layers": 5}, {"full_layers": 11, "mask_rate": 0.15}])
@pytest.mark.parametrize("architecture", PARTIAL)
def test_torch_counts_what_parts_of_layers_cost(architecture: str, given: dict) -> None:
    """At the geometry of a preset and at an odd one; with no narrow layer the vanilla model's formula."""
    odd = {"hidden_size": 72, "num_attention_heads": 12, "intermediate_size": 101, "num_hidden_layers": 12}
    for size in ({}, {**odd, "sequence_length": 101, "kept_share": 0.6}):
        config = preset(BASE, architecture, 0.4).replace(**size, **given)
        assert count_forward_flops(config, 99) == flops.forward_flops(config, "exact", 99)
    for mode in ("paper", "exact"):
        full = config.replace(full_layers=config.num_hidden_layers)
        expected = flops.forward_flops(config.replace(architecture="vanilla"), mode)
        assert flops.forward_flops(full, mode) == pytest.approx(expected, rel=1e-12)


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
    for intermediate in (None, 99):
        assert flops.last_block_flops(128, 128, 512, intermediate) == flops.block_flops(128, 512, intermediate)


def test_a_step_costs_three_forward_passes() -> None:
    assert flops.training_flops(10.0, batch_size=4, steps=5, mode="exact") == 3 * 4 * 5 * 10
    assert flops.training_flops(10.0, batch_size=4, steps=5, mode="paper") == 2 * 4 * 5 * 10


@pytest.mark.parametrize("kind", ["linear", "cosine", "steps"])
@pytest.mark.parametrize("steps", [3, 97, 1000])
def test_a_schedule_costs_the_mean_of_its_steps(kind: str, steps: int) -> None:
    """Closed form over levels against a sum over steps; only 3ML gets its early, higher rates cheaper."""
    given = {"mask_rate_schedule": kind, "mask_rate_end": 0.2, "max_steps": steps}
    for architecture, mode in itertools.product(ARCHITECTURES, ("paper", "exact")):
        config = preset(LARGE, architecture, 0.7, kept_share=0.75, **given)
        levels = levels_of(config.parameters())
        rates = [next(level.rate for level in levels if level.first <= s < level.stop) for s in range(steps)]
        costs = {rate: flops.forward_flops(at_constant_rate(config, rate), mode) for rate in set(rates)}
        total = sum(costs[rate] for rate in rates)
        assert flops.forward_flops(config, mode) == pytest.approx(total / steps, rel=1e-12)
        ends = [flops.forward_flops(at_constant_rate(config, rate), mode) for rate in (0.7, 0.2)]
        assert (ends[0] < ends[1]) == ARCHITECTURES[architecture].has_decoder


def test_equal_budget_integrates_over_the_schedule() -> None:
    """3ML_self in the steps that cost the FLOPs of the vanilla model at 15%."""
    given = {"mask_rate_schedule": "linear", "mask_rate": 0.75, "mask_rate_end": 0.15}
    config = preset(LARGE, "self", 0.75).replace(**given)
    vanilla = flops.forward_flops(preset(LARGE, "vanilla", 0.15), "exact")
    assert flops.config_speedup(config, "exact") == pytest.approx(vanilla / flops.forward_flops(config, "exact"))
    assert 1.39 < flops.config_speedup(config, "exact") < 1.42
    constant = flops.config_speedup(preset(LARGE, "self", 0.15), "exact")
    assert flops.config_speedup(config, "exact") > constant
    own = flops.config_speedup(config, "exact", None)  # over the vanilla model with the same schedule
    assert own > flops.config_speedup(config, "exact")


@pytest.mark.parametrize(
    ("rate", "end", "speedups"),
    [(0.3, 0.15, [0.99, 1.18, 1.19]), (0.75, 0.3, [0.94, 1.50, 1.51]), (0.75, 0.15, [0.95, 1.40, 1.41])],
)
def test_schedules_over_vanilla_15(rate: float, end: float, speedups: list[float]) -> None:
    """In eight levels, as page 00 shows them: vanilla, 3ML_self, 3ML_cross."""
    models = [preset(LARGE, name, rate) for name in ("vanilla", "self", "cross")]
    models = [model.replace(mask_rate_schedule="linear", mask_rate_end=end) for model in models]
    assert [round(flops.config_speedup(model, "exact"), 2) for model in models] == speedups


def test_the_steps_of_an_equal_budget_with_a_schedule() -> None:
    """As many as cost what the vanilla model at 15% does, which has no schedule."""
    config = make_config({"preset": LARGE, "equal_budget": True, "mask_rate_schedule": "linear"})
    found = equal_budget(config)
    baseline = flops.forward_flops(preset(LARGE, "vanilla", 0.15)) * config.max_steps
    models = [variant(config, **changes) for changes in found]
    assert [model.mask_rate_schedule for model in models] == ["linear", "constant", "linear"]
    for model in models:
        assert flops.forward_flops(model) * model.max_steps == pytest.approx(baseline, rel=2e-4)


def test_equal_budgets_are_of_what_is_executed_if_asked() -> None:
    """At 64 tokens and this width Appendix C and what runs differ by some per cent."""
    config = make_config({"preset": "small", "sequence_length": 64, "budget_flops": "exact"})
    baseline = flops.forward_flops(variant(config, architecture="vanilla", mask_rate=0.15), "exact") * config.max_steps
    for changes in equal_budget(config):
        model = variant(config, **changes)
        assert flops.forward_flops(model, "exact") * model.max_steps == pytest.approx(baseline, rel=2e-4)
    assert equal_budget(config) != equal_budget(config.replace(budget_flops="paper"))


@pytest.mark.parametrize("architecture", ["vanilla", "self", "cross"])
@pytest.mark.parametrize("encoder", ["roberta", "modernbert"])
def test_muons_products_are_those_of_the_matrices_that_it_trains(architecture: str, encoder: str) -> None:
    import torch

    from threeml_core.models.build import build_model
    from threeml_core.training.optim import FUSED, hidden_matrices

    given = {"num_hidden_layers": 3, "hidden_size": 48, "decoder_hidden_size": 24, "decoder_num_hidden_layers": 2}
    config = make_config({**given, "architecture": architecture, "encoder": encoder, "optimizer": "muon"})
    with torch.device("meta"):
        model = build_model(config, 300)
    expected = 0
    for name, matrix in hidden_matrices(model).items():
        parts = next((count for end, count in FUSED.items() if name.endswith(end)), 1)
        m, n = sorted((matrix.shape[0] // parts, matrix.shape[1]))
        expected += parts * 5 * (4 * m * m * n + 2 * m**3)
    assert flops.optimizer_flops(config) == expected
    assert flops.optimizer_flops(config.replace(optimizer="adamw")) == 0
