"""Figure 4: mutual information between the states of [MASK]s and the tokens that stood there, layer by layer."""

from __future__ import annotations

import collections
import statistics
from collections.abc import Sequence

import matplotlib.ticker

from threeml_core.information.estimate import NATS_TO_BITS, LayerInformation
from threeml_core.information.findings import first_block, first_layers
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.parameters.masking import rate_label
from threeml_core.reporting.style import GREY, INK, Figure, drawing, legend_below, look_of, plain
from threeml_core.reporting.table import MISSING, NOT_RUN, Table
from threeml_core.runs.record import RunRecord


def figure_4(records: Sequence[RunRecord]) -> Figure:
    """Information against the layers that the [MASK]s have passed; plug-in and corrected; of several seeds the mean."""
    layers_of_all = [layer for record in records for layer in layers_of(record)]
    top = max(statistics.fmean(layer.plug_in) for layer in layers_of_all)
    floor = statistics.fmean(statistics.fmean(layer.floor) for layer in layers_of_all)
    ceiling = max(layer.entropy for layer in layers_of_all)
    ends, models = [], _models(records)
    with drawing(2, 3.9) as (figure, axes):
        for name, seeds in models.items():
            found, look = [layers_of(record) for record in seeds], look_of(seeds[0].parameters["architecture"])
            at = [layer.layer for layer in found[0]]
            panels = (
                [[statistics.fmean(f.plug_in) for f in of] for of in found],
                [[f.value for f in of] for of in found],
            )
            for axis, values in zip(axes, panels, strict=True):
                for of in values if len(seeds) > 1 else ():
                    axis.plot(at, of, color=look["color"], linewidth=0.7, alpha=0.6)
                means = [statistics.fmean(of) for of in zip(*values, strict=True)]
                axis.plot(at, means, label=plain(name), markersize=5, linewidth=2, **look)
            if len(seeds) == 1:
                bars = {"yerr": [2 * f.error for f in found[0]], "capsize": 2, "linestyle": "none"}
                axes[1].errorbar(at, panels[1][0], color=look["color"], **bars)
            if unsure := [f for of in found for f in of if not f.has_enough_states]:
                ring = {"marker": look["marker"], "markersize": 9, "fillstyle": "none", "linestyle": "none"}
                axes[1].plot([f.layer for f in unsure], [f.value for f in unsure], color=GREY, **ring)
            ends.append(f"{name} {means[-1]:.2f} nats in layer {at[-1]}")
        axes[0].axhline(floor, color=GREY, linestyle="-.", label="shuffled tokens (floor)")
        axes[1].axhline(0, color=GREY, linestyle="-.")
        for axis, title in zip(axes, ("plug-in, as in the paper", "bias taken out"), strict=True):
            axis.set(ylabel="nats", title=title, ylim=(-0.05 * top, 1.3 * top))
            axis.set_xlabel("layers that the [MASK]s have passed")
            axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
            if is_inside := ceiling <= 1.2 * top:
                axis.axhline(ceiling, color=INK, linewidth=1)
            text = f"ceiling: {ceiling:.2f} nats{'' if is_inside else ' ↑'}"
            axis.text(0.98, 0.97, text, transform=axis.transAxes, ha="right", va="top", fontsize=9, color=INK)
        legend_below(axes[:1], 3)
    doubt = "" if all(f.has_enough_states for f in layers_of_all) else " Ringed values have too few states."
    thin = "thin lines are seeds" if len(records) > len(models) else "bars: two standard errors of measurement"
    return Figure(
        figure,
        "Mutual information between the states of [MASK]s and the tokens that stood there, by the number of layers "
        f"passed: encoder layers of the vanilla model, decoder layers of 3ML; {thin}. Bias taken out: "
        f"{'; '.join(ends)}.{doubt} Shuffled tokens give {floor:.2f} by plug-in, the tokens' entropy is {ceiling:.2f}.",
    )


def _models(records: Sequence[RunRecord]) -> dict[str, list[RunRecord]]:
    """Name -> the runs of a model, its seeds; of runs alike in all that `model_names` says each by itself."""
    found: dict[str, list[RunRecord]] = {}
    names = model_names(records)
    for record in records:
        found.setdefault(names[record.run_id].partition(", seed ")[0], []).append(record)
    return found


def figure_4_values(records: Sequence[RunRecord]) -> Table:
    """Every layer of every model: the paper's estimate in nats and bits, the corrected one, floor, spread, share."""
    rows, names = [], model_names(records)
    for record in records:
        has_decoder = ARCHITECTURES[record.parameters["architecture"]].has_decoder
        start = "0 (decoder input)" if has_decoder else "0 (embedding)"
        for found in layers_of(record):
            plug_in, enough = statistics.fmean(found.plug_in), found.has_enough_states
            row = {"Model": names[record.run_id], "Layer": f"{found.layer}" if found.layer else start}
            row |= {"Plug-in (nats)": f"{plug_in:.3f}", "Plug-in (bits)": f"{plug_in * NATS_TO_BITS:.3f}"}
            row["Spread over seeds"] = f"{max(found.plug_in) - min(found.plug_in):.3f}"
            row |= {
                "On shuffled tokens": f"{statistics.fmean(found.floor):.3f}",
                "Corrected (nats)": corrected_cell(found),
            }
            row["Corrected (bits)"] = f"{found.value * NATS_TO_BITS:.3f}" if enough else MISSING
            row["Error (nats)"] = f"{found.error:.3f}"
            rows.append({**row, "Of the entropy": f"{found.value / found.entropy:.1%}" if enough else MISSING})
    return Table(rows, "Mutual information between the states of [MASK]s and the tokens that stood there")


def layers_of(record: RunRecord) -> list[LayerInformation]:
    """What a run of stage `mutual_information` measured, layer by layer."""
    return [LayerInformation(**values) for values in record.metrics["layers"]]


def corrected_cell(found: LayerInformation) -> str:
    """The estimate with its bias taken out, in nats, with a mark where that is impossible."""
    return f"{found.value:.3f}" + ("" if found.has_enough_states else " (too few states)")


def model_names(records: Sequence[RunRecord]) -> dict[str, str]:
    """Run id -> architecture and mask rate; of several alike also the seed, or the hash if seeds are alike too."""
    candidates = {}
    for record in records:
        p, run = record.parameters, record.data["run"].rsplit("-", 1)[1]
        name = f"{ARCHITECTURES[p['architecture']].label}-{rate_label(p)}"
        candidates[record.run_id] = (name, f"{name}, seed {p['seed']}", f"{name} {run}")
    count = collections.Counter(name for names in candidates.values() for name in names[:2])
    return {run: next((n for n in names[:2] if count[n] == 1), names[2]) for run, names in candidates.items()}


def _statements(records: Sequence[RunRecord]) -> list[dict[str, str]]:
    """The two statements of section 4.2 (3ML's is claim C8), judged over pre-training seeds as the claims are."""
    findings = [(first_layers(records), "no vanilla run with the embedding, the first quarter and the last layer")]
    models = [(r.parameters["architecture"], r.parameters["mask_rate"]) for r in records]
    for model in dict.fromkeys(model for model in models if model[0] != "vanilla") or [("self", 0.0)]:
        own = [r for r, of in zip(records, models, strict=True) if of[0] == "vanilla" or of == model]
        findings.append((first_block(model[0], own), "no 3ML run beside a vanilla one with the same [MASK]s"))
    rows = []
    for finding, missing in findings:
        found, row = finding.interval, {"Statement": finding.what}
        row["Each seed"] = ", ".join(f"{value:.0%}" for value in finding.values) or NOT_RUN
        row |= {"Error of measurement": MISSING, "Mean, 95% interval": MISSING}
        if found:
            bounds = "" if found.low is None else f" ({found.low:.0%} to {found.high:.0%})"
            row |= {"Error of measurement": f"{finding.error:.1%}", "Mean, 95% interval": f"{found.mean:.0%}{bounds}"}
        row |= {"Holds if": finding.range, "Verdict": finding.verdict}
        rows.append({**row, "Why not": "; ".join(finding.reasons) if found else missing})
    return rows


def statement_table(records: Sequence[RunRecord]) -> Table:
    """The statements of section 4.2 and what these models say."""
    judged = "judged as its claims are; of several runs of a seed the latest counts"
    return Table(_statements(records), f"The paper's statements, and what these models say, {judged}")


def statement_sentences(records: Sequence[RunRecord]) -> list[str]:
    """The same in a sentence each."""
    return [f"{row['Statement']}: {row['Mean, 95% interval']}, {row['Verdict']}." for row in _statements(records)]
