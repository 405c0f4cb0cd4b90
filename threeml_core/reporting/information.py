"""Around Figure 4: what is measured, where the states came from, how biased the estimates are, what it cost."""

from __future__ import annotations

from collections.abc import Sequence

from threeml_core.config import StudyConfig
from threeml_core.information.estimate import BiasPoint
from threeml_core.reporting.figure_4 import corrected_cell, layers_of, model_names
from threeml_core.reporting.style import GREY, INK, PALETTE, Figure, drawing, legend_below
from threeml_core.reporting.table import Table
from threeml_core.runs.record import RunRecord


def choices_table(config: StudyConfig) -> Table:
    """What the paper leaves open, or what is asked of it, and what is done here."""
    norm = "behind the final LayerNorm, as the head" if config.states_final_norm else "before the final LayerNorm"
    passes = f"mini-batch, passes: {config.num_kmeans_passes}, start: drawn by distance"
    rows = [
        ("Text", "states_text", config.states_text, "not said"),
        ("Corruption", "", "that of the model's own pre-training, exact counts", "40% for all models"),
        ("Seed of sequences and corruption", "states_seed", f"{config.states_seed}", "not said"),
        ("[MASK]s whose token is among", "top_tokens", f"the {config.top_tokens:,} most frequent, if so many", "1,000"),
        ("States per layer, at most", "states_per_layer", f"{config.states_per_layer:,}", "5,000,000"),
        ("Last layer of a pre-LN model", "states_final_norm", norm, "not said"),
        ("Clusters", "num_clusters", f"{config.num_clusters:,}", "10,000"),
        ("k-means", "num_kmeans_passes", passes, "mini-batch"),
        ("k-means seeds", "num_kmeans_seeds", f"{config.num_kmeans_seeds}", "not said"),
        ("Estimate", "", "plug-in, and one with the bias taken out", "not said; after Voita et al.: plug-in"),
    ]
    names = ("Choice", "Parameter", "Here", "The paper")
    return Table([dict(zip(names, row, strict=True)) for row in rows], "What is measured")


def sample_table(records: Sequence[RunRecord]) -> Table:
    """Where the states came from; only rows with the same [MASK]s can be compared."""
    rows = []
    for record in records:
        p, d, first = record.parameters, record.data, layers_of(record)[0]
        part = f"{d['blocks']:,} of {d['text_blocks']:,}" if d["blocks"] < d["text_blocks"] else f"all {d['blocks']:,}"
        row = {"Run": d["run"], "Perplexity, masked": f"{d['perplexity_masked']:.1f}"}
        row["Unigram, masked"] = f"{d['unigram_perplexity_masked']:.1f}"
        row["Corruption"] = f"{p['mask_rate']:.0%}, {p['mask_split']}"
        row["Text"] = f"{p['states_text']}, {part} sequences"
        row |= {"Frequent tokens": f"{d['frequent_tokens']:,}", "States": f"{d['states']:,}", "Width": f"{first.width}"}
        row["States per cluster"] = f"{d['states'] / p['num_clusters']:,.0f}"
        rows.append({**row, "Entropy (nats)": f"{first.entropy:.3f}", "Sample": d["sample"]})
    return Table(rows, "States of each layer; runs with the same sample were asked about the same [MASK]s")


def information_cost_table(records: Sequence[RunRecord]) -> Table:
    """Where the records lie, and what the wall clock and the memory said on this machine."""
    rows, names = [], model_names(records)
    for record in records:
        row = {"Model": names[record.run_id], "Record": record.run_id, "Layers": f"{len(record.metrics['layers'])}"}
        for name, key in (("Running the model", "states"), ("Clustering and estimates", "clustering")):
            row[name] = f"{record.timing[f'{key}_seconds']:.1f} s"
        rows.append({**row, "Peak memory": f"{record.timing['peak_memory_bytes'] / 2**20:,.0f} MiB"})
    return Table(rows, "Records in runs/mutual_information, and what they cost on this machine")


_NO_BIAS = Table([{"Bias": "not run: this report's records hold no run of stage bias"}], "The bias of the estimates")


def bias_table(record: RunRecord | None) -> Table:
    """Estimates on synthetic states beside the truth; None: there is no record of them."""
    if record is None:
        return _NO_BIAS
    rows = []
    for point in (BiasPoint(**values) for values in record.metrics["points"]):
        found, row = point.found, {"Coupling": f"{point.coupling:g}", "States": f"{point.found.states:,}"}
        row |= {"Truth (nats)": f"{point.truth:.3f}", "Plug-in": f"{found.plug_in[0]:.3f}"}
        row |= {"On shuffled tokens": f"{found.floor[0]:.3f}", "Corrected": corrected_cell(found)}
        rows.append({**row, "Error": f"{found.error:.3f}"})
    return Table(rows, f"Estimates on mixtures whose mutual information is known ({record.run_id})")


def plot_bias(record: RunRecord | None) -> Figure | Table:
    """The estimates against the number of states, a panel for each known truth; None: a table that says so."""
    if record is None:
        return _NO_BIAS
    points = [BiasPoint(**values) for values in record.metrics["points"]]
    couplings = sorted({point.coupling for point in points})
    top = 1.1 * max(point.found.plug_in[0] for point in points)
    with drawing(len(couplings), 3.2) as (figure, axes):
        for axis, coupling in zip(axes, couplings, strict=True):
            here = [point for point in points if point.coupling == coupling]
            found = [point.found for point in here]
            states, look = [layer.states for layer in found], {"markersize": 4}
            plug_in, floor = [layer.plug_in[0] for layer in found], [layer.floor[0] for layer in found]
            axis.plot(states, plug_in, "s-", color=PALETTE[0], label="plug-in", **look)
            axis.plot(states, [of.value for of in found], "o--", color=PALETTE[1], label="corrected", **look)
            axis.plot(states, floor, "D-.", color=GREY, label="shuffled tokens", **look)
            axis.axhline(here[0].truth, color=INK, linewidth=1, label="truth")
            axis.set(xscale="log", xlabel="states", title=f"truth: {here[0].truth:.2f} nats", ylim=(-0.2, top))
        axes[0].set_ylabel("nats")
        legend_below(axes[:1])
    sizes = sorted({point.found.states for point in points})
    excess = max(point.found.plug_in[0] - point.truth for point in points if point.found.states == sizes[0])
    worst = max(abs(point.found.value - point.truth) for point in points if point.found.states == sizes[-1])
    return Figure(
        figure,
        "Estimates on synthetic states of known mutual information as the number of states grows: with "
        f"{sizes[0]:,} the plug-in estimate is up to {excess:.2f} nats too high; with {sizes[-1]:,} the corrected one "
        f"is within {worst:.3f}.",
    )
