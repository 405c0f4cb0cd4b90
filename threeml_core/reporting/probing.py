"""What frozen encoders know, by probes: scores beside their floors, differences, and layer by layer."""

from __future__ import annotations

import collections
import shlex
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from threeml_core.config import StudyConfig, make_config
from threeml_core.parameters.probing import CONTROL, STRENGTHS
from threeml_core.reporting import cells
from threeml_core.reporting.commands import pretrain_command
from threeml_core.reporting.style import GREY, Figure, color_of, drawing, legend_below, look_of
from threeml_core.reporting.table import MISSING, Table
from threeml_core.statistics.bootstrap import ScoreInterval
from threeml_core.study.probes import BASELINE, RANDOM, Probes, RateMatrix, named
from threeml_core.study.results import Result

TITLES = {
    "upos": "Part of speech",
    "deprel": "Dependency label",
    "bigram_shift": "Bigram shift",
    "shuffled_span": "Shuffled span",
    "next_word": "Next word",
    "sentence_length": "Sentence length",
    "depth": "Tree depth",
}


def probe_table(found: Probes) -> Table:
    """Accuracy of each model on each task, beside what needs no trained encoder."""
    alone = found.words.metrics["tasks"]
    rows = []
    for name, key in (("most frequent class", "most_frequent"), ("words alone", "words")):
        row = {"Encoder": name} | {TITLES[t]: f"{100 * alone[t][key]:.1f}" for t in found.tasks}
        rows.append({**row, "Seeds": MISSING})
    for model in sorted(found.models, key=lambda model: model != RANDOM):
        row = {"Encoder": model} | {TITLES[t]: _text(found.score(model, t)) for t in found.tasks}
        rows.append({**row, "Seeds": f"{len(found.models[model])}"})
    items = "; ".join(f"{TITLES[t]} {sum(found.sizes(t)):,} in {len(found.sizes(t)):,} documents" for t in found.tasks)
    return Table(
        rows,
        f"Accuracy of a linear probe on all layers of the frozen encoder, %, {_basis(found)}. Asked: {items}",
    )


def difference_table(found: Probes, baseline: str = "") -> Table:
    """Each model against the baseline ("": vanilla-40%, or the first encoder), paired by seed and document."""
    baseline = baseline or (BASELINE if BASELINE in found.models else next(iter(found.models), ""))
    rows = []
    for model in found.models:
        is_other = model in found.runs and baseline in found.runs and found.size(model) != found.size(baseline)
        if model != baseline and not is_other and found.difference(model, found.tasks[0], baseline):
            differences = {TITLES[t]: _text(found.difference(model, t, baseline), sign="+") for t in found.tasks}
            rows.append({"Encoder": model} | differences)
    return Table(
        rows or [{"Encoder": "nothing to compare"}],
        f"Accuracy minus that of {baseline or 'a baseline'}, points, {_basis(found)}, paired by seed and document",
    )


def _basis(found: Probes) -> str:
    several = any(len(seeds) > 1 for seeds in found.models.values())
    if several:
        return "with its 95% interval over pre-training seeds and test documents"
    return "in brackets the 95% interval over test documents alone, as there is one seed"


def selectivity_table(found: Probes) -> Table:
    """What a probe learns by heart: its accuracy on a class drawn for each word type, and how much less that is."""
    rows = []
    known = [t for t in found.tasks if CONTROL.format(t) in found.words.metrics["tasks"]]
    if not known:
        return Table([{"Control tasks": "none: they need a treebank (ud)"}], "Control tasks")
    for model in found.models:
        row = {"Encoder": model}
        for task in known:
            real, learned = found.score(model, task).mean, found.score(model, CONTROL.format(task)).mean
            row |= {f"{TITLES[task]}, control task": f"{100 * learned:.1f}"}
            row |= {f"{TITLES[task]}, selectivity": f"{100 * (real - learned):.1f}"}
        rows.append(row)
    return Table(
        rows,
        "Control tasks: every word type has a class drawn at random, as often as the real ones; selectivity is the "
        "real accuracy minus that",
    )


def plot_layers(found: Probes) -> Figure:
    """Accuracy from each layer alone, and dotted what words alone reach; a panel for each task; without ablations."""
    shown = {model: seeds for model, seeds in found.models.items() if not found.architectures or "," not in model}
    looks = _looks(shown, found)
    ends = []
    with drawing(len(found.tasks), per_row=2) as (figure, axes):
        for axis, task in zip(axes, found.tasks, strict=True):
            for model, seeds in shown.items():
                layers = [record.metrics["tasks"][task]["layers"] for record in seeds.values()]
                for of_seed in layers if len(layers) > 1 else ():
                    axis.plot(100 * np.array(of_seed), color=looks[model]["color"], linewidth=0.6, alpha=0.5)
                mean = 100 * np.mean(layers, 0)
                axis.plot(mean, label=model, linewidth=1.6, markersize=4, **looks[model])
                ends.append(f"{TITLES[task]}, {model}: {mean[0]:.0f} to {mean[-1]:.0f}, best {mean.max():.0f}")
            axis.axhline(
                100 * found.words.metrics["tasks"][task]["words"], color=GREY, linestyle=":", label="words alone"
            )
            axis.set(title=TITLES[task], xlabel="layer (0: embeddings)", ylabel="accuracy, %")
        legend_below(axes[:1], 3)
    return Figure(
        figure,
        "Accuracy of a probe on each layer alone; thin lines are seeds, dotted what words alone reach. From the "
        f"embeddings to the last layer: {'; '.join(ends)}.",
    )


def rate_table(found: RateMatrix | None) -> Table:
    """Masked perplexity of each model at each rate; the records have all kinds of tokens."""
    if not found:
        return Table([{"Rate matrix": "of the study's own models alone: leave encoders out"}], "Rate matrix")
    rates = list(next(iter(next(iter(found.values())).values())).metrics["rates"])
    rows = []
    for model, seeds in found.items():
        row = {"Model": model}
        for rate in rates:
            values = {s: record.metrics["rates"][rate]["eval_perplexity_masked"] for s, record in seeds.items()}
            row[f"Perplexity at {float(rate):.0%}"] = cells.measured_perplexity(values.values())
        rows.append(row)
    unigram = {
        f"Perplexity at {float(rate):.0%}": f"{record.metrics['rates'][rate]['unigram_perplexity_masked']:.1f}"
        for record in list(next(iter(found.values())).values())[:1]
        for rate in rates
    }
    return Table(
        [*rows, {"Model": "unigram", **unigram}], "Rate matrix: masked perplexity of held-out text by mask rate"
    )


def runs_table(
    found: Probes, rates: RateMatrix | None = None, results: Sequence[Result] = (), config: StudyConfig | None = None
) -> Table:
    """Every record behind the page; of the study's models (`results`) also how to pre-train and probe one again."""
    rows = [{"Encoder": "words alone", "Seed": MISSING, "Record": found.words.run_id}]
    runs = {named(result, config): result.run for result in results} if config else {}
    runs_dir = make_config({"preset": config.preset}).runs_dir if config else ""
    for model, seeds in found.models.items():
        for seed, record in seeds.items():
            row = {"Encoder": model, "Seed": f"{seed}", "Record": record.run_id, "Of": record.data["checkpoint"]}
            of_rates = (rates or {}).get(model, {}).get(seed)
            row |= {"Rates": of_rates.run_id} if of_rates else {}
            row["Seconds"] = f"{record.timing['seconds']:.0f}"
            if config and model in runs:
                encoder = f"{runs_dir}/pretrain/{found.runs[model][seed].run_id}/encoder"
                probe = shlex.join(["threeml", "probe", encoder, "-p", "preset", config.preset])
                row["Repeat"] = f"{pretrain_command(runs[model], seed)} && {probe}"
            rows.append(row)
    return Table(rows, f"Encoders behind this page: {len(rows) - 1}", folded=True)


def _looks(models: Iterable[str], found: Probes) -> dict[str, dict[str, Any]]:
    """A colour for each architecture, a line style for each model of it."""
    looks: dict[str, dict[str, Any]] = {}
    counts: collections.Counter[str] = collections.Counter()
    for model in models:
        kind = found.architectures.get(model, RANDOM if model == RANDOM else "other")
        look = look_of(kind) if model in found.architectures else {"marker": "x"}
        colour = look.get("color", GREY if model == RANDOM else color_of(None))
        looks[model] = {**look, "color": colour, "linestyle": _STYLES[counts[kind] % len(_STYLES)]}
        counts[kind] += 1
    return looks


_STYLES = ("-", "--", ":", "-.")


def _text(found: ScoreInterval | None, sign: str = "") -> str:
    if found is None:
        return MISSING
    mean = f"{100 * found.mean:{sign}.1f}"
    if found.low is None or found.high is None:
        return f"{mean} (± {100 * 1.96 * found.item_error:.1f})"
    return f"{mean} ± {50 * (found.high - found.low):.1f}"


def probe_notes(found: Probes) -> str:
    """What was left out or went in windows, for the page's first lines."""
    counts = found.words.data["questions"]
    asked = "; ".join(
        f"{group}: {of.get('fit', 0):,} sentences to fit, {of.get('tune', 0):,} to choose the penalty, "
        f"{of.get('test', 0):,} to test, {of['passed_over']:,} passed over"
        for group, of in counts.items()
    )
    texts = [record.data["texts"] for seeds in found.models.values() for record in seeds.values()]
    if not texts:
        return f"{asked}. No encoder has been probed."
    long = {group: max(of[group]["long"] for of in texts) for group in counts}
    windows = ", ".join(f"{count:,} of {group}" for group, count in long.items() if count)
    said = f" Longer than an encoder takes at once, and read in equal windows: up to {windows}." if windows else ""
    tried = [r.metrics["tasks"][t]["strength"] for s in found.models.values() for r in s.values() for t in found.tasks]
    edge = sum(strength in (STRENGTHS[0], STRENGTHS[-1]) for strength in tried)
    at_edge = f" {edge} of {len(tried)} penalties are the smallest or the largest that was tried." if edge else ""
    return f"{asked}.{said}{at_edge}"
