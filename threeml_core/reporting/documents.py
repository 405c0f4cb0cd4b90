"""Tables in documents, written from a report's records: `python -m threeml_core.reporting.documents`.

A document marks where a table stands: `<!-- table: <preset> <name> -->`, then `<!-- end of table -->`; `no-preset`
stands for the preset of a table that is not of one report.
"""

from __future__ import annotations

import functools
import math
import operator
import re
import statistics
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

from threeml_core.config import StudyConfig, make_config
from threeml_core.foundation.errors import StudyError, command_line
from threeml_core.foundation.files import PROJECT_ROOT, atomic_file
from threeml_core.information.ledger import probe_records
from threeml_core.parameters.masking import KINDS
from threeml_core.reporting import cells
from threeml_core.reporting.claims import claim_table, finding_table
from threeml_core.reporting.cost import reported_and_computed
from threeml_core.reporting.probing import difference_table as probe_difference_table
from threeml_core.reporting.probing import probe_table
from threeml_core.reporting.rivals import comparison_table as rivals_table
from threeml_core.reporting.rivals import cost_table
from threeml_core.reporting.scaling import scaling_table
from threeml_core.reporting.speedrun import ladder_table, sweep_table
from threeml_core.reporting.standing import size_table, standing_table
from threeml_core.reporting.table import MISSING, NOT_RUN, Table
from threeml_core.reporting.table_2 import swap_table
from threeml_core.reporting.table_3 import budget_table, difference_table, learned_table
from threeml_core.runs.archive import from_records
from threeml_core.runs.record import STAGES, load_records
from threeml_core.statistics.verdicts import Claim, corrected_verdicts
from threeml_core.study.claims import claims
from threeml_core.study.ledger import find
from threeml_core.study.probes import Probes, probe_claims, probes_of, results_to_probe
from threeml_core.study.results import Downstream, Result, averages
from threeml_core.study.rivals import read_race
from threeml_core.study.rungs import climbed, read_sweep

DOCUMENTS = (
    "README.md",
    "docs/paper-notes.md",
    "docs/performance.md",
    "docs/probing.md",
    "docs/reading-the-report.md",
    "docs/rivals.md",
    "reports/FINDINGS.md",
    "reports/small-modern/FINDINGS.md",
    "reports/small-roberta/FINDINGS.md",
    "reports/small/FINDINGS.md",
    "reports/small/APPENDIX.md",
)  # files of the project that hold such tables

REPLICATIONS = {"ModernBERT": "small-modern", "RoBERTa": "small-roberta"}
"""Encoder -> preset of the study that asked the paper's questions of it."""

CORE_WATTS = 10.0  # of one busy core, assumed: 280 W over a server's 64 cores, doubled for all around it, rounded up

_BLOCK = re.compile(r"(<!-- table: (\S+) (\S+) -->\n).*?(<!-- end of table -->)", re.DOTALL)


class Study:
    """The records of a committed report, and what follows from them."""

    def __init__(self, preset: str) -> None:
        self.config = c = from_records(make_config({"preset": preset}), PROJECT_ROOT / "reports" / preset)
        self.records = of = {stage: load_records(c.runs_dir, stage) for stage in STAGES}
        self.results = find(c)
        self.claims = claims(c, self.results, of["mutual_information"], of["benchmark"])
        self.compared = cells.with_equal_steps(self.results, c)


def _results(study: Study) -> Table:
    rows = []
    for result in study.compared:
        share = cells.measured((100 / up for up in cells.speedup(result)), 0)
        row = {"Model": result.run.model, "FLOPs of vanilla-15%": f"{share}%"}
        row["Perplexity at [MASK]s"] = cells.perplexity(result)
        rows.append({**row, "Average score": cells.average(result.comparison)})
    return Table(rows, "")


def _kinds(study: Study) -> Table:
    """Losses of Table 3's models against vanilla-15%, over all corrupted tokens and without the unchanged ones."""
    shown = cells.shown_in("Table 3", study.results)
    baseline = next(o for o in shown if o.run.model == "vanilla-15%")
    rows = []
    for result in shown:
        row = {"Model": result.run.model, "Steps": f"{result.run.config.max_steps:,}"}
        row |= {f"Perplexity, {kind}": cells.perplexity(result, f"eval_perplexity_{kind}") for kind in KINDS}
        for heading, kinds in (("all corrupted", KINDS), ("masked and replaced", KINDS[:2])):
            found = cells.difference(_mean_loss(result, kinds), _mean_loss(baseline, kinds), 3)
            row[f"Loss against vanilla-15%, {heading} (nats)"] = MISSING if result is baseline else found
        rows.append(row)
    return Table(rows, "")


def _mean_loss(result: Result, kinds: Sequence[str]) -> dict[int, float]:
    """Seed -> mean cross-entropy over these kinds of tokens of the validation corruption; nats."""
    found = {}
    for seed, record in result.ended.items():
        shares = {kind: float(Fraction(record.identity["eval_corruption"][kind])) for kind in kinds}
        losses = [w * math.log(record.metrics[f"eval_perplexity_{kind}"]) for kind, w in shares.items() if w]
        found[seed] = sum(losses) / sum(shares.values())
    return found


def _words(study: Study) -> Table:
    """The bag of words beside the models, and averages with QQP's accuracy alone in place of its two metrics."""
    vanilla = next(o for o in study.compared if o.run.model == "vanilla-40%")
    rows = []
    for result in study.compared:
        row = {"Model": result.run.model, "Average": cells.average(result.comparison)}
        for heading, average in (("F1 and accuracy", averages), ("accuracy", _averages_with_accuracy)):
            found = cells.difference(average(result.comparison), average(vanilla.comparison), 2)
            row[f"Against vanilla-40%, QQP by {heading} (points)"] = MISSING if result is vanilla else found
        rows.append(row)
    words = {record.data["task"]: record.metrics["score"] for record in study.records["baseline"]}
    return Table([*rows, {"Model": "a bag of words", "Average": cells.percent(statistics.fmean(words.values()))}], "")


def _averages_with_accuracy(studies: Mapping[int, Downstream]) -> dict[int, float]:
    """As `averages`, with QQP's accuracy as its number."""
    found = {}
    for seed, study in studies.items():
        scores = [(study.metrics(t) or {}).get("accuracy") if t.name == "qqp" else study.score(t) for t in study.tasks]
        if len(known := [score for score in scores if score is not None]) == len(scores):
            found[seed] = 100 * statistics.fmean(known)
    return found


def _cost(study: Study) -> Table:
    """Hours of training (of mutual information: of all of it) by stage, times threads, and energy at `CORE_WATTS`."""
    found = []
    for stage, key in (("pretrain", "train_seconds"), ("finetune", "train_seconds"), ("mutual_information", "seconds")):
        records = [r for r in study.records[stage] if r.failure is None]
        seconds = [sum(v for k, v in r.timing.items() if k.endswith(key)) for r in records]
        threads = [float(r.environment["hardware"].get("threads", 1)) for r in records]
        hours = sum(map(operator.mul, seconds, threads)) / 3600
        found.append(({"Stage": stage.replace("_", " "), "Runs": f"{len(records):,}"}, hours))
    found.append(({"Stage": "all"}, sum(hours for _, hours in found)))
    energy = f"kWh, at {CORE_WATTS:g} W per core"
    rows = [{**row, "Core-hours": f"{h:.2f}", energy: f"{h * CORE_WATTS / 1000:.3f}"} for row, h in found]
    return Table(rows, "")


def _ladder(study: Study) -> Table:
    return ladder_table(climbed(study.config, read_sweep(study.config)))


def _sweep(study: Study) -> Table:
    return sweep_table(read_sweep(study.config), study.config)


def probes_found(config: StudyConfig) -> Probes:
    """What the records of a study's probes say."""
    return probes_of(config, results_to_probe(config), probe_records(config))


def _standing(study: Study) -> Table:
    return standing_table(probes_found(study.config), study.results, study.config)


def _headline(study: Study) -> Table:
    """As `standing_table`, narrower: perplexities without their intervals, and against vanilla-15% alone."""
    table = _standing(study)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    masked, left_out = "Perplexity at [MASK]s", ("Steps", "Against vanilla-40%, points")
    short = [{**row, masked: row[masked].partition(" ")[0]} for row in rows]
    return Table([{name: cell for name, cell in row.items() if name not in left_out} for row in short], "")


def judged_by_probes(config: StudyConfig) -> list[Claim]:
    """The claims that probes of the study's encoders judge, those included whose models are still to be run.

    Raises:
        ParameterError: there is no record of a probe.
    """
    claims = probe_claims(config, results_to_probe(config), probes_found(config))
    return [claim for claim in claims if any(finding.planned for finding in claim.findings)]


@functools.cache
def replicated() -> Mapping[str, Sequence[Claim]]:
    """Encoder -> the claims that probes judge in its report; the first has all that the others have."""
    return {encoder: judged_by_probes(Study(preset).config) for encoder, preset in REPLICATIONS.items()}


def _verdicts() -> Table:
    """Claims by encoder, corrected for all comparisons by probes there; *alone*: without that."""
    rows: dict[str, dict[str, str]] = {}
    nothing = dict.fromkeys(REPLICATIONS, NOT_RUN)
    for encoder, found in replicated().items():
        for claim, corrected in zip(found, corrected_verdicts(found), strict=True):
            name = claim.name.partition(" ")[0]
            row = rows.setdefault(name, {"Claim": name, "What it says": claim.text, **nothing})
            row[encoder] = corrected + f" ({claim.verdict} alone)" * (corrected != claim.verdict)
    return Table([*rows.values()], "")


TABLES: Mapping[str, Callable[[Study], Table]] = {
    "results": _results,
    "claims": lambda study: claim_table(study.claims),
    "findings": lambda study: finding_table(study.claims),
    "differences": lambda study: difference_table(study.results, study.config),
    "swap": lambda study: swap_table(study.results),
    "scaling": lambda study: scaling_table(study.results, study.config),
    "budget": lambda study: budget_table(study.results),
    "learned": lambda study: learned_table(study.results, study.config, study.records["finetune"]),
    "cost": _cost,
    "kinds": _kinds,
    "words": _words,
    "ladder": _ladder,
    "sweep": _sweep,
    "rivals": lambda study: rivals_table(read_race(study.config)),
    "rivals-cost": lambda study: cost_table(read_race(study.config), study.config),
    "standing": _standing,
    "headline": _headline,
    "sizes": lambda study: size_table(probes_found(study.config), results_to_probe(study.config), study.config),
    "probes": lambda study: probe_table(probes_found(study.config)),
    "probe-claims": lambda study: claim_table(judged_by_probes(study.config)),
    "probe-differences": lambda study: probe_difference_table(probes_found(study.config)),
}

OTHERS: Mapping[str, Callable[[], Table]] = {"reported": reported_and_computed, "verdicts": _verdicts}
"""Tables of formulas, and of several reports."""

_NO_PRESET = "no-preset"


def render(text: str, studies: dict[str, Study]) -> str:
    """A document's text with its tables written anew; a study that is missing in `studies`, by preset, is added.

    Raises:
        StudyError: a table of another name.
    """

    def table(match: re.Match[str]) -> str:
        start, preset, name, end = match.groups()
        known = OTHERS if preset == _NO_PRESET else TABLES
        if name not in known:
            raise StudyError(f"no table {name!r} is known: expected one of {', '.join(known)}")
        if preset == _NO_PRESET:
            return f"{start}{OTHERS[name]().markdown()}\n{end}"
        if preset not in studies:
            studies[preset] = Study(preset)
        return f"{start}{TABLES[name](studies[preset]).markdown()}\n{end}"

    return _BLOCK.sub(table, text)


def outdated(write: bool = False) -> list[str]:
    """Documents whose tables are not those of the records; with `write` they are brought up to date."""
    studies: dict[str, Study] = {}
    found = []
    for name in DOCUMENTS:
        path = PROJECT_ROOT / name
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        if (new := render(text, studies)) != text:
            found.append(name)
            if write:
                with atomic_file(path) as temporary:
                    temporary.write_text(new, encoding="utf-8")
    return found


@command_line
def main() -> None:
    """Write the tables of all documents anew."""
    changed = outdated(write=True)
    print("\n".join(f"{name}: written" for name in changed) or "all tables are up to date")


if __name__ == "__main__":
    main()
