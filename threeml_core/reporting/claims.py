"""What a study says of the paper's claims: the verdicts, the comparisons behind them, and the key figure."""

from __future__ import annotations

from collections.abc import Sequence

from threeml_core.config import StudyConfig
from threeml_core.parameters.architectures import ARCHITECTURES
from threeml_core.reporting import cells
from threeml_core.reporting.drawing import (
    ABOVE,
    BELOW,
    LEFT,
    RIGHT,
    draw_intervals,
    finish_panels,
    perplexities,
    scores,
)
from threeml_core.reporting.style import Figure, drawing, look_of
from threeml_core.reporting.table import MISSING, NOT_RUN, Table
from threeml_core.statistics.verdicts import Claim, Finding, corrected_verdicts, family_statement
from threeml_core.study.results import Result


def claim_table(found: Sequence[Claim]) -> Table:
    """The paper's claims, each with its verdict."""
    rows = [
        {
            "Claim": claim.name,
            "The paper says": claim.text,
            "Where": claim.where,
            "Here": "; ".join(_measured(finding) for finding in claim.findings if finding.values) or NOT_RUN,
            "Verdict": claim.verdict,
            "Corrected": corrected,
            "Why not": claim.reasons,
        }
        for claim, corrected in zip(found, corrected_verdicts(found), strict=True)
    ]
    return Table(rows, f"What this study says of the paper's claims. {family_statement(found)}")


def finding_table(found: Sequence[Claim]) -> Table:
    """Every comparison behind the verdicts, also with the spread over seeds pooled over the models of the study."""
    findings = [(claim.name, finding) for claim in found for finding in claim.findings]
    # pooled intervals judge only where the study's parameters say so beforehand
    pooled = "Pooled" if any(finding.pooled for _, finding in findings) else "Pooled (exploratory)"
    rows = []
    for name, finding in findings:
        row = {"Claim": name, "Comparison": finding.what, "Measured": _measured(finding)}
        row["The claim says"] = f"{finding.range} {finding.unit}".strip()
        shown = "" if finding.detectable is None else f"{_number(finding.detectable, finding)} {finding.unit}"
        row |= {"Shows from": shown.strip() or MISSING, pooled: _pooled(finding), "Verdict": finding.verdict}
        rows.append({**row, "Why not": "" if finding.verdict == NOT_RUN else "; ".join(finding.reasons)})
    return Table(rows, "The comparisons behind the verdicts")


def _number(value: float, finding: Finding, sign: str = "") -> str:
    digits = {"points": 1, "nats": 3}.get(finding.unit, 2)
    return f"{value:{sign}.{digits}f}"


def _pooled(finding: Finding) -> str:
    """Half the interval that follows from the spread of all models together, and its degrees of freedom."""
    found = finding.by_pool
    if found is None or found.high is None or finding.spread is None:
        return MISSING
    return f"± {_number(found.high - found.mean, finding)} ({finding.spread.freedom} degrees of freedom)"


def _measured(finding: Finding) -> str:
    """What a comparison measured, with its unit, which ratios do not have."""
    found = finding.interval
    if found is None:
        return MISSING if finding.doubt else NOT_RUN
    text = _number(found.mean, finding, "+" if finding.unit else "")
    half = "" if found.high is None else f" ± {_number(found.high - found.mean, finding)}"
    return f"{text}{half} {finding.unit}".strip()


def key_figure(outcomes: Sequence[Result], config: StudyConfig) -> Figure:
    """The models of Table 3: perplexity at masked positions and average score against the speed-up in FLOPs."""
    shown = cells.with_equal_steps(outcomes, config)
    ends = []
    with drawing(2) as (figure, axes):
        for outcome in shown:
            c, ups = outcome.run.config, cells.speedup(outcome)
            # the 3ML models lie close to each other
            sides = {"vanilla": RIGHT, "self": LEFT if c.mask_rate < 0.5 else RIGHT, "cross": BELOW}
            look = {**look_of(c.architecture), "linestyle": "none", "markersize": 7}
            look |= {"label": ARCHITECTURES[c.architecture].label, "side": sides.get(c.architecture, ABOVE)}
            draw_intervals(axes, [(up, outcome) for up in ups], **look)
            said = f"perplexity at masked positions {cells.measured_perplexity(perplexities(outcome))}"
            said += f", score {cells.measured(scores(outcome))}"
            ends.append(f"{outcome.run.model}: speed-up {cells.measured(ups, 2)}, {said}")
        for axis in axes:
            axis.margins(0.22)
        finish_panels(figure, axes, shown, "speed-up in FLOPs over vanilla at 15%")
    return Figure(
        figure,
        "The models of Table 3: validation perplexity at masked positions, and average score after fine-tuning, by "
        f"the speed-up of pre-training in FLOPs. {'; '.join(ends)}.",
    )
