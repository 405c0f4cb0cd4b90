"""Tables that read well in JupyterLab, in the report, on a terminal and in a comparison by nbval."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from threeml_core.config import (
    DATA_PARAMETERS,
    KINDS,
    MODEL_NAMES,
    StudyConfig,
    executed_statement,
    identity_parameters,
)
from threeml_core.runs.record import RunRecord

MISSING = "—"
"""A cell for which there is nothing to show."""

NOT_RUN = "not run"
"""A cell whose run is missing."""


class Table:
    """Rows of formatted text with a caption. Cells that look like numbers are set flush right.

    Args:
        rows: column -> text, for each row.
        caption: what the table shows.
        folded: show only the caption until it is clicked.
        commands: (label, command) for what stands in the rows; folded below them.
    """

    def __init__(
        self,
        rows: Sequence[Mapping[str, str]],
        caption: str,
        folded: bool = False,
        commands: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.folded = folded
        self.commands = tuple(commands)
        self.columns = list(dict.fromkeys(name for row in rows for name in row))
        self.rows = [[row.get(name, "") for name in self.columns] for row in rows]
        self.caption = caption

    def __repr__(self) -> str:
        grid = [self.columns, *self.rows]
        widths = [max(len(row[i]) for row in grid) for i in range(len(self.columns))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in grid]
        return "\n".join([self.caption, *lines])

    def markdown(self) -> str:
        """For a document; the caption stands in its text."""

        def line(cells: Iterable[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        rule = ["--:" if all(map(_is_number, column)) else "---" for column in zip(*self.rows, strict=True)]
        return "\n".join([line(self.columns), line(rule), *map(line, self.rows)])

    def _repr_html_(self) -> str:
        head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in self.columns)
        body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in self.rows)
        caption = html.escape(self.caption)
        head, body = f"<thead><tr>{head}</tr></thead>", f"<tbody>{body}</tbody>"
        if self.folded:
            return f'<details><summary>{caption}</summary><table class="study">{head}{body}</table></details>'
        table = f'<table class="study"><caption>{caption}</caption>{head}{body}</table>'
        if not self.commands:
            return table
        lines = "\n".join(f"# {label}\n{command}" for label, command in self.commands)
        return f"{table}<details><summary>repeat a row</summary><pre>{html.escape(lines)}</pre></details>"


_SHORT = 20
"""Characters of a cell that is not broken: names of models and splits."""

_NUMBER = re.compile(
    r"[+-]?\d[\d,.]*(e[+-]?\d+)?[×%KMG]?( ± [\d.]+| \([\d.]+ to [\d.]+\))?"
    r"( (M|G|s|min|h|kWh|Wh|GiB|MiB|GFLOP/s|tokens/s))?"
)


def _is_number(text: str) -> bool:
    return text in (MISSING, "") or _NUMBER.fullmatch(text) is not None


def _cell(text: str) -> str:
    number = text and _is_number(text)
    style = ' class="number" style="text-align:right"' if number else ' style="text-align:left"'
    if len(text) <= _SHORT and not number:
        style = f' class="short"{style}'
    return f"<td{style}>{html.escape(text)}</td>"


def parameter_table(config: StudyConfig, names: Iterable[str] | None = None) -> Table:
    """Every parameter that decides the result, with its value and where it came from.

    Args:
        config: the parameters.
        names: which; None: those of a pre-training run.
    """
    names = ["preset", *(names or (*DATA_PARAMETERS, *identity_parameters(config)))]
    values = config.parameters()
    rows = [{"Parameter": n, "Value": f"{values[n]}", "Source": config.sources[n]} for n in dict.fromkeys(names)]
    return Table(rows, "Resolved parameters")


def corpus_table(meta: Mapping[str, Any]) -> Table:
    """Documents, words, tokens and blocks of both sides of prepared data."""
    rows = [
        {
            "Side": side,
            "Documents": f"{meta[side]['documents']:,}",
            "Words": f"{meta[side]['words']:,}",
            "Tokens": f"{meta[side]['tokens']:,}",
            "Blocks": f"{meta[side]['blocks']:,}",
            "Words a token": f"{meta[side]['words'] / meta[side]['tokens']:.2f}",
        }
        for side in ("train", "validation")
    ]
    return Table(rows, f"Corpus {meta['corpus']}: {meta['vocab_size']:,} tokens, blocks of {meta['sequence_length']}")


def perplexity_table(metrics: Mapping[str, float]) -> Table:
    """Validation perplexity in total and by kind, beside the unigram's at the same positions."""
    rows = []
    for kind in ("all corrupted", *KINDS):
        suffix = "" if kind == "all corrupted" else f"_{kind}"
        if f"eval_perplexity{suffix}" not in metrics:
            continue
        model, unigram = metrics[f"eval_perplexity{suffix}"], metrics[f"unigram_perplexity{suffix}"]
        rows.append(
            {
                "Tokens": kind,
                "Model": f"{model:.1f}",
                "Unigram": f"{unigram:.1f}",
                "Model against unigram": f"{model / unigram - 1:+.0%}",
            }
        )
    return Table(rows, "Validation perplexity (exp of the mean cross-entropy in nats)")


def plateau_statement(metrics: Mapping[str, float]) -> str:
    """One plain sentence: has the model learned anything about masked tokens?"""
    model, unigram = metrics["eval_perplexity_masked"], metrics["unigram_perplexity_masked"]
    change = model / unigram - 1
    if metrics["on_unigram_plateau"]:
        return (
            f"This run shows nothing about the method yet: at masked positions its perplexity ({model:.1f}) has not "
            f"left the unigram plateau ({unigram:.1f}, {change:+.0%}). Train longer before comparing models."
        )
    return (
        f"The model has left the unigram plateau: at masked positions its perplexity is {model:.1f}, the unigram's "
        f"{unigram:.1f} ({change:+.0%})."
    )


def result_line(record: RunRecord, runs_dir: str | Path) -> str:
    """A pre-training in one line: loss, perplexity, and where the record lies."""
    m = record.metrics
    return (
        f"{record.run_id}: training loss {m['train_loss']:.3f} nats, validation perplexity {m['eval_perplexity']:.1f} "
        f"(both over all corrupted tokens), {m['eval_perplexity_masked']:.1f} at [MASK]s (unigram "
        f"{m['unigram_perplexity_masked']:.1f}); record: {runs_dir}/{record.stage}/{record.run_id}/record.json"
    )


def flops_table(record: RunRecord) -> Table:
    """FLOPs and speed-ups by the corrected Appendix C; the same on every machine."""
    f = record.flops
    if not f:
        return Table([{"Quantity": "FLOPs", "Value": "not counted: ragged rows"}], "Cost of this run in FLOPs")
    rows = {
        "forward FLOPs a block": f"{f['forward_per_block'] / 1e6:,.1f} M",
        "training FLOPs": f"{f['training']:.3g}",
        "speed-up in FLOPs over vanilla at 15%": f"{f['speedup_over_vanilla_15']:.2f}×",
        "speed-up in FLOPs over vanilla at the same rate": f"{f['speedup_over_vanilla_same_rate']:.2f}×",
    }
    return Table([{"Quantity": name, "Value": value} for name, value in rows.items()], "Cost of this run in FLOPs")


def speed_table(record: RunRecord) -> Table:
    """What the wall clock and the memory said on this machine."""
    t = record.timing
    rows = {
        "training time": f"{t['train_seconds']:.0f} s",
        "throughput": f"{t['tokens_per_second']:,.0f} tokens/s",
        "peak memory": f"{t['peak_memory_bytes'] / 2**20:,.0f} MiB",
    }
    if record.flops:
        rows["executed"] = f"{record.flops['training'] / t['train_seconds'] / 1e9:,.1f} GFLOP/s"
    return Table([{"Quantity": name, "Value": value} for name, value in rows.items()], "Cost of this run in time")


_MAY_DIFFER = {"architecture", "mask_rate", "mask_split", "corruption", "mask_counts", "seed"}


def comparable(record: RunRecord, others: Iterable[RunRecord]) -> list[RunRecord]:
    """Runs that differ from this one in model, corruption and seed only, validated on the same corruption."""

    def same(other: RunRecord) -> bool:
        if other.failure:
            return False
        # the vanilla model has no decoder parameters: what both have must be equal
        shared = (record.identity.keys() & other.identity.keys()) - _MAY_DIFFER
        equal = all(record.identity[key] == other.identity[key] for key in shared)
        return equal and record.metrics["eval_corruption"] == other.metrics["eval_corruption"]

    order = ("vanilla", "self", "cross")
    return sorted(
        filter(same, others),
        key=lambda r: (order.index(r.parameters["architecture"]), r.parameters["mask_rate"], r.run_id),
    )


def comparison_table(record: RunRecord, others: Iterable[RunRecord]) -> Table:
    """This run beside all finished runs that may be compared with it."""
    rows = []
    for r in comparable(record, others):
        p, m = r.parameters, r.metrics
        rows.append(
            {
                "Run": ("→ " if r.run_id == record.run_id else "") + r.run_id,
                "Model": MODEL_NAMES[p["architecture"]],
                "Mask rate": f"{p['mask_rate']:g}",
                "Split": p["mask_split"],
                "Seed": f"{p['seed']}",
                "Perplexity, masked": f"{m['eval_perplexity_masked']:.1f}",
                "Perplexity, all corrupted": f"{m['eval_perplexity']:.1f}",
                "Speed-up in FLOPs": f"{r.flops['speedup_over_vanilla_15']:.2f}×" if r.flops else "not counted",
            }
        )
    return Table(rows, "Finished runs on the same text, validated on the same corruption")


def corruption_note(records: Iterable[RunRecord]) -> str:
    """What mask rates and splits execute in sequences of this length, where that is not what was asked for; else ""."""
    found: dict[str, None] = {}
    lengths = set()
    for record in records:
        for evaluation, prefix in ((False, ""), (True, "validation: ")):
            executed = record.identity.get("eval_corruption" if evaluation else "corruption", {})
            if statement := executed_statement(record.parameters, executed, evaluation):
                found[prefix + statement] = None
                lengths.add(record.parameters["sequence_length"])
    if not found:
        return ""
    n = " or ".join(f"{length:,}" for length in sorted(lengths))
    lines = "".join(f"\n* {line}" for line in sorted(found))
    return f"Executed per sequence of {n} tokens, with a whole number of [MASK]s (means over sequences):\n{lines}"
