"""One pre-training run: its perplexity, curves and cost, beside the runs that may be compared with it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.parameters.masking import ASKED, KINDS, rate_label
from threeml_core.reporting.cells import SPEEDUPS
from threeml_core.reporting.style import Figure, draw_references, drawing, legend_below, look_of
from threeml_core.reporting.table import Table
from threeml_core.runs.ledger import full_identity
from threeml_core.runs.record import RunRecord, read_metrics

MOST_CURVES = 24  # more are a blot
_MAY_DIFFER = {"architecture", "corruption", *ASKED["corruption"], "mask_counts", "seed"}


def perplexity_table(metrics: Mapping[str, float]) -> Table:
    """Validation perplexity in total and by kind, beside the unigram's at the same positions."""
    rows = []
    for kind, suffix in {"all corrupted": "", **{kind: f"_{kind}" for kind in KINDS}}.items():
        if f"eval_perplexity{suffix}" in metrics:
            model, unigram = metrics[f"eval_perplexity{suffix}"], metrics[f"unigram_perplexity{suffix}"]
            row = {"Tokens": kind, "Model": f"{model:.1f}", "Unigram": f"{unigram:.1f}"}
            rows.append({**row, "Model against unigram": f"{model / unigram - 1:+.0%}"})
    return Table(rows, "Validation perplexity (exp of the mean cross-entropy in nats)")


def plateau_statement(metrics: Mapping[str, float]) -> str:
    """One plain sentence: has the model learned anything about masked tokens?"""
    model, unigram = metrics["eval_perplexity_masked"], metrics["unigram_perplexity_masked"]
    change, where = f"{model / unigram - 1:+.0%}", "at masked positions its perplexity"
    if metrics["on_unigram_plateau"]:
        plateau = f"{where} ({model:.1f}) has not left the unigram plateau ({unigram:.1f}, {change})"
        return f"This run shows nothing about the method yet: {plateau}. Train longer before comparing models."
    left = f"{where} is {model:.1f}, the unigram's {unigram:.1f} ({change})"
    return f"The model has left the unigram plateau: {left}."


def loss_sentence(record: RunRecord) -> str:
    """A pre-training in one line: loss, perplexity and FLOPs."""
    m = record.metrics
    spent = f", {record.flops['training']:.3g} training FLOPs" if record.flops else ""
    return (
        f"{record.run_id}: training loss {m['train_loss']:.3f} nats, validation perplexity {m['eval_perplexity']:.1f} "
        f"(both over all corrupted tokens), {m['eval_perplexity_masked']:.1f} at [MASK]s (unigram "
        f"{m['unigram_perplexity_masked']:.1f}){spent}"
    )


def flops_table(record: RunRecord) -> Table:
    """FLOPs and speed-ups by the corrected Appendix C; the same on every machine."""
    f = record.flops
    if not f:
        return Table.of({"FLOPs": "not counted: ragged rows"}, "Cost of this run in FLOPs")
    values = {"forward FLOPs per sequence": f"{f['forward_per_block'] / 1e6:,.1f} M"}
    values["training FLOPs"] = f"{f['training']:.3g}"
    values |= {f"speed-up in FLOPs over vanilla at {rate}": f"{f[key]:.2f}×" for rate, key in SPEEDUPS.items()}
    return Table.of(values, "Cost of this run in FLOPs")


def speed_table(record: RunRecord) -> Table:
    """What the wall clock and the memory said on this machine."""
    t = record.timing
    values = {"training time": f"{t['train_seconds']:.0f} s", "throughput": f"{t['tokens_per_second']:,.0f} tokens/s"}
    values["peak memory"] = f"{t['peak_memory_bytes'] / 2**20:,.0f} MiB"
    if record.flops:
        values["executed"] = f"{record.flops['training'] / t['train_seconds'] / 1e9:,.1f} GFLOP/s"
    return Table.of(values, "Cost of this run in time")


def comparable(record: RunRecord, others: Iterable[RunRecord]) -> list[RunRecord]:
    """Runs that differ from this one in model, corruption and seed only, validated on the same corruption."""
    found, order, own = [], list(ARCHITECTURES), full_identity(record)
    for other in others:
        # the vanilla model has no decoder parameters: what both have must be equal
        its = full_identity(other)
        is_equal = not other.failure and all(own[key] == its[key] for key in (own.keys() & its.keys()) - _MAY_DIFFER)
        if is_equal and record.metrics["eval_corruption"] == other.metrics["eval_corruption"]:
            found.append(other)
    return sorted(found, key=lambda r: (order.index(r.parameters["architecture"]), r.parameters["mask_rate"], r.run_id))


def comparison_table(record: RunRecord, others: Iterable[RunRecord]) -> Table:
    """This run beside all finished runs that may be compared with it."""
    rows = []
    for r in comparable(record, others):
        p, m = r.parameters, r.metrics
        row = {"Run": "→ " * (r.run_id == record.run_id) + r.run_id, "Model": ARCHITECTURES[p["architecture"]].label}
        row |= {"Mask rate": rate_label(p, "g"), "Split": p["mask_split"], "Seed": f"{p['seed']}"}
        row["Perplexity, masked"] = f"{m['eval_perplexity_masked']:.1f}"
        row["Perplexity, all corrupted"] = f"{m['eval_perplexity']:.1f}"
        flops = f"{r.flops['speedup_over_vanilla_15']:.2f}×" if r.flops else "not counted"
        rows.append({**row, "Speed-up in FLOPs": flops})
    return Table(rows, "Finished runs on the same text, validated on the same corruption")


def starts_table(records: Iterable[RunRecord]) -> Table:
    """Runs on one text that began with different encoders: from a checkpoint, or from random weights."""
    rows = []
    for r in records:
        p, m = r.parameters, r.metrics
        row = {"Run": r.run_id, "Start": p["init_encoder"] or "random weights", "Steps": f"{p['max_steps']:,}"}
        row["of these the decoder alone"] = f"{p['decoder_warmup_steps']:,}"
        row["Perplexity, masked"] = f"{m['eval_perplexity_masked']:.1f}"
        row["Unigram, masked"] = f"{m['unigram_perplexity_masked']:.1f}"
        row["Perplexity, all corrupted"] = f"{m['eval_perplexity']:.1f}"
        rows.append({**row, "FLOPs": f"{r.flops['training']:.3g}" if r.flops else "not counted"})
    return Table(rows, "Held-out perplexity on your text")


def plot_training(record: RunRecord, others: Iterable[RunRecord], runs_dir: str) -> Figure:
    """Training loss, and perplexity at [MASK]s with the unigram's, of this run and the newest others of its split."""
    own = record.parameters
    comparable = runs = [run for run in others if run.parameters["mask_split"] == own["mask_split"]]
    if len(comparable) > MOST_CURVES:
        newest = sorted(comparable, key=lambda run: run.environment["finished"])[1 - MOST_CURVES :]
        drawn = {record.run_id, *(run.run_id for run in newest)}
        runs = [run for run in comparable if run.run_id in drawn]
    models: dict[str, list[RunRecord]] = {}
    for run in runs:
        of = run.parameters
        models.setdefault(f"{ARCHITECTURES[of['architecture']].label}-{rate_label(of)}", []).append(run)
    rates = sorted({run.parameters["mask_rate"] for run in runs})
    with drawing(2, 3.8) as (figure, axes):
        for name, seeds in models.items():
            for number, run in enumerate(seeds):
                lines = read_metrics(run.folder(runs_dir) / "metrics.jsonl")
                look = {**look_of(run.parameters["architecture"]), "linewidth": 0.8, "markersize": 3}
                look |= {"alpha": 0.35 + 0.65 * (rates.index(run.parameters["mask_rate"]) + 1) / len(rates)}
                look |= {"linewidth": 2.4, "alpha": 1, "zorder": 3} if run.run_id == record.run_id else {}
                for axis, key, marker in zip(
                    axes, ("train_loss", "eval_perplexity_masked"), ("", look["marker"]), strict=True
                ):
                    points = [(line["step"], line[key]) for line in lines if key in line]
                    label = name if number == 0 else None
                    axis.plot(*zip(*points, strict=True), **look | {"marker": marker, "label": label})
        unigram = record.metrics["unigram_perplexity_masked"]
        draw_references(axes[1], {"unigram": unigram})
        axes[0].set(xlabel="steps", ylabel="training loss, all corrupted (nats)")
        axes[1].set(xlabel="steps", ylabel="validation perplexity, masked")
        legend_below(axes[::-1], 3)
    older = f"; {len(comparable) - len(runs):,} older ones are not" if len(runs) < len(comparable) else ""
    shown = [name + (f" ({len(seeds)} seeds)" if len(seeds) > 1 else "") for name, seeds in models.items()]
    return Figure(
        figure,
        "Left: training loss over all corrupted tokens, by step. Right: validation perplexity at masked positions, "
        f"which ends at {record.metrics['eval_perplexity_masked']:.0f} for this run, the thick line; the unigram "
        f"perplexity of the same positions is {unigram:.0f}. Runs shown, a line for each, the stronger the higher its "
        f"mask rate: {', '.join(shown)}{older}.",
    )
