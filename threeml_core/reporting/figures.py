"""Figures: seaborn, one colour a model everywhere, inline SVG whose ink follows the page (light or dark)."""

from __future__ import annotations

import html
import io
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import matplotlib.ticker
import numpy as np
import seaborn as sns
from matplotlib.figure import Figure as MatplotlibFigure

from threeml_core import flops
from threeml_core.config import MODEL_NAMES as NAMES
from threeml_core.config import make_config
from threeml_core.glue.protocol import GlueStudy
from threeml_core.runs.record import RunRecord, read_metrics

INK = "#010203"
"""Stands for the text colour of the page; replaced by `currentColor` in the SVG."""

COLORS = {"vanilla": "#2f8fd8", "self": "#e0701a", "cross": "#1a9e77", "other": "#b5559d", "reference": "#888888"}
"""Okabe and Ito's blue, vermilion, green and purple, shifted until they read on white and on near-black."""

STYLES = {"vanilla": ":", "self": "-", "cross": "--"}
MARKERS = {"vanilla": "s", "self": "o", "cross": "D"}

RC: Any = {  # of every figure
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": "#888888",
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "3ml",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


class Figure:
    """A figure as inline SVG with a description for those who do not see it.

    Args:
        figure: drawn by matplotlib; it is closed.
        alt: what it shows, in a sentence or two.
    """

    def __init__(self, figure: MatplotlibFigure, alt: str) -> None:
        self.alt = alt
        buffer = io.StringIO()
        with matplotlib.rc_context(RC):
            figure.savefig(buffer, format="svg", bbox_inches="tight", metadata={"Date": None, "Creator": None})
        plt.close(figure)
        svg = buffer.getvalue()
        svg = svg[svg.index("<svg") :].replace(INK, "currentColor")
        svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
        # names inside an SVG are global to the page: make them this figure's own
        prefix = f"f{zlib.crc32(alt.encode()):08x}-"
        svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r'(\bid="|url\(#|href="#)', rf"\1{prefix}", tag[0]), svg)
        label = html.escape(alt, quote=True)
        self.svg = svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)

    def __repr__(self) -> str:
        return f"Figure: {self.alt}"

    def _repr_html_(self) -> str:
        return f'<figure class="study">{self.svg}<figcaption>{html.escape(self.alt)}</figcaption></figure>'


def plain(text: str) -> str:
    """A label that comes from data: dollars in it are dollars, where matplotlib would read a formula."""
    return text.replace("$", r"\$")


def new_axes(columns: int = 1, height: float = 3.4, rows: int = 1) -> tuple[MatplotlibFigure, Any]:
    """A figure as wide as the page with `columns` panels side by side; call it under `rc_context(RC)`."""
    with matplotlib.rc_context(RC):
        figure, axes = plt.subplots(rows, columns, figsize=(7.4, height), squeeze=False, layout="constrained")
        for axis in axes.flat:
            axis.grid(True)
            sns.despine(ax=axis)
    return figure, axes.flatten()


MOST_CURVES = 16
"""Runs that `plot_training` draws: its legend has no room for more."""


def plot_training(record: RunRecord, others: Iterable[RunRecord], runs_dir: str) -> Figure:
    """Training loss, and validation perplexity at masked positions with the unigram's, of comparable runs.

    Of more than `MOST_CURVES` this run and the newest others are drawn.
    """
    comparable = runs = list(others)
    if len(comparable) > MOST_CURVES:
        newest = sorted(comparable, key=lambda run: run.environment["finished"])[1 - MOST_CURVES :]
        drawn = {record.run_id, *(run.run_id for run in newest)}
        runs = [run for run in comparable if run.run_id in drawn]
    with matplotlib.rc_context(RC):
        figure, (left, right) = new_axes(2)
        for run in runs:
            lines = read_metrics(run.folder(runs_dir) / "metrics.jsonl")
            name = run.parameters["architecture"]
            label = f"{NAMES[name]} {run.parameters['mask_rate']:.0%}"
            here = run.run_id == record.run_id
            look = {
                "color": COLORS[name],
                "linestyle": STYLES[name],
                "linewidth": 2.2 if here else 1.4,
                "alpha": 1 if here else 0.75,
            }
            train = [(line["step"], line["train_loss"]) for line in lines if "train_loss" in line]
            valid = [
                (line["step"], line["eval_perplexity_masked"]) for line in lines if "eval_perplexity_masked" in line
            ]
            left.plot(*zip(*train, strict=True), label=label, **look)
            right.plot(*zip(*valid, strict=True), label=label, marker=MARKERS[name], markersize=4, **look)
        unigram = record.metrics["unigram_perplexity_masked"]
        right.axhline(unigram, color=COLORS["reference"], linestyle="-.", label="unigram")
        left.set(xlabel="updates", ylabel="training loss, all corrupted (nats)")
        right.set(xlabel="updates", ylabel="validation perplexity, masked")
        right.legend(fontsize=9)
    names = ", ".join(f"{NAMES[r.parameters['architecture']]} at {r.parameters['mask_rate']:.0%}" for r in runs)
    return Figure(
        figure,
        "Left: training loss over all corrupted tokens, by update. Right: validation perplexity at masked positions, "
        f"which ends at {record.metrics['eval_perplexity_masked']:.0f} for this run; the unigram perplexity of the "
        f"same positions is {unigram:.0f}. Runs shown: {names}"
        + (f"; {len(comparable) - len(runs):,} older ones are not." if len(runs) < len(comparable) else "."),
    )


def plot_speedups(recipe: str, mode: flops.Mode = "paper") -> Figure:
    """Speed-up in FLOPs against the mask rate, over the vanilla model at 15% and at the same rate (Figure 5's axis)."""
    rates = np.linspace(0.05, 0.7, 27)
    with matplotlib.rc_context(RC):
        figure, axes = new_axes(2, 3.2)
        ends: list[str] = []
        for axis, baseline in zip(axes, (0.15, None), strict=True):
            for architecture in ("vanilla", "self", "cross"):
                values = []
                for rate in rates:
                    config = make_config({"preset": recipe, "architecture": architecture, "mask_rate": float(rate)})
                    values.append(flops.config_speedup(config, mode, baseline or float(rate)))
                axis.plot(
                    100 * rates,
                    values,
                    color=COLORS[architecture],
                    linestyle=STYLES[architecture],
                    linewidth=2,
                    label=NAMES[architecture],
                )
                if baseline:
                    ends.append(f"{NAMES[architecture]} {np.interp(0.5, rates, values):.2f}")
            axis.set(
                xlabel="mask rate (%)",
                ylabel="speed-up in FLOPs",
                title="over vanilla at 15%" if baseline else "over vanilla at the same rate",
            )
        axes[0].legend(fontsize=9)
    return Figure(
        figure,
        f"Speed-up in pre-training FLOPs against the mask rate for {recipe}; it grows with the rate for both 3ML "
        f"models. "
        f"At 50% over the vanilla model at 15%: {', '.join(ends)}.",
    )


def plot_token_frequencies(counts: Sequence[int] | np.ndarray) -> Figure:
    """Rank against frequency of the training tokens, both logarithmic, with the unigram entropy."""
    ordered = np.sort(np.asarray(counts)[np.asarray(counts) > 0])[::-1]
    shares = ordered / ordered.sum()
    perplexity = float(np.exp(-(shares * np.log(shares)).sum()))
    with matplotlib.rc_context(RC):
        figure, (axis,) = new_axes()
        axis.loglog(np.arange(1, len(ordered) + 1), ordered, color=COLORS["vanilla"], linewidth=2)
        axis.set(xlabel="rank of the token", ylabel="occurrences in the training blocks")
    return Figure(
        figure,
        f"Frequency of the {len(ordered)} tokens that occur, by rank, on logarithmic axes; the unigram perplexity of "
        f"the training tokens is {perplexity:.0f}: what a model reaches that knows frequencies and nothing else.",
    )


def plot_learning_curves(study: GlueStudy, runs_dir: str) -> Figure:
    """Score on the validation set after each epoch, of the best run of each seed, a panel for each task."""
    results = [result for result in study.results if result.best]
    if not results:
        return _nothing(study)
    color = COLORS[study.architecture or "other"]
    ends = []
    with matplotlib.rc_context(RC):
        figure, axes = _panels(len(results))
        for axis, result in zip(axes, results, strict=True):
            assert result.chance is not None and result.score is not None
            shown = [100 * result.chance]
            for record in result.best:
                lines = read_metrics(record.folder(runs_dir) / "metrics.jsonl")
                epochs, scores = [line["epoch"] for line in lines], [100 * line["score"] for line in lines]
                axis.plot(epochs, scores, color=color, marker="o", markersize=4, linewidth=1.5, alpha=0.8)
                shown += scores
            axis.axhline(100 * result.chance, color=COLORS["reference"], linestyle="-.", label="constant answer")
            axis.set(xlabel="epoch", ylabel="score", title=result.title)
            axis.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
            axis.set_xlim(0.5, max(record.identity["epochs"] for record in result.best) + 0.5)
            middle, half = (max(shown) + min(shown)) / 2, max(5, 0.6 * (max(shown) - min(shown)))
            axis.set_ylim(middle - half, middle + half)  # at least 10 points, so that noise does not look like a rise
            ends.append(f"{result.task.title} {100 * result.score:.1f} (constant answer {100 * result.chance:.1f})")
        axes[0].legend(fontsize=9)
    return Figure(
        figure,
        f"{study.name}: validation score after each epoch, a line for the best run of each seed; the grey line is the "
        f"best constant answer. Median scores: {', '.join(ends)}.",
    )


def plot_spread(study: GlueStudy) -> Figure:
    """Every run's score, and the best of each seed, task by task: what choosing from the grid does."""
    results = [result for result in study.results if result.best]
    if not results:
        return _nothing(study)
    color = COLORS[study.architecture or "other"]
    with matplotlib.rc_context(RC):
        figure, (axis,) = new_axes(height=0.6 + 0.45 * len(results))
        for row, result in enumerate(results):
            ended = [100 * record.metrics["score"] for record in result.records if record.failure is None]
            axis.scatter(ended, [row] * len(ended), color=COLORS["reference"], s=18, alpha=0.5, label="a run")
            best = [100 * score for score in result.seed_scores]
            axis.scatter(best, [row] * len(best), color=color, s=34, label="best of a seed", zorder=3)
            assert result.chance is not None
            axis.scatter([100 * result.chance], [row], color=INK, marker="|", s=160, label="constant answer", zorder=4)
        axis.set_yticks(range(len(results)), [result.title for result in results])
        axis.set(xlabel="score", ylim=(len(results) - 0.5, -0.5))
        handles, labels = axis.get_legend_handles_labels()
        axis.legend(handles[:3], labels[:3], fontsize=9, loc="upper left", bbox_to_anchor=(1, 1))
    spreads = ", ".join(
        f"{result.task.title} {100 * min(result.seed_scores):.1f} to {100 * max(result.seed_scores):.1f}"
        for result in results
    )
    return Figure(
        figure,
        f"{study.name}: a dot for each run, a coloured one for the best run of each seed, a bar for the best constant "
        f"answer. Best of a seed: {spreads}.",
    )


def _nothing(study: GlueStudy) -> Figure:
    with matplotlib.rc_context(RC):
        figure, (axis,) = new_axes(height=1)
        axis.text(0.5, 0.5, "no task has a result", ha="center", va="center", color=INK)
        axis.set_axis_off()
    return Figure(figure, f"{study.name}: no run of any task ended, so there is nothing to draw.")


def _panels(count: int) -> tuple[MatplotlibFigure, list[Any]]:
    """`count` panels, at most four in a row."""
    columns = min(count, 4)
    rows = -(-count // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(7.4, 2.5 * rows), squeeze=False, layout="constrained")
    flat = list(axes.flat)
    for axis in flat[:count]:
        axis.grid(True)
        sns.despine(ax=axis)
    for axis in flat[count:]:
        axis.set_visible(False)
    return figure, flat[:count]
