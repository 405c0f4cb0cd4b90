"""What pre-training costs: the paper's figures beside the formula's, speed-ups, recipes, the plan of a preset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from threeml_core import flops
from threeml_core.config import StudyConfig, executed_rate, make_config
from threeml_core.glue.protocol import planned_runs
from threeml_core.paper import RECIPES, ReportedValue, reported_values
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.parameters.masking import rate_label
from threeml_core.reporting.style import Figure, drawing, look_of
from threeml_core.reporting.table import MISSING, Table
from threeml_core.study.experiments.table_3 import STUDY_MODELS
from threeml_core.study.ledger import study_runs

BASE_STEPS = 125
"""Steps of the RoBERTa baseline in the longer recipe, thousands (Table 3)."""

BERT_VOCABULARY = 30522
"""Tokens of BERT's WordPiece vocabulary (Appendix B: 30K)."""


def computed_value(reported: ReportedValue) -> float:
    """What Appendix C (paper mode) or the model's geometry gives for a reported figure, in its unit."""
    architecture, rate, *steps = reported.setting.split()
    given = {"preset": reported.recipe, "architecture": architecture, "mask_rate": float(rate)}
    if architecture == "cross":
        given["layer_norm"] = "pre"  # section 3.3: post-LN does not work for 3ML_cross
    if architecture == "bert":
        config = make_config({**given, "architecture": "vanilla"})
        return flops.speedup(flops.forward_flops(config), flops.forward_flops(config, vocab=BERT_VOCABULARY))
    c = make_config(given)
    if reported.metric == "parameters":
        return flops.parameter_count(c) / 1e6
    if reported.metric == "encoder_share":
        # layers alone: embedding and prediction layers are left out, as the section says
        size = {"num_hidden_layers": c.decoder_num_hidden_layers, "hidden_size": c.decoder_hidden_size}
        decoder = c.replace(**size, intermediate_size=None)
        encoder_parameters, decoder_parameters = map(flops.encoder_block_parameters, (c, decoder))
        return 100 * encoder_parameters / (encoder_parameters + decoder_parameters)
    speedup = flops.config_speedup(c, "paper")
    if reported.metric == "speedup_at_steps":
        return speedup * BASE_STEPS / float(steps[0])
    return {"speedup": speedup, "budget": 100 / speedup, "steps": BASE_STEPS * speedup}[reported.metric]


def verdict(reported: ReportedValue, computed: float) -> str:
    """`reproduced` if it rounds to the reported figure, else how far it is off."""
    if round(computed, reported.decimals) == reported.value:
        return "reproduced"
    off = computed / reported.value - 1
    return f"within 1% ({off:+.1%})" if abs(off) <= 0.01 else f"not by the formula ({off:+.1%})"


def reported_and_computed() -> Table:
    """Every FLOPs and parameter figure of the paper beside ours."""
    units = dict(speedup="×", speedup_at_steps="×", budget="%", steps="K", encoder_share="%", parameters="M")
    rows = [
        {
            "Where": value.artefact,
            "Recipe": value.recipe,
            "Model": value.model,
            "Figure": value.metric.replace("_", " "),
            "Reported": value.reported + units[value.metric],
            "Computed": f"{computed:.{value.decimals + 2}f}{units[value.metric]}",
            "Verdict": verdict(value, computed),
            "Note": value.note,
        }
        for value in reported_values()
        if value.metric in units
        for computed in (computed_value(value),)
    ]
    return Table(rows, "Reported and computed")


def speedup_table() -> Table:
    """Speed-ups over the vanilla model at 15% (the paper's baseline) and at the same mask rate."""
    rows = [
        {
            "Recipe": recipe,
            "Model": f"{ARCHITECTURES[architecture].label}-{rate:.0%}",
            "Forward GFLOPs per sequence": f"{flops.forward_flops(config, 'paper') / 1e9:.3f}",
            "Speed-up over vanilla 15%": f"{flops.config_speedup(config, 'paper', 0.15):.4f}",
            "Speed-up at the same rate": f"{flops.config_speedup(config, 'paper', rate):.4f}",
        }
        for recipe in RECIPES
        for architecture, rate in STUDY_MODELS
        for config in (make_config({"preset": recipe, "architecture": architecture, "mask_rate": rate}),)
    ]
    return Table(rows, "Cost by Appendix C, slips corrected")


def schedule_table(recipe: str) -> Table:
    """Speed-ups in executed FLOPs over the vanilla model at 15%: constant mask rates, and linear schedules."""
    rows = []
    for rate, *end in ((0.4,), (0.5,), (0.3, 0.15), (0.75, 0.3), (0.75, 0.15)):
        given: dict[str, Any] = {"preset": recipe, "mask_rate": rate}
        if end:
            given |= {"mask_rate_schedule": "linear", "mask_rate_end": end[0]}
        models = [make_config({**given, "architecture": architecture}) for architecture in ARCHITECTURES]
        row = {"Mask rate": rate_label(models[0].parameters()), "Mean over steps": f"{executed_rate(models[0]):.1%}"}
        speedups = {ARCHITECTURES[c.architecture].label: f"{flops.config_speedup(c, 'exact'):.2f}×" for c in models}
        rows.append({**row, **speedups})
    return Table(rows, f"Schedules of the mask rate, {recipe}: speed-up over the vanilla model at 15%")


def plot_speedups(recipe: str) -> Figure:
    """Speed-up in FLOPs against the mask rate, over the vanilla model at 15% and at the same rate (Figure 5's axis)."""
    rates = np.linspace(0.05, 0.7, 27)
    ends = []
    with drawing(2, 3.2) as (figure, axes):
        for axis, baseline in zip(axes, (0.15, None), strict=True):
            for architecture, entry in ARCHITECTURES.items():
                look = {**look_of(architecture), "marker": "", "label": entry.label}
                given = {"preset": recipe, "architecture": architecture}
                configs = [make_config({**given, "mask_rate": float(rate)}) for rate in rates]
                values = [flops.config_speedup(c, "paper", baseline or c.mask_rate) for c in configs]
                axis.plot(100 * rates, values, linewidth=2, **look)
                if baseline:
                    ends.append(f"{entry.label} {np.interp(0.5, rates, values):.2f}")
            title = "over vanilla at 15%" if baseline else "over vanilla at the same rate"
            axis.set(xlabel="mask rate (%)", ylabel="speed-up in FLOPs", title=title)
        axes[0].legend(fontsize=9)
    return Figure(
        figure,
        f"Speed-up in pre-training FLOPs against the mask rate for {recipe}; it grows with the rate for both 3ML "
        f"models. At 50% over the vanilla model at 15%: {', '.join(ends)}.",
    )


def recipe_table() -> Table:
    """The paper's two pre-training recipes as the presets have them. Source: Appendix A."""
    values = {recipe: make_config({"preset": recipe}).parameters() for recipe in RECIPES}
    rows = [{"Parameter": name, **{recipe: f"{of[name]}" for recipe, of in values.items()}} for name in _RECIPE]
    return Table(rows, "Pre-training recipes (Appendix A), the models of 3ML_self")


_RECIPE = (
    *("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads"),
    *("decoder_num_hidden_layers", "decoder_hidden_size", "decoder_num_attention_heads"),
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm", "sequence_length"),
    *("warmup_ratio", "learning_rate", "batch_size", "weight_decay", "max_steps"),
    *("adam_epsilon", "adam_beta1", "adam_beta2", "max_grad_norm"),
)


def _duration(hours: float) -> str:
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.1f} min" if hours >= 1 / 30 else f"{3600 * hours:.2g} s"


def _energy(watt_hours: float) -> str:
    return f"{watt_hours / 1000:.1f} kWh" if watt_hours >= 100 else f"{watt_hours:.2g} Wh"


def _plan(config: StudyConfig) -> tuple[float, dict[str, str]]:
    """GPU hours, and the cells of a plan's row, of one pre-training run."""
    total = flops.training_flops(flops.forward_flops(config, "exact"), config.batch_size, config.max_steps, "exact")
    hours = total / (config.gpu_tflops * 1e12 * config.mfu) / 3600
    tokens = config.max_steps * config.batch_size * config.sequence_length
    return hours, {
        "Parameters": f"{flops.parameter_count(config) / 1e6:.1f} M",
        "Steps": f"{config.max_steps:,}",
        "Tokens": f"{tokens / 1e9:.3g} G" if tokens >= 1e9 else f"{tokens / 1e6:.3g} M",
        "Training FLOPs": f"{total:.3g}",
        "GPU time": _duration(hours),
        "Energy": _energy(hours * config.gpu_watts),
    }


def cost_plan(config: StudyConfig) -> Table:
    """What Table 3's five models cost: executed FLOPs over `mfu` times a GPU's peak, and that time times its power."""
    rows, total = [], 0.0
    for architecture, rate in STUDY_MODELS:
        model = config.replace(architecture=architecture, mask_rate=rate)
        hours, cells = _plan(model)
        total += hours
        cells["Weights, gradients, moments"] = f"{flops.training_memory_bytes(model) / 2**30:.3g} GiB"
        rows.append({"Model": f"{ARCHITECTURES[architecture].label}-{rate_label(model.parameters())}", **cells})
    rows.append({"Model": "all five", "GPU time": _duration(total), "Energy": _energy(total * config.gpu_watts)})
    return Table(rows, f"Plan of preset {config.preset} on {config.gpu_name} at {config.mfu:.0%} MFU, one seed")


def study_plan(config: StudyConfig, exhibits: Sequence[str] | None = None) -> Table:
    """Every pre-training run that tables and figures need at this scale, once, with its cost; None: of all of them."""
    rows, total, tunings = [], 0.0, 0
    runs = study_runs(config, exhibits)
    for run in runs:
        c, (hours, cells) = run.config, _plan(run.config)
        total += hours * len(run.seeds)
        decoder = MISSING if c.architecture == "vanilla" else f"{c.decoder_num_hidden_layers} × {c.decoder_hidden_size}"
        tuned = len({planned for each in run.finetunings(config).values() for planned in planned_runs(each)})
        tunings += tuned * len(run.seeds)
        del cells["Energy"]  # the sum stands in the title
        row = {"Model": run.model, "Split": c.mask_split, "Decoder": decoder, **cells}
        rows.append({**row, "Fine-tunings": f"{tuned:,}", "For": ", ".join(run.exhibits)})
    counts = sorted({len(run.seeds) for run in runs}) or [1]
    seeds = f", {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seeds each" if counts[-1] > 1 else ""
    rows.append({"Model": f"all {len(runs)}{seeds}", "GPU time": _duration(total), "Fine-tunings": f"{tunings:,}"})
    return Table(
        rows,
        f"Pre-training runs of {'the whole study' if exhibits is None else ', '.join(exhibits)}, preset "
        f"{config.preset}, on {config.gpu_name} at {config.mfu:.0%} MFU: {_energy(total * config.gpu_watts)}"
        f"{'; rows are of one seed, the last of all' if seeds else ''}",
        folded=len(rows) > 20,
    )
