"""What a study says of the paper's claims: the verdicts, the comparisons behind them, and the key figure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from threeml_core.config import StudyConfig
from threeml_core.glue.tasks import ABLATION_TASKS
from threeml_core.paper import RECIPES, reported_values
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.reporting import cells
from threeml_core.reporting.drawing import LEFT, RIGHT, draw_intervals, finish_panels
from threeml_core.reporting.style import Figure, drawing, look_of
from threeml_core.reporting.table import MISSING, NOT_RUN, Table
from threeml_core.runs.record import RunRecord
from threeml_core.statistics.intervals import Interval
from threeml_core.statistics.verdicts import UNEVEN, Claim, Finding, corrected_verdicts, family_statement
from threeml_core.study.results import Result


def claim_table(found: Sequence[Claim]) -> Table:
    """The paper's claims, each with its verdict."""
    rows = []
    for claim, corrected in zip(found, corrected_verdicts(found), strict=True):
        row = {"Claim": claim.name, "The paper says": claim.text, "Where": claim.where}
        row["Here"] = "; ".join(measured(finding) for finding in claim.findings if finding.values) or NOT_RUN
        rows.append({**row, "Verdict": claim.verdict, "Corrected": corrected, "Why not": claim.reasons})
    return Table(rows, f"What this study says of the paper's claims. {family_statement(found)}")


def finding_table(found: Sequence[Claim]) -> Table:
    """Every comparison behind the verdicts, with the spread over seeds pooled over the models and with its own."""
    findings = [(claim.name, finding) for claim in found for finding in claim.findings]
    # pooled intervals judge only where the study's parameters say so beforehand
    judges = any(finding.pooled for _, finding in findings)
    pooled = "Pooled" if judges else "Pooled (exploratory)"
    rows = []
    for name, finding in findings:
        shown, pool, spread = finding.detectable, finding.by_pool, finding.spread
        row = {"Claim": name, "Comparison": finding.what, "Measured": measured(finding)}
        row["The claim says"] = f"{finding.range} {finding.unit}".strip()
        row["Shows from"] = MISSING if shown is None else f"{number_of(shown, finding)} {finding.unit}".strip()
        row[pooled] = f"{_half(pool, finding)} ({spread.freedom} degrees of freedom)" if pool and spread else MISSING
        if judges:
            row["By own seeds"] = _half(finding.by_own_seeds, finding) if finding.by_own_seeds else MISSING
        row["Verdict"] = finding.verdict
        rows.append({**row, "Why not": "" if finding.verdict == NOT_RUN else "; ".join(finding.reasons)})
    return Table(rows, f"The comparisons behind the verdicts{_how_alike(findings) if judges else ''}")


def _how_alike(findings: Iterable[tuple[str, Finding]]) -> str:
    """Do the models vary alike over seeds, as a pooled spread takes them to?"""
    known = dict.fromkeys(
        (of.unit, of.spread.alike) for _, of in findings if of.spread and of.spread.alike is not None and of.values
    )
    said = ", ".join(f"p = {p:.2g} ({unit})" for unit, p in known)
    rule = f"below {UNEVEN:g} the wider interval judges"
    return f". Pooled: models are taken to vary alike over seeds; Bartlett's test of that: {said or 'too few'}; {rule}"


def number_of(value: float, finding: Finding, sign: str = "") -> str:
    """With the decimals of the finding's unit."""
    digits = {"points": 1, "nats": 3}.get(finding.unit, 2)
    return f"{value:{sign}.{digits}f}"


def _half(found: Interval, finding: Finding) -> str:
    return "" if found.high is None else f"± {number_of(found.high - found.mean, finding)}"


def measured(finding: Finding) -> str:
    """Mean with half its interval and unit."""
    found = finding.interval
    if found is None:
        return MISSING if finding.doubt else NOT_RUN
    mean = number_of(found.mean, finding, "+" if finding.unit else "")
    return " ".join(filter(None, (mean, _half(found, finding), finding.unit)))


def reported(setting: str, unit: str) -> float | None:
    """What the paper has of a model of its efficient recipe, see `ReportedValue.setting`; None: nothing.

    By unit: points, the average score (of an ablation the accuracy); nats, the perplexity; "", the speed-up.
    """
    values = (value for value in reported_values() if value.recipe == RECIPES[0] and value.setting == setting)
    known = {value.metric: value.value for value in values}
    if "=" not in setting:
        return known.get({"points": "glue_average", "nats": "perplexity"}.get(unit, "speedup"))
    scores = [known[metric] for task in ABLATION_TASKS if (metric := f"{task}_accuracy") in known]
    return statistics.fmean(scores) if len(scores) == len(ABLATION_TASKS) else None


def key_figure(results: Sequence[Result], config: StudyConfig, records: Sequence[RunRecord] | None = None) -> Figure:
    """The models of Table 3: perplexity at masked positions and average score against the speed-up in FLOPs.

    `records`: see `references`.
    """
    shown = cells.with_equal_steps(results, config)
    ends = []
    with drawing(2) as (figure, axes):
        for result in shown:
            c, ups = result.run.config, cells.speedup(result)
            # the 3ML models lie close to each other
            side = {"vanilla": RIGHT, "self": LEFT if c.mask_rate < 0.5 else RIGHT}.get(c.architecture, (14, -9))
            look = {**look_of(c.architecture), "linestyle": "none", "label": ARCHITECTURES[c.architecture].label}
            draw_intervals(axes, [(up, result) for up in ups], side, markersize=7, **look)
            ends.append(
                f"{result.run.model}: speed-up {cells.measured(ups, 2)}, perplexity at masked positions "
                f"{cells.perplexity(result)}, score {cells.average(result.comparison)}"
            )
        for axis in axes:
            axis.margins(0.22)
        against = finish_panels(axes, shown, "speed-up in FLOPs over vanilla at 15%", records)
        in_paper = _draw_paper(axes[1], shown)
    return Figure(
        figure,
        "The models of Table 3: validation perplexity at masked positions, and average score after fine-tuning, by "
        f"the speed-up of pre-training in FLOPs. {'; '.join(ends)}."
        + f" Against: {against}." * bool(against)
        + f" Open: the paper's, at its scores or at the edge next to them ({in_paper})." * bool(in_paper),
    )


def _draw_paper(axis: Any, shown: Sequence[Result]) -> str:
    """Open marks at the speed-ups and scores of the paper's models, in words as well."""
    low, high = axis.get_ylim()
    said = []
    for result in shown:
        c = result.run.config
        speedup, score = (reported(f"{c.architecture} {c.mask_rate:g}", unit) for unit in ("", "points"))
        if speedup is not None and score is not None:
            y = min(max(score, low + 0.03 * (high - low)), high - 0.03 * (high - low))
            look = {**look_of(c.architecture), "linestyle": "none", "fillstyle": "none", "markersize": 7}
            axis.plot(speedup, y, zorder=1, **look)
            said.append(f"{result.run.model} {speedup:.2f}, {score:.1f}")
    axis.set_ylim(low, high)
    return "; ".join(said)
