"""What pre-training costs: the paper's figures beside the formula's, speed-ups, recipes, the plan of a preset."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from threeml_core import flops
from threeml_core.config import StudyConfig, executed_rate, make_config
from threeml_core.glue.protocol import planned_runs
from threeml_core.paper import RECIPES, ReportedValue, reported_values
from threeml_core.parameters.architectures import ARCHITECTURES, PAPER_ARCHITECTURES
from threeml_core.parameters.masking import rate_label
from threeml_core.reporting.planner import duration, energy, gpu_hours, models, training_flops
from threeml_core.reporting.style import Figure, drawing, look_of
from threeml_core.reporting.table import MISSING, Table
from threeml_core.study.experiment import Experiment
from threeml_core.study.experiments.table_3 import STUDY_MODELS
from threeml_core.study.ledger import study_runs

_BASE_STEPS = 125  # of the RoBERTa baseline in the longer recipe, thousands (Table 3)
_BERT_VOCABULARY = 30522  # tokens of its WordPiece vocabulary (Appendix B: 30K)


def computed_value(reported: ReportedValue) -> float:
    """What Appendix C (paper mode) or the model's geometry gives for a reported figure, in its unit."""
    architecture, rate, *steps = reported.setting.split()
    given = {"preset": reported.recipe, "architecture": architecture, "mask_rate": float(rate)}
    if architecture == "cross":
        given["layer_norm"] = "pre"  # section 3.3: post-LN does not work for 3ML_cross
    c = make_config({**given, "architecture": "vanilla"} if architecture == "bert" else given)
    if architecture == "bert":
        return flops.speedup(flops.forward_flops(c), flops.forward_flops(c, vocab=_BERT_VOCABULARY))
    if reported.metric == "parameters":
        return flops.parameter_count(c) / 1e6
    if reported.metric == "encoder_share":
        # layers alone: embedding and prediction layers are left out, as the section says
        size = {"num_hidden_layers": c.decoder_num_hidden_layers, "hidden_size": c.decoder_hidden_size}
        decoder = c.replace(**size, intermediate_size=None)
        counts = [flops.encoder_block_parameters(of) for of in (c, decoder)]
        return 100 * counts[0] / sum(counts)
    speedup = flops.config_speedup(c, "paper")
    if reported.metric == "speedup_at_steps":
        return speedup * _BASE_STEPS / float(steps[0])
    return {"speedup": speedup, "budget": 100 / speedup, "steps": _BASE_STEPS * speedup}[reported.metric]


def verdict(reported: ReportedValue, computed: float) -> str:
    """`reproduced` if it rounds to the reported figure, else how far it is off."""
    if round(computed, reported.decimals) == reported.value:
        return "reproduced"
    off = computed / reported.value - 1
    return f"within 1% ({off:+.1%})" if abs(off) <= 0.01 else f"not by the formula ({off:+.1%})"


def reported_and_computed() -> Table:
    """Every FLOPs and parameter figure of the paper beside ours."""
    units = dict(speedup="×", speedup_at_steps="×", budget="%", steps="K", encoder_share="%", parameters="M")
    rows = []
    for value in (value for value in reported_values() if value.metric in units):
        computed, unit = computed_value(value), units[value.metric]
        row = {"Where": value.artefact, "Recipe": value.recipe, "Model": value.model}
        row |= {"Figure": value.metric.replace("_", " "), "Reported": value.reported + unit}
        row |= {"Computed": f"{computed:.{value.decimals + 2}f}{unit}", "Verdict": verdict(value, computed)}
        rows.append({**row, "Note": value.note})
    return Table(rows, "Reported and computed")


def beside(values: Mapping[str, tuple[float, float]], caption: str, baseline: str = "") -> Table:
    """FLOPs by a formula as a page writes it beside the package's; with a baseline's name also the speed-up over it."""
    rows = []
    for name, (written, computed) in values.items():
        row = {"Formula": name, "As written": f"{written:,.0f}", "By the package": f"{computed:,.0f}"}
        row["Equal"] = "yes" if math.isclose(written, computed) else "no"
        rows.append(row | ({f"Speed-up over {baseline}": f"{values[baseline][0] / written:.2f}"} if baseline else {}))
    return Table(rows, caption)


def speedup_table() -> Table:
    """Speed-ups over the vanilla model at 15% (the paper's baseline) and at the same mask rate."""
    rows = []
    for recipe, (architecture, rate) in itertools.product(RECIPES, STUDY_MODELS):
        config = make_config({"preset": recipe, "architecture": architecture, "mask_rate": rate})
        row = {"Recipe": recipe, "Model": f"{ARCHITECTURES[architecture].label}-{rate:.0%}"}
        row["Forward GFLOPs per sequence"] = f"{flops.forward_flops(config, 'paper') / 1e9:.3f}"
        for name, baseline in (("over vanilla 15%", 0.15), ("at the same rate", rate)):
            row[f"Speed-up {name}"] = f"{flops.config_speedup(config, 'paper', baseline):.4f}"
        rows.append(row)
    return Table(rows, "Cost by Appendix C, slips corrected")


def plot_speedups(recipe: str) -> Figure:
    """Speed-up in FLOPs against the mask rate, over the vanilla model at 15% and at the same rate (Figure 5's axis)."""
    rates = np.linspace(0.05, 0.7, 27)
    ends = []
    with drawing(2, 3.2) as (figure, axes):
        for architecture in PAPER_ARCHITECTURES:
            label = ARCHITECTURES[architecture].label
            look = {**look_of(architecture), "marker": "", "label": label, "linewidth": 2}
            config = make_config({"preset": recipe, "architecture": architecture})
            configs = [config.replace(mask_rate=float(rate)) for rate in rates]
            over_15 = [flops.config_speedup(c, "paper", 0.15) for c in configs]
            axes[0].plot(100 * rates, over_15, **look)
            axes[1].plot(100 * rates, [flops.config_speedup(c, "paper", c.mask_rate) for c in configs], **look)
            ends.append(f"{label} {np.interp(0.5, rates, over_15):.2f}")
        for axis, baseline in zip(axes, ("15%", "the same rate"), strict=True):
            axis.set(xlabel="mask rate (%)", ylabel="speed-up in FLOPs", title=f"over vanilla at {baseline}")
        axes[0].legend(fontsize=9)
    return Figure(
        figure,
        f"Speed-up in pre-training FLOPs against the mask rate for {recipe}; it grows with the rate for both 3ML "
        f"models. At 50% over the vanilla model at 15%: {', '.join(ends)}.",
    )


def recipe_table() -> Table:
    """The paper's two pre-training recipes as the presets have them. Source: Appendix A."""
    names = """
        num_hidden_layers hidden_size intermediate_size num_attention_heads decoder_num_hidden_layers
        decoder_hidden_size decoder_num_attention_heads hidden_dropout_prob attention_probs_dropout_prob layer_norm
        sequence_length warmup_ratio learning_rate batch_size weight_decay max_steps adam_epsilon adam_beta1 adam_beta2
        max_grad_norm
    """
    values = {recipe: make_config({"preset": recipe}).parameters() for recipe in RECIPES}
    rows = [{"Parameter": name, **{recipe: f"{of[name]}" for recipe, of in values.items()}} for name in names.split()]
    return Table(rows, "Pre-training recipes (Appendix A), the models of 3ML_self")


def _plan(config: StudyConfig) -> tuple[float, dict[str, str]]:
    """GPU hours, and the cells of a plan's row, of one pre-training run."""
    total = training_flops(config)
    hours = gpu_hours(total, config.gpu_tflops, config.mfu)
    tokens = config.max_steps * config.batch_size * config.sequence_length
    cells = {"Parameters": f"{flops.parameter_count(config) / 1e6:.1f} M", "Steps": f"{config.max_steps:,}"}
    cells["Tokens"] = f"{tokens / 1e9:.3g} G" if tokens >= 1e9 else f"{tokens / 1e6:.3g} M"
    cells |= {"Training FLOPs": f"{total:.3g}", "GPU time": duration(hours)}
    return hours, {**cells, "Energy": energy(hours * config.gpu_watts)}


def schedule_table() -> Table:
    """Speed-up of a training in executed FLOPs over vanilla-15%, by schedule of the mask rate, linear to its end."""
    rows = []
    for rate, end in _SCHEDULES:
        changing = {} if end is None else {"mask_rate_schedule": "linear", "mask_rate_end": end}
        given = {"preset": "efficient-large", "mask_rate": rate, **changing}
        models = {name: make_config({**given, "architecture": name}) for name in PAPER_ARCHITECTURES}
        about = rate_label(models["self"].parameters())
        row = {"Mask rate": about, "Mean": f"{executed_rate(models['self']):.1%}"}
        speedups = {ARCHITECTURES[name].label: flops.config_speedup(model, "exact") for name, model in models.items()}
        rows.append({**row, **{label: f"{speedup:.2f}×" for label, speedup in speedups.items()}})
    return Table(rows, "Speed-up of efficient-large over vanilla-15% in executed FLOPs, by schedule of the mask rate")


_SCHEDULES = ((0.4, None), (0.5, None), (0.3, 0.15), (0.5, 0.3), (0.75, 0.3), (0.75, 0.15))


def cost_plan(config: StudyConfig) -> Table:
    """What Table 3's five models cost: executed FLOPs over `mfu` times a GPU's peak, and that time times its power."""
    rows, total = [], 0.0
    for name, model in models(config).items():
        hours, cells = _plan(model)
        total += hours
        cells["Weights, gradients, moments"] = f"{flops.training_memory_bytes(model) / 2**30:.3g} GiB"
        rows.append({"Model": name, **cells})
    rows.append({"Model": "all five", "GPU time": duration(total), "Energy": energy(total * config.gpu_watts)})
    return Table(rows, f"Plan of preset {config.preset} on {config.gpu_name} at {config.mfu:.0%} MFU, one seed")


def _name(exhibit: Experiment | str) -> str:
    return exhibit if isinstance(exhibit, str) else exhibit.name


def study_plan(config: StudyConfig, exhibits: Sequence[Experiment | str] | None = None) -> Table:
    """Every pre-training run that tables and figures need at this scale, once, with its cost; None: of all of them."""
    rows, total, tunings = [], 0.0, 0
    runs = study_runs(config, exhibits)
    for run in runs:
        c, (hours, cells) = run.config, _plan(run.config)
        total += hours * len(run.seeds)
        decoder = (
            f"{c.decoder_num_hidden_layers} × {c.decoder_hidden_size}"
            if ARCHITECTURES[c.architecture].has_decoder
            else MISSING
        )
        tuned = len({planned for each in run.finetunings(config).values() for planned in planned_runs(each)})
        tunings += tuned * len(run.seeds)
        del cells["Energy"]  # the sum stands in the title
        row = {"Model": run.model, "Split": c.mask_split, "Decoder": decoder, **cells}
        rows.append({**row, "Fine-tunings": f"{tuned:,}", "For": ", ".join(run.exhibits)})
    needed = {name for run in runs for name in run.exhibits}
    named = [name for name in map(_name, exhibits or ()) if name in needed]
    counts = sorted({len(run.seeds) for run in runs}) or [1]
    seeds = f", {' to '.join(map(str, dict.fromkeys((counts[0], counts[-1]))))} seeds each" if counts[-1] > 1 else ""
    rows.append({"Model": f"all {len(runs)}{seeds}", "GPU time": duration(total), "Fine-tunings": f"{tunings:,}"})
    return Table(
        rows,
        f"Pre-training runs of {'the whole study' if exhibits is None else ', '.join(named)}, preset "
        f"{config.preset}, on {config.gpu_name} at {config.mfu:.0%} MFU: {energy(total * config.gpu_watts)}"
        f"{'; rows are of one seed, the last of all' if seeds else ''}",
        folded=len(rows) > 20,
    )
