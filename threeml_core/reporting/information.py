"""Tables and figures of mutual information (Figure 4): layer by layer, the paper's statements, the estimate's bias."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import matplotlib

from threeml_core.config import MODEL_NAMES, StudyConfig
from threeml_core.information.estimate import NATS_TO_BITS, BiasPoint, LayerInformation
from threeml_core.information.findings import first_block, first_layers
from threeml_core.reporting.figures import COLORS, INK, MARKERS, RC, STYLES, Figure, new_axes, plain
from threeml_core.reporting.tables import MISSING, NOT_RUN, Table
from threeml_core.runs.record import RunRecord
from threeml_core.statistics.verdicts import Finding


def layers_of(record: RunRecord) -> list[LayerInformation]:
    """What a run of stage `mutual_information` measured, layer by layer."""
    return [LayerInformation(**values) for values in record.metrics["layers"]]


def _names(records: Sequence[RunRecord]) -> dict[str, str]:
    """Run id -> architecture and mask rate; of several alike also the seed, or the hash if seeds are alike too."""
    names = {r.run_id: f"{MODEL_NAMES[r.parameters['architecture']]}-{r.parameters['mask_rate']:.0%}" for r in records}
    seeds = {r.run_id: f"{names[r.run_id]}, seed {r.parameters['seed']}" for r in records}
    hashes = {r.run_id: f"{names[r.run_id]} {r.data['run'].rsplit('-', 1)[1]}" for r in records}
    alone = [{name for name, count in collections.Counter(of.values()).items() if count == 1} for of in (names, seeds)]
    found = {}
    for run, name in names.items():
        found[run] = name if name in alone[0] else seeds[run] if seeds[run] in alone[1] else hashes[run]
    return found


def _is_vanilla(record: RunRecord) -> bool:
    return record.parameters["architecture"] == "vanilla"


def _layer_name(record: RunRecord, layer: int) -> str:
    if layer == 0:
        return "0 (embedding)" if _is_vanilla(record) else "0 (decoder input)"
    return f"{layer}"


def _corrected(found: LayerInformation) -> str:
    return f"{found.value:.3f}" + ("" if found.has_enough_states else " (too few states)")


def choices_table(config: StudyConfig) -> Table:
    """What the paper leaves open, or what is asked of it, and what is done here."""
    norm = "behind the final LayerNorm, as the head" if config.states_final_norm else "before the final LayerNorm"
    rows = [
        ("Text", "states_text", config.states_text, "not said"),
        ("Corruption", "", "that of the model's own pre-training, exact counts", "40% for all models"),
        ("Seed of blocks and corruption", "states_seed", f"{config.states_seed}", "not said"),
        ("[MASK]s whose token is among", "top_tokens", f"the {config.top_tokens:,} most frequent, if so many", "1,000"),
        ("States a layer, at most", "states_per_layer", f"{config.states_per_layer:,}", "5,000,000"),
        ("Last layer of a pre-LN model", "states_final_norm", norm, "not said"),
        ("Clusters", "clusters", f"{config.clusters:,}", "10,000"),
        (
            "k-means",
            "kmeans_passes",
            f"mini-batch, passes: {config.kmeans_passes}, start: drawn by distance",
            "mini-batch",
        ),
        ("k-means seeds", "kmeans_seeds", f"{config.kmeans_seeds}", "not said"),
        ("Estimate", "", "plug-in, and one with the bias taken out", "not said; after Voita et al.: plug-in"),
    ]
    names = ("Choice", "Parameter", "Here", "The paper")
    return Table([dict(zip(names, row, strict=True)) for row in rows], "What is measured")


def information_table(records: Sequence[RunRecord]) -> Table:
    """Every layer of every model: the paper's estimate in nats and bits, the corrected one, floor, spread, share."""
    rows, names = [], _names(records)
    for record in records:
        for found in layers_of(record):
            plug_in = sum(found.plug_in) / len(found.plug_in)
            rows.append(
                {
                    "Model": names[record.run_id],
                    "Layer": _layer_name(record, found.layer),
                    "Plug-in (nats)": f"{plug_in:.3f}",
                    "Plug-in (bits)": f"{plug_in * NATS_TO_BITS:.3f}",
                    "Spread over seeds": f"{max(found.plug_in) - min(found.plug_in):.3f}",
                    "On shuffled tokens": f"{sum(found.floor) / len(found.floor):.3f}",
                    "Corrected (nats)": _corrected(found),
                    "Corrected (bits)": f"{found.value * NATS_TO_BITS:.3f}" if found.has_enough_states else MISSING,
                    "Error (nats)": f"{found.error:.3f}",
                    "Of the entropy": f"{found.value / found.entropy:.1%}" if found.has_enough_states else MISSING,
                }
            )
    return Table(rows, "Mutual information between the states of [MASK]s and the tokens that stood there")


def sample_table(records: Sequence[RunRecord]) -> Table:
    """Where the states came from; only rows with the same [MASK]s can be compared."""
    rows = []
    for record in records:
        p, d = record.parameters, record.data
        layers = layers_of(record)
        blocks = (
            f"{d['blocks']:,} of {d['text_blocks']:,}" if d["blocks"] < d["text_blocks"] else f"all {d['blocks']:,}"
        )
        rows.append(
            {
                "Run": d["run"],
                "Perplexity, masked": f"{d['perplexity_masked']:.1f}",
                "Unigram, masked": f"{d['unigram_perplexity_masked']:.1f}",
                "Corruption": f"{p['mask_rate']:.0%}, {p['mask_split']}",
                "Text": f"{p['states_text']}, {blocks} blocks",
                "Frequent tokens": f"{d['frequent_tokens']:,}",
                "States": f"{d['states']:,}",
                "Width": f"{layers[0].width}",
                "States a cluster": f"{d['states'] / p['clusters']:,.0f}",
                "Entropy (nats)": f"{layers[0].entropy:.3f}",
                "Sample": d["sample"],
            }
        )
    return Table(rows, "States of each layer; runs with the same sample were asked about the same [MASK]s")


def information_cost_table(records: Sequence[RunRecord]) -> Table:
    """Where the records lie, and what the wall clock and the memory said on this machine."""
    names = _names(records)
    rows = [
        {
            "Model": names[record.run_id],
            "Record": record.run_id,
            "Layers": f"{len(record.metrics['layers'])}",
            "Running the model": f"{record.timing['states_seconds']:.1f} s",
            "Clustering and estimates": f"{record.timing['clustering_seconds']:.1f} s",
            "Peak memory": f"{record.timing['peak_memory_bytes'] / 2**20:,.0f} MiB",
        }
        for record in records
    ]
    return Table(rows, "Records in runs/mutual_information, and what they cost on this machine")


def statement_table(records: Sequence[RunRecord]) -> Table:
    """The two statements of section 4.2, judged over pre-training seeds by the rule of the paper's claims.

    3ML's is what the claim C8 says.
    """
    findings = [first_layers(records)]
    for architecture, rate in dict.fromkeys(_model(record) for record in records if not _is_vanilla(record)):
        own = [record for record in records if _is_vanilla(record) or _model(record) == (architecture, rate)]
        findings.append(first_block(architecture, own))
    if len(findings) == 1:
        findings.append(first_block("self", records))
    rows = [
        {
            "Statement": finding.what,
            "Each seed": ", ".join(f"{value:.0%}" for value in finding.values) or NOT_RUN,
            "Error of measurement": f"{finding.error:.1%}" if finding.values else MISSING,
            "Mean, 95% interval": _interval(finding),
            "Holds if": finding.range,
            "Verdict": finding.verdict,
            "Why not": "; ".join(finding.reasons) if finding.values else missing,
        }
        for finding, missing in zip(findings, (_NO_VANILLA, *[_NO_PAIR] * len(findings)), strict=False)
    ]
    return Table(
        rows,
        "The paper's statements, and what these models say, judged as its claims are; of several runs of a seed the "
        "latest counts",
    )


_NO_VANILLA = "no vanilla run with the embedding, the first quarter and the last layer"
_NO_PAIR = "no 3ML run beside a vanilla one with the same [MASK]s"


def _model(record: RunRecord) -> tuple[str, float]:
    return record.parameters["architecture"], record.parameters["mask_rate"]


def _interval(finding: Finding) -> str:
    found = finding.interval
    if found is None:
        return MISSING
    if found.low is None or found.high is None:
        return f"{found.mean:.0%}"
    return f"{found.mean:.0%} ({found.low:.0%} to {found.high:.0%})"


def plot_information(records: Sequence[RunRecord]) -> Figure:
    """Figure 4: mutual information against the blocks that the [MASK]s have passed; plug-in and corrected."""
    ends, names = [], _names(records)
    with matplotlib.rc_context(RC):
        figure, axes = new_axes(2, 3.6)
        top = 0.0
        for record in records:
            layers, name = layers_of(record), record.parameters["architecture"]
            at = [found.layer for found in layers]
            plug_in = [sum(found.plug_in) / len(found.plug_in) for found in layers]
            look = {"color": COLORS[name], "linestyle": STYLES[name], "marker": MARKERS[name], "markersize": 5}
            axes[0].plot(at, plug_in, label=plain(names[record.run_id]), linewidth=2, **look)
            values, errors = [found.value for found in layers], [2 * found.error for found in layers]
            axes[1].errorbar(at, values, yerr=errors, capsize=2, linewidth=2, **look)
            unsure = [found for found in layers if not found.has_enough_states]
            hollow = {"marker": look["marker"], "markersize": 9, "fillstyle": "none", "linestyle": "none"}
            if unsure:
                axes[1].plot([f.layer for f in unsure], [f.value for f in unsure], color=COLORS["reference"], **hollow)
            top = max(top, *plug_in)
            ends.append(f"{names[record.run_id]} {values[-1]:.2f} nats in layer {at[-1]}")
        found = [layer for record in records for layer in layers_of(record)]
        doubt = "" if all(layer.has_enough_states for layer in found) else " Ringed values have too few states."
        floor = sum(sum(layer.floor) / len(layer.floor) for layer in found) / len(found)
        ceiling = max(layer.entropy for layer in found)
        axes[0].axhline(floor, color=COLORS["reference"], linestyle="-.", label="shuffled tokens (floor)")
        axes[1].axhline(0, color=COLORS["reference"], linestyle="-.")
        for axis, title in zip(axes, ("plug-in, as in the paper", "bias taken out"), strict=True):
            axis.set(xlabel="blocks that the [MASK]s have passed", ylabel="nats", title=title)
            axis.set_ylim(-0.05 * top, 1.3 * top)
            axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
            if ceiling <= 1.2 * top:
                axis.axhline(ceiling, color=INK, linewidth=1)
            axis.annotate(
                f"ceiling: {ceiling:.2f} nats{'' if ceiling <= 1.2 * top else ' ↑'}",
                (0.98, 0.97),
                xycoords="axes fraction",
                ha="right",
                va="top",
                fontsize=9,
                color=INK,
            )
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, fontsize=9, loc="outside lower center", ncols=len(labels))
    return Figure(
        figure,
        "Mutual information between the states of [MASK]s and the tokens that stood there, by the number of blocks "
        "passed: encoder blocks of the vanilla model, decoder blocks of 3ML. Bias taken out: "
        f"{'; '.join(ends)}.{doubt} Shuffled tokens give {floor:.2f} by plug-in, the tokens' entropy is {ceiling:.2f}.",
    )


def _points(record: RunRecord) -> list[BiasPoint]:
    return [BiasPoint(**values) for values in record.metrics["points"]]


def _no_bias() -> Table:
    """These records are older than the stage `bias`."""
    return Table([{"Bias": "not run: this report's records hold no run of stage bias"}], "The bias of the estimates")


def bias_table(record: RunRecord | None) -> Table:
    """Estimates on synthetic states beside the truth; None: there is no record of them."""
    if record is None:
        return _no_bias()
    rows = [
        {
            "Coupling": f"{point.coupling:g}",
            "States": f"{point.found.states:,}",
            "Truth (nats)": f"{point.truth:.3f}",
            "Plug-in": f"{point.found.plug_in[0]:.3f}",
            "On shuffled tokens": f"{point.found.floor[0]:.3f}",
            "Corrected": _corrected(point.found),
            "Error": f"{point.found.error:.3f}",
        }
        for point in _points(record)
    ]
    return Table(rows, f"Estimates on mixtures whose mutual information is known ({record.run_id})")


def plot_bias(record: RunRecord | None) -> Figure | Table:
    """Plug-in, corrected and shuffled estimates against the number of states, a panel for each known truth.

    A sentence if there is no record of them.
    """
    if record is None:
        return _no_bias()
    points = _points(record)
    couplings = sorted({point.coupling for point in points})
    top = 1.1 * max(point.found.plug_in[0] for point in points)
    with matplotlib.rc_context(RC):
        figure, axes = new_axes(len(couplings), 3.2)
        for axis, coupling in zip(axes, couplings, strict=True):
            here = [point for point in points if point.coupling == coupling]
            found = [point.found for point in here]
            for values, label, color, style, marker in (
                ([layer.plug_in[0] for layer in found], "plug-in", "vanilla", "-", "s"),
                ([layer.value for layer in found], "corrected", "self", "--", "o"),
                ([layer.floor[0] for layer in found], "shuffled tokens", "reference", "-.", "D"),
            ):
                look = {"color": COLORS[color], "linestyle": style, "marker": marker, "markersize": 4}
                axis.plot([layer.states for layer in found], values, label=label, **look)
            axis.axhline(here[0].truth, color=INK, linewidth=1, label="truth")
            axis.set_xscale("log")
            axis.set(xlabel="states", title=f"truth: {here[0].truth:.2f} nats", ylim=(-0.2, top))
        axes[0].set_ylabel("nats")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, fontsize=9, loc="outside lower center", ncols=len(labels))
    sizes = sorted({point.found.states for point in points})
    excess = max(point.found.plug_in[0] - point.truth for point in points if point.found.states == sizes[0])
    worst = max(abs(point.found.value - point.truth) for point in points if point.found.states == sizes[-1])
    return Figure(
        figure,
        "Estimates on synthetic states of known mutual information as the number of states grows: with "
        f"{sizes[0]:,} the plug-in estimate is up to {excess:.2f} nats too high; with {sizes[-1]:,} the corrected one "
        f"is within {worst:.3f}.",
    )
