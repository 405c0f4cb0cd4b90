"""A benchmark: its sessions, speeds, realised speed-ups, where the time goes, cost by geometry, preparing data."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import matplotlib.lines
import matplotlib.ticker
import numpy as np

from threeml_core.benchmark import speeds
from threeml_core.parameters.architectures import ARCHITECTURES, PAPER_ARCHITECTURES
from threeml_core.reporting.style import GREY, INK, PALETTE, Figure, drawing, legend_below, look_of, plain
from threeml_core.reporting.table import MISSING, Table
from threeml_core.runs.record import RunRecord

_KINDS = ("matrix products", "attention", "head", "dropout", "GELU and norms", "optimizer", "data", "the rest")
_NO_SPEED = [{"Model": "no speed is given: not measured, busy or too noisy"}]


def _axis_name(parameter: str) -> str:
    words = {"hidden_size": "width", "num_hidden_layers": "layers", "decoder_hidden_size": "decoder width"}
    return {**words, "decoder_num_hidden_layers": "decoder layers"}.get(parameter, parameter.replace("_", " "))


def noise_statement(records: Sequence[RunRecord]) -> str:
    """One or two plain sentences: can the speeds be trusted?"""
    hardware = records[0].environment["hardware"]
    where = f"Measured on {hardware.get('gpu', hardware['cpu'])} ({hardware['threads']} threads)"
    floor = next(filter(None, map(speeds.noise, records)), None)
    if floor is None:
        return f"{where}; speed was not asked for."
    good = [record for record in records if not speeds.why_no_speed(record)]
    if not good:
        return f"{where}: no speed is given ({speeds.why_no_speed(records[0])}); run it on an idle machine."
    rounds = len(records[0].metrics["turns"][speeds.BASELINE]["seconds"])
    if len(records) > 1:
        left_out = "" if len(good) == len(records) else f", {len(records) - len(good)} of them left out"
        return f"{where} in {len(records)} sessions of {rounds} rounds{left_out}, each a process of its own."
    itself = f"vanilla-15% against itself, in the same {rounds} rounds, is {speeds.text_of(floor, 3)} times as fast"
    one = "One session: its interval says nothing of another hour or another process."
    return f"{where}; {itself}: smaller differences are noise. {one}"


def _basis(records: Sequence[RunRecord]) -> str:
    if sum(not speeds.why_no_speed(record) for record in records) > 1:
        return "means over sessions with 95% intervals by Student's t; a session's value is the median of its rounds"
    return "medians over the rounds of one session, with 95% bootstrap intervals"


def session_table(records: Sequence[RunRecord]) -> Table:
    """Every session: when, how busy the machine was, the baseline against itself, realised speed-up of the 3ML models.

    The last row is over sessions: what verdicts are taken from, if there are enough.
    """
    ours = ARCHITECTURES.keys() - {"vanilla"}
    labels = {name: of["label"] for name, of in records[0].metrics["arms"].items() if name.split("-")[0] in ours}
    rows = []
    for record in records:
        floor, why, metrics = speeds.noise(record), speeds.why_no_speed(record), record.metrics
        ended = record.environment["finished"][:16].replace("T", " ")
        row = {"Session": f"{speeds.session_of(record)}", "Run": record.run_id, "Ended (UTC)": ended}
        for name in ("load_before", "busy_before", "busy_during"):
            known = metrics.get(name) is not None
            row[name.replace("_", " ").capitalize()] = f"{metrics[name]:.2f}" if known else MISSING
        row["Vanilla-15% against itself"] = MISSING if floor is None else speeds.text_of(floor, 3)
        for name, label in labels.items():
            row[f"Realised, {label}"] = MISSING if why else f"{speeds.realised_speedup(record, name):.3f}"
        rows.append({**row, "No speed, because": ", ".join(part.partition(":")[0] for part in why.split("; "))})
    good = [record for record in records if not speeds.why_no_speed(record)]
    if len(good) > 1:
        values = {f"Realised, {label}": speeds.realised_by_session(good, name) for name, label in labels.items()}
        values["Vanilla-15% against itself"] = tuple(floor.value for floor in map(speeds.noise, good) if floor)
        means = {name: speeds.text_of(speeds.over_sessions(of), 3) for name, of in values.items()}
        rows.append({"Session": "mean (95%)", **means})
    return Table(
        rows,
        "Sessions, each a process of its own: medians over the rounds of one, and over sessions the mean with its 95% "
        "interval by Student's t. Realised is the wall-clock speed-up over vanilla-15% as a share of the one in FLOPs. "
        "Load is the system's average of a minute; busy is how many cores other processes kept at work. A verdict on "
        f"the clock takes {speeds.SESSIONS} sessions.",
    )


def speed_comparison(records: Sequence[RunRecord]) -> Table:
    """Every model: time, rate, ratios with intervals."""
    rows = []
    for of in speeds.speeds(records):
        row = {"Model": of.label, "ms per step": f"{1000 * of.step.value:.1f}"}
        row |= {"tokens/s": f"{of.tokens_per_second:,.0f}", "Over vanilla-15%": speeds.text_of(of.over_vanilla)}
        row["By FLOPs"] = f"{of.over_vanilla.value / of.realised.value:.2f}"
        row["Realised"] = speeds.text_of(of.realised)
        rows.append({**row, "Over Hugging Face": MISSING if of.over_hf is None else speeds.text_of(of.over_hf)})
    parameters = records[0].parameters
    size = f"a step has {parameters['batch_size']} sequences of {parameters['sequence_length']} tokens"
    basis = f"{_basis(records)}; ratios are taken within a round; " if rows else ""
    return Table(rows or _NO_SPEED, f"Speed of training: {basis}{size}. {noise_statement(records)}")


def resource_table(records: Sequence[RunRecord]) -> Table:
    """Every model: FLOPs, utilisation, CPU time, data wait, first step, memory."""
    rows = []
    for of in speeds.speeds(records):
        row = {"Model": of.label, "GFLOP": f"{of.flops / 1e9:.3g}", "Of the ceiling": f"{of.utilisation:.0%}"}
        if of.mfu is not None:
            row["MFU"] = f"{of.mfu:.0%}"
        row |= {"CPU ms": f"{1000 * of.cpu.value:.0f}", "Waiting for data": f"{of.data_wait:.1%}"}
        row["First step"] = f"{of.first_step:.1f} s"
        if (bf16 := records[0].metrics["arms"][of.name].get("bf16")) is not None:
            row["Computes in"] = "bfloat16" if bf16 else "float32"
        rows.append({**row, "Memory": MISSING if of.peak_bytes is None else f"{of.peak_bytes / 2**20:,.0f} MiB"})
    ceiling = f"{records[0].metrics['flops_ceiling'] / 1e9:,.0f} GFLOP/s"
    caption = f"What a step takes. The ceiling is the best of large matrix products on this machine, {ceiling}"
    return Table(rows or _NO_SPEED, f"{caption}; memory is what training adds to the imports.")


def plot_realised(records: Sequence[RunRecord]) -> Figure:
    """Speed-up by the clock against the speed-up in FLOPs, over vanilla at 15%."""
    found = speeds.speeds(records)
    by_flops = [of.over_vanilla.value / of.realised.value for of in found]
    with drawing(height=4.2 if found else 1.2) as (figure, (axis,)):
        for x, of in zip(by_flops, found, strict=True):
            architecture, over = of.name.split("-")[0], of.over_vanilla
            look = look_of(architecture) if architecture in ARCHITECTURES else {"color": GREY, "marker": "x"}
            bar = [[over.value - over.low], [over.high - over.value]]
            axis.errorbar(x, over.value, bar, capsize=3, label=plain(of.label), **{**look, "linestyle": "-"})
        if found:
            ends = [0.95 * min(by_flops), 1.05 * max(by_flops)]
            axis.plot(ends, ends, color=GREY, linestyle=":", label="the clock follows the FLOPs")
        else:
            axis.annotate("no speed is given", (0.5, 0.5), xycoords="axes fraction", ha="center", color=INK)
            axis.set(xticks=[], yticks=[])
        axis.set(xlabel="speed-up over vanilla-15% in executed FLOPs", ylabel="speed-up by the clock")
        legend_below([axis], 3)
    said = ", ".join(f"{of.label} {of.over_vanilla.value:.2f}" for of in found if of.name != speeds.BASELINE)
    bars = f" Bars: {_basis(records)}." if found else ""
    return Figure(
        figure,
        "Speed-up by the clock against speed-up in FLOPs, both over vanilla-15%; above the dotted line a model is "
        f"faster than its FLOPs say. By the clock: {said or 'no speed is given'}.{bars}",
    )


def _not_measured(what: str) -> Table:
    return Table([{what: "not measured: it is not in benchmark_parts"}], what)


def _layers_and_head(record: RunRecord) -> str:
    """What the breakdown says of both; `benchmark.breakdown` knows the head by the size of the vocabulary."""
    first, c = next(iter(record.metrics["breakdown"].items())), record.parameters
    rows = (c["micro_batch_size"] or c["batch_size"]) * c["sequence_length"]
    if rows == record.data.get("vocab_size"):
        return (
            f"The vocabulary is as large as the number of tokens in a pass ({rows:,}), so layers' products over all "
            "tokens count as the head's here: the two are not told apart."
        )
    share = first[1]["matrix products"] / sum(first[1].values())
    return f"For {record.metrics['arms'][first[0]]['label']} the products of the layers are {share:.0%}."


def plot_breakdown(record: RunRecord) -> Figure | Table:
    """Where the time of a step goes, beside what its FLOPs would take at the ceiling."""
    if "breakdown" not in record.metrics:
        return _not_measured("Where the time goes")
    parts = record.metrics["breakdown"]
    names = list(parts)[::-1]
    labels = [plain(record.metrics["arms"][name]["label"]) for name in names]
    with drawing(height=1.5 + 0.36 * len(names)) as (figure, (axis,)):
        left = np.zeros(len(names))
        for kind, color in zip(_KINDS, PALETTE, strict=True):
            widths = np.array([1000 * parts[name][kind] for name in names])
            axis.barh(range(len(names)), widths, left=left, color=color, label=kind, height=0.62)
            left += widths
        ideal = [1000 * record.flops[name] / record.metrics["flops_ceiling"] for name in names]
        axis.scatter(ideal, range(len(names)), marker="|", s=160, color=INK, zorder=3, label="FLOPs at the ceiling")
        axis.set_yticks(range(len(names)), labels, fontsize=9)
        axis.set_xlabel("ms per step, under the profiler")
        axis.grid(axis="y", visible=False)
        legend_below([axis], 3)
    return Figure(
        figure,
        "Where the time of a step goes, by torch's profiler, and what the FLOPs of all of it would take at the ceiling "
        f"of matrix products. {_layers_and_head(record)}",
    )


def breakdown_table(record: RunRecord) -> Table:
    """The same as numbers."""
    if "breakdown" not in record.metrics:
        return _not_measured("Where the time goes")
    rows = []
    for name, parts in record.metrics["breakdown"].items():
        times = {kind: f"{1000 * seconds:.1f}" for kind, seconds in {**parts, "sum": sum(parts.values())}.items()}
        rows.append({"Model": record.metrics["arms"][name]["label"], **times})
    caption = "Where the time goes: ms per step, under torch's profiler, which slows small operations down."
    return Table(rows, caption + _doubt(record))


def plot_step_cost(record: RunRecord) -> Figure | Table:
    """Cost of a step along each axis of the geometry, by the clock and by Appendix C, relative to the geometry's."""
    if "scaling" not in record.metrics:
        return _not_measured("Scaling")
    points = record.metrics["scaling"]
    axes = list(dict.fromkeys(p["axis"] for p in points))
    with drawing(len(axes), 2.5, per_row=3) as (figure, panels):
        for panel, axis in zip(panels, axes, strict=True):
            here = [p for p in points if p["axis"] == axis]
            for architecture in PAPER_ARCHITECTURES:
                look, some = look_of(architecture), [p for p in here if p["architecture"] == architecture]
                x = [p["value"] for p in some]
                panel.plot(x, [p["flops"] / p["base_flops"] for p in some], **{**look, "marker": ""})
                panel.plot(x, [p["relative"] for p in some], markersize=5, **{**look, "linestyle": ""})
            panel.set_xlabel(_axis_name(axis))
            if axis != "mask_rate":
                panel.loglog(base=2)
                ticks = sorted({p["value"] for p in here})
                panel.set_xticks(ticks, [f"{t:g}" for t in ticks])
                panel.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4))
                panel.yaxis.set_major_formatter(matplotlib.ticker.FormatStrFormatter("%.2g"))
                panel.minorticks_off()
        panels[0].set_ylabel("cost, relative")
        labels = {a: ARCHITECTURES[a].label for a in PAPER_ARCHITECTURES}
        handles = [matplotlib.lines.Line2D([], [], label=label, **look_of(a)) for a, label in labels.items()]
        figure.legend(handles=handles, ncols=3, loc="outside upper center", fontsize=9)
    return Figure(
        figure,
        "Cost of a step relative to the preset's own size, one parameter varied at a time: lines by the FLOPs of "
        f"Appendix C as they are executed, marks by the clock. {_step_cost_statement(record)}{_doubt(record)}",
    )


def _doubt(record: RunRecord) -> str:
    why = speeds.why_no_speed(record) if "turns" in record.metrics else ""
    return f" The clock is not to be trusted here, as the session gives no speed ({why})." if why else ""


def _step_cost_statement(record: RunRecord) -> str:
    """How far the clock and Appendix C agree: the exponent of time over FLOPs, and the largest difference."""
    points = record.metrics["scaling"]
    by_flops, by_clock = [p["flops"] / p["base_flops"] for p in points], [p["relative"] for p in points]
    # no BLAS: its last digits are the machine's
    exponent = statistics.linear_regression([*map(math.log, by_flops)], [*map(math.log, by_clock)]).slope
    ratio = np.array(by_clock) / np.array(by_flops)
    worst = points[int(np.argmax(np.abs(np.log(ratio))))]
    return (
        f"Over all {len(points)} points time grows as FLOPs^{exponent:.2f}; clock and FLOPs differ by "
        f"{np.median(np.abs(ratio - 1)):.0%} in the median, by {np.max(np.abs(ratio - 1)):.0%} at most "
        f"({ARCHITECTURES[worst['architecture']].label}, {_axis_name(worst['axis'])} {worst['value']:g})."
    )


def step_cost_table(record: RunRecord) -> Table:
    """Every point of the figure."""
    if "scaling" not in record.metrics:
        return _not_measured("Scaling")
    rows = []
    for p in record.metrics["scaling"]:
        row = {
            "Varied": _axis_name(p["axis"]),
            "Value": f"{p['value']:g}",
            "Model": ARCHITECTURES[p["architecture"]].label,
        }
        row |= {"GFLOP": f"{p['flops'] / 1e9:.3g}", "ms per step": f"{1000 * p['seconds']:.1f}"}
        rows.append({**row, "By FLOPs": f"{p['flops'] / p['base_flops']:.2f}", "By the clock": f"{p['relative']:.2f}"})
    return Table(rows, "Scaling, point by point, over the preset's own size (medians of a few turns)", folded=True)


def preparation_table(record: RunRecord) -> Table:
    """Both ways of preparing data on the same text."""
    found = record.metrics.get("preparation")
    if found is None:
        return _not_measured("Preparing data")
    if isinstance(found, str):
        return Table([{"Preparing data": found}], "Preparing data")
    rows, rates = [], []
    for way, of in found.items():
        row = {"Way": {"ours": "this package", "run_mlm": "datasets.map, as run_mlm"}[way]}
        row |= {"Tokens": f"{of['tokens']:,}", "Seconds": f"{of['seconds']:.2f}"}
        row |= {"CPU seconds": f"{of['cpu_seconds']:.2f}", "tokens/s": f"{of['tokens'] / of['seconds']:,.0f}"}
        rates.append(of["tokens"] / of["cpu_seconds"])
        row["Tokens per CPU second"] = f"{rates[-1]:,.0f}"
        rows.append({**row, "Memory": f"{of['peak_bytes'] / 2**20:,.0f} MiB"})
    times = f"{rates[0] / rates[1]:.1f} times the tokens per CPU second. Memory is what it adds to the imports."
    return Table(rows, f"Preparing data, the same text and tokenizer, each in a process of its own: {times}")


def clock_said(record: RunRecord | None, repeated: str) -> str:
    """When and where steps were timed in turns (stage `clock`), and how noisy: what was timed twice against itself."""
    if record is None:
        return "The clock has not been measured."
    floor = speeds.noise(record)
    assert floor is not None
    hardware, rounds = record.environment["hardware"], len(next(iter(record.metrics["turns"].values()))["seconds"])
    where = hardware.get("gpu", f"one thread of {hardware['cpu']}")
    doubt = speeds.why_no_speed(record)
    return (
        f"Clock: {rounds} rounds in turns on {where}; {repeated} against itself {speeds.text_of(floor, 3)}."
        f"{f' In doubt: {doubt}.' if doubt else ''} Record: {record.run_id}."
    )
